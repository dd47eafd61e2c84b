/* SPDX-License-Identifier: MIT */
/*
 * The ranges of a course, and their pages (course.h).  Only course.c changes them.
 *
 * While events are taken back, the page of an expandable range is COURSE_SMALL_PAGE where that is known, otherwise 0.
 *
 * Locking: as a course.
 */
#ifndef TOOLS_COURSE_RANGES_H
#define TOOLS_COURSE_RANGES_H

#include "src/tools/replay_model/replay_model.h"

#define COURSE_SMALL_PAGE ((uint64_t)2 << 20)

/* The range that holds an address, or NULL.  Good until the next step.  Cost: O(log n). */
const struct course_range *course_ranges_at(const struct course *course, uint64_t address);

/* The bytes of [start, end) that have memory of expandable segments.  Cost: O(log n) for each range in it. */
uint64_t course_ranges_expandable(const struct course *course, uint64_t start, uint64_t end);

/* The large page of a recording's configuration; COURSE_SMALL_PAGE if there is none. */
uint64_t course_ranges_large_page(const struct recording *recording);

/* The page of so many bytes that came at once. */
uint64_t course_ranges_page(const struct course *course, uint64_t bytes);

/* Add a range, and join it to those that it touches.  Returns false without host memory. */
bool course_ranges_add(struct course *course, const struct course_range *range);

/* Remove memory, of which all is there.  Returns false without host memory. */
bool course_ranges_remove(struct course *course, uint64_t start, uint64_t end);

/* The bytes of [start, end) that have memory. */
uint64_t course_ranges_mapped(const struct course *course, uint64_t start, uint64_t end,
                              bool only_expandable);

/* Whether a part of memory, all of which is there, is known to have small pages. */
bool course_ranges_have_small(const struct course *course, uint64_t start, uint64_t end);

/* Choose the pages that are not known yet. */
void course_ranges_set_pages(struct course *course);

#endif
