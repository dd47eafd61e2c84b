/* SPDX-License-Identifier: MIT */
/*
 * Origins: the allocation time, the call stack, the label and the user value of each allocated
 * block, while the history or `block_user` is enabled.
 *
 * Block records have no room for origins, and most programs do not record them, so an extent has
 * tables on the side.  A table has one place per address at which a block can begin: per 512 bytes
 * in an extent of small blocks, per slot in an extent of large ones (page_map.h).  A place takes 4
 * bytes for the stamp, 12 for stack, frames and label, and 8 for the user value; these three are
 * separate tables, in chunks of XSEG_ORIGINS_CHUNK places.  The first block with an origin in a
 * chunk allocates the table; on host allocation failure the origin remains unknown.
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
#ifndef XSEG_CORE_ORIGINS_H
#define XSEG_CORE_ORIGINS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define XSEG_ORIGINS_CHUNK   4096u
#define XSEG_ORIGINS_UNKNOWN UINT64_MAX

struct xseg_arena;
struct xseg_clock;
struct xseg_config;
struct xseg_extent;

/* The origin of a block: IDs of history/store.h, each 0 if there is none. */
struct xseg_origin {
    uint32_t stack, frames, label;
};

/* The current time for stamps. */
uint64_t xseg_origins_now(const struct xseg_clock *clock);

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
