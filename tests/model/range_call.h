/* SPDX-License-Identifier: MIT */
/*
 * One call about ranges, drawn at random, and the env that it changes: for model/range_calls.
 *
 * Threads: `lock` guards the sums and slots of the env, and what callbacks record.  Calls are drawn by the main thread.
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
#define PLACES        (RANGES * GRANULES)
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
    SHORT = IS(XSEG_ERR_NO_MEMORY) | IS(XSEG_ERR_LIMIT),
    FAULT = IS(XSEG_ERR_DRIVER) | IS(XSEG_ERR_NO_MEMORY) | IS(XSEG_ERR_NO_ADDRESSES),
    ANY = OK | BUSY | ARGUMENT | NOT_ALLOCATED | PAUSED | SHORT
};

struct call {
    enum operation operation;
    unsigned range, first, count, from, at, stream, slot;
    uint64_t bytes;
    /* The object that the call creates or ends.  A slot is reserved when the call is drawn. */
    uint64_t id;
    void *block;
    int descriptor;
    unsigned allowed;
    xseg_status status;
    struct child_case_thread thread;
    atomic_bool is_late; /* the call of a second thread waited until the first thread continued */
};

/* A slot that a call is about to fill or to empty. */
#define RESERVED_ID         UINT64_MAX
#define RESERVED_DESCRIPTOR (-2)

struct registration {
    uint64_t id; /* 0: none */
    unsigned range, first, count;
    bool pin, is_inside; /* is_inside: one of its functions runs in the main thread */
    bool entered[PLACES];
};

struct env {
    struct xseg_allocator *allocator;
    struct xseg_device *device;
    xseg_stream stream[STREAMS];
    struct xseg_pool *pool[POOLS];
    struct xseg_range *range[RANGES];
    uint64_t base[RANGES], observer;
    struct xseg_registrar registrar; /* of registrations; the context is the registration */
    bool is_released[RANGES];
    /* Sums of successful calls. */
    int committed[PLACES], holds[PLACES], pins[PLACES], retains[PLACES], paused[POOLS];
    bool is_notified[PLACES]; /* observers were notified of a mapping */
    struct registration registration[REGISTRATIONS];
    int descriptor[DESCRIPTORS]; /* -1: none */
    unsigned descriptor_place[DESCRIPTORS];
    unsigned exports[PLACES]; /* granules of the export at an address; 0: none */
    void *block[BLOCKS];
    bool is_reserved[BLOCKS]; /* slots of blocks */
    uint64_t generation[PLACES], tag[PLACES], tags;
    uint64_t random, limit;
    bool has_faults;
    /* Of the step. */
    unsigned planned, calls; /* planned and completed calls from callbacks */
    bool is_nested, was_resumed[POOLS];
    atomic_bool was_armed;
    struct call nested[NESTED];
    pthread_t thread[NESTED];
    bool has_thread[NESTED];
};

struct tally {
    uint64_t calls[OPERATIONS], nested, by_thread, late, faults, failed, busy;
};

extern struct env env;
extern struct tally tally;
extern pthread_mutex_t lock;
extern bool traces; /* print each call and its result */

/* Ends the program: callbacks and threads cannot use cmocka's assertions, which leave by longjmp(). */
#define PROMISE(condition, ...)                 \
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

static inline unsigned place_of(unsigned range, unsigned at)
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

/* Do what a program has to do before a call. */
void call_prepare(const struct call *call);

xseg_status call_make(struct call *call);

/* Check the result of a call against a set, and add the call to the sums. */
void call_settle(struct call *call, unsigned allowed);

/* Reserve the slot of a call that was not drawn. */
void call_reserve_slot(struct call *call);

/* Whether a slot has something that a call can end. */
bool call_has_block(unsigned slot);
bool call_has_descriptor(unsigned slot);
bool call_has_registration(unsigned slot);

#endif
