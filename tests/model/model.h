/* SPDX-License-Identifier: MIT */
/*
 * The model: the expected state of an allocator, in plain arrays.
 *
 * The model has every block that is not cached, every stream with its completed work, and the active captures and
 * routes.  It computes the expected result of each step, without knowledge of the library's internals: a segment is a
 * range with an owner.
 *
 *   queue     a stream of the driver: work is queued at positions 1, 2, ..., and the simulator reports the completed
 *             position
 *   entry     a stream as the library sees it.  The entry of a retired stream remains; if its handle is reused, the new
 *             stream has a new entry, on the same queue or on another one
 *   fence     a position on each queue (a vector clock), completed once every queue has reached its position
 *   order     the fence of a queue's next event.  Work on the legacy stream waits for all blocking streams, and work on
 *             these streams waits for the legacy stream
 *   ghost     memory that was freed while work on it was queued.  Until the work has completed, only its stream may
 *             reuse it
 *   predecessors
 *             in a capture, the nodes that precede the next node of a stream
 *
 * Locking: none; one thread.
 */
#ifndef XSEG_TESTS_MODEL_H
#define XSEG_TESTS_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "xseg/xseg.h"

#define MODEL_QUEUES   24u
#define MODEL_ENTRIES  40u
#define MODEL_POOLS    24u
#define MODEL_BLOCKS   128u
#define MODEL_USES     10u
#define MODEL_GHOSTS   1024u
#define MODEL_SEGMENTS 512u
#define MODEL_ROUTES   8u
#define MODEL_NODES    256u

/* IDs that no entry, queue or pool has. */
#define MODEL_WAIT_STREAM 1000u /* the library's own stream, which waits for users' events */
#define MODEL_NONE        2000u

struct model_fence {
    uint64_t position[MODEL_QUEUES];
};

struct model_nodes {
    uint64_t word[MODEL_NODES / 64];
};

enum model_kind { MODEL_LEGACY, MODEL_BLOCKING, MODEL_NON_BLOCKING };

struct model_queue {
    enum model_kind kind;
    uint64_t queued, completed;
    struct model_fence order;
    uint64_t capture; /* ID of the capture in which it takes part; 0: none */
    bool is_invalid;  /* the capture is invalid */
    struct model_nodes predecessors;
};

struct model_entry {
    xseg_stream handle;
    unsigned queue;
    bool is_known; /* to the library */
    bool retired;
    bool named; /* by a call during a capture: only then the library queries its nodes */
    struct model_fence retired_until; /* its work at the retirement */
};

struct model_use {
    unsigned entry;
    bool is_outside;          /* the stream has used the block outside a capture, too */
    struct model_fence until; /* of the event, once it is recorded */
};

enum model_state { MODEL_ALLOCATED, MODEL_PENDING, MODEL_DEFERRED };

struct model_block {
    char *ptr;
    uint64_t bytes, requested;
    unsigned entry, pool;
    bool is_small;
    bool fallback; /* a fallback allocation of the default pool from the memory of `pool` */
    enum model_state state;
    uint64_t freed;                   /* deferred: the number of frees before it */
    struct model_use use[MODEL_USES]; /* in the order of their recording */
    unsigned uses;
    /* Deferred: the block can be reclaimed in this capture after these nodes; 0: only at the end of the capture. */
    uint64_t capture;
    struct model_nodes predecessors;
};

struct model_ghost {
    char *ptr;
    uint64_t bytes;
    struct model_fence until;
};

struct model_segment {
    char *base;
    uint64_t bytes;
    unsigned pool, entry;
};

/* Pool 0 is the default one. */
struct model_pool {
    struct xseg_pool *pool; /* NULL once it is destroyed */
    struct xseg_pool_options options;
    unsigned references; /* of the user, and one for each route and capture */
    bool is_captured;    /* it was used during a capture, so it serves no fallback allocations */
};

struct model_route {
    unsigned pool;
    bool is_capture;
    uint64_t queues;  /* route: a bit for each queue that the predicate accepts */
    unsigned entry;   /* capture: its origin */
    uint64_t capture; /* capture: its ID, once it has begun in the driver */
};

