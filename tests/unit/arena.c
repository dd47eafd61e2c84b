/* SPDX-License-Identifier: MIT */
/* Arenas: the audits, of which each test breaks one invariant, and small blocks. */
#include <string.h>

#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "tests/support/env.h"

/* An extent: allocated, cached, allocated, unmapped. */
struct fixture {
    struct xseg_allocator *allocator;
    struct xseg_device *device;
    struct xseg_arena *arena;
    void *held[2];
    struct xseg_block *allocated, *cached, *unmapped;
};

static void pick(struct xseg_arena **picked, struct xseg_arena *arena)
{
    if (!xseg_list_is_empty(&arena->extents))
        *picked = arena;
}

static void find_arena(struct fixture *f)
{
    f->device = xseg_allocator_open_device(f->allocator, 0);
    assert_non_null(f->device);
    xseg_mutex_lock(&f->device->memory_lock);
    XSEG_DEVICE_FOR_ARENAS(arena, f->device)
    {
        pick(&f->arena, arena);
    }
    xseg_mutex_unlock(&f->device->memory_lock);
    assert_non_null(f->arena);
}

static void set_up(struct fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->allocator = env_open("expandable_segments:True");
    f->held[0] = env_alloc(f->allocator, 4 * MIB, NULL);
    void *middle = env_alloc(f->allocator, 4 * MIB, NULL);
    f->held[1] = env_alloc(f->allocator, 12 * MIB, NULL);
    env_free(f->allocator, middle);
    find_arena(f);
    f->allocated = XSEG_CONTAINER(f->arena->extents.next, struct xseg_extent, link)->first;
    f->cached = f->allocated->next;
    f->unmapped = f->cached->next->next;
    assert_int_equal(f->allocated->state, XSEG_BLOCK_ALLOCATED);
    assert_int_equal(f->cached->state, XSEG_BLOCK_CACHED);
    assert_int_equal(f->unmapped->state, XSEG_BLOCK_UNMAPPED);
}

