/* SPDX-License-Identifier: MIT */
/*
 * The model: the expected state of an allocator, in plain arrays.
 *
 * It has every block that is not cached, every stream with the work that it has completed, and the active captures and
 * routes, and computes the expected result of each step.  It has no knowledge of the library's internals: a segment is
 * a range with an owner.
 *
 *   queue     a stream of the driver: work is queued at positions 1, 2, ..., and the simulator reports the completed
 *             position
 *   entry     a stream as the library sees it.  The entry of a retired stream stays; if its handle is reused, that is
 *             a new entry, on the same queue or on another
 *   fence     a position on each queue (a vector clock): completed once every queue has reached its position
 *   order     the fence of a queue's next event.  Work on the legacy stream waits for all blocking streams, and vice
 *             versa
 *   ghost     memory that was freed while work on it was queued.  Until the work has completed, only its stream may
 *             reuse it
 *   behind    in a capture, the nodes that precede the next node of a stream
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

/* IDs of no entry and no queue. */
#define MODEL_SIDE 1000u /* the stream on which the library waits for users' events */
#define MODEL_NONE 2000u

struct model_fence {
    uint64_t position[MODEL_QUEUES];
};

struct model_nodes {
    uint64_t word[MODEL_NODES / 64];
};

enum model_kind { MODEL_LEGACY, MODEL_BLOCKING, MODEL_APART };

struct model_queue {
    enum model_kind kind;
    uint64_t queued, passed;
    struct model_fence order;
    uint64_t capture; /* that it takes part in, by number; 0: none */
    bool is_invalid;  /* that capture is invalid */
    struct model_nodes behind;
};

struct model_entry {
    xseg_stream handle;
    unsigned queue;
    bool met, gone;
    bool named; /* in a capture: only then its nodes are asked for */
    struct model_fence gone_behind;
};

struct model_use {
    unsigned entry;
    bool outside, inside;
    struct model_fence until; /* once recorded */
};

enum model_state { MODEL_ALLOCATED, MODEL_PENDING, MODEL_DEFERRED };

struct model_block {
    char *ptr;
    uint64_t bytes, requested;
    unsigned entry, pool;
    bool is_small;
    bool fallback; /* the pool lent its memory to the default one, which holds the block */
    enum model_state state;
    uint64_t freed;                   /* deferred: number of its free */
    struct model_use use[MODEL_USES]; /* in the order in which they were noted */
    unsigned uses;
    /* Deferred: reclaimed in this capture after these nodes; 0: at its end. */
    uint64_t capture;
    struct model_nodes marks;
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
    unsigned holders; /* the user's, and one for each route and capture */
    bool
        is_captured; /* a capture went to it, or it served a request during one: it does not lend */
};

struct model_route {
    unsigned pool;
    bool is_capture;
    uint64_t slots;   /* route: a bit for each queue that the predicate accepts */
    unsigned entry;   /* capture: where it begins */
    uint64_t capture; /* its number, once the driver has begun it */
};

struct model {
    bool reuse; /* graph_capture_record_stream_reuse */
    struct model_queue queue[MODEL_QUEUES];
    struct model_entry entry[MODEL_ENTRIES];
    struct model_pool pool[MODEL_POOLS];
    struct model_block block[MODEL_BLOCKS];
    struct model_ghost ghost[MODEL_GHOSTS];
    struct model_segment segment[MODEL_SEGMENTS];
    struct model_route route[MODEL_ROUTES]; /* the one begun last comes last */
    unsigned queues, entries, pools, blocks, ghosts, segments, routes;
    unsigned marks;          /* of the device, as capturing */
    struct model_fence side; /* what the side stream waits for */
    unsigned nodes;          /* of all captures so far */
    uint64_t allocations;    /* that succeeded, so far */
    uint64_t frees;          /* that were deferred, so far */
    uint64_t peak_allocated, peak_active, peak_requested;
    uint64_t ghost_total; /* ever made, for the campaign's tally */
};

/* Of live blocks; of all blocks. */
struct model_sums {
    uint64_t allocations, allocated, active_blocks, active, requested;
};

/* --- Positions and nodes. --- */

bool model_has_completed(const struct model *model, const struct model_fence *until);
bool model_is_empty(const struct model_nodes *nodes);
bool model_is_within(const struct model_nodes *inner, const struct model_nodes *outer);
void model_add(struct model_nodes *to, const struct model_nodes *more);

/* A piece of work, or an event, is put on a queue: what that waits for. */
struct model_fence model_enqueue(struct model *model, unsigned queue);

/* A stream goes, with an event behind its work. */
void model_retire(struct model *model, unsigned entry);

/* A node is captured on a queue, behind all that the queue is behind. */
void model_capture_node(struct model *model, unsigned queue);

/* --- Where things belong. --- */

/* Active captures, from the library's point of view. */
unsigned model_captures(const struct model *model);

/* Whether a capture that has not ended began on an entry. */
bool model_is_origin(const struct model *model, unsigned entry);

/* The pool that serves an entry's requests. */
unsigned model_pool_of(const struct model *model, unsigned entry);

/* The block at an address, or NULL. */
struct model_block *model_find(struct model *model, const void *ptr);

/* --- Steps. --- */

/* A block comes to be.  Returns NULL, or what is wrong with it. */
const char *model_alloc(struct model *model, const struct model_block *block,
                        const struct model_segment *segment);

/* The library reports that a block of a retired stream belongs to another stream; false if that is wrong. */
bool model_reassign(struct model *model, struct model_block *block, unsigned entry);

/* Whether an entry may be reused for another stream: its own is retired, and has completed. */
bool model_may_reuse_entry(const struct model *model, unsigned entry);

/* An entry uses a block. */
void model_use(struct model *model, struct model_block *block, unsigned entry);

/* A block is freed; one with uses stays, pending or deferred. */
void model_free(struct model *model, struct model_block *block);

/* A block is freed behind events that were recorded at these positions; none of them is 0. */
void model_free_after(struct model *model, struct model_block *block,
                      const struct model_fence *events);

/* An entry is named in a call, in which a capture may be under way. */
void model_name_entry(struct model *model, unsigned entry);

/* An allocation on an entry begins: what may come back does. */
void model_before_alloc(struct model *model, unsigned entry);

/* If no capture is active: record events for blocks freed in a capture, then poll them. */
void model_settle(struct model *model);
void model_poll(struct model *model);

/* An entry has passed, as the user says. */
void model_synchronize(struct model *model, unsigned entry);

/* A route or a capture ends; `at` is its place. */
void model_end_route(struct model *model, unsigned at);

/* The device is marked as capturing once more, or once less. */
void model_mark(struct model *model);
void model_unmark(struct model *model);

/*
 * A pending block has come back before it was asked for; false if it must not have.
 *
 * has_passed: a stream has, as the user says, for which a capture does not matter
 */
bool model_was_reclaimed(struct model *model, struct model_block *block, bool has_passed);

/* Whether a private pool holds a block: what it has lent it does not. */
static inline bool model_holds(const struct model_block *block, unsigned pool)
{
    return block->pool == pool && !block->fallback;
}

/* A pool is brought back to where these blocks were live, and nothing else of it was. */
void model_restore(struct model *model, unsigned pool, const struct model_block *saved,
                   unsigned count);

/* Forget ghosts whose work has passed. */
void model_forget_ghosts(struct model *model);

/* --- What must be counted. --- */

/* pool: its number, or MODEL_NONE for all; size: 0 all, 1 small, 2 large */
struct model_sums model_sum(const struct model *model, unsigned pool, unsigned size);

/* Peaks as they are after a step. */
void model_note_peaks(struct model *model);

#endif
