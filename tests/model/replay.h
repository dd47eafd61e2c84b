/* SPDX-License-Identifier: MIT */
/*
 * The state of an allocator as far as its history determines it: allocated and pending blocks, and mapped addresses.  The
 * state is read by xseg_for_each_block(), or replayed from events, forward or backward.
 *
 * Each event must be consistent with the state.  A block is allocated in mapped memory without a block, memory is
 * unmapped only without blocks, and a freed block was allocated with the same description.
 */
#ifndef XSEG_TESTS_REPLAY_H
#define XSEG_TESTS_REPLAY_H

#include "tests/support/env.h"

#define REPLAY_POOLS 64u

struct replay_block {
    uint64_t base, bytes, requested;
    int device;
    uint32_t pool; /* ID; for a fallback allocation, that of the pool that owns the memory */
    void *user;    /* the user value of its request */
    bool is_fallback, is_pending;
};

/* Mapped addresses. */
struct replay_range {
    uint64_t base, end;
};

struct replay {
    struct replay_block *block; /* [blocks], by address */
    struct replay_range *range; /* [ranges], by address; neighbors are joined */
    size_t blocks, ranges, block_capacity, range_capacity;
    char error[256]; /* of the last failure */
};

void replay_free(struct replay *replay);

/* Read the current state.  pools: the private pools in the order of their IDs, from 1 on */
struct replay replay_read(struct xseg_allocator *allocator, struct xseg_pool *const *pools,
                          unsigned count);

struct replay replay_copy(const struct replay *replay);

/* Apply an event, or undo it.  Returns false and sets `error` if the event is inconsistent with the state. */
bool replay_apply(struct replay *replay, const struct xseg_history_entry *entry);
bool replay_undo(struct replay *replay, const struct xseg_history_entry *entry);

/* Whether two states are equal; otherwise `error` of the first state describes the first difference. */
bool replay_equal(struct replay *replay, const struct replay *other);

#endif
