/* SPDX-License-Identifier: MIT */
/* Arenas: the audit, which must detect each invariant that a test breaks, last remainders, and requested sizes. */
#include "src/core/block/arena.h"
#include "src/core/block/block.h"
#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "tests/support/audit.h"
#include "tests/support/env.h"

static struct {
    struct xseg_allocator *allocator;
    struct xseg_device *device;
    struct xseg_arena *arena;
    void *held[2];
    struct xseg_block *allocated, *cached, *unmapped;
} f;
static struct xseg_extent *extent;

static void find_arena(void *block)
{
    f.device = xseg_allocator_open_device(f.allocator, 0);
    assert_non_null(f.device);
    extent = xseg_page_map_find(&f.allocator->page_map, (uintptr_t)block);
    assert_non_null(extent);
    f.arena = extent->arena;
}

/* Allocate three adjacent blocks, and free the one in the middle. */
static void open_with_gap(size_t first, size_t gap_bytes, size_t second)
{
    f.allocator = env_open("expandable_segments:True");
    f.held[0] = env_alloc(f.allocator, first, NULL);
    void *gap = env_alloc(f.allocator, gap_bytes, NULL);
    f.held[1] = env_alloc(f.allocator, second, NULL);
    env_free(f.allocator, gap);
    find_arena(gap);
}

/* An extent of large blocks: allocated, cached, allocated, unmapped. */
FIXTURE(set_up)
{
    open_with_gap(4 * MIB, 4 * MIB, 12 * MIB);
    f.allocated = extent->first;
    f.cached = f.allocated->next;
    f.unmapped = f.cached->next->next;
    assert_int_equal(f.allocated->state, XSEG_BLOCK_ALLOCATED);
    assert_int_equal(f.cached->state, XSEG_BLOCK_CACHED);
    assert_int_equal(f.unmapped->state, XSEG_BLOCK_UNMAPPED);
}

/* An extent of 4 MiB of small blocks: allocated, cached, allocated, and the last remainder before an unmapped block. */
FIXTURE(set_up_small)
{
    open_with_gap(MIB, 8 * KIB, MIB);
}

static void expect_device_audit(const char *tag)
{
    expect_audit(xseg_device_audit(f.device, &violation), tag);
}

/* Expect that the test has restored the extent, so the audit passes. */
FIXTURE(tear_down)
{
    expect_device_audit(NULL);
    env_free(f.allocator, f.held[0], f.held[1]);
    env_close(f.allocator);
}

TEST_WITH(audit_detects_a_gap_between_blocks, set_up, tear_down)
{
    WITH_VALUE(f.allocated->bytes, f.allocated->bytes - 512, expect_device_audit("BLK-1"));
    WITH_VALUE(f.cached->prev, f.unmapped, expect_device_audit("BLK-1"));
    WITH_VALUE(f.unmapped->bytes, f.unmapped->bytes - 512, expect_device_audit("BLK-1"));
    WITH_VALUE(f.allocated->extent, NULL, expect_device_audit("BLK-1"));
}

TEST_WITH(audit_detects_blocks_that_should_have_coalesced, set_up, tear_down)
{
    WITH_VALUE(f.allocated->state, XSEG_BLOCK_CACHED, expect_device_audit("BLK-2"));
    WITH_VALUE(f.unmapped->prev->state, XSEG_BLOCK_UNMAPPED, expect_device_audit("BLK-2"));
}

TEST_WITH(audit_detects_unaligned_sizes, set_up, tear_down)
{
    f.allocated->bytes -= 1;
    f.cached->base -= 1;
    expect_device_audit("BLK-3");
    f.allocated->bytes += 1;
    f.cached->base += 1;
}

TEST_WITH(audit_detects_a_block_without_memory, set_up, tear_down)
{
    WITH_VALUE(f.cached->mapped, false, expect_device_audit("BLK-4"));
    WITH_VALUE(f.unmapped->mapped, true, expect_device_audit("BLK-4"));
    WITH_VALUE(f.cached->flags, XSEG_BLOCK_FALLBACK, expect_device_audit("BLK-6"));
}

TEST_WITH(audit_detects_a_block_that_is_not_indexed, set_up, tear_down)
{
    const struct xseg_tree_key key = xseg_tree_key_of(f.unmapped, false);
    xseg_free_index_remove(&f.arena->free_index, f.cached);
    expect_device_audit("ARENA-1");
    xseg_free_index_insert(&f.arena->free_index, f.cached);
    xseg_tree_remove(f.arena->records, &f.arena->unmapped_blocks, f.unmapped, &key);
    expect_device_audit("ARENA-2");
    xseg_tree_insert(f.arena->records, &f.arena->unmapped_blocks, f.unmapped, &key);
}

