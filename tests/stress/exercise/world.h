/* SPDX-License-Identifier: MIT */
/*
 * A world: one allocator on a fresh simulated machine, with workers.  A worker is a thread with its own blocks, streams and
 * private pools; routes and captures let other workers allocate from its pools as well.  A seed determines the operations
 * of the workers.
 *
 * Operations hold `lock` for reading.  Operations that must run alone and access the state of other workers hold it for
 * writing.  The lock `contents` of a pool is acquired after it: for reading while work on the blocks of the pool is queued,
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

#define WORLD_WORKERS       8u
#define WORLD_DEVICES       4u
#define WORLD_SHARED        4u /* streams of each device that all workers use; the first: legacy */
#define WORLD_OWN           2u /* streams of each device that one worker creates and destroys */
#define WORLD_BLOCKS        96u
#define WORLD_POOLS         3u    /* retained pools of a worker */
#define WORLD_POOLS_MAX     4096u /* pools of all workers in a program */
#define WORLD_PINS          6u
#define WORLD_REGISTRATIONS 4u
#define WORLD_SHARES        4u
#define WORLD_OBSERVERS     2u

struct stream {
    xseg_stream handle;
    int device;
    bool is_own;
    bool is_per_thread; /* its handle denotes another stream in another thread */
    bool is_captured;   /* work queued on it is captured into a graph; own streams only */
};

