/* SPDX-License-Identifier: MIT */
/*
 * Origins: of each live block of an extent when it was allocated, by which stack, and the word of its request.
 *
 * An extent has a table by where blocks start: one place for each 512 bytes of a small extent, one
 * for each slot of a large one (slot.h). A place has a stamp, 4 bytes for 512, or for 1 MiB; and a
 * call, 12 bytes, where stacks or labels are kept; and a user, 8 bytes, where words are kept. The
 * table comes in chunks. A chunk is made when a block that starts in it is noted first; while
 * neither history nor block_user is on there is no chunk.
 *
 * A stamp counts 2^24 nanoseconds, 16.8 ms, and starts over every 834 days, so ages are right up to that.
 * A free clears the stamp and the call of its block, also after history has been turned off: live blocks
 * keep their origins, and a block that is allocated later has none.  The arena counts the blocks with a stamp; as long as
 * there are any, its notes have XSEG_ARENA_ORIGINS.  Users are cleared when block_user is turned on.
 *
 * Locking: none; stamps, calls and users are atomic.  A table ends with its extent: a caller prevents that by a live
 * block, ARENA or the device memory lock.
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

/* Who allocated a block: numbers of history/store.h, each 0 where there is none. */
struct xseg_origin {
    uint32_t stack, frames, label;
};

/* The time for stamps. */
uint64_t xseg_origins_now(const struct xseg_clock *clock);

/* The time for ages; 0: a configuration keeps no origins, and no clock is read.  No lock is held. */
uint64_t xseg_origins_now_by(const struct xseg_clock *clock, const struct xseg_config *config);

/*
 * Note that a block was allocated at an address of an extent.  Without host memory its origin stays unknown.
 *
 * origin:  NULL while neither stacks nor labels are kept
 * Returns: whether the block has a stamp now and there was none at the address before
 */
bool xseg_origins_record(struct xseg_extent *extent, uint64_t address, uint64_t now,
                         const struct xseg_origin *origin);

/* Clear the stamp and the call of the block at an address.  Returns: whether it had a stamp. */
bool xseg_origins_clear(const struct xseg_extent *extent, uint64_t address);

/* How long ago the block at an address was allocated, in milliseconds, or XSEG_ORIGINS_UNKNOWN. */
uint64_t xseg_origins_age(const struct xseg_extent *extent, uint64_t address, uint64_t now);

/* Who allocated the block at an address; all 0 where it is not known. */
struct xseg_origin xseg_origins_of(const struct xseg_extent *extent, uint64_t address);

/* Note the word of the request of a block; 0: none.  Without host memory the block has none. */
void xseg_origins_record_user(struct xseg_extent *extent, uint64_t address, uint64_t user);

/* The word of the request of the block at an address; 0: none. */
uint64_t xseg_origins_user(const struct xseg_extent *extent, uint64_t address);

/* Visit the frames and labels of an arena's blocks, 0 where a block has none.  The device memory lock is held. */
void xseg_origins_visit(const struct xseg_arena *arena,
                        void (*visit)(void *self, uint32_t frames, uint32_t label), void *self);

/* Forget the words of all blocks of an arena.  The device memory lock is held. */
void xseg_origins_discard_users(struct xseg_arena *arena);

void xseg_origins_fini(struct xseg_extent *extent);

uint64_t xseg_origins_host_bytes(const struct xseg_extent *extent);

#endif
