/* SPDX-License-Identifier: MIT */
/* A process on a shared device with a shared budget file: its two threads make random calls, or are idle, as ordered. */
#ifndef XSEG_TESTS_BUDGET_MEMBER_H
#define XSEG_TESTS_BUDGET_MEMBER_H

#include <stdatomic.h>
#include <stdint.h>

#include "tests/support/env.h"

#define MEMBERS 8u

/* Activities of a member until the next order.  All except ORDER_RUN and ORDER_END set budget_member.bytes to the
 * allocated bytes. */
enum budget_order {
    ORDER_RUN = 'p',        /* make random calls */
    ORDER_IDLE = 'r',       /* be idle, apply the configuration in `text`, audit */
    ORDER_STATISTICS = 'l', /* statistics only */
    ORDER_FREE = 'f',       /* free everything, and keep it cached */
    ORDER_ALLOCATE = 'a',   /* allocate a block of `bytes`, in addition to those of the threads */
    ORDER_FREE_BLOCK = 'g', /* free the block of ORDER_ALLOCATE */
    ORDER_END = 'e'         /* free everything, close, and expect no leaks */
};

/* The shared memory of the member with one index.  A process that replaces a killed member continues its counts. */
struct budget_member {
    atomic_uint last_order; /* number of the last order; incremented after `order` is written */
    atomic_uint completed_order; /* number of the last completed order */
    enum budget_order order;
    uint64_t bytes;     /* argument of the order; afterwards the allocated bytes */
    xseg_status status; /* result of ORDER_ALLOCATE */
    char text[512];     /* argument of the order; afterwards an error message */
    atomic_uint_fast64_t requests, denied, commits, changes, budget_requests, served;
};

struct budget_shared {
    struct xseg_sim_settings sim;
    char sim_name[64], budget_file[128];
    uint64_t block_max; /* bytes of the largest block */
    struct budget_member member[MEMBERS];
};

/* Run the member with an index in the calling process.  seed: determines its random calls */
_Noreturn void budget_member_run(struct budget_shared *shared, unsigned member, uint64_t seed);

#endif
