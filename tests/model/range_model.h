/* SPDX-License-Identifier: MIT */
/* The expected state of elastic ranges, in arrays, and its comparison with the library: for model/ranges. */
#ifndef XSEG_TESTS_RANGE_MODEL_H
#define XSEG_TESTS_RANGE_MODEL_H

#include "src/core/device/device.h"
#include "src/core/range/range.h"
#include "tests/support/env.h"
#include "tests/support/rng.h"
#include "xseg/range.h"

#define RANGES   5u
#define GRANULES 24u
#define PLACES   (RANGES * GRANULES)
#define STREAMS  4u
#define WORK     16u /* kernels that may be queued on a stream */
#define BLOCKS   12u
#define NONE     UINT32_MAX

/* Number of completed kernels of each stream. */
struct point {
    uint64_t of[STREAMS];
};

struct granule {
    enum xseg_elastic_use use;
    unsigned page, batch; /* NONE: none */
    unsigned holds;
    struct point user; /* the last kernels that use it */
};

/* A physical page. */
struct page {
    uint64_t tag;
    unsigned mappings;
    unsigned charged; /* the range that mapped it first, and still does; NONE: none */
};

struct batch {
    unsigned range, stream, left;
    struct point until;
    bool has_event, is_completed; /* is_completed: as far as the library knows */
};

struct kind {
    uint64_t page_bytes, limit;
    unsigned pool; /* of the named pools; NONE: a private one */
};

extern const struct kind kinds[RANGES];

/* The arrays, and the program's objects. */
extern struct env {
    struct xseg_allocator *allocator;
    struct xseg_device *device;
    xseg_stream stream[STREAMS];
    xseg_event event[STREAMS][WORK]; /* after kernel n: at n % WORK */
    bool is_known[STREAMS];          /* to the library */
    struct point until[STREAMS];     /* what the next kernel of a stream waits for */
    struct point completed;
    struct xseg_pool *pool[2];
    struct xseg_range *range[RANGES];
    bool is_paused[RANGES];
    uint64_t quota[RANGES], recommits[RANGES];
    uint64_t reserved[RANGES], reservations; /* the number of the range among all that there were */
    struct granule granule[PLACES];
    struct page page[PLACES];
    struct batch batch[PLACES]; /* oldest first */
    unsigned batches, marks;
    char *block[BLOCKS];
    unsigned blocks;
    struct xseg_checkpoint *checkpoint; /* of the first pool; NULL: none */
    bool was_allocated[PLACES];         /* at the checkpoint */
    uint64_t was_reserved[RANGES];
    uint64_t random, tag, cache, limit;
    bool has_bytes;
} env;

/* Totals of all programs, to detect a test without effect. */
extern struct tally {
    uint64_t commits, failures, recommits, aliases, unmapped, outlived, waited, lost_aliases,
        pauses, restored, not_restored, restored_granules;
} tally;

static inline uint64_t below(uint64_t bound)
{
    return rng_next(&env.random) % bound;
}

static inline struct granule *granule_of(unsigned range, unsigned at)
{
    return &env.granule[range * GRANULES + at];
}

/* Let a stream wait for some work. */
void wait_for(unsigned stream, const struct point *point);

bool has_completed(const struct point *point);

/* Poll the streams: the library may have waited for some. */
void poll_streams(void);

/* Let a stream wait for all work that touches some granules. */
void order(unsigned stream, unsigned range, unsigned first, unsigned count);

struct page *page_at(unsigned place);

bool is_allocated(unsigned place);

/* Remove a granule from its batch. */
void leave_batch(unsigned place);

/* Granules become pending unmap. */
void add_batch(unsigned range, unsigned first, unsigned count, unsigned stream);

/* Unmap granules. */
void unmap(unsigned first, unsigned count);

/* Poll the batches of each stream up to the first one that is not completed. */
void poll_batches(void);

/* Poll, as the library does outside captures. */
void poll_granules(void);

const struct xseg_elastic *elastic_of(unsigned range);

/* Expect that unmapped granules were allowed to be. */
void adopt_unmapped(void);

/* Calls of the driver that wait. */
uint64_t waits(void);

/* Bytes of the pages that are charged to a range. */
uint64_t charged_bytes(unsigned range);

/* Bytes of the granules of a range in a use. */
uint64_t count_use(unsigned range, enum xseg_elastic_use use);

struct xseg_range_info info_of(unsigned range);

/* One of three words of a granule: which is 0 to 2. */
uint64_t *word_of(unsigned place, unsigned which);

/* Queue work on granules, unless the stream has too much queued work. */
void launch(unsigned stream, unsigned range, unsigned first, unsigned count);

/* Unused quotas of all ranges; `more` bytes of one of them are about to be used. */
uint64_t unused_quotas(unsigned range, uint64_t more);

/* Compare everything; audits: with the audits of the device. */
void check(bool audits);

#endif
