/* SPDX-License-Identifier: MIT */
/*
 * Allocation times: when the blocks of an extent were allocated, while the key block_ages is on.
 *
 * An extent has a table of stamps by where blocks start: one for each quantum of a small extent, one
 * for each slot of a large one (slot.h), so 4 bytes for 512, or for 1 MiB.  The table comes in chunks.  A chunk
 * is made when a block that starts in it is stamped first; without the key there is no chunk.
 *
 * A stamp counts 2^24 nanoseconds, 16.8 ms, and starts over every 834 days, so ages are right up to that.
 * The stamp of a freed block stays, since an allocation with the key writes a new one.  All stamps are forgotten
 * when the key is turned on.
 *
 * Locking: none; stamps are atomic.  A table ends with its extent: a caller prevents that by a live block, ARENA or
 * GROWTH.
 */
#ifndef XSEG_CORE_ALLOC_TIMES_H
#define XSEG_CORE_ALLOC_TIMES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define XSEG_ALLOC_TIMES_CHUNK   4096u
#define XSEG_ALLOC_TIMES_UNKNOWN UINT64_MAX

struct xseg_arena;
struct xseg_alloc_times;
struct xseg_clock;
struct xseg_config;
struct xseg_extent;
struct xseg_page_map;

/* The time for stamps and ages; 0: the key is off, and no clock is read.  No lock is held. */
uint64_t xseg_alloc_times_now(const struct xseg_clock *clock, const struct xseg_config *config);

/* Note that a block was allocated at an address of an extent.  Without host memory its age stays unknown. */
void xseg_alloc_times_note(struct xseg_extent *extent, uint64_t address, uint64_t now);

/* Note that the live block that begins at an address was allocated. */
void xseg_alloc_times_note_at(const struct xseg_page_map *page_map, uint64_t address, uint64_t now);

/* How long ago the block at an address was allocated, in milliseconds, or XSEG_ALLOC_TIMES_UNKNOWN. */
uint64_t xseg_alloc_times_age(const struct xseg_extent *extent, uint64_t address, uint64_t now);

/* Forget when the blocks of an arena were allocated.  GROWTH is held. */
void xseg_alloc_times_forget(struct xseg_arena *arena);

void xseg_alloc_times_fini(struct xseg_extent *extent);

uint64_t xseg_alloc_times_host_bytes(const struct xseg_extent *extent);

#endif
