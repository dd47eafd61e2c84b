/* SPDX-License-Identifier: MIT */
/*
 * The ledger: what an allocator has to do, as arrays and no cleverness.
 *
 * It holds every block that is not cached, every stream with how far its work has come, and the
 * captures and routes under way, and says what must come of each step.  It knows nothing of the
 * library's insides: segments only as ranges that belong to somebody.
 *
 *   queue     a real stream of the driver: work is queued on it at positions 1, 2, ..., and what has
 *             passed is what the simulator says
 *   entry     a stream as the library is to see it.  One that is gone stays; if its handle comes again
 *             that is a new entry, on the same queue or on another
 *   until     a position on each queue: passed once every queue has come that far
 *   order     what a queue's next event waits for.  What is done on the legacy stream waits for all
 *             blocking streams, and they wait for it
 *   ghost     memory that was freed while work on it was queued.  Nobody but the stream of its own
 *             work may be given it before that has passed
 *   behind    in a capture, the nodes that whatever a stream captures next comes after
 *
 * Locking: none; one thread.
 */
#ifndef XSEG_TESTS_LEDGER_H
#define XSEG_TESTS_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "xseg/xseg.h"

#define LEDGER_QUEUES   24u
#define LEDGER_ENTRIES  40u
#define LEDGER_POOLS    24u
#define LEDGER_BLOCKS   128u
#define LEDGER_USES     10u
#define LEDGER_GHOSTS   1024u
#define LEDGER_SEGMENTS 512u
#define LEDGER_ROUTES   8u
#define LEDGER_NODES    256u

/* Numbers that stand for no entry and no queue. */
#define LEDGER_SIDE 1000u /* the stream on which the library waits for users' events */
#define LEDGER_NONE 2000u

struct ledger_until {
    uint64_t position[LEDGER_QUEUES];
};

struct ledger_nodes {
    uint64_t word[LEDGER_NODES / 64];
};

enum ledger_kind { LEDGER_LEGACY, LEDGER_BLOCKING, LEDGER_APART };

struct ledger_queue {
    enum ledger_kind kind;
    uint64_t queued, passed;
    struct ledger_until order;
    uint64_t capture; /* that it takes part in, by number; 0: none */
    bool spoilt;      /* that capture is invalid */
    struct ledger_nodes behind;
};

struct ledger_entry {
    xseg_stream handle;
    unsigned queue;
    bool met, gone;
    bool named; /* in a capture: only then its nodes are asked for */
    struct ledger_until gone_behind;
};

struct ledger_use {
    unsigned entry;
    bool outside, inside;
    struct ledger_until until; /* once recorded */
};

enum ledger_state { LEDGER_LIVE, LEDGER_PENDING, LEDGER_DEFERRED };

struct ledger_block {
    char *ptr;
    uint64_t bytes, requested;
    unsigned entry, pool;
    bool is_small;
    bool lent; /* the pool lent its memory to the default one, which holds the block */
    enum ledger_state state;
    uint64_t freed;                     /* deferred: number of its free */
    struct ledger_use use[LEDGER_USES]; /* in the order in which they were noted */
    unsigned uses;
    /* Deferred: comes back in this capture behind these nodes; 0: at its end. */
    uint64_t capture;
    struct ledger_nodes marks;
};

struct ledger_ghost {
    char *ptr;
    uint64_t bytes;
    struct ledger_until until;
};

struct ledger_segment {
    char *base;
    uint64_t bytes;
    unsigned pool, entry;
};

/* Pool 0 is the default one. */
struct ledger_pool {
    struct xseg_pool *pool; /* NULL once it is destroyed */
    struct xseg_pool_options options;
    unsigned holders; /* the user's, and one for each route and capture */
    bool is_captured; /* a capture went to it, or it served a request during one: it does not lend */
};

struct ledger_route {
    unsigned pool;
    bool is_capture;
    uint64_t slots;   /* route: a bit for each queue that the predicate accepts */
    unsigned entry;   /* capture: where it begins */
    uint64_t capture; /* its number, once the driver has begun it */
};

struct ledger {
    bool reuse; /* graph_capture_record_stream_reuse */
    struct ledger_queue queue[LEDGER_QUEUES];
    struct ledger_entry entry[LEDGER_ENTRIES];
    struct ledger_pool pool[LEDGER_POOLS];
    struct ledger_block block[LEDGER_BLOCKS];
    struct ledger_ghost ghost[LEDGER_GHOSTS];
    struct ledger_segment segment[LEDGER_SEGMENTS];
    struct ledger_route route[LEDGER_ROUTES]; /* the one begun last comes last */
    unsigned queues, entries, pools, blocks, ghosts, segments, routes;
    unsigned marks; /* of the device, as capturing */
    struct ledger_until side; /* what the side stream waits for */
    unsigned nodes;           /* of all captures so far */
    uint64_t allocations;     /* that succeeded, so far */
    uint64_t frees;           /* that were deferred, so far */
    uint64_t peak_allocated, peak_active, peak_requested;
    uint64_t ghost_total; /* ever made, for the campaign's tally */
};

