/* SPDX-License-Identifier: MIT */
/* The heap: what is taken comes in the order of its keys. */
#include <stdlib.h>

#include "src/tools/containers/heap.h"
#include "tests/support/test.h"

#define COUNT 2000u

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;

    return (a > b) - (a < b);
}

TEST(items_are_removed_in_order_of_their_keys)
{
    double keys[COUNT], sorted[COUNT];
    struct heap heap = {0};

    for (uint32_t i = 0; i < COUNT; i++) {
        keys[i] = sorted[i] = (double)(i * 7919u % 977u);
        assert_true(heap_add(&heap, keys[i], i));
    }
    qsort(sorted, COUNT, sizeof(sorted[0]), compare);
    for (uint32_t i = 0; i < COUNT; i++) {
        const struct heap_item item = heap_take(&heap);

        assert_true(item.key >= sorted[i] && item.key <= sorted[i]);
        assert_true(keys[item.number] >= item.key && keys[item.number] <= item.key);
        keys[item.number] = -1; /* each comes once */
    }
    assert_int_equal(heap.count, 0);
    heap_fini(&heap);
}

TEST(the_first_is_replaced_by_another)
{
    struct heap heap = {0};

    for (uint32_t i = 0; i < 100; i++)
        assert_true(heap_add(&heap, i, i));
    for (uint32_t i = 100; i < 1000; i++)
        heap_replace(&heap, i, i);
    for (uint32_t i = 900; i < 1000; i++)
        assert_int_equal(heap_take(&heap).number, i);
    heap_fini(&heap);
}