struct model {
    bool reuse; /* graph_capture_record_stream_reuse */
    struct model_queue queue[MODEL_QUEUES];
    struct model_entry entry[MODEL_ENTRIES];
    struct model_pool pool[MODEL_POOLS];
    struct model_block block[MODEL_BLOCKS];
    struct model_ghost ghost[MODEL_GHOSTS];
    struct model_segment segment[MODEL_SEGMENTS];
    struct model_route route[MODEL_ROUTES]; /* in the order of their begin */
    unsigned queues, entries, pools, blocks, ghosts, segments, routes;
    unsigned marks;                 /* number of marks of the device as capturing */
    struct model_fence wait_stream; /* what the library's own stream waits for */
    /* Totals since the begin: captured nodes, successful allocations, deferred frees, ghosts. */
    unsigned nodes;
    uint64_t allocations, deferred_frees, ghost_total;
    uint64_t peak_allocated, peak_active, peak_requested;
};

/* Sums of allocated blocks; of allocated and pending blocks. */
struct model_sums {
    uint64_t allocations, allocated, active_blocks, active, requested;
};

/* --- Positions and nodes. --- */

void model_add_nodes(struct model_nodes *set, const struct model_nodes *other);

/* Queue work or an event; returns the fence that it waits for. */
struct model_fence model_enqueue(struct model *model, unsigned queue);

/* Retire a stream, with an event after its work. */
void model_retire(struct model *model, unsigned entry);

/* Capture a node on a queue, after the predecessors of the queue. */
void model_capture_node(struct model *model, unsigned queue);

/* --- Lookup. --- */

/* The number of captures that are active as far as the library knows, including marks. */
unsigned model_captures(const struct model *model);

/* Whether a capture that has not ended began on an entry. */
bool model_is_origin(const struct model *model, unsigned entry);

/* The pool that serves an entry's requests. */
unsigned model_pool_of(const struct model *model, unsigned entry);

/* The block at an address, or NULL. */
struct model_block *model_find(struct model *model, const void *ptr);

/* --- Steps. --- */

/* Add a block.  Returns NULL, or the violated rule. */
const char *model_alloc(struct model *model, const struct model_block *block,
                        const struct model_segment *segment);

/* The library reports that another stream orders a block of a retired stream; returns false if this is too early. */
bool model_reassign(struct model *model, struct model_block *block, unsigned entry);

/* Whether the library may reuse an entry for another stream: its stream is retired and has completed. */
bool model_may_reuse_entry(const struct model *model, unsigned entry);

/* An entry uses a block. */
void model_use(struct model *model, struct model_block *block, unsigned entry);

/* Free a block; a block with uses remains, pending or deferred. */
void model_free(struct model *model, struct model_block *block);

/* Free a block after events that were recorded at these positions. */
void model_free_after(struct model *model, struct model_block *block,
                      const struct model_fence *events);

/* A call names an entry; the model records this during captures. */
void model_name_entry(struct model *model, unsigned entry);

/* An allocation on an entry begins: reclaim what can be reclaimed. */
void model_before_alloc(struct model *model, unsigned entry);

/* If no capture is active: record the events of blocks that were freed in a capture; model_poll() then polls them. */
void model_settle(struct model *model);
void model_poll(struct model *model);

/* The user has synchronized an entry. */
void model_synchronize(struct model *model, unsigned entry);

/* End the route or capture with an index. */
void model_end_route(struct model *model, unsigned index);

/* The device is marked as capturing once more, or once less. */
void model_mark(struct model *model);
void model_unmark(struct model *model);

/* The library has reclaimed a pending block without a required poll; returns false if it must not.  is_synchronized:
 * the user has synchronized a stream in this step, which reclaims blocks also during a capture. */
bool model_was_reclaimed(struct model *model, struct model_block *block, bool is_synchronized);

/* Whether a block belongs to a private pool, other than as a fallback allocation. */
static inline bool model_belongs_to_pool(const struct model_block *block, unsigned pool)
{
    return block->pool == pool && !block->fallback;
}

/* Restore a pool: exactly the saved blocks of it are allocated. */
void model_restore(struct model *model, unsigned pool, const struct model_block *saved,
                   unsigned count);

/* Remove ghosts whose work has completed. */
void model_remove_ghosts(struct model *model);

/* --- Statistics. --- */

/* pool: its ID, or MODEL_NONE for all; size: 0 all, 1 small, 2 large */
struct model_sums model_sum(const struct model *model, unsigned pool, unsigned size);

/* Update the peaks after a step. */
void model_update_peaks(struct model *model);

#endif
