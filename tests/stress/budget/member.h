/* SPDX-License-Identifier: MIT */
/* A process on a shared device with a shared budget file: its two threads make random calls, or are idle, as ordered. */
#ifndef XSEG_TESTS_BUDGET_MEMBER_H
#define XSEG_TESTS_BUDGET_MEMBER_H

#include <stdatomic.h>
#include <stdint.h>

#include "tests/support/env.h"

#define SEATS 8u

/* Activities of a member until the next order; all but 'p' and 'e' write statistics to its seat. */
enum budget_order {
    ORDER_PLAY = 'p',
    ORDER_IDLE = 'r',       /* be idle, apply the configuration in `text`, audit */
    ORDER_STATISTICS = 'l', /* statistics only */
    ORDER_FREE = 'f',       /* free everything, and keep it cached */
    ORDER_ALLOCATE = 'a',   /* allocate a block of this size, in addition to those of the threads */
    ORDER_FREE_BLOCK = 'g', /* free that block */
    ORDER_END = 'e'         /* free everything, close, and expect no leaks */
};

/* The part of the shared memory that belongs to a member; its counts continue with the next member of the seat. */
struct budget_seat {
    atomic_uint ordered,
        done; /* number of the last order, written last; of the last order that was completed */
    enum budget_order order;
    uint64_t bytes;     /* of an order; afterwards the allocated bytes */
    xseg_status status; /* of ORDER_ALLOCATE */
    char text[512];     /* of an order; afterwards of an error */
    atomic_uint_fast64_t requests, denied, commits, changes, budget_requests, served;
};

struct budget_shared {
    struct xseg_sim_settings sim;
    char sim_name[64], budget_file[128];
    uint64_t block_max; /* bytes of the largest block */
    struct budget_seat seat[SEATS];
};

/* Run the member of a seat. seed: of its random calls */
_Noreturn void budget_member(struct budget_shared *shared, unsigned seat, uint64_t seed);

#endif