/* Restore the extent, and expect that the audit passes. */
static void tear_down(struct fixture *f)
{
    struct xseg_violation violation = {0};

    if (!xseg_device_audit(f->device, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
    for (size_t i = 0; i < COUNT_OF(f->held); i++)
        env_free(f->allocator, f->held[i]);
    env_close(f->allocator);
}

static void expect(struct fixture *f, const char *tag)
{
    struct xseg_violation violation = {0};

    assert_false(xseg_device_audit(f->device, &violation));
    assert_string_equal(violation.tag, tag);
    assert_int_not_equal(strlen(violation.text), 0);
}

TEST(audit_detects_a_gap_between_blocks)
{
    struct fixture f;

    set_up(&f);
    f.allocated->bytes -= 512;
    expect(&f, "BLK-1");
    f.allocated->bytes += 512;
    f.cached->prev = f.unmapped;
    expect(&f, "BLK-1");
    f.cached->prev = f.allocated;
    f.unmapped->bytes -= 512;
    expect(&f, "BLK-1");
    f.unmapped->bytes += 512;
    f.allocated->extent = NULL;
    expect(&f, "BLK-1");
    f.allocated->extent = f.cached->extent;
    tear_down(&f);
}

TEST(audit_detects_blocks_that_should_have_coalesced)
{
    struct fixture f;

    set_up(&f);
    f.allocated->state = XSEG_BLOCK_CACHED;
    expect(&f, "BLK-2");
    f.allocated->state = XSEG_BLOCK_ALLOCATED;
    f.unmapped->prev->state = XSEG_BLOCK_UNMAPPED;
    expect(&f, "BLK-2");
    f.unmapped->prev->state = XSEG_BLOCK_ALLOCATED;
    tear_down(&f);
}

TEST(audit_detects_unaligned_sizes)
{
    struct fixture f;

    set_up(&f);
    f.allocated->bytes -= 1;
    f.cached->base -= 1;
    expect(&f, "BLK-3");
    f.allocated->bytes += 1;
    f.cached->base += 1;
    tear_down(&f);
}

TEST(audit_detects_a_block_without_memory)
{
    struct fixture f;

    set_up(&f);
    f.cached->mapped = false;
    expect(&f, "BLK-4");
    f.cached->mapped = true;
    f.unmapped->mapped = true;
    expect(&f, "BLK-4");
    f.unmapped->mapped = false;
    f.cached->flags = XSEG_BLOCK_FALLBACK;
    expect(&f, "BLK-6");
    f.cached->flags = 0;
    tear_down(&f);
}

TEST(audit_detects_a_block_that_is_not_indexed)
{
    struct fixture f;

    set_up(&f);
    const struct xseg_tree_key key = xseg_tree_key_of(f.unmapped, false);
    xseg_free_index_remove(&f.arena->free_index, f.cached);
    expect(&f, "ARENA-1");
    xseg_free_index_insert(&f.arena->free_index, f.cached);
    xseg_tree_remove(f.arena->records, &f.arena->unmapped_blocks, f.unmapped, &key);
    expect(&f, "ARENA-2");
    xseg_tree_insert(f.arena->records, &f.arena->unmapped_blocks, f.unmapped, &key);
    tear_down(&f);
}

/* The rest of a split serves the next request and is not in the free index. */
TEST(the_rest_of_a_split_is_the_last_remainder)
{
    struct fixture f;

    set_up(&f);
    void *head = env_alloc(f.allocator, 2 * MIB - 512, NULL);
    struct xseg_block *rest = f.cached; /* the record of the split block */
    assert_int_equal(rest->bytes, 2 * MIB + 512);
    assert_ptr_equal(f.arena->last_remainder, rest);
    f.arena->last_remainder = &f.arena->sentinel;
    expect(&f, "ARENA-1");
    f.arena->last_remainder = f.allocated;
    expect(&f, "ARENA-1");
    f.arena->last_remainder = rest;
    xseg_free_index_insert(&f.arena->free_index, rest);
    expect(&f, "ARENA-1");
    xseg_free_index_remove(&f.arena->free_index, rest);
    env_free(f.allocator, head);
    assert_ptr_equal(f.arena->last_remainder, f.cached);
    assert_int_equal(f.cached->bytes, 4 * MIB);
    tear_down(&f);
}

/* The whole segment that was freed last is the last remainder; others are in the free index. */
TEST(a_freed_whole_segment_is_the_last_remainder)
{
    struct fixture f = {.allocator = env_open("expandable_segments:False")};
    void *block[3];

    for (size_t i = 0; i < COUNT_OF(block); i++)
        block[i] = env_alloc(f.allocator, 12 * MIB, NULL);
    find_arena(&f);
    for (size_t i = 0; i < COUNT_OF(block); i++) {
        env_free(f.allocator, block[i]);
        assert_int_equal(f.arena->last_remainder->base, (uint64_t)(uintptr_t)block[i]);
        const struct xseg_block *shelved = xseg_free_index_find(&f.arena->free_index, 12 * MIB);
        assert_true(i == 0 ? shelved == NULL : shelved->base == (uint64_t)(uintptr_t)block[0]);
    }
    /* The block at the lowest address still satisfies the request. */
    for (size_t i = 0; i < COUNT_OF(block); i++)
        assert_ptr_equal(env_alloc(f.allocator, 12 * MIB, NULL), block[i]);
    assert_ptr_equal(f.arena->last_remainder, &f.arena->sentinel);
    f.held[0] = block[0];
    f.held[1] = block[1];
    env_free(f.allocator, block[2]);
    tear_down(&f);
}

/* The block is too small for any request; only coalescing reaches it. */
TEST(a_block_below_the_minimum_size_is_unindexed)
{
    struct fixture f;

    set_up(&f);
    for (uint64_t bytes = MIB - 512; bytes <= MIB + 512; bytes += 512) {
        void *head = env_alloc(f.allocator, 4 * MIB - bytes, NULL);
        struct xseg_block *rest = f.cached;
        assert_int_equal(rest->bytes, bytes);
        assert_ptr_equal(f.arena->last_remainder, bytes <= MIB ? &f.arena->sentinel : rest);
        assert_int_equal(f.arena->free_index.used.top, 0);
        if (bytes <= MIB) {
            xseg_free_index_insert(&f.arena->free_index, rest);
            expect(&f, "ARENA-1");
            xseg_free_index_remove(&f.arena->free_index, rest);
        }
        env_free(f.allocator, head);
        assert_int_equal(f.cached->bytes, 4 * MIB);
    }
    tear_down(&f);
}

TEST(audit_detects_wrong_counts)
{
    static const struct {
        enum xseg_count what;
        const char *tag;
    } row[] = {
        {XSEG_COUNT_ALLOCATION, "ARENA-3"},     {XSEG_COUNT_ALLOCATED_BYTES, "ARENA-3"},
        {XSEG_COUNT_ACTIVE, "ARENA-3"},         {XSEG_COUNT_ACTIVE_BYTES, "ARENA-3"},
        {XSEG_COUNT_RESERVED_BYTES, "ARENA-4"},
    };
    struct fixture f;

    set_up(&f);
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        atomic_fetch_add(&f.arena->counts.row[row[i].what].down, 1);
        expect(&f, row[i].tag);
        atomic_fetch_sub(&f.arena->counts.row[row[i].what].down, 1);
    }
    f.arena->fallback.up[XSEG_COUNT_ACTIVE]++;
    expect(&f, "ARENA-5");
    f.arena->fallback.up[XSEG_COUNT_ACTIVE]--;
    atomic_fetch_add(&f.device->reserved, 512);
    expect(&f, "DEVICE-1");
    atomic_fetch_sub(&f.device->reserved, 512);
    atomic_fetch_add(&f.device->evicted, 512);
    expect(&f, "DEVICE-2");
    atomic_fetch_sub(&f.device->evicted, 512);
    tear_down(&f);
}

/* While a block is claimed, the counts may lag behind the blocks. */
TEST(audit_skips_the_counts_while_a_block_is_claimed)
{
    struct fixture f;
    struct xseg_violation violation = {0};

    set_up(&f);
    xseg_biased_lock_lock(&f.arena->lock);
    (void)xseg_arena_claim(f.arena, f.cached);
    atomic_fetch_add(&f.arena->counts.row[XSEG_COUNT_ACTIVE].up, 1);
    assert_true(xseg_arena_audit(f.arena, &violation));
    atomic_fetch_sub(&f.arena->counts.row[XSEG_COUNT_ACTIVE].up, 1);
    assert_ptr_equal(xseg_arena_settle(f.arena, f.cached), f.cached);
    xseg_biased_lock_unlock(&f.arena->lock);
    tear_down(&f);
}

/* --- Small blocks: the audit of their start bits, and requested sizes. --- */

/* An extent of 4 MiB: allocated, cached, allocated, and the last remainder before an unmapped block. */
struct small_fixture {
    struct xseg_allocator *allocator;
    struct xseg_arena *arena;
    struct xseg_extent *extent;
    void *held[2];
};

static void set_up_small(struct small_fixture *f)
{
    memset(f, 0, sizeof(*f));
    f->allocator = env_open("expandable_segments:True");
    f->held[0] = env_alloc(f->allocator, MIB, NULL);
    void *middle = env_alloc(f->allocator, 8 * KIB, NULL);
    f->held[1] = env_alloc(f->allocator, MIB, NULL);
    env_free(f->allocator, middle);
    f->extent = xseg_page_map_find(&f->allocator->page_map, (uintptr_t)middle);
    assert_non_null(f->extent);
    f->arena = f->extent->arena;
}

static void expect_small(struct small_fixture *f, const char *tag)
{
    struct xseg_violation violation = {0};

    if (xseg_arena_audit(f->arena, &violation) != (tag == NULL))
        fail_msg("%s: %s", tag == NULL ? violation.tag : tag, violation.text);
    if (tag != NULL)
        assert_string_equal(violation.tag, tag);
}

/* Restore the extent, and expect_small that the audit passes. */
static void tear_down_small(struct small_fixture *f)
{
    expect_small(f, NULL);
    for (size_t i = 0; i < COUNT_OF(f->held); i++)
        env_free(f->allocator, f->held[i]);
    env_close(f->allocator);
}

TEST(audit_detects_wrong_starts)
{
    struct small_fixture f;

    set_up_small(&f);
    const struct xseg_page_map *page_map = &f.allocator->page_map;
    xseg_start *start = xseg_page_map_start(page_map, f.extent->segment.base), *inside = start + 7;
    xseg_start *cached = xseg_page_map_start(page_map, f.extent->segment.base + MIB);
    const uint32_t handle = *start;

    assert_int_equal(*inside, 0);
    assert_int_equal(*cached, 0);
    assert_ptr_equal(xseg_block_at(f.arena->records, handle), f.extent->first);
    *start = 0;
    expect_small(&f, "START-1");
    *start = handle;
    *inside = handle;
    expect_small(&f, "START-2");
    *inside = 0;
    *cached = xseg_block_handle(f.arena->records, f.extent->first->next);
    expect_small(&f, "START-2");
    *cached = 0;
    tear_down_small(&f);
}

/* --- Requested sizes. --- */

static uint64_t requested_at(const struct small_fixture *f, uint64_t offset)
{
    return xseg_extent_view_at(f->extent, f->extent->segment.base + offset).requested;
}

/* PyTorch's rules: a free keeps the requested size, the remainder of a split inherits it, and coalescing keeps that
 * of the freed block. */
TEST(cached_blocks_keep_the_requested_size)
{
    static const size_t narrow = 5000, wide = 200000;
    struct small_fixture f;

    set_up_small(&f);
    assert_int_equal(requested_at(&f, 0), MIB);
    assert_int_equal(requested_at(&f, MIB), 8 * KIB);
    assert_int_equal(requested_at(&f, 2 * MIB + 8 * KIB), 0);
    /* A cached block: split, used completely, and coalesced with its neighbors. */
    void *head = env_alloc(f.allocator, narrow, NULL), *tail = env_alloc(f.allocator, 3000, NULL);
    assert_int_equal(requested_at(&f, MIB), narrow);
    assert_int_equal(requested_at(&f, MIB + 5120), 3000);
    env_free(f.allocator, head);
    assert_int_equal(requested_at(&f, MIB), narrow);
    head = env_alloc(f.allocator, 1, NULL);
    assert_int_equal(requested_at(&f, MIB), 1);
    assert_int_equal(requested_at(&f, MIB + 512), narrow);
    env_free(f.allocator, tail);
    assert_int_equal(requested_at(&f, MIB + 512), 3000);
    env_free(f.allocator, head);
    assert_int_equal(requested_at(&f, MIB), 1);
    /* Long blocks across the end of a table of starts. */
    void *block[3];
    for (size_t i = 0; i < COUNT_OF(block); i++)
        block[i] = env_alloc(f.allocator, wide + i * 512, NULL);
    const uint64_t offset = (uintptr_t)block[0] - f.extent->segment.base;
    env_free(f.allocator, block[1]);
    assert_int_equal(requested_at(&f, (uintptr_t)block[1] - f.extent->segment.base), wide + 512);
    block[1] = env_alloc(f.allocator, 150000, NULL);
    assert_int_equal(requested_at(&f, (uintptr_t)block[1] + 150016 - f.extent->segment.base),
                     wide + 512);
    env_free(f.allocator, block[0], block[1]);
    assert_int_equal(requested_at(&f, offset), 150000);
    env_free(f.allocator, block[2]);
    assert_int_equal(requested_at(&f, offset), wide + 1024);
    tear_down_small(&f);
}
