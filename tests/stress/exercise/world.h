/* SPDX-License-Identifier: MIT */
/*
 * A world: one allocator on a fresh simulated machine, with workers (threads with separate blocks, streams and pools) and
 * tags (private pools from which other workers allocate as well).  A seed determines the operations of the workers.
 *
 * Operations hold `lock` for reading.  Operations that must run alone and access the state of other workers hold it for
 * writing.  The lock `contents` of a tag is acquired after it: for reading while work on the blocks of the tag is queued,
 * and for writing during a pause or resume.
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
#include "tests/support/test.h"
#include "xseg/xseg.h"

#define WORLD_WORKERS    8u
#define WORLD_DEVICES    4u
#define WORLD_SHARED     4u /* streams of each device that all workers use; first the legacy stream */
#define WORLD_OWN        2u /* streams of each device that one worker creates and destroys */
#define WORLD_BLOCKS     96u
#define WORLD_TAGS       3u /* of a worker at a time */
#define WORLD_TAGS_MOST  4096u
#define WORLD_PINS       6u
#define WORLD_REGISTERED 4u
#define WORLD_SHARES     4u
#define WORLD_OBSERVERS  2u

struct stream {
    xseg_stream handle;
    int device;
    bool is_own;
    bool is_per_thread; /* its handle denotes another stream in another thread */
    bool is_captured;   /* work queued on it is captured into a graph; own streams only */
};

struct tag {
    struct xseg_pool *pool;
    int device;
    unsigned holders; /* references of the worker; 0: released */
    pthread_rwlock_t contents;
    bool is_evicted;    /* the memory of its blocks must not be touched; under `contents` */
    atomic_uint epoch;  /* of its contents: they are lost when it changes */
    bool may_be_paused; /* a pause failed, and perhaps its rollback too */
    bool is_routed, is_capturing;
    atomic_uint_fast64_t features; /* used or in effect */
    struct stream
        *replayed_on; /* the stream on which the graph that was captured into it runs; NULL: none */
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
    char *ptr; /* NULL: none */
    size_t bytes;
    uint64_t number;
    int device;
    struct tag *tag;      /* NULL: the default pool */
    struct stream *home;  /* the stream on which it was allocated; NULL: destroyed */
    struct stream *last;  /* the stream with the last work on it; NULL: completed */
    bool is_out_of_reach; /* ordered after a stream of another worker */
    bool is_written;      /* it contains the pattern of its number */
    unsigned epoch;       /* epoch of the tag's contents when it was written */
    uint64_t features;
};

struct pin {
    const char *ptr; /* NULL: none */
    size_t bytes;
};

struct registered {
    uint64_t id; /* 0: none */
    atomic_uint runs;
};

struct share {
    void *exported; /* NULL: not exported, or released */
    void *imported; /* of the block */
    void *base;     /* of the run */
    int device;
    size_t bytes;
    uint64_t number;       /* of the block */
    struct stream *stream; /* that read the imported memory; NULL: none */
};

struct world;

struct worker {
    struct world *world;
    unsigned number;
    uint64_t random; /* of the active operation */
    struct block block[WORLD_BLOCKS];
    struct stream own[WORLD_DEVICES][WORLD_OWN];
    struct stream per_thread[WORLD_DEVICES];
    struct tag *_Atomic tag[WORLD_TAGS];
    struct tag *left_routed; /* released while it was the target of a route; NULL: none */
    struct pin pin[WORLD_PINS];
    struct registered registered[WORLD_REGISTERED];
    struct share share[WORLD_SHARES];
    struct {
        struct tag *tag; /* NULL: no capture is active */
        struct stream *origin, *joined;
    } capture;
    uint64_t observer[WORLD_OBSERVERS]; /* 0: none */
    struct block *held;                 /* in use: observers skip it */
    uint64_t blocks_made;
};

struct world_options {
    uint64_t seed;
    unsigned threads, devices;
    unsigned faults; /* faults per 1000 operations */
    bool has_background_thread;
};

