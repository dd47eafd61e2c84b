/* SPDX-License-Identifier: MIT */
/*
 * The replay model: the memory of a device over time, computed from the events of a recording.
 *
 * A recording has the segments at its end and events before.  All events are undone from the end backward, which
 * yields the state before the first event; then the events are replayed one at a time.  PyTorch's viewer does the same.  An
 * event that cannot be undone, because earlier or intermediate events are missing, is omitted and counted, so each
 * replayed event is consistent with the state before it.
 *
 *   range  a contiguous range of addresses with memory: a classic segment, or mapped memory of expandable segments
 *          with one stream, pool and page size.
 *   block  an allocated or pending block; pending: the user has freed the block, and a stream may still use it.
 *
 * MODEL-1  Ranges do not overlap.  Blocks do not overlap, and each block is in memory of one kind, expandable or classic.
 * MODEL-2  After the last event, the state is equal to the segments, except for omitted blocks.
 *
 * A block of a segment has the size that the file contains.  The size of a block that was freed is not in the file:
 * it is the requested size, rounded up to 512 bytes, and limited by the next block.
 *
 * A page of expandable memory is the unit of mapping and unmapping: 2 MiB, or a large page of 20 MiB or
 * large_segment_size_mb of the file's configuration.  The file does not contain the page size, so it is inferred:
 * memory has large pages if its size, when it was mapped or at the first event, is a multiple of a large page.  It has
 * pages of 2 MiB in a segment of the type `small`, if a part of another size was unmapped, and always with
 * page_size:small.
 *
 * Locking: none; one thread uses a model.
 */
#ifndef TOOLS_REPLAY_MODEL_H
#define TOOLS_REPLAY_MODEL_H

#include "src/tools/containers/containers.h"
#include "src/tools/reading/recording.h"

struct replay_model_block {
    uint64_t address, bytes, stream;
    uint64_t requested;            /* bytes */
    uint64_t since_us;             /* time of its last change; at first, the time of the model */
    uint32_t stack, context, pool; /* of its allocation, if known */
    bool is_pending;
    bool is_older; /* allocated before the first event */
};

struct replay_model_range {
    uint64_t start, end, stream;
    uint64_t page; /* bytes of each page, from the start; 0: classic */
    uint32_t pool;
    bool is_expandable;
};

/*
 * Callbacks for changes; each may be NULL.  The slot of a block is valid until the block is removed, and less than
 * replay_model.blocks.capacity.  A range is reported as it was mapped or unmapped, not joined to adjacent ranges.
 */
struct replay_model_observer {
    void *self;
    void (*block_added)(void *self, uint32_t slot, const struct replay_model_block *block);
    /* The block has become pending. */
    void (*block_freed)(void *self, uint32_t slot, const struct replay_model_block *block);
    void (*block_removed)(void *self, uint32_t slot, const struct replay_model_block *block);
    /* Called after the range was added, or removed. */
    void (*range_added)(void *self, const struct replay_model_range *range);
    void (*range_removed)(void *self, const struct replay_model_range *range);
};

/* Allocated blocks that are omitted since no segment of the file contains them. */
struct replay_model_dropped {
    uint64_t blocks, bytes;
};

struct replay_model {
    const struct recording_device *device;
    struct ordered blocks; /* by address */
    struct replay_model_block *block;
    struct ordered ranges; /* by start */
    struct replay_model_range *range;
    uint32_t block_capacity, range_capacity;
    struct replay_model_observer observer;
    uint64_t reserved, allocated, pending; /* bytes */
    uint64_t now_us;                       /* monotonic */
    uint64_t large_page;                   /* bytes */
    size_t at;                             /* replayed events */
    size_t omitted;                        /* events, blocks and segments that contradict others */
    struct replay_model_dropped dropped;
    uint8_t *plan; /* by event: how it is replayed */
    struct replay_model_exception *exceptions;
    size_t exception_count;
    bool has_times;     /* false: `ticks` are the time */
    uint64_t ticks;     /* events; a free and its completion directly after it count as one */
    bool has_requests;  /* false: a block is allocated until its free is complete */
    bool out_of_memory; /* host memory: the state is wrong from then on */
};

#define REPLAY_MODEL_SMALL_PAGE ((uint64_t)2 << 20)

/*
 * Compute the state before the first event.  The recording must outlive the model.
 *
 * Returns: false if out of host memory; there is nothing to free then
 * Cost:    O(log n) per event, and a byte of host memory per event
 */
bool replay_model_init(struct replay_model *model, const struct recording *recording,
                       const struct recording_device *device);

/* Compute the state at the end, without events. */
bool replay_model_init_at_end(struct replay_model *model, const struct recording *recording,
                              const struct recording_device *device);

void replay_model_fini(struct replay_model *model);

/* Use the number of events as the time, so that has_times is false.  Call this before the first step. */
void replay_model_count_events(struct replay_model *model);

/* Set the observer, and report all ranges and blocks to it as added. */
void replay_model_observe(struct replay_model *model, const struct replay_model_observer *observer);

/* Get the time until which the state does not change: the time of the next event, or now. */
uint64_t replay_model_next_us(const struct replay_model *model);

/* Replay the next event.  Returns false after the last event and if out of host memory. */
bool replay_model_step(struct replay_model *model);

/* Report omitted blocks on standard error.  Returns whether there are any. */
bool replay_model_report_dropped(const char *file, const struct replay_model_dropped *dropped);

/* Find the block or range that contains an address, or NULL.  Valid until the next step.  Cost: O(log n). */
const struct replay_model_block *replay_model_block_at(const struct replay_model *model,
                                                       uint64_t address);
const struct replay_model_range *replay_model_range_at(const struct replay_model *model,
                                                       uint64_t address);

/* Get the bytes of [start, end) that are mapped in expandable segments.  Cost: O(log n) per range. */
uint64_t replay_model_expandable_bytes(const struct replay_model *model, uint64_t start,
                                       uint64_t end);

#endif
