/* SPDX-License-Identifier: MIT */
/*
 * Headroom: the smallest bound of reserved memory that is linear in allocated memory.
 *
 * A pair (e, c) is valid if reserved <= (1 + e) x allocated + c at all points; e is a multiple of 0.001, and e and c are
 * not negative.  For each e, the smallest valid c is the largest excess of reserved over (1 + e) x allocated.  Of all these
 * pairs, the result is the pair with the smallest average of the bound over all points, and the smallest e if there are
 * several.  The average is a convex function of e, so the result is where the line touches the hull of the points.
 *
 * Locking: none; one replay uses it.
 */
#ifndef TOOLS_HEADROOM_H
#define TOOLS_HEADROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEADROOM_UNIT 1000u /* e = 1 */
#define HEADROOM_MAX  (1000u * HEADROOM_UNIT)

struct headroom_pair {
    uint32_t e; /* in units of 0.001, at most HEADROOM_MAX */
    uint64_t c; /* bytes */
};

struct headroom_point {
    uint64_t allocated, excess; /* reserved - allocated */
};

__extension__ typedef __int128 headroom_sum;

/* Zero-filled: no points. */
struct headroom {
    struct headroom_point *points; /* [count]: the points that can limit a bound, and recent ones */
    size_t count, capacity;
    uint64_t added;         /* points */
    headroom_sum allocated; /* their sum */
};

/* Add a point.  Returns false if out of host memory.  Cost: amortized O(log n) in the number of points that can limit a
 * bound. */
bool headroom_add(struct headroom *headroom, uint64_t allocated, uint64_t reserved);

/* Find the pair with the smallest average; (0, 0) without points. */
struct headroom_pair headroom_find(struct headroom *headroom);

void headroom_fini(struct headroom *headroom);

#endif
