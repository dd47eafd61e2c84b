/* SPDX-License-Identifier: MIT */
/* A process that shares a card by a ledger: two threads play at random, or rest, as the parent says in memory of both. */
#ifndef XSEG_TESTS_BUDGET_MEMBER_H
#define XSEG_TESTS_BUDGET_MEMBER_H

#include <stdatomic.h>
#include <stdint.h>

#include "tests/support/env.h"

#define SEATS 8u

/* What a member does until the next order; all but 'p' and 'e' leave figures in its seat. */
enum budget_order {
    ORDER_PLAY = 'p',
    ORDER_REST = 'r',      /* stop playing, follow the configuration in `text`, audit */
    ORDER_LOOK = 'l',      /* figures alone */
    ORDER_FREE = 'f',      /* free everything, and keep it cached */
    ORDER_ALLOCATE = 'a',  /* a block of so many bytes, beside those of the threads */
    ORDER_GIVE_BACK = 'g', /* and free it */
    ORDER_END = 'e'        /* free everything, close, and expect that nothing is left */
};

/* A member's place in the memory that it has together with the parent.  Counts go on when another member sits down. */
struct budget_seat {
    atomic_uint ordered,
        done; /* number of the last order, written behind it; of the last one that was obeyed */
    enum budget_order order;
    uint64_t bytes;     /* of an order; afterwards those that are taken */
    xseg_status status; /* of ORDER_ALLOCATE */
    char text[512];     /* of an order; afterwards of an error */
    atomic_uint_fast64_t requests, refused, commits, changes, asks, served;
};

struct budget_board {
    struct xseg_sim_settings machine;
    char machine_name[64], ledger[128];
    uint64_t block_most; /* bytes of the largest block */
    struct budget_seat seat[SEATS];
};

/* Be the member of a seat.  seed: of what it plays */
_Noreturn void budget_member(struct budget_board *board, unsigned seat, uint64_t seed);

#endif
