/* SPDX-License-Identifier: MIT */
/*
 * A run of a random program: the library on a simulated device, and the model of its expected state.
 *
 * * A slot is a stream of the program: slot 0 is the legacy default stream, slot 1 the per-thread default stream, and the
 * streams of the other slots are created.  When the stream of a slot is retired, another stream replaces it.  A step
 * (block_steps.c, pool_steps.c) changes the library and the model; run_check() then compares them.
 */
#ifndef XSEG_TESTS_RUN_H
#define XSEG_TESTS_RUN_H

#include "src/core/device/device.h"
#include "tests/model/model.h"
#include "tests/support/driver.h"
#include "tests/support/env.h"

#define RUN_SLOTS   6u
#define RUN_WORK    24u /* kernels that may be queued on a stream */
#define RUN_DEVICE1 6u  /* blocks on device 1 */

struct run_slot {
    unsigned queue, entry; /* in the model */
};

/* The driver's side of a queue. */
struct run_queue {
    xseg_stream handle;
    bool exists;
    xseg_event event[RUN_WORK]; /* after kernel n: at n % RUN_WORK */
};

struct run_options {
    uint64_t seed;
    bool expandable, reuse;
    bool is_low_on_memory;
    bool is_captured; /* most steps are about captures */
};

struct run {
    struct run_options options;
    struct xseg_allocator *allocator;
    struct model model;
    struct run_slot slot[RUN_SLOTS];
    struct run_queue queue[MODEL_QUEUES];
    const void *known[MODEL_ENTRIES]; /* the library's object of an entry; NULL: unknown stream */
    uint64_t random;
    int device;              /* of the current context; -1: none */
    bool has_retiring;       /* at the last call, the library waited for retired streams */
    bool may_reclaim;        /* the library may reclaim completed blocks in the current step */
    bool is_synchronized;    /* the user has synchronized a stream in the current step */
    bool may_have_polled;    /* memory pressure may have ended uses of pending blocks before */
    bool is_lookup_expected; /* run_expect_lookup() was called */
    /* A checkpoint, and the blocks that its restore allocates. */
    struct xseg_checkpoint *checkpoint;
    unsigned saved_pool, saved_count;
    bool saved_may_be_released; /* a trim of the pool has released memory since the checkpoint */
    struct model_block saved[MODEL_BLOCKS];
    /* Blocks on device 1. */
    void *device1_block[RUN_DEVICE1];
    unsigned device1_blocks;
    uint64_t memory_function_bytes; /* allocated by functions of pools */
    bool memory_functions_fail;     /* the functions fail in the current step */
    unsigned rejected, fallbacks, restored, reused;
};

uint64_t run_random(struct run *run, uint64_t bound);
size_t run_random_bytes(struct run *run);

/* A retained private pool; 0: none. */
unsigned run_pool(struct run *run);

/* A slot that takes part in a valid capture; MODEL_NONE: none. */
unsigned run_captured_slot(struct run *run);

/* Open and close a run; the close expects that nothing leaks. */
void run_open(struct run *run, const struct run_options *options);
void run_close(struct run *run);

/* Create a stream for a slot, with a new handle or with the handle of the previous stream. */
void run_fill_slot(struct run *run, unsigned slot, bool reuses_handle);

/* A handle of the stream of a slot; the legacy default stream has two handles. */
xseg_stream run_handle(struct run *run, unsigned slot);

/* Before a call of the library: make a random context current, or none.  Expect that the previous call has not changed the
 * current context. */
void run_set_context(struct run *run);

/*
 * Poll as the library does when it looks up the stream of a slot.  Called before a call of the library that may wait for
 * work after the lookup; for other calls run_lookup() polls.
 */
void run_expect_lookup(struct run *run, unsigned slot);

/*
 * Update the model after a call in which the library has looked up the stream of a slot: this stream may order blocks of
 * retired streams now.  If the stream was unknown and streams were retired, the library has also polled events.
 */
void run_lookup(struct run *run, unsigned slot);
void run_poll_retired(struct run *run);

/* Whether the library's own stream orders a block, instead of a retired stream. */
bool run_is_library_stream(const struct run *run, const struct model_block *block);

/* After a wait for all streams: expect that no block is pending. */
void run_expect_nothing_pending(struct run *run);

/* Compare the library and the model; with `audit`, run the audits, which take longer. */
void run_check(struct run *run, bool audit);

/* --- Steps: each makes one kind of call, or no call if none is possible. --- */

void step_alloc(struct run *run);
void step_free(struct run *run);
void step_free_after(struct run *run);
void step_record_stream(struct run *run);
void step_work(struct run *run);
void step_finish(struct run *run);
void step_synchronize(struct run *run);
void step_retire(struct run *run);
void step_trim(struct run *run);
void step_prewarm(struct run *run);
void step_second_device(struct run *run);
void step_bad_input(struct run *run);

void step_pool(struct run *run);
void step_release(struct run *run);
void step_route(struct run *run);
void step_route_end(struct run *run);
void step_checkpoint(struct run *run);
void step_restore(struct run *run);
void step_check_live(struct run *run);
void step_capture(struct run *run);
void step_capture_begin_late(struct run *run);
void step_capture_node(struct run *run);
void step_capture_use(struct run *run);
void step_capture_join(struct run *run);
void step_capture_invalidate(struct run *run);
void step_mark(struct run *run);
void step_unmark(struct run *run);
void step_capture_end(struct run *run);

/* End the route or capture with an index; also at the end of a program. */
void step_end_route_at(struct run *run, unsigned index);

#endif
