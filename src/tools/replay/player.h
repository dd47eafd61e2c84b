/* SPDX-License-Identifier: MIT */
/*
 * The operations of a trace, played on an allocator and a driver that are open.
 *
 * A capture is one of the driver, so what is queued during it becomes part of a graph, which is
 * thrown away.
 *
 * On the simulator, work that is queued stays unfinished until the trace says that it has finished,
 * or until the allocator waits for it.  On a real driver a use writes one byte of the block, and work
 * without a block is not queued.
 *
 * Locking: none; it belongs to one replay.
 */
#ifndef TOOLS_PLAYER_H
#define TOOLS_PLAYER_H

#include "src/tools/replay/journal.h"
#include "src/tools/replay/replay.h"
#include "src/tools/replay/stopwatch.h"
#include "src/tools/replay/timeline.h"

/* What is under way for a pool. */
struct player_route {
    enum { PLAYER_ROUTE_NONE, PLAYER_ROUTE_PLAIN, PLAYER_ROUTE_CAPTURE } kind;
    uint16_t stream; /* that it began on */
};

struct player {
    const struct xtrace *trace;
    const struct replay_settings *settings;
    struct replay_result *out;
    struct gpu *gpu;
    struct xseg_allocator *allocator;
    struct CUstream_st **streams; /* [trace->stream_count] */
    struct xseg_pool **pools;     /* [trace->pool_count]; NULL until first mentioned */
    void **blocks;                /* [trace->slot_count]; NULL where none is live */
    struct player_route *routes;  /* [trace->pool_count] */
    uint64_t *bases;              /* [trace->place_count]; see check.h */
    uint32_t captures;            /* under way */
    struct check check;
    struct timeline timeline;
    struct journal journal;
    struct watch watch;
    struct stopwatch stopwatch; /* runs while the allocator is at work */
    struct xseg_driver_call *calls_before;
    uint64_t driver_ns_before, own_ns; /* the allocator's trial; the replay's own calls */
    bool is_simulated;
};

/*
 * Play the operations [from, to).  Of a trace with a clock, those that ask something of the allocator
 * are measured one by one; otherwise the caller measures all.
 *
 * Returns: false where the replay ends early; the result then says why.
 */
bool player_play(struct player *player, size_t from, size_t to);

/* End what is under way for a pool.  Returns false where the driver or the allocator refuses. */
bool player_end_route(struct player *player, uint16_t pool);

#endif
