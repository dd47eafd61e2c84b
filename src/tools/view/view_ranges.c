/* SPDX-License-Identifier: MIT */
#include "src/tools/view/view_ranges.h"

#include <stdlib.h>
#include <string.h>

/* The first range that ends behind an address. */
static size_t find(const struct view_ranges *ranges, uint64_t address)
{
    size_t low = 0, high = ranges->count;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (ranges->ranges[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool insert(struct view_ranges *ranges, size_t at, const struct view_range *range)
{
    if (ranges->count == ranges->room) {
        const size_t room = ranges->room ? 2 * ranges->room : 64;
        struct view_range *bigger = realloc(ranges->ranges, room * sizeof(*bigger));

        if (!bigger)
            return false;
        ranges->ranges = bigger;
        ranges->room = room;
    }
    memmove(&ranges->ranges[at + 1], &ranges->ranges[at],
            (ranges->count - at) * sizeof(ranges->ranges[0]));
    ranges->ranges[at] = *range;
    ranges->count++;
    return true;
}

static void erase(struct view_ranges *ranges, size_t at)
{
    ranges->count--;
    memmove(&ranges->ranges[at], &ranges->ranges[at + 1],
            (ranges->count - at) * sizeof(ranges->ranges[0]));
}

/* Whether two ranges differ in their addresses alone.  A classic segment stays one. */
static bool are_alike(const struct view_range *left, const struct view_range *right)
{
    return left->page > 0 && left->page == right->page && left->stream == right->stream &&
           left->pool == right->pool && left->born == right->born;
}

/* Add a range of which nothing is there; it joins what it touches. */
static bool add_missing(struct view_ranges *ranges, size_t at, const struct view_range *range)
{
    struct view_range *const before = at > 0 ? &ranges->ranges[at - 1] : NULL;
    struct view_range *const after = at < ranges->count ? &ranges->ranges[at] : NULL;
    const bool joins_after = after && after->start == range->end && are_alike(after, range);

    if (before && before->end == range->start && are_alike(before, range)) {
        before->end = joins_after ? after->end : range->end;
        if (joins_after)
            erase(ranges, at);
        return true;
    }
    if (joins_after) {
        after->start = range->start;
        return true;
    }
    return insert(ranges, at, range);
}

bool view_ranges_add(struct view_ranges *ranges, const struct view_range *range)
{
    struct view_range part = *range;

    while (part.start < range->end) {
        const size_t at = find(ranges, part.start);
        const struct view_range *next = at < ranges->count ? &ranges->ranges[at] : NULL;
        uint64_t behind = range->end;

        part.end = next && next->start < range->end ? next->start : range->end;
        if (next && next->start < range->end)
            behind = next->end;
        if (part.start < part.end && !add_missing(ranges, at, &part))
            return false;
        part.start = behind;
    }
    return true;
}

bool view_ranges_remove(struct view_ranges *ranges, uint64_t start, uint64_t end,
                        bool (*removed)(void *context, const struct view_range *part),
                        void *context)
{
    size_t at = find(ranges, start);

    while (at < ranges->count && ranges->ranges[at].start < end) {
        const struct view_range whole = ranges->ranges[at];
        struct view_range part = whole, rest = whole;

        part.start = whole.start > start ? whole.start : start;
        part.end = whole.end < end ? whole.end : end;
        if (removed && !removed(context, &part))
            return false;
        erase(ranges, at);
        rest.end = part.start;
        if (rest.start < rest.end && !insert(ranges, at++, &rest))
            return false;
        rest.start = part.end;
        rest.end = whole.end;
        if (rest.start < rest.end && !insert(ranges, at++, &rest))
            return false;
    }
    return true;
}

void view_ranges_fini(struct view_ranges *ranges)
{
    free(ranges->ranges);
    *ranges = (struct view_ranges){0};
}
