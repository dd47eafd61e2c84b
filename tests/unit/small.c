/* SPDX-License-Identifier: MIT */
/* Small blocks: what the audit of their starts finds, and requested sizes. */
#include "src/core/block/arena.h"
#include "src/core/block/extent.h"
#include "src/core/device/allocator.h"

#include <string.h>

#include "tests/support/env.h"

/* An extent of 4 MiB: live, cached, live, and the victim, behind which there is a hole. */
struct fixture {
    struct xseg_allocator *allocator;
    struct xseg_arena *arena;
    struct xseg_extent *extent;
    void *held[2];
};

static void set_up(struct fixture *f)
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

static void expect(struct fixture *f, const char *tag)
{
    struct xseg_violation violation = {0};

    if (xseg_arena_audit(f->arena, &violation) != (tag == NULL))
        fail_msg("%s: %s", tag == NULL ? violation.tag : tag, violation.text);
    if (tag != NULL)
        assert_string_equal(violation.tag, tag);
}

/* Whole again, or the audit says what is not. */
static void tear_down(struct fixture *f)
{
    expect(f, NULL);
    for (size_t i = 0; i < COUNT_OF(f->held); i++)
        env_free(f->allocator, f->held[i]);
    env_close(f->allocator);
}

TEST(audit_detects_wrong_starts)
{
    struct fixture f;

    set_up(&f);
    const struct xseg_page_map *page_map = &f.allocator->page_map;
    xseg_start *start = xseg_page_map_start(page_map, f.extent->segment.base), *inside = start + 7;
    xseg_start *cached = xseg_page_map_start(page_map, f.extent->segment.base + MIB);
    const uint32_t handle = *start;

    assert_int_equal(*inside, 0);
    assert_int_equal(*cached, 0);
    assert_ptr_equal(xseg_block_at(f.arena->records, handle), f.extent->first);
    *start = 0;
    expect(&f, "START-1");
    *start = handle;
    *inside = handle;
    expect(&f, "START-2");
    *inside = 0;
    *cached = xseg_block_handle(f.arena->records, f.extent->first->next);
    expect(&f, "START-2");
    *cached = 0;
    tear_down(&f);
}

/* --- Requested sizes. --- */

static uint64_t requested_at(const struct fixture *f, uint64_t offset)
{
    return xseg_extent_view_at(f->extent, f->extent->segment.base + offset).requested;
}

/* PyTorch's rules: a free keeps the size, the remainder of a split inherits it, coalescing keeps that of the block that is
 * being freed. */
TEST(cached_blocks_keep_the_requested_size)
{
    static const size_t narrow = 5000, wide = 200000;
    struct fixture f;

    set_up(&f);
    assert_int_equal(requested_at(&f, 0), MIB);
    assert_int_equal(requested_at(&f, MIB), 8 * KIB);
    assert_int_equal(requested_at(&f, 2 * MIB + 8 * KIB), 0);
    /* A cached block: split, used up, and coalesced with the blocks on either side. */
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
    env_free(f.allocator, block[0]);
    env_free(f.allocator, block[1]);
    assert_int_equal(requested_at(&f, offset), 150000);
    env_free(f.allocator, block[2]);
    assert_int_equal(requested_at(&f, offset), wide + 1024);
    tear_down(&f);
}
