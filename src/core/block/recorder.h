/* SPDX-License-Identifier: MIT */
/*
 * The recorder: writes changes of blocks and segments to the history at the moment when the arena
 * changes.
 *
 * The settings of the history (history.h) select up to three destinations: an event in the ring of
 * the arena, a trace entry for observers with `on_trace`, and the origin of an allocated block.
 *
 *     if (xseg_recorder_is_enabled(arena))
 *         xseg_recorder_alloc(arena, &block);
 *
 * Locking: the caller holds the arena's lock, so the events of an arena are in the order of the
 * changes.  Events of segments also require the device memory lock, because memory may move to
 * another arena and the event draws a global sequence number.
 */
#ifndef XSEG_CORE_RECORDER_H
#define XSEG_CORE_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/core/block/arena.h"
#include "src/core/history/history.h"

/* A block as events describe it. */
struct xseg_recorded_block {
    uint64_t base, bytes, requested;
    bool is_fallback; /* the block has XSEG_BLOCK_FALLBACK */
};

/* Whether the history records anything about blocks and segments. */
static inline bool xseg_recorder_is_enabled(const struct xseg_arena *arena)
{
    return __builtin_expect(xseg_history_store_settings(arena->history->store) != 0, 0);
}

/* Record an allocation. */
void xseg_recorder_alloc(struct xseg_arena *arena, const struct xseg_recorded_block *block);

/* Record a free after which the block is immediately cached: FREE_REQUESTED and FREE_COMPLETED. */
void xseg_recorder_free(struct xseg_arena *arena, const struct xseg_recorded_block *block);

/* Record an action on a block. */
void xseg_recorder_block(struct xseg_arena *arena, const struct xseg_block *block,
                         enum xseg_history_action action);

/* xseg_recorder_free() if the recorder is enabled. */
static inline void xseg_recorder_free_if_enabled(struct xseg_arena *arena,
                                                 const struct xseg_block *block)
{
    if (xseg_recorder_is_enabled(arena))
        xseg_recorder_free(arena, &(struct xseg_recorded_block){block->base, block->bytes,
                                                                block->requested,
                                                                xseg_block_is_fallback(block)});
}

/* Record an action on memory of a segment.  Also requires the device memory lock. */
void xseg_recorder_segment(const struct xseg_extent *extent, enum xseg_history_action action,
                           uint64_t base, uint64_t bytes);

/* Record that memory of a segment is unmapped: the cause, then the action, with the same stream.
 * Also requires the device memory lock. */
void xseg_recorder_unmapped(const struct xseg_extent *extent, enum xseg_history_action cause,
                            enum xseg_history_action action, uint64_t base, uint64_t bytes);

/* Report released evicted pages of a segment.  The history contains their PAUSE; observers with
 * `on_trace` receive no pauses, so they receive SEGMENT_UNMAP here.  Also requires the device
 * memory lock. */
void xseg_recorder_discarded(const struct xseg_extent *extent, uint64_t base, uint64_t bytes);

/* Record that a request waits for other processes to release `bytes`. */
void xseg_recorder_budget_request(struct xseg_arena *arena, uint64_t bytes);

/* Record an out-of-memory failure; the device has `free_bytes`. */
void xseg_recorder_oom(struct xseg_arena *arena, uint64_t requested, uint64_t free_bytes);

/* --- Origins of allocated blocks. --- */

/*
 * Origins: the allocation time, the call stack, the label and the user value of each allocated
 * block, while the history or `block_user` is enabled.
 *
 * Block records have no space for origins, and most programs do not record them, so an extent has
 * separate tables.  A table has one entry per address at which a block can begin: per 512 bytes in
 * an extent of small blocks, per slot in an extent of large ones (page_map.h).  There are three
 * tables: 4 bytes per entry for the stamp, 12 for stack, frames and label, and 8 for the user
 * value.  They are allocated in chunks of XSEG_ORIGINS_CHUNK entries.  The first block with an
 * origin in a chunk allocates the table; on host allocation failure the origin remains unknown.
 *
 * A stamp counts units of 2^24 nanoseconds, 16.8 ms, and wraps after 834 days, so ages are correct
 * up to that time.  A free clears the stamp and the origin of its block, also after the history has
 * been disabled: allocated blocks keep their origins, and a block that is allocated later has none.
 * The arena counts the blocks with a stamp and has the free action XSEG_ARENA_ORIGINS while there
 * are any (arena.h).  User values are cleared when `block_user` is enabled.
 *
 * Locking: none; stamps, origins and user values are atomic.  The tables are freed with their
 * extent.  A caller prevents that with an allocated block in the extent, the arena's lock, or the
 * device memory lock.
 */

#define XSEG_ORIGINS_CHUNK   4096u
#define XSEG_ORIGINS_UNKNOWN UINT64_MAX

struct xseg_arena;
struct xseg_clock;
struct xseg_config;
struct xseg_extent;

/* The origin of a block: IDs of history/history.h, each 0 if there is none. */
struct xseg_origin {
    uint32_t stack, frames, label;
};

/* The current time for ages, or 0 if the configuration records no origins.  The caller holds no
 * lock. */
uint64_t xseg_origins_now_if_enabled(const struct xseg_clock *clock,
                                     const struct xseg_config *config);

/*
 * Record that a block was allocated at an address of an extent.
 *
 * origin:  NULL if neither stacks nor labels are recorded
 * Returns: whether the block has a stamp now and there was none at the address before
 */
bool xseg_origins_record(struct xseg_extent *extent, uint64_t address, uint64_t now,
                         const struct xseg_origin *origin);

/* Clear the stamp and the origin of the block at an address.  Returns whether the block had a
 * stamp. */
bool xseg_origins_clear(const struct xseg_extent *extent, uint64_t address);

/* The age of the block at an address in milliseconds, or XSEG_ORIGINS_UNKNOWN. */
uint64_t xseg_origins_age(const struct xseg_extent *extent, uint64_t address, uint64_t now);

/* The origin of the block at an address; all 0 if unknown. */
struct xseg_origin xseg_origins_of(const struct xseg_extent *extent, uint64_t address);

/* Record the user value of the request of a block; 0: none. */
void xseg_origins_record_user(struct xseg_extent *extent, uint64_t address, uint64_t user);

/* The user value of the block at an address; 0: none. */
uint64_t xseg_origins_user(const struct xseg_extent *extent, uint64_t address);

/* Visit the frames and labels of an arena's blocks, 0 if a block has none.  The caller holds the
 * device memory lock. */
void xseg_origins_visit(const struct xseg_arena *arena,
                        void (*visit)(void *self, uint32_t frames, uint32_t label), void *self);

/* Discard the user values of all blocks of an arena.  The caller holds the device memory lock. */
void xseg_origins_discard_users(struct xseg_arena *arena);

void xseg_origins_fini(struct xseg_extent *extent);

uint64_t xseg_origins_host_bytes(const struct xseg_extent *extent);

#endif