/* Of live blocks; of all blocks. */
struct ledger_sums {
    uint64_t allocations, allocated, active_blocks, active, requested;
};

/* --- Positions and nodes. --- */

bool ledger_has_passed(const struct ledger *ledger, const struct ledger_until *until);
bool ledger_is_empty(const struct ledger_nodes *nodes);
bool ledger_is_within(const struct ledger_nodes *inner, const struct ledger_nodes *outer);
void ledger_add(struct ledger_nodes *to, const struct ledger_nodes *more);

/* A piece of work, or an event, is put on a queue: what that waits for. */
struct ledger_until ledger_act(struct ledger *ledger, unsigned queue);

/* A stream goes, with an event behind its work. */
void ledger_leave(struct ledger *ledger, unsigned entry);

/* A node is captured on a queue, behind all that the queue is behind. */
void ledger_capture_node(struct ledger *ledger, unsigned queue);

/* --- Where things belong. --- */

/* How many captures are under way, by the library's account. */
unsigned ledger_captures(const struct ledger *ledger);

/* Whether a capture that has not ended began on an entry. */
bool ledger_is_origin(const struct ledger *ledger, unsigned entry);

/* The pool that serves an entry's requests. */
unsigned ledger_pool_of(const struct ledger *ledger, unsigned entry);

/* The block at an address, or NULL. */
struct ledger_block *ledger_find(struct ledger *ledger, const void *ptr);

/* --- Steps. --- */

/* A block comes to be.  Returns NULL, or what is wrong with it. */
const char *ledger_alloc(struct ledger *ledger, const struct ledger_block *block,
                         const struct ledger_segment *segment);

/*
 * A block, of a stream that is gone, is another stream's now, as the library says; false if it must
 * not be.
 */
bool ledger_hand_over(struct ledger *ledger, struct ledger_block *block, unsigned entry);

/* Whether an entry may be taken for another stream: its own is gone, and has passed. */
bool ledger_may_end(const struct ledger *ledger, unsigned entry);

/* An entry uses a block. */
void ledger_use(struct ledger *ledger, struct ledger_block *block, unsigned entry);

/* A block is freed; one with uses stays, pending or deferred. */
void ledger_free(struct ledger *ledger, struct ledger_block *block);

/* A block is freed behind events that were recorded at these positions; none of them is 0. */
void ledger_free_after(struct ledger *ledger, struct ledger_block *block,
                       const struct ledger_until *events);

/* An entry is named in a call, in which a capture may be under way. */
void ledger_name(struct ledger *ledger, unsigned entry);

/* An allocation on an entry begins: what may come back does. */
void ledger_look(struct ledger *ledger, unsigned entry);

/* If no capture is under way: events are recorded for what was freed in one; and then looked at. */
void ledger_settle(struct ledger *ledger);
void ledger_poll(struct ledger *ledger);

/* An entry has passed, as the user says. */
void ledger_passed(struct ledger *ledger, unsigned entry);

/* A route or a capture ends; `at` is its place. */
void ledger_end_route(struct ledger *ledger, unsigned at);

/* The device is marked as capturing once more, or once less. */
void ledger_mark(struct ledger *ledger);
void ledger_unmark(struct ledger *ledger);

/*
 * A pending block has come back before it was asked for; false if it must not have.
 *
 * has_passed: a stream has, as the user says, for which a capture does not matter
 */
bool ledger_came_back(struct ledger *ledger, struct ledger_block *block, bool has_passed);

/* Whether a private pool holds a block: what it has lent it does not. */
static inline bool ledger_holds(const struct ledger_block *block, unsigned pool)
{
    return block->pool == pool && !block->lent;
}

/* A pool is brought back to where these blocks were live, and nothing else of it was. */
void ledger_restore(struct ledger *ledger, unsigned pool, const struct ledger_block *saved,
                    unsigned count);

/* Forget ghosts whose work has passed. */
void ledger_forget_ghosts(struct ledger *ledger);

/* --- What must be counted. --- */

/* pool: its number, or LEDGER_NONE for all; size: 0 all, 1 small, 2 large */
struct ledger_sums ledger_sum(const struct ledger *ledger, unsigned pool, unsigned size);

/* Peaks as they are after a step. */
void ledger_note_peaks(struct ledger *ledger);

#endif