/* The last remainder serves the next request and is not in the free index. */
TEST_WITH(remainder_of_a_split_is_the_last_remainder, set_up, tear_down)
{
    void *head = env_alloc(f.allocator, 2 * MIB - 512, NULL);
    struct xseg_block *remainder = f.cached; /* the record of the split block */
    assert_int_equal(remainder->bytes, 2 * MIB + 512);
    assert_ptr_equal(f.arena->last_remainder, remainder);
    WITH_VALUE(f.arena->last_remainder, &f.arena->sentinel, expect_device_audit("ARENA-1"));
    WITH_VALUE(f.arena->last_remainder, f.allocated, expect_device_audit("ARENA-1"));
    xseg_free_index_insert(&f.arena->free_index, remainder);
    expect_device_audit("ARENA-1");
    xseg_free_index_remove(&f.arena->free_index, remainder);
    env_free(f.allocator, head);
    assert_ptr_equal(f.arena->last_remainder, f.cached);
    assert_int_equal(f.cached->bytes, 4 * MIB);
}

/* The whole segment that was freed last is the last remainder; earlier ones are in the free index. */
TEST(a_freed_whole_segment_is_the_last_remainder)
{
    void *block[3];

    f.allocator = env_open("expandable_segments:False");
    for (size_t i = 0; i < COUNT_OF(block); i++)
        block[i] = env_alloc(f.allocator, 12 * MIB, NULL);
    find_arena(block[0]);
    for (size_t i = 0; i < COUNT_OF(block); i++) {
        env_free(f.allocator, block[i]);
        assert_int_equal(f.arena->last_remainder->base, (uint64_t)(uintptr_t)block[i]);
        const struct xseg_block *indexed = xseg_free_index_find(&f.arena->free_index, 12 * MIB);
        assert_true(i == 0 ? indexed == NULL : indexed->base == (uint64_t)(uintptr_t)block[0]);
    }
    /* The block at the lowest address still satisfies the request. */
    for (size_t i = 0; i < COUNT_OF(block); i++)
        assert_ptr_equal(env_alloc(f.allocator, 12 * MIB, NULL), block[i]);
    assert_ptr_equal(f.arena->last_remainder, &f.arena->sentinel);
    f.held[0] = block[0];
    f.held[1] = block[1];
    env_free(f.allocator, block[2]);
    (void)tear_down(NULL);
}

/* An arena of large blocks serves requests above 1 MiB, so it indexes no smaller block; such a block is used again after it
 * has coalesced. */
TEST_WITH(a_block_below_the_minimum_size_is_unindexed, set_up, tear_down)
{
    for (uint64_t bytes = MIB - 512; bytes <= MIB + 512; bytes += 512) {
        void *head = env_alloc(f.allocator, 4 * MIB - bytes, NULL);
        struct xseg_block *remainder = f.cached;
        assert_int_equal(remainder->bytes, bytes);
        assert_ptr_equal(f.arena->last_remainder, bytes <= MIB ? &f.arena->sentinel : remainder);
        assert_int_equal(f.arena->free_index.used.top, 0);
        if (bytes <= MIB) {
            xseg_free_index_insert(&f.arena->free_index, remainder);
            expect_device_audit("ARENA-1");
            xseg_free_index_remove(&f.arena->free_index, remainder);
        }
        env_free(f.allocator, head);
        assert_int_equal(f.cached->bytes, 4 * MIB);
    }
}

TEST_WITH(audit_detects_wrong_counts, set_up, tear_down)
{
    static const struct {
        enum xseg_count quantity;
        const char *tag;
    } row[] = {
        {XSEG_COUNT_ALLOCATION, "ARENA-3"},     {XSEG_COUNT_ALLOCATED_BYTES, "ARENA-3"},
        {XSEG_COUNT_ACTIVE, "ARENA-3"},         {XSEG_COUNT_ACTIVE_BYTES, "ARENA-3"},
        {XSEG_COUNT_RESERVED_BYTES, "ARENA-4"},
    };

    for (size_t i = 0; i < COUNT_OF(row); i++) {
        atomic_uint_fast64_t *down = &f.arena->counts.row[row[i].quantity].down;

        WITH_VALUE(*down, *down + 1, expect_device_audit(row[i].tag));
    }
    WITH_VALUE(f.arena->fallback.up[XSEG_COUNT_ACTIVE], f.arena->fallback.up[XSEG_COUNT_ACTIVE] + 1,
               expect_device_audit("ARENA-5"));
    WITH_VALUE(f.device->reserved, f.device->reserved + 512, expect_device_audit("DEVICE-1"));
    WITH_VALUE(f.device->evicted, f.device->evicted + 512, expect_device_audit("DEVICE-2"));
}

