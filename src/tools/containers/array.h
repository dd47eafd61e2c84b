/* SPDX-License-Identifier: MIT */
/*
 * Arrays that grow by one item at a time.  Their room follows from the count: 16 items, or the power of two above it.
 *
 * Locking: none; an array belongs to one thread.
 */
#ifndef TOOLS_ARRAY_H
#define TOOLS_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Make room for one item more.
 *
 * array: where the pointer to the items is; NULL before the first
 * count: how many there are, all of which were added one by one
 * bytes: of an item
 *
 * Returns: false without host memory; the array is as it was
 */
bool array_room(void **array, size_t count, size_t bytes);

#endif
