/* SPDX-License-Identifier: MIT */
/* Records from slabs: they do not overlap, are never moved, counted, and audited. */
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/slab.h"
#include "tests/support/test.h"

struct record {
    uint64_t link; /* of the free list, while the record is not taken */
    uint32_t number;
    unsigned char rest[92];
};

/* Give a slab one batch more. */
static void fill(struct xseg_slab *slab)
{
    struct xseg_slab_batch *batch =
        xseg_slab_make_batch(slab->record_bytes, xseg_slab_next_records(slab));

    assert_non_null(batch);
    assert_true(xseg_slab_refill(slab, batch));
}

static void assert_audit(const struct xseg_slab *slab)
{
    struct xseg_violation violation = {0};

    if (!xseg_slab_audit(slab, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

static bool is_zero(const struct record *record)
{
    static const struct record zero;

    return record->link == 0 && record->number == 0 &&
           memcmp(record->rest, zero.rest, sizeof(zero.rest)) == 0;
}

TEST(a_new_slab_holds_nothing)
{
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    assert_int_equal(slab.free_count, 0);
    assert_int_equal(slab.total, 0);
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(records_of_several_batches_do_not_overlap)
{
    enum { COUNT = 5 * XSEG_SLAB_BATCH };
    static struct record *taken[COUNT];
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    for (uint32_t i = 0; i < COUNT; i++) {
        if (slab.free_count == 0)
            fill(&slab);
        taken[i] = xseg_slab_alloc(&slab);
        assert_true(is_zero(taken[i]));
        memset(taken[i]->rest, (int)i, sizeof(taken[i]->rest));
        taken[i]->number = i;
    }
    assert_int_equal(slab.total, COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(taken[i]->number, i);
        assert_int_equal(taken[i]->rest[91], (unsigned char)i);
    }
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(freed_record_is_reused_zeroed)
{
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    fill(&slab);
    struct record *const record = xseg_slab_alloc(&slab);

    record->number = 7;
    memset(record->rest, 0xff, sizeof(record->rest));
    xseg_slab_free(&slab, record);
    assert_int_equal(slab.free_count, XSEG_SLAB_FIRST);
    /* Past the link, a record keeps its contents until it is taken again. */
    assert_int_equal(record->number, 7);
    assert_int_equal(record->rest[91], 0xff);

    struct record *const again = xseg_slab_alloc(&slab);
    assert_ptr_equal(again, record);
    assert_true(is_zero(again));
    xseg_slab_fini(&slab);
}

TEST(records_do_not_move_when_batches_are_added)
{
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    fill(&slab);
    struct record *const record = xseg_slab_alloc(&slab);

    record->number = 99;
    for (unsigned i = 0; i < 100; i++)
        fill(&slab);
    assert_int_equal(record->number, 99);
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(allocations_and_frees_in_any_order_keep_count)
{
    enum { HELD = 700 };
    static struct record *held[HELD];
    struct xseg_slab slab;
    uint64_t random = 2463534242u;
    uint32_t live = 0;

    memset(held, 0, sizeof(held));
    xseg_slab_init(&slab, sizeof(struct record));
    for (uint32_t step = 1; step < 20000; step++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        struct record **slot = &held[random % HELD];

        if (*slot != NULL) {
            assert_int_equal((*slot)->rest[0], (unsigned char)(*slot)->number);
            xseg_slab_free(&slab, *slot);
            *slot = NULL;
            live--;
            continue;
        }
        if (slab.free_count == 0)
            fill(&slab);
        *slot = xseg_slab_alloc(&slab);
        (*slot)->number = step;
        (*slot)->rest[0] = (unsigned char)step;
        live++;
    }
    assert_int_equal(slab.total - slab.free_count, live);
    /* No more batches than the most that were ever live need. */
    assert_true(slab.total <= HELD + XSEG_SLAB_BATCH);
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(host_bytes_cover_every_record)
{
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    for (unsigned i = 1; i <= 3; i++) {
        fill(&slab);
        assert_int_equal(slab.host_bytes,
                         sizeof(struct record) * slab.total + i * sizeof(struct xseg_slab_batch));
    }
    xseg_slab_fini(&slab);
}

/* A slab that has few records is small; one that has many is refilled rarely. */
TEST(batches_grow_with_the_number_of_records)
{
    static const uint32_t records[] = {16, 16, 32, 64, 128, 256, 512, 512, 512};
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    for (unsigned i = 0; i < sizeof(records) / sizeof(records[0]); i++) {
        const uint32_t before = slab.total;

        fill(&slab);
        assert_int_equal(slab.total - before, records[i]);
        assert_int_equal(slab.free_count, slab.total);
    }
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(more_records_than_can_be_counted_are_refused)
{
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    slab.total = UINT32_MAX - 1;
    assert_false(xseg_slab_refill(&slab, xseg_slab_make_batch(sizeof(struct record), 2)));
    assert_int_equal(slab.free_count, 0);
    assert_int_equal(slab.host_bytes, 0);
    assert_null(slab.batches);
    xseg_slab_fini(&slab);
}

TEST(the_audit_names_the_broken_invariant)
{
    struct xseg_violation violation = {0};
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    fill(&slab);
    slab.free_count--;
    assert_false(xseg_slab_audit(&slab, &violation));
    assert_string_equal(violation.tag, "SLAB-1");
    slab.free_count++;
    assert_audit(&slab);
    slab.total--;
    assert_false(xseg_slab_audit(&slab, &violation));
    assert_string_equal(violation.tag, "SLAB-1");
    slab.total++;
    assert_audit(&slab);
    xseg_slab_fini(&slab);
}

TEST(records_in_memory_of_the_caller_outlive_the_slab)
{
    static struct record memory[4];
    struct xseg_slab slab;

    xseg_slab_init(&slab, sizeof(struct record));
    assert_true(xseg_slab_refill(&slab, xseg_slab_make_batch_at(memory, COUNT_OF(memory))));
    assert_int_equal(slab.free_count, COUNT_OF(memory));
    assert_audit(&slab);
    for (size_t i = 0; i < COUNT_OF(memory); i++)
        assert_ptr_equal(xseg_slab_alloc_uninitialized(&slab), &memory[i]);
    memory[3].number = 5;
    xseg_slab_fini(&slab);
    assert_int_equal(memory[3].number, 5);
}
