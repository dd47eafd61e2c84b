/* SPDX-License-Identifier: MIT */
/*
 * A world: one allocator on a fresh simulated machine, and what a programme holds of it.
 *
 *   programme  operations of one or more workers on one world, from its opening to its end; which ones
 *              follows from its seed
 *   worker     a thread with blocks, streams and pools of its own
 *   tag        a private pool, as its worker knows it; other workers allocate from it, too
 *   away       a paused pool's memory
 *
 * Locking: operations hold `lock` for reading.  One that may run beside no other (xseg_pool_restore, a
 * look at everything) holds it for writing, and may then touch what other workers have.  A tag's
 * `contents` is held for reading while work on its blocks is queued, and for writing while it is paused
 * or resumed; behind `lock`.
 */
#ifndef XSEG_TESTS_EXERCISE_WORLD_H
#define XSEG_TESTS_EXERCISE_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/stress/exercise/call.h"
#include "tests/stress/exercise/failure.h"
#include "tests/stress/exercise/fault.h"
#include "tests/stress/exercise/feature.h"
#include "xseg/xseg.h"

#define WORLD_WORKERS 8u
#define WORLD_DEVICES 4u
#define WORLD_SHARED \
    4u /* streams of each device that all workers use; the first is the legacy one */
#define WORLD_OWN        2u /* streams of each device that one worker uses, which come and go */
#define WORLD_BLOCKS     96u
#define WORLD_TAGS       3u /* of a worker at a time */
#define WORLD_TAGS_MOST  4096u
#define WORLD_PINS       6u
#define WORLD_REGISTERED 4u
#define WORLD_SHARES     4u
#define WORLD_OBSERVERS  2u

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

struct stream {
    xseg_stream handle;
    int device;
    bool is_own;
    bool is_per_thread; /* its handle means another stream in another thread */
    bool is_captured;   /* what is queued on it goes into a graph; own ones only */
};

struct tag {
    struct xseg_pool *pool;
    int device;
    unsigned holders; /* the worker's; 0: released */
    pthread_rwlock_t contents;
    bool is_evicted;    /* the memory of its blocks must not be touched; under `contents` */
    atomic_uint epoch;  /* of its contents: they are lost when it changes */
    bool may_be_paused; /* a pause failed, and perhaps so did its undoing */
    bool is_routed, is_capturing;
    atomic_uint_fast64_t features; /* that it has, or that are in force */
    struct stream *replayed_on; /* where the graph that was captured into it runs; NULL: nowhere */
    struct {
        const void *ptr;
        size_t bytes;
    } graph[4];
    unsigned graph_size;
    uint64_t own_bytes;
    struct xseg_checkpoint *checkpoint;
    struct saved {
        void *ptr;
        size_t bytes;
    } * saved;
    unsigned saved_count;
};

struct block {
    char *ptr; /* NULL: there is none */
    size_t bytes;
    uint64_t number;
    int device;
    struct tag *tag;      /* NULL: the default pool */
    struct stream *home;  /* the stream it was allocated on; NULL: it is gone */
    struct stream *last;  /* that work on it comes behind; NULL: it has finished */
    bool is_out_of_reach; /* it comes behind a stream that is not this worker's */
    bool is_written;      /* it has the contents of its number */
    unsigned epoch;       /* of the tag's contents when it was written */
    uint64_t features;
};

struct pin {
    const char *ptr; /* NULL: there is none */
    size_t bytes;
};

struct registered {
    uint64_t id; /* 0: there is none */
    atomic_uint runs;
};

struct share {
    void *exported; /* NULL: not, or not any more */
    void *imported; /* of the block */
    void *base;     /* of the run */
    int device;
    size_t bytes;
    uint64_t number;       /* of the block */
    struct stream *stream; /* that read what was imported; NULL: none */
};

struct world;

struct worker {
    struct world *world;
    unsigned number;
    uint64_t random; /* of the operation under way */
    struct block block[WORLD_BLOCKS];
    struct stream own[WORLD_DEVICES][WORLD_OWN];
    struct stream per_thread[WORLD_DEVICES];
    struct tag *_Atomic tag[WORLD_TAGS];
    struct tag *left_routed; /* released while it was routed to; NULL: there is none */
    struct pin pin[WORLD_PINS];
    struct registered registered[WORLD_REGISTERED];
    struct share share[WORLD_SHARES];
    struct {
        struct tag *tag; /* NULL: nothing is being captured */
        struct stream *origin, *joined;
    } capture;
    uint64_t observer[WORLD_OBSERVERS]; /* 0: there is none */
    struct block *held;                 /* under way: observers leave it alone */
    uint64_t blocks_made;
};

/* What a programme is. */
struct world_options {
    uint64_t seed;
    unsigned threads, devices;
    unsigned faults; /* of 1000 operations, how many set one */
    bool has_background_thread;
};

