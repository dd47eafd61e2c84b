/* SPDX-License-Identifier: MIT */
/*
 * A world: the library on a simulated machine, and the ledger of what it has to do.
 *
 * A slot is a stream of the programme: slot 0 the legacy default stream, 1 the thread's own, the rest
 * made here.  When a slot's stream goes, another one takes the slot.  A step (steps.c) does something
 * to both sides; world_check() then holds one against the other.
 */
#ifndef XSEG_TESTS_WORLD_H
#define XSEG_TESTS_WORLD_H

#include "src/core/device/device.h"
#include "tests/model/ledger.h"
#include "tests/model/machine.h"
#include "tests/support/scene.h"

#define WORLD_SLOTS 6u
#define WORLD_WORK  24u /* pieces that may be queued on a stream at once */
#define WORLD_FAR   6u  /* blocks on the other device */

struct world_slot {
    unsigned queue, entry; /* in the ledger */
};

/* The driver's side of a queue. */
struct world_queue {
    xseg_stream handle;
    bool is_there;
    xseg_event behind[WORLD_WORK]; /* piece number n: at n % WORLD_WORK */
};

struct world_options {
    uint64_t seed;
    bool expandable, reuse;
    bool is_short;    /* of memory */
    bool is_captured; /* mostly captures */
};

struct world {
    struct world_options options;
    struct xseg_allocator *allocator;
    struct ledger ledger;
    struct world_slot slot[WORLD_SLOTS];
    struct world_queue queue[LEDGER_QUEUES];
    const void *known[LEDGER_ENTRIES]; /* what the library knows an entry by, once it has met it */
    uint64_t random;
    bool leaving; /* when the last call was made, the library waited for streams that are gone */
    /* The step under way: freed blocks whose work has passed may come back in it. */
    bool may_come_back;
    bool has_passed;      /* a stream, as the user said in this step */
    bool may_have_looked; /* a step ran short, in which uses of blocks that stayed may have ended */
    bool is_expected;     /* world_expect_meeting() was called */
    /* A checkpoint, and what is to be live after its restoration. */
    struct xseg_checkpoint *checkpoint;
    unsigned saved_pool, saved_count;
    bool saved_may_be_gone; /* the pool was trimmed by name */
    struct ledger_block saved[LEDGER_BLOCKS];
    /* Blocks on device 1. */
    void *far[WORLD_FAR];
    unsigned fars;
    uint64_t own_bytes; /* of pools with their own functions */
    bool own_fails;     /* those functions have nothing now */
    unsigned oom, borrowed, restored, reused;
};

/* The sizes that a small block may have. */
static inline uint64_t world_round(uint64_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

uint64_t world_below(struct world *world, uint64_t bound);
size_t world_bytes(struct world *world);

/* A private pool that is held; 0: there is none. */
unsigned world_pool(struct world *world);

/* A slot that takes part in a capture which is in order; LEDGER_NONE: there is none. */
unsigned world_captured_slot(struct world *world);

/* Set up and take down; the latter expects that everything adds up to nothing. */
void world_open(struct world *world, const struct world_options *options);
void world_close(struct world *world);

/* A stream for a slot: a new one, or the handle of the last one again. */
void world_fill_slot(struct world *world, unsigned slot, bool again);

/* The handle of a slot, by one of its names. */
xseg_stream world_handle(struct world *world, unsigned slot);

/* Around each call of the library: any context may be current, and stays so. */
int world_enter(struct world *world);
void world_leave(const struct world *world, int device);

/* A call went well; else its sentence. */
void world_expect_ok(xseg_status status);

/* Look which work has passed. */
void world_look(struct world *world);

/*
 * The library is about to meet a slot's stream in a call that may wait for work afterwards: what it
 * looks at before that is looked at now.
 */
void world_expect_meeting(struct world *world, unsigned slot);

/*
 * The library has met a slot's stream in a call that has returned: blocks of streams that are gone
 * may be that stream's now.  Where it looked for a stream that it does not know, it looked at events,
 * too, if streams were leaving.
 */
void world_meet(struct world *world, unsigned slot);
void world_look_at_leaving(struct world *world);

/* Whether a block belongs to the library's own stream: that may have taken the place of one that is gone. */
bool world_is_aside(const struct world *world, const struct ledger_block *block);

/* After a wait for all streams: every block is live in the ledger. */
void world_expect_nothing_pending(struct world *world);

/* Library and ledger agree; the audits, which take longer, if asked for. */
void world_check(struct world *world, bool audit);

/* --- Steps; each does one thing, or nothing if it does not apply. --- */

void step_alloc(struct world *world);
void step_free(struct world *world);
void step_free_after(struct world *world);
void step_use(struct world *world);
void step_work(struct world *world);
void step_finish(struct world *world);
void step_passed(struct world *world);
void step_gone(struct world *world);
void step_trim(struct world *world);
void step_prewarm(struct world *world);
void step_far(struct world *world);
void step_bad_input(struct world *world);

void step_pool(struct world *world);
void step_release(struct world *world);
void step_route(struct world *world);
void step_route_end(struct world *world);
void step_checkpoint(struct world *world);
void step_restore(struct world *world);
void step_holds(struct world *world);
void step_capture(struct world *world);
void step_capture_begin_late(struct world *world);
void step_capture_node(struct world *world);
void step_capture_share(struct world *world);
void step_capture_join(struct world *world);
void step_capture_spoil(struct world *world);
void step_mark(struct world *world);
void step_unmark(struct world *world);
void step_capture_end(struct world *world);

/* End a route or a capture; for the end of a programme, too. */
void step_end_route_at(struct world *world, unsigned at);

#endif
