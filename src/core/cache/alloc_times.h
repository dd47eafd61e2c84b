/* SPDX-License-Identifier: MIT */
/*
 * Births: when the blocks of an extent were allocated, while the key block_ages asks for it.
 *
 * An extent has a table of stamps by where blocks start: one for each quantum of a small extent, one
 * for each slot of a large one (slot.h), so 4 bytes for 512, or for 1 MiB.  It comes in chunks, each
 * made when a block that starts in it is stamped first; without the key there is none.
 *
 * A stamp counts 2^24 nanoseconds, 16.8 ms, and starts over every 834 days: ages are right up to there.
 * Nobody takes a stamp away when a block ends, since whoever allocates with the key writes a new one;
 * where the key comes into force all stamps of before are forgotten.
 *
 * Locking: none; stamps are atomic.  A table ends with its extent, which a live block, ARENA or GROWTH
 * prevents.
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

/* A block was allocated at an address.  Without host memory its age stays unknown. */
void xseg_alloc_times_note(struct xseg_extent *extent, uint64_t address, uint64_t now);

/* The same at any address that is the start of a live block. */
void xseg_alloc_times_note_at(const struct xseg_page_map *page_map, uint64_t address, uint64_t now);

/* How long ago the block at an address was allocated, in milliseconds, or XSEG_ALLOC_TIMES_UNKNOWN. */
uint64_t xseg_alloc_times_age(const struct xseg_extent *extent, uint64_t address, uint64_t now);

/* The blocks of an arena count as allocated at an unknown time.  GROWTH is held. */
void xseg_alloc_times_forget(struct xseg_arena *arena);

void xseg_alloc_times_fini(struct xseg_extent *extent);

uint64_t xseg_alloc_times_host_bytes(const struct xseg_extent *extent);

#endif
