/* SPDX-License-Identifier: MIT */
#include "src/tools/replay_model/model_ranges.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LARGE_MIB 20u /* large_segment_size_mb, unless a configuration names it */

/* --- Pages. --- */

uint64_t course_ranges_large_page(const struct recording *recording)
{
    const char *config = recording->config ? recording_text(recording, recording->config) : "";
    const char *large = strstr(config, "large_segment_size_mb");
    const char *sizes = strstr(config, "page_size");
    uint64_t mib = LARGE_MIB;
    char word[8];

    if (sizes && sscanf(sizes, "page_size : %7[a-z]", word) == 1 && strcmp(word, "small") == 0)
        return COURSE_SMALL_PAGE;
    if (large && sscanf(large, "large_segment_size_mb : %6" SCNu64, &mib) != 1)
        mib = LARGE_MIB;
    return mib > 0 && mib % 2 == 0 ? mib << 20 : COURSE_SMALL_PAGE;
}

uint64_t course_ranges_page(const struct course *course, uint64_t bytes)
{
    return bytes % course->large_page == 0 ? course->large_page : COURSE_SMALL_PAGE;
}

/* --- Ranges. --- */

static uint32_t range_slot_at(const struct course *course, uint64_t address)
{
    const uint32_t slot = ordered_up_to(&course->ranges, address);

    return slot != ORDERED_NONE && address < course->range[slot].end ? slot : ORDERED_NONE;
}

const struct course_range *course_ranges_at(const struct course *course, uint64_t address)
{
    const uint32_t slot = range_slot_at(course, address);

    return slot == ORDERED_NONE ? NULL : &course->range[slot];
}

uint64_t course_ranges_mapped(const struct course *course, uint64_t start, uint64_t end,
                              bool only_expandable)
{
    uint64_t bytes = 0;

    while (start < end) {
        uint32_t slot = range_slot_at(course, start);

        if (slot == ORDERED_NONE) {
            slot = ordered_from(&course->ranges, start);
            if (slot == ORDERED_NONE || course->range[slot].start >= end)
                break;
            start = course->range[slot].start;
        }
        const uint64_t stop = course->range[slot].end < end ? course->range[slot].end : end;
        bytes += only_expandable && !course->range[slot].is_expandable ? 0 : stop - start;
        start = stop;
    }
    return bytes;
}

uint64_t course_ranges_expandable(const struct course *course, uint64_t start, uint64_t end)
{
    return course_ranges_mapped(course, start, end, true);
}

static bool put_range(struct course *course, const struct course_range *range)
{
    const uint32_t slot = ordered_add(&course->ranges, range->start);

    if (slot == ORDERED_NONE || !ordered_follow(&course->ranges, (void **)&course->range,
                                                &course->range_room, sizeof(*range))) {
        course->lacks_memory = true;
        return false;
    }
    course->range[slot] = *range;
    return true;
}

static bool joins(const struct course_range *left, const struct course_range *right)
{
    return left->is_expandable && right->is_expandable && left->end == right->start &&
           left->stream == right->stream && left->pool == right->pool &&
           left->page == right->page &&
           (left->page == 0 || (left->end - left->start) % left->page == 0);
}

bool course_ranges_add(struct course *course, const struct course_range *range)
{
    struct course_range whole = *range;
    const uint32_t after = ordered_find(&course->ranges, range->end);
    uint32_t before;

    if (after != ORDERED_NONE && joins(&whole, &course->range[after])) {
        whole.end = course->range[after].end;
        ordered_remove(&course->ranges, range->end);
    }
    before = ordered_up_to(&course->ranges, range->start);
    if (before != ORDERED_NONE && joins(&course->range[before], &whole))
        course->range[before].end = whole.end;
    else if (!put_range(course, &whole))
        return false;
    course->reserved += range->end - range->start;
    if (course->watcher.range_comes)
        course->watcher.range_comes(course->watcher.self, range);
    return true;
}

/* Remove a part of one range, or all of it.  A page goes as a whole, so where a cut is within one, it was none. */
static bool remove_range(struct course *course, uint32_t slot, uint64_t start, uint64_t end)
{
    const struct course_range whole = course->range[slot];
    struct course_range part = whole;

    if (whole.page > 0 && ((start - whole.start) % whole.page > 0 ||
                           (end < whole.end && (end - whole.start) % whole.page > 0)))
        course->range[slot].page = part.page = COURSE_SMALL_PAGE;
    if (whole.start == start)
        ordered_remove(&course->ranges, start);
    else
        course->range[slot].end = start;
    part.start = end;
    if (whole.end != end && !put_range(course, &part))
        return false;
    part.start = start;
    part.end = end;
    course->reserved -= end - start;
    if (course->watcher.range_leaves)
        course->watcher.range_leaves(course->watcher.self, &part);
    return true;
}

bool course_ranges_remove(struct course *course, uint64_t start, uint64_t end)
{
    while (start < end) {
        const uint32_t slot = range_slot_at(course, start);
        const uint64_t stop = course->range[slot].end < end ? course->range[slot].end : end;

        if (!remove_range(course, slot, start, stop))
            return false;
        start = stop;
    }
    return true;
}

bool course_ranges_have_small(const struct course *course, uint64_t start, uint64_t end)
{
    while (start < end) {
        const struct course_range *range = course_ranges_at(course, start);

        if (range->page > 0)
            return true;
        start = range->end;
    }
    return false;
}

void course_ranges_set_pages(struct course *course)
{
    for (uint32_t slot = ordered_from(&course->ranges, 0); slot != ORDERED_NONE;
         slot = ordered_from(&course->ranges, course->range[slot].end)) {
        struct course_range *range = &course->range[slot];

        if (range->is_expandable && range->page == 0)
            range->page = course_ranges_page(course, range->end - range->start);
    }
}
