/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/headroom.h"

#include <stdlib.h>

#define POINTS_MIN 4096u

/* --- Points. --- */

static int compare_points(const void *first, const void *second)
{
    const struct headroom_point *a = first, *b = second;

    if (a->allocated != b->allocated)
        return a->allocated < b->allocated ? -1 : 1;
    return (a->excess < b->excess) - (a->excess > b->excess);
}

/* Get whether a point is on or below the line between its neighbors. */
static bool is_below(const struct headroom_point *left, const struct headroom_point *point,
                     const struct headroom_point *right)
{
    const headroom_sum width = (headroom_sum)right->allocated - left->allocated;
    const headroom_sum rise = (headroom_sum)right->excess - left->excess;

    return ((headroom_sum)point->excess - left->excess) * width <=
           rise * ((headroom_sum)point->allocated - left->allocated);
}

/* Keep the upper hull of the points, up to the point with the largest excess: only these points can limit a line that does
 * not fall. */
static void reduce_to_hull(struct headroom *headroom)
{
    struct headroom_point *points = headroom->points;
    size_t count = 0;

    if (headroom->count == 0)
        return;
    qsort(points, headroom->count, sizeof(*points), compare_points);
    for (size_t i = 0; i < headroom->count; i++) {
        const struct headroom_point point = points[i];

        if (count > 0 && point.excess <= points[count - 1].excess)
            continue;
        while (count > 1 && is_below(&points[count - 2], &points[count - 1], &point))
            count--;
        points[count++] = point;
    }
    headroom->count = count;
}

/* Reserve memory for a point: remove points that limit no bound, and grow the array if more than half remain. */
static bool reserve_point(struct headroom *headroom)
{
    const size_t capacity = headroom->capacity > 0 ? 2 * headroom->capacity : POINTS_MIN;
    struct headroom_point *points;

    if (headroom->count < headroom->capacity)
        return true;
    reduce_to_hull(headroom);
    if (headroom->capacity > 0 && headroom->count <= headroom->capacity / 2)
        return true;
    points = realloc(headroom->points, capacity * sizeof(*points));
    if (!points)
        return false;
    headroom->points = points;
    headroom->capacity = capacity;
    return true;
}

bool headroom_add(struct headroom *headroom, uint64_t allocated, uint64_t reserved)
{
    const uint64_t excess = reserved > allocated ? reserved - allocated : 0;

    if (!reserve_point(headroom))
        return false;
    headroom->points[headroom->count++] = (struct headroom_point){allocated, excess};
    headroom->added++;
    headroom->allocated += allocated;
    return true;
}

void headroom_fini(struct headroom *headroom)
{
    free(headroom->points);
    *headroom = (struct headroom){0};
}

/* --- The pair. --- */

/* Find the smallest c for an e, in units of a byte / HEADROOM_UNIT. */
static headroom_sum find_smallest_c(const struct headroom *headroom, uint32_t e)
{
    headroom_sum c = 0;

    for (size_t i = 0; i < headroom->count; i++) {
        const struct headroom_point *point = &headroom->points[i];
        const headroom_sum needed =
            (headroom_sum)point->excess * HEADROOM_UNIT - (headroom_sum)point->allocated * e;

        c = needed > c ? needed : c;
    }
    return c;
}

/* Sum (e x allocated + c) over all points, in units of a byte / HEADROOM_UNIT. */
static headroom_sum sum_bound(const struct headroom *headroom, uint32_t e)
{
    return (headroom_sum)headroom->allocated * e +
           find_smallest_c(headroom, e) * (headroom_sum)headroom->added;
}

struct headroom_pair headroom_find(struct headroom *headroom)
{
    uint32_t low = 0, high = HEADROOM_MAX;

    reduce_to_hull(headroom);
    /* Find the first e at which the sum does not fall; the sum is convex. */
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (sum_bound(headroom, middle + 1) < sum_bound(headroom, middle))
            low = middle + 1;
        else
            high = middle;
    }
    return (struct headroom_pair){
        low, (uint64_t)((find_smallest_c(headroom, low) + HEADROOM_UNIT - 1) / HEADROOM_UNIT)};
}
