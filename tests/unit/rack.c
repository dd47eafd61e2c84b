/* SPDX-License-Identifier: MIT */
/* The lowest cell that is large enough, against a look at every block. */
#include "src/core/rack.h"

#include "src/core/allocator.h"
#include "tests/support/scene.h"

static uint32_t chance = 1;

static unsigned below(unsigned bound)
{
    chance = chance * 1664525u + 1013904223u;
    return (chance >> 8) % bound;
}

static struct xseg_arena *small_arena(struct xseg_allocator *allocator)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    struct xseg_arena *arena = atomic_load(&device->pool.arenas);

    while (arena != NULL && !arena->is_small)
        arena = atomic_load(&arena->next);
    assert_non_null(arena);
    return arena;
}

/* By asking about every address. */
static const char *find_slowly(struct xseg_allocator *allocator, const char *base, size_t length,
                               size_t bytes)
{
    for (const char *at = base; at < base + length;) {
        const struct xseg_block_info info = scene_block(allocator, at);

        if (info.state == XSEG_BLOCK_CACHED && info.bytes >= bytes &&
            info.bytes < XSEG_CELLS_WIDE * 512)
            return at;
        at = (const char *)info.base + info.bytes;
    }
    return NULL;
}

static void the_lowest_fit_is_found(void **state)
{
    struct xseg_allocator *allocator = scene_open("expandable_segments:True");
    void *ptr[600] = {0};

    (void)state;
    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        ptr[i] = scene_alloc(allocator, 512 * (1 + below(100)), NULL);
    const char *base = scene_block(allocator, ptr[0]).segment_base;
    for (unsigned round = 0; round < 60; round++) {
        for (unsigned i = 0; i < 20; i++) {
            void **slot = &ptr[below(COUNT_OF(ptr))];

            if (*slot != NULL)
                scene_free(allocator, *slot);
            *slot = below(3) == 0 ? scene_alloc(allocator, 512 * (1 + below(100)), NULL) : NULL;
        }
        struct xseg_arena *arena = small_arena(allocator);
        const size_t mapped = scene_block(allocator, base).segment_mapped;
        const uint32_t quanta = 1 + below(XSEG_CELLS_WIDE - 1);
        const char *slow = find_slowly(allocator, base, mapped, quanta * (size_t)512);
        xseg_arena_lock(arena);
        const struct xseg_cell cell = xseg_rack_find_lowest(&arena->small.rack, quanta);
        xseg_arena_unlock(arena);
        if (slow == NULL)
            assert_int_equal(cell.quanta, 0);
        else
            assert_int_equal(cell.quantum, (size_t)(slow - base) / 512);
    }
    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        if (ptr[i] != NULL)
            scene_free(allocator, ptr[i]);
    scene_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_lowest_fit_is_found)};

    return cmocka_run_group_tests_name("rack", tests, NULL, NULL);
}