struct world {
    struct world_options options;
    uint64_t random; /* for what is not an operation of a worker */
    struct xseg_allocator *allocator;
    pthread_rwlock_t lock;
    struct stream shared[WORLD_DEVICES][WORLD_SHARED];
    struct worker *worker;
    struct tag *_Atomic tag[WORLD_TAGS_MOST]; /* all that there were */
    atomic_uint tags;
    atomic_uint_fast64_t features; /* that the configuration puts in force */
    atomic_uint_fast64_t device_features[WORLD_DEVICES];
    atomic_uint_fast64_t own_bytes[WORLD_DEVICES]; /* that pools' own functions have given */
    uint64_t memory;
    atomic_bool was_reset; /* the totals of the statistics */
    atomic_bool had_second, had_shares;
    bool without_peers;
    bool is_exportable;                                /* as the configuration says */
    atomic_bool allowed[WORLD_DEVICES][WORLD_DEVICES]; /* [owner][peer] */
    uint64_t tracer;                                   /* since the beginning; 0: there is none */
    atomic_int_fast64_t traced, traced_bytes;          /* blocks that the trace says are live */
    unsigned files;                                    /* open before the allocator was */
};

/* The worker of the calling thread; NULL: it is none. */
extern _Thread_local struct worker *world_worker;

/* Random numbers of the operation under way. */
uint64_t below(struct worker *worker, uint64_t bound);
bool chance(struct worker *worker, unsigned of);

/* Set up and take down; a worker in its own thread. */
void world_open(struct world *world, const struct world_options *options);
void world_close(struct world *world);
void worker_open(struct worker *worker);
void worker_close(struct worker *worker);

/* --- Finding something to work on. --- */

int any_device(struct worker *worker);
struct stream *any_stream(struct worker *worker, int device);
/* NULL: this worker has no such stream. */
struct stream *find_stream(struct worker *worker, int device, xseg_stream handle);
struct tag *any_own_tag(struct worker *worker); /* that is held; NULL: there is none */
struct block *any_block(struct worker *worker); /* that is live; NULL: there is none */
struct block *free_block(struct worker *worker);
size_t any_size(struct worker *worker);
/* The word of each request of so many bytes. */
static inline void *word_of(uint64_t bytes)
{
    return (void *)(uintptr_t)(2 * bytes + 1);
}
struct tag *find_tag(struct world *world, const struct xseg_pool *pool);

/* --- Work on blocks. --- */

/*
 * Whether a block's memory can be touched, which then stays so until block_leave().
 */
bool block_enter(struct block *block);
void block_leave(struct block *block);

/* Wait for the streams that this worker uses, but for those that it captures. */
void finish_streams(struct worker *worker);

/* Queue work that writes, or compares, on a stream; other streams than the block's own are announced. */
void block_work(struct worker *worker, struct block *block, struct stream *stream, bool writes);

/* Features in force at a block, a tag or a device. */
uint64_t features_of(struct world *world, int device, const struct tag *tag,
                     const struct block *block);

/* An operation with some features of its own has been tried; what was used on a tag stays with it. */
void note_features(struct world *world, uint64_t own, int device, struct tag *tag,
                   const struct block *block, bool served);

/* --- Steps: each does one thing, or nothing if it does not apply. --- */

typedef void step(struct worker *worker);

step step_alloc, step_free, step_free_after, step_burst, step_touch, step_use, step_refused;
step step_time, step_finish, step_passed, step_gone;
step step_tag, step_retain, step_release, step_pause, step_resume, step_route, step_route_end,
    step_mark, step_place;
step step_checkpoint, step_restore, step_holds, step_replay;
step step_capture, step_capture_join, step_capture_end;
step step_register, step_unregister, step_dmabuf, step_range;
step step_pin, step_unpin, step_share, step_share_end, step_peer;
step step_trim, step_trim_due, step_prewarm, step_limits, step_configure, step_observe;
step step_history, step_stats, step_explain, step_metrics, step_block, step_texts, step_second,
    step_close, step_fork;
step step_fault, step_lift, step_quiet;

/* Parts of the end of a worker. */
void end_capture(struct worker *worker);
void end_registered(struct worker *worker, struct registered *mine);
void end_share(struct worker *worker, struct share *share);
void free_block_of(struct worker *worker, struct block *block);
void release_tag(struct worker *worker, unsigned at);
void end_left_routes(struct worker *worker);

/* A string for xseg_open(), and what it puts in force. */
uint64_t world_configuration(struct world *world, uint64_t seed, char *text, size_t bytes);

/* Observe from the beginning. */
void world_trace(struct world *world);

/* Check that everything adds up, while no other operation is under way. */
void world_check(struct world *world);

#endif
