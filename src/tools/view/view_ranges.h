/* SPDX-License-Identifier: MIT */
/*
 * Mapped memory, as ranges of addresses that do not overlap, in their order.
 *
 * Locking: none; ranges belong to one thread.
 */
#ifndef TOOLS_VIEW_RANGES_H
#define TOOLS_VIEW_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct view_range {
    uint64_t start, end, stream;
    uint64_t page;       /* bytes; 0: a classic segment */
    uint32_t pool, born; /* since which moment */
};

struct view_ranges {
    struct view_range *ranges; /* [count], by address */
    size_t count, room;
};

/* Add the parts of a range that are not there.  Returns false without host memory. */
bool view_ranges_add(struct view_ranges *ranges, const struct view_range *range);

/*
 * Remove the parts of start..end that are there, each of which is told to `removed` first (NULL: to nobody).
 *
 * Returns: false without host memory, or if `removed` does
 */
bool view_ranges_remove(struct view_ranges *ranges, uint64_t start, uint64_t end,
                        bool (*removed)(void *context, const struct view_range *part),
                        void *context);

void view_ranges_fini(struct view_ranges *ranges);

#endif
