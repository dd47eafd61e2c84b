/* SPDX-License-Identifier: MIT */
/*
 * One random call about ranges, and the state that it changes: for model/range_calls.
 *
 * Threads: `lock` guards the sums and slots of `env`, and the records of callbacks.  The main thread draws the calls.
 */
#ifndef XSEG_TESTS_RANGE_CALL_H
#define XSEG_TESTS_RANGE_CALL_H

#include <pthread.h>

#include "src/core/block/block.h"
#include "src/core/device/device.h"
#include "src/core/range/range.h"
#include "tests/support/child.h"
#include "tests/support/ranges.h"
#include "tests/support/rng.h"
#include "vmm/alias.h"
#include "xseg/register.h"

#define RANGES        3u
#define GRANULES      12u
#define ALL_GRANULES  (RANGES * GRANULES)
#define STREAMS       3u
#define BLOCKS        6u
#define REGISTRATIONS 3u
#define DESCRIPTORS   4u
#define POOLS         2u
#define NESTED        3u /* calls from callbacks in a step */

enum operation {
    COMMIT,
    DECOMMIT,
    HOLD,
    UNHOLD,
    ALIAS,
    PIN,
    UNPIN,
    DMABUF,
    DMABUF_CLOSE,
    EXPORT,
    EXPORT_CLOSE,
    REGISTER,
    UNREGISTER,
    PAUSE,
    RESUME,
    RELEASE,
    ALLOC,
    FREE,
    TRIM,
    PREPARE,
    QUOTA,
    FINISH,
    OPERATIONS
};

/* Statuses as a set. */
#define IS(status) (1u << -(status))
enum {
    OK = IS(XSEG_OK),
    BUSY = IS(XSEG_ERR_BUSY),
    ARGUMENT = IS(XSEG_ERR_ARGUMENT),
    NOT_ALLOCATED = IS(XSEG_ERR_NOT_ALLOCATED),
    PAUSED = IS(XSEG_ERR_PAUSED),
    OUT_OF_MEMORY = IS(XSEG_ERR_NO_MEMORY) | IS(XSEG_ERR_LIMIT),
    FAULT = IS(XSEG_ERR_DRIVER) | IS(XSEG_ERR_NO_MEMORY) | IS(XSEG_ERR_NO_ADDRESSES),
    ANY = OK | BUSY | ARGUMENT | NOT_ALLOCATED | PAUSED | OUT_OF_MEMORY
};

struct call {
    enum operation operation;
    unsigned range, first, count, stream;
    unsigned from, at; /* ALIAS: range and granule of the source */
    unsigned slot;     /* of the object that the call creates or ends; it is reserved by a draw */
    uint64_t bytes;    /* of a block, prepared memory or a quota; REGISTER: whether to pin */
    uint64_t id;       /* of a registration */
    void *block;
    int descriptor;
    unsigned allowed; /* set of the allowed results */
    xseg_status status;
    struct child_case_thread thread;
    atomic_bool has_waited; /* the call in a second thread has waited for the main thread */
};

/* A slot that a call is about to fill or to empty. */
#define RESERVED_ID         UINT64_MAX
#define RESERVED_DESCRIPTOR (-2)

struct registration {
    uint64_t id; /* 0: none */
    unsigned range, first, count;
    bool pin;
    bool runs_callback; /* one of its callbacks runs in the main thread */
    bool entered[ALL_GRANULES];
};

/* An index from 0 to ALL_GRANULES - 1 is that of a granule among those of all ranges. */
struct env {
    struct xseg_allocator *allocator;
    struct xseg_device *device;
    xseg_stream stream[STREAMS];
    struct xseg_pool *pool[POOLS];
    struct xseg_range *range[RANGES];
    uint64_t base[RANGES], observer;
    struct xseg_registrar registrar; /* of registrations; the context is the registration */
    bool is_released[RANGES];
    /* Sums of successful calls.  retains: descriptors and exports. */
    int committed[ALL_GRANULES], holds[ALL_GRANULES], pins[ALL_GRANULES], retains[ALL_GRANULES];
    int paused[POOLS];
    bool is_notified[ALL_GRANULES]; /* observers were notified of a mapping */
    struct registration registration[REGISTRATIONS];
    int descriptor[DESCRIPTORS]; /* -1: none */
    unsigned descriptor_index[DESCRIPTORS];
    unsigned exports[ALL_GRANULES]; /* granules of the export at an address; 0: none */
    void *block[BLOCKS];
    bool is_reserved[BLOCKS]; /* slots of blocks */
    uint64_t generation[ALL_GRANULES];
    uint64_t tag[ALL_GRANULES], tags; /* expected word of a granule, 0: unknown; number of tags */
    uint64_t random;
    bool has_faults;
    /* State of the step. */
    unsigned max_nested, calls; /* maximum and actual number of calls from callbacks */
    bool is_nested;             /* a callback makes a call */
    bool was_resumed[POOLS];
    atomic_bool had_fault;
    struct call nested[NESTED];
    pthread_t thread[NESTED];
    bool has_thread[NESTED];
};

struct tally {
    uint64_t calls[OPERATIONS], nested, by_thread, waited, faults, failed, busy;
};

extern struct env env;
extern struct tally tally;
extern pthread_mutex_t lock;
extern bool traces; /* print each call and its result */

/* Abort unless a condition holds: callbacks and threads cannot use cmocka's assertions, which call longjmp(). */
#define REQUIRE(condition, ...)                 \
    do {                                        \
        if (!(condition)) {                     \
            (void)fprintf(stderr, __VA_ARGS__); \
            (void)fputc('\n', stderr);          \
            abort();                            \
        }                                       \
    } while (0)

static inline uint64_t below(uint64_t bound)
{
    return rng_next(&env.random) % bound;
}

static inline unsigned index_of(unsigned range, unsigned at)
{
    return range * GRANULES + at;
}

static inline void *address_of(unsigned range, unsigned at)
{
    const uint64_t address = env.base[range] + at * PAGE;

    return (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

static inline unsigned pool_of(unsigned range)
{
    return range == 2 ? 1 : 0;
}

static inline const struct xseg_range_state *state_of(unsigned range)
{
    return env.range[range]->state;
}

static inline enum xseg_elastic_use use_of(unsigned range, unsigned at)
{
    return (enum xseg_elastic_use)state_of(range)->elastic.use[at];
}

/* Draw a call and its allowed results, and reserve its slot.  Returns false if there is nothing to do. */
bool call_draw(struct call *call);

/* Fulfill the obligations of the program before a call: waits between streams, and the end of work. */
void call_prepare(const struct call *call);

xseg_status call_make(struct call *call);

/* Check the result of a call against a set of statuses, and add a successful call to the sums. */
void call_record_result(struct call *call, unsigned allowed);

/* Reserve the slot of a call that was not drawn. */
void call_reserve_slot(struct call *call);

/* Whether a slot has an object that a call can end, and that no other call has reserved. */
bool call_has_block(unsigned slot);
bool call_has_descriptor(unsigned slot);
bool call_has_registration(unsigned slot);

#endif