struct pool {
    struct xseg_pool *handle;
    int device;
    unsigned references; /* of its worker; 0: released */
    pthread_rwlock_t contents;
    bool is_inaccessible; /* no work may use its blocks; guarded by `contents` */
    atomic_uint epoch;    /* incremented when the contents of its blocks are lost */
    bool may_be_paused;   /* a pause failed, and perhaps its rollback too */
    bool is_routed, is_capturing;
    atomic_uint_fast64_t features; /* used, or in effect */
    struct stream *replayed_on;    /* stream of the captured graph; NULL: no graph */
    struct {
        const void *ptr;
        size_t bytes;
    } graph[4]; /* memory to which the graph refers */
    unsigned graph_size;
    struct xseg_checkpoint *checkpoint;
    struct saved { /* blocks of the checkpoint */
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
    struct pool *pool;          /* NULL: the default pool */
    struct stream *stream;      /* the stream on which it was allocated; NULL: destroyed */
    struct stream *last_stream; /* the stream of the last work on it; NULL: completed */
    bool has_foreign_work;      /* its last work may be on a stream of another worker */
    bool is_written;            /* it contains the pattern of its number */
    unsigned epoch;             /* epoch of the pool when the block was written */
    uint64_t features;
};

struct pin {
    const char *ptr; /* NULL: none */
    size_t bytes;
};

struct registration {
    uint64_t id;      /* 0: none */
    atomic_uint runs; /* number of registered runs */
};

struct share {
    void *exported; /* address of the block; NULL: not exported, or closed */
    void *imported; /* address of the imported block; NULL: not imported */
    void *base;     /* address of the imported run */
    int device;
    struct stream *stream; /* stream of the last read of the imported memory; NULL: none */
};

struct world;

struct worker {
    struct world *world;
    unsigned number;
    uint64_t random; /* state for the choices of the current operation */
    struct block block[WORLD_BLOCKS];
    struct stream own[WORLD_DEVICES][WORLD_OWN];
    struct stream per_thread[WORLD_DEVICES];
    struct pool *_Atomic pool[WORLD_POOLS];
    struct pool *released_target; /* released during a route to it; NULL: none */
    struct pin pin[WORLD_PINS];
    struct registration registration[WORLD_REGISTRATIONS];
    struct share share[WORLD_SHARES];
    struct {
        struct pool *pool; /* NULL: no capture is active */
        struct stream *origin, *joined;
    } capture;
    uint64_t observer[WORLD_OBSERVERS]; /* 0: none */
    struct block *block_in_use;         /* the current operation uses it, so observers do not */
    uint64_t blocks_written;
};

struct world_options {
    uint64_t seed;
    unsigned threads, devices;
    unsigned faults; /* faults per 1000 operations */
    bool has_background_thread;
};

struct world {
    struct world_options options;
    uint64_t random; /* state for choices outside of operations */
    struct xseg_allocator *allocator;
    pthread_rwlock_t lock;
    struct stream shared[WORLD_DEVICES][WORLD_SHARED];
    struct worker *worker;
    struct pool *_Atomic pool[WORLD_POOLS_MAX]; /* all pools since the begin, also destroyed ones */
    atomic_uint pools;
    atomic_uint_fast64_t features; /* features that the configuration enables */
    atomic_uint_fast64_t device_features[WORLD_DEVICES];
    atomic_uint_fast64_t memory_function_bytes[WORLD_DEVICES]; /* allocated by functions of pools */
    uint64_t memory;                                           /* of each device */
    atomic_bool are_totals_reset;                              /* xseg_stats_reset() was called */
    atomic_bool had_second_allocator, had_shares;
    bool without_peers;
    bool is_exportable;                                /* the key `exportable` is set */
    atomic_bool allowed[WORLD_DEVICES][WORLD_DEVICES]; /* peer access: [owner][peer] */
    uint64_t tracer;                          /* ID of the observer that traces blocks; 0: none */
    atomic_int_fast64_t traced, traced_bytes; /* allocated blocks according to the trace */
    unsigned files;                           /* files that were open before the allocator */
};

/* The worker of the calling thread; NULL: not a worker. */
extern _Thread_local struct worker *world_worker;

/* Random choices of the current operation: a number below a bound; true with the probability 1 / one_in. */
uint64_t below(struct worker *worker, uint64_t bound);
bool chance(struct worker *worker, unsigned one_in);

/* Open and close a world, and the workers, each in its own thread. */
void world_open(struct world *world, const struct world_options *options);
void world_close(struct world *world);
void worker_open(struct worker *worker);
void worker_close(struct worker *worker);

/* --- Random choices, and lookup. --- */

int any_device(struct worker *worker);
struct stream *any_stream(struct worker *worker, int device);

/* The stream of this worker with a handle, or NULL. */
struct stream *find_stream(struct worker *worker, int device, xseg_stream handle);

/* A retained pool of this worker, an allocated block, and an element for a new block; or NULL. */
struct pool *any_own_pool(struct worker *worker);
struct block *any_block(struct worker *worker);
struct block *any_free_slot(struct worker *worker);

size_t any_size(struct worker *worker);

/* The user value of each request of this size. */
static inline void *user_of(uint64_t bytes)
{
    return (void *)(uintptr_t)(2 * bytes + 1);
}
/* The pool with a handle, or NULL. */
struct pool *find_pool(struct world *world, const struct xseg_pool *handle);

/* --- Work on blocks. --- */

/* Returns true if work may use the memory of a block, until block_unlock_contents(). */
bool block_lock_contents(struct block *block);
void block_unlock_contents(struct block *block);

/* Wait for the streams that this worker uses, except those that it captures. */
void synchronize_streams(struct worker *worker);

/* Queue work that writes a block or compares its contents.  A use by another stream than the block's own is recorded. */
void block_queue_work(struct worker *worker, struct block *block, struct stream *stream,
                      bool writes);

/* The features in effect for a block, a pool or a device. */
uint64_t features_of(struct world *world, int device, const struct pool *pool,
                     const struct block *block);

/* The scope of a pool; if pool is NULL, of a random device. */
struct xseg_scope scope_of(struct worker *worker, const struct pool *pool);

/* Add a feature to a block and its pool. */
void mark_block(struct block *block, uint64_t feature);

/* Count the features of a call, together with those in effect; the pool keeps the features of its calls. */
void record_features(struct world *world, uint64_t features, int device, struct pool *pool,
                     const struct block *block, bool served);

/* --- Steps: each makes a call, or no call if none is possible. --- */

typedef void step(struct worker *worker);

step step_alloc, step_free, step_free_after, step_burst, step_access, step_record_stream,
    step_invalid;
step step_advance, step_finish, step_synchronize, step_stream_retire;
step step_pool_create, step_retain, step_release, step_pause, step_resume, step_route,
    step_route_end, step_mark, step_alloc_at;
step step_checkpoint, step_restore, step_check_live, step_replay;
step step_capture, step_capture_join, step_capture_end;
step step_register, step_unregister, step_dmabuf, step_range;
step step_pin, step_unpin, step_export, step_export_close, step_peer;
step step_trim, step_trim_due, step_prewarm, step_limits, step_configure, step_observe;
step step_history, step_stats, step_explain, step_metrics, step_block_query, step_strings,
    step_second_allocator, step_close, step_fork;
step step_fault, step_lift_faults, step_check;

void end_capture(struct worker *worker);
void unregister_range(struct worker *worker, struct registration *registration);
void close_share(struct worker *worker, struct share *share);
void free_block(struct worker *worker, struct block *block);
void release_pool(struct worker *worker, unsigned at);
void end_released_target(struct worker *worker);

/* Write a configuration string for xseg_open(); returns the features that it enables. */
uint64_t world_configuration(struct world *world, uint64_t seed, char *text, size_t bytes);

/* Count the allocated blocks by an observer. */
void world_add_tracer(struct world *world);

/* Check all invariants, while no other operation is active. */
void world_check(struct world *world);

#endif