/* While a block is claimed, the counts may differ from the blocks. */
TEST_WITH(audit_skips_the_counts_while_a_block_is_claimed, set_up, tear_down)
{
    xseg_biased_lock_lock(&f.arena->lock);
    (void)xseg_arena_claim(f.arena, f.cached);
    atomic_fetch_add(&f.arena->counts.row[XSEG_COUNT_ACTIVE].up, 1);
    expect_audit(xseg_arena_audit(f.arena, &violation), NULL);
    atomic_fetch_sub(&f.arena->counts.row[XSEG_COUNT_ACTIVE].up, 1);
    assert_ptr_equal(xseg_arena_settle(f.arena, f.cached), f.cached);
    xseg_biased_lock_unlock(&f.arena->lock);
}

/* --- Small blocks: the audit of starts. --- */

TEST_WITH(audit_detects_wrong_starts, set_up_small, tear_down)
{
    const struct xseg_page_map *page_map = &f.allocator->page_map;
    xseg_start *start = xseg_page_map_start(page_map, extent->segment.base),
               *inside = start + 7; /* inside the first block */
    xseg_start *cached = xseg_page_map_start(page_map, extent->segment.base + MIB);
    const uint32_t handle = *start;

    assert_int_equal(*inside, 0);
    assert_int_equal(*cached, 0);
    assert_ptr_equal(xseg_block_at(f.arena->records, handle), extent->first);
    WITH_VALUE(*start, 0, expect_device_audit("START-1"));
    WITH_VALUE(*inside, handle, expect_device_audit("START-2"));
    WITH_VALUE(*cached, xseg_block_handle(f.arena->records, extent->first->next),
               expect_device_audit("START-2"));
}

/* --- Requested sizes. --- */

static uint64_t requested_at(uint64_t offset)
{
    return xseg_extent_view_at(extent, extent->segment.base + offset).requested;
}

/* PyTorch's rules: a free keeps the requested size, the remainder of a split inherits it, and coalescing keeps that
 * of the freed block. */
TEST_WITH(cached_blocks_keep_the_requested_size, set_up_small, tear_down)
{
    /* Rounded up to 5120 and 3072 bytes, which fill the 8 KiB, and to 200,192 bytes. */
    static const size_t short_size = 5000, tail_size = 3000, long_size = 200000;

    assert_int_equal(requested_at(0), MIB);
    assert_int_equal(requested_at(MIB), 8 * KIB);
    assert_int_equal(requested_at(2 * MIB + 8 * KIB), 0);
    /* A cached block: split, used completely, and coalesced with its neighbors. */
    void *head = env_alloc(f.allocator, short_size, NULL),
         *tail = env_alloc(f.allocator, tail_size, NULL);
    assert_int_equal(requested_at(MIB), short_size);
    assert_int_equal(requested_at(MIB + 5120), tail_size);
    env_free(f.allocator, head);
    assert_int_equal(requested_at(MIB), short_size);
    head = env_alloc(f.allocator, 1, NULL);
    assert_int_equal(requested_at(MIB), 1);
    assert_int_equal(requested_at(MIB + 512), short_size);
    env_free(f.allocator, tail);
    assert_int_equal(requested_at(MIB + 512), tail_size);
    env_free(f.allocator, head);
    assert_int_equal(requested_at(MIB), 1);
    /* Three blocks that are split from the last remainder. */
    void *block[3];
    for (size_t i = 0; i < COUNT_OF(block); i++)
        block[i] = env_alloc(f.allocator, long_size + i * 512, NULL);
    const uint64_t offset = (uintptr_t)block[0] - extent->segment.base;
    env_free(f.allocator, block[1]);
    assert_int_equal(requested_at((uintptr_t)block[1] - extent->segment.base), long_size + 512);
    block[1] = env_alloc(f.allocator, 150000, NULL); /* rounded up to 150,016 bytes */
    assert_int_equal(requested_at((uintptr_t)block[1] + 150016 - extent->segment.base),
                     long_size + 512);
    env_free(f.allocator, block[0], block[1]);
    assert_int_equal(requested_at(offset), 150000);
    env_free(f.allocator, block[2]);
    assert_int_equal(requested_at(offset), long_size + 1024);
}
