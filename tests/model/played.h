/* SPDX-License-Identifier: MIT */
/*
 * A state of an allocator, as far as its history tells: which blocks are live or pending, and which addresses have
 * memory.  It is read from xseg_for_each_block(), or played from events, onwards or backwards.
 *
 * Each event must fit the state that it meets: a block comes where there is memory and no block, memory goes where
 * there is no block, what is freed was live and says what the block was.
 */
#ifndef XSEG_TESTS_PLAYED_H
#define XSEG_TESTS_PLAYED_H

#include "tests/support/scene.h"

#define PLAYED_POOLS 64u

struct played_block {
    uint64_t base, bytes, requested;
    int device;
    uint32_t pool; /* number; of the lender if it is lent */
    void *user;    /* the word of its request */
    bool is_lent, is_pending;
};

/* Addresses with memory. */
struct played_range {
    uint64_t base, end;
};

struct played {
    struct played_block *block; /* [blocks], by address */
    struct played_range *range; /* [ranges], by address; neighbours are one */
    size_t blocks, ranges, block_room, range_room;
    char why[256]; /* what was wrong */
};

void played_end(struct played *played);

/* The state as it is.  pools: those of the users, in the order of their numbers, from 1 on */
struct played played_read(struct xseg_allocator *allocator, struct xseg_pool *const *pools,
                          unsigned count);

struct played played_copy(const struct played *played);

/* Play an event, or take it back.  Returns false where it does not fit, and says why. */
bool played_on(struct played *played, const struct xseg_history_entry *entry);
bool played_back(struct played *played, const struct xseg_history_entry *entry);

/* Whether two states are the same; else `why` of the first says what differs. */
bool played_same(struct played *played, const struct played *other);

#endif