struct world {
    struct world_options options;
    uint64_t random; /* for choices outside of operations */
    struct xseg_allocator *allocator;
    pthread_rwlock_t lock;
    struct stream shared[WORLD_DEVICES][WORLD_SHARED];
    struct worker *worker;
    struct tag *_Atomic tag[WORLD_TAGS_MOST]; /* all tags that ever existed */
    atomic_uint tags;
    atomic_uint_fast64_t features; /* that the configuration enables */
    atomic_uint_fast64_t device_features[WORLD_DEVICES];
    atomic_uint_fast64_t
        own_bytes[WORLD_DEVICES]; /* that allocation functions of pools have returned */
    uint64_t memory;
    atomic_bool was_reset; /* the totals of the statistics */
    atomic_bool had_second, had_shares;
    bool without_peers;
    bool is_exportable;                                /* as the configuration says */
    atomic_bool allowed[WORLD_DEVICES][WORLD_DEVICES]; /* [owner][peer] */
    uint64_t tracer;                                   /* since the beginning; 0: none */
    atomic_int_fast64_t traced, traced_bytes;          /* allocated blocks according to the trace */
    unsigned files;                                    /* open before the allocator was opened */
};

/* The worker of the calling thread; NULL: not a worker. */
extern _Thread_local struct worker *world_worker;

uint64_t below(struct worker *worker, uint64_t bound);
bool chance(struct worker *worker, unsigned of);

/* Open and close a world; a worker in its own thread. */
void world_open(struct world *world, const struct world_options *options);
void world_close(struct world *world);
void worker_open(struct worker *worker);
void worker_close(struct worker *worker);

/* --- Finding something to work on. --- */

int any_device(struct worker *worker);
struct stream *any_stream(struct worker *worker, int device);
/* NULL: this worker has no such stream. */
struct stream *find_stream(struct worker *worker, int device, xseg_stream handle);
struct tag *any_own_tag(struct worker *worker); /* retained; NULL: none */
struct block *any_block(struct worker *worker); /* allocated; NULL: none */
struct block *free_block(struct worker *worker);
size_t any_size(struct worker *worker);
/* The user value of each request of this size. */
static inline void *word_of(uint64_t bytes)
{
    return (void *)(uintptr_t)(2 * bytes + 1);
}
struct tag *find_tag(struct world *world, const struct xseg_pool *pool);

/* --- Work on blocks. --- */

/* Whether a block's memory can be touched, which remains true until block_leave(). */
bool block_enter(struct block *block);
void block_leave(struct block *block);

/* Wait for the streams that this worker uses, except those that it captures. */
void finish_streams(struct worker *worker);

/* Queue work that writes or compares on a stream; uses by streams other than the block's own are recorded. */
void block_work(struct worker *worker, struct block *block, struct stream *stream, bool writes);

/* Features in effect at a block, a tag or a device. */
uint64_t features_of(struct world *world, int device, const struct tag *tag,
                     const struct block *block);

/* The scope of a pool; if tag is NULL, of a device that is drawn. */
struct xseg_scope scope_of(struct worker *worker, const struct tag *tag);

/* A feature remains with a block and its pool. */
void mark_block(struct block *block, uint64_t feature);

/* Record that an operation with these features was tried; features used on a tag remain with it. */
void note_features(struct world *world, uint64_t own, int device, struct tag *tag,
                   const struct block *block, bool served);

/* --- Steps: each does one thing, or nothing if it does not apply. --- */

typedef void step(struct worker *worker);

step step_alloc, step_free, step_free_after, step_burst, step_touch, step_use, step_invalid;
step step_time, step_finish, step_passed, step_stream_retire;
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

void end_capture(struct worker *worker);
void end_registered(struct worker *worker, struct registered *mine);
void end_share(struct worker *worker, struct share *share);
void free_block_of(struct worker *worker, struct block *block);
void release_tag(struct worker *worker, unsigned at);
void end_left_routes(struct worker *worker);

/* A string for xseg_open(), and the features that it enables. */
uint64_t world_configuration(struct world *world, uint64_t seed, char *text, size_t bytes);

void world_trace(struct world *world);

/* Check all invariants, while no other operation is active. */
void world_check(struct world *world);

#endif
