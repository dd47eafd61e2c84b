/* SPDX-License-Identifier: MIT */
/* The expected state of elastic ranges, in arrays, and its comparison with the library: for model/ranges. */
#ifndef XSEG_TESTS_RANGE_MODEL_H
#define XSEG_TESTS_RANGE_MODEL_H

#include "src/core/device/device.h"
#include "src/core/range/range.h"
#include "tests/support/env.h"
#include "tests/support/rng.h"
#include "xseg/range.h"

#define RANGES       5u
#define GRANULES     24u
#define ALL_GRANULES (RANGES * GRANULES)
#define STREAMS      4u
#define WORK         16u /* kernels that may be queued on a stream */
#define BLOCKS       12u
#define NONE         UINT32_MAX

/* A number of kernels of each stream (a vector clock), completed once each stream has completed its number. */
struct fence {
    uint64_t position[STREAMS];
};

struct granule {
    enum xseg_elastic_use use;
    unsigned page, batch; /* NONE: none */
    unsigned holds;
    struct fence uses; /* the last kernels that use it */
};

/* A physical page. */
struct page {
    uint64_t tag; /* the words that it contains */
    unsigned mappings;
    unsigned charged; /* the range that mapped it first, and still does; NONE: none */
};

/* Granules of one range that are pending unmap after the same work. */
struct batch {
    unsigned range, stream;
    unsigned granules; /* number of granules that are still pending unmap */
    struct fence until;
    bool has_event, is_completed; /* is_completed: as far as the library knows */
};

/* The options of a range. */
struct kind {
    uint64_t page_bytes, limit;
    unsigned pool; /* index in env.pool; NONE: the range has its own pool */
};

extern const struct kind kinds[RANGES];

/* The expected state, and the objects of the library.  An index from 0 to ALL_GRANULES - 1 is that of a granule among those
 * of all ranges. */
extern struct env {
    struct xseg_allocator *allocator;
    struct xseg_device *device;
    xseg_stream stream[STREAMS];
    xseg_event event[STREAMS][WORK]; /* after kernel n: at n % WORK */
    bool is_known[STREAMS];          /* to the library */
    struct fence until[STREAMS];     /* the fence that the next kernel of a stream waits for */
    struct fence completed;
    struct xseg_pool *pool[2];
    struct xseg_range *range[RANGES];
    bool is_paused[RANGES];
    uint64_t quota[RANGES], recommits[RANGES];
    uint64_t reserved[RANGES]; /* number of the reservation of each range */
    uint64_t reservations;
    struct granule granule[ALL_GRANULES];
    struct page page[ALL_GRANULES];
    struct batch batch[ALL_GRANULES]; /* oldest first */
    unsigned batches, marks;
    char *block[BLOCKS];
    unsigned blocks;
    struct xseg_checkpoint *checkpoint; /* of the first pool; NULL: none */
    bool was_allocated[ALL_GRANULES];   /* at the checkpoint */
    uint64_t was_reserved[RANGES];      /* `reserved` at the checkpoint */
    uint64_t random, tag;
    uint64_t cache; /* page_cache_mb in bytes */
    uint64_t limit; /* maximum memory of the device that the allocator can use */
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

/* A stream waits for a fence; only in the model. */
void wait_for(unsigned stream, const struct fence *fence);

bool has_completed(const struct fence *fence);

/* Read which kernels have completed: the library may have waited for streams. */
void poll_streams(void);

/* Let a stream wait for all work that uses some granules, in the driver and in the model. */
void wait_for_uses(unsigned stream, unsigned range, unsigned first, unsigned count);

/* The page of a granule, and whether the granule is committed. */
struct page *page_at(unsigned index);
bool is_allocated(unsigned index);

/* Remove a granule from its batch. */
void remove_from_batch(unsigned index);

/* Granules become pending unmap. */
void add_batch(unsigned range, unsigned first, unsigned count, unsigned stream);

/* Unmap granules. */
void unmap(unsigned first, unsigned count);

/* Poll the batches of each stream up to the first one that is not completed. */
void poll_batches(void);

/* Poll the batches, and unmap granules, as the library does outside captures. */
void poll_granules(void);

const struct xseg_elastic *elastic_of(unsigned range);

/* Read which granules the library has unmapped, and expect that no hold and no work prevented it. */
void adopt_unmapped(void);

/* The number of driver calls that wait for work. */
uint64_t wait_calls(void);

/* Bytes of the pages that are charged to a range. */
uint64_t charged_bytes(unsigned range);

/* Bytes of the granules of a range with this use. */
uint64_t bytes_with_use(unsigned range, enum xseg_elastic_use use);

struct xseg_range_info info_of(unsigned range);

/* The first word of a granule, one before its middle, or its last one: word_index is 0 to 2. */
uint64_t *word_of(unsigned index, unsigned word_index);

/* Queue work on granules, unless the stream has too much queued work. */
void launch(unsigned stream, unsigned range, unsigned first, unsigned count);

/* Unused quotas of all ranges, after a use of additional_bytes by one range. */
uint64_t unused_quotas(unsigned range, uint64_t additional_bytes);

/* Compare the library and the model; with_audits: run the audits of the device, too. */
void check_all(bool with_audits);

#endif
