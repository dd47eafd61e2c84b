/* SPDX-License-Identifier: MIT */
/*
 * The sweep over peers: every driver call that gives a device rights on the memory of another fails once, of the
 * ways back as well; and pairs of them.
 *
 * After a single failure the peer has no right, and the owner has all of its own; the same call then works.  After a
 * second failure, in the undo, rights may be left, which the text says.
 */
#include <string.h>

#include "tests/fault/armed.h"
#include "tests/support/exported.h"

/* Between the words that are written: each page has two, and more would only cost page faults of the host. */
#define STRIDE (8 * MIB)

/* By its plain C types; CUmemLocation is a kind (1: device) and a number. */
struct location {
    int kind, number;
};
int cuMemGetAccess(unsigned long long *flags, const struct location *location,
                   unsigned long long address);

static bool reaches(const void *ptr)
{
    const struct location peer = {1, 1};
    unsigned long long flags = 0;

    /* Each of two faults may strike this call of the test's own, once. */
    for (unsigned i = 0; i < 3; i++)
        if (cuMemGetAccess(&flags, &peer, (uintptr_t)ptr) == 0)
            return flags == 3;
    fail_msg("%p is not mapped", ptr);
    return false;
}

static bool reaches_all(const void *ptr, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 2 * MIB)
        if (!reaches((const char *)ptr + at))
            return false;
    return true;
}

static bool reaches_any(const void *ptr, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 2 * MIB)
        if (reaches((const char *)ptr + at))
            return true;
    return false;
}

/* The sweep of fault/sweep.c fails the calls that open a device. */
static void open_peer(struct stage *stage)
{
    void *ptr = NULL;

    assert_int_equal(xseg_alloc(stage->allocator, 1, 1000, NULL, &ptr), XSEG_OK);
    assert_int_equal(xseg_free(stage->allocator, ptr), XSEG_OK);
}

static void allow(struct stage *stage, const void *ptr, size_t bytes)
{
    char text[1024] = "";
    xseg_status status;

    do {
        status = xseg_peer_allow(stage->allocator, 0, 1);
        if (status != XSEG_OK) {
            (void)xseg_error_message(text, sizeof(text));
            if (strstr(text, "keeps access to some memory") == NULL)
                assert_false(reaches_any(ptr, bytes));
        }
    } while (stage_again(stage, status));
}

/* Holes between the pages, a small pool, a private pool and memory that is mapped later. */
static void before_and_after(struct stage *stage)
{
    struct xseg_pool *pool = NULL;

    stage->stride = STRIDE;
    void *first = stage_take(stage, 50 * MIB, NULL), *hole = stage_take(stage, 20 * MIB, NULL),
         *second = stage_take(stage, 30 * MIB, NULL), *small = stage_take(stage, 1000, NULL);

    while (stage_again(stage, xseg_pool_create(stage->allocator, 0, NULL, &pool)))
        ;
    void *own = stage_take_from(stage, pool, 30 * MIB, stage->side);
    stage_give(stage, hole);
    stage_trim(stage, false);
    open_peer(stage);
    armed_begin();
    allow(stage, first, 50 * MIB);
    void *later = stage_take(stage, 90 * MIB, NULL);
    assert_true(reaches_all(first, 50 * MIB) && reaches_all(second, 30 * MIB) && reaches(small));
    assert_true(reaches_all(own, 30 * MIB) && reaches_all(later, 90 * MIB));
    stage_give(stage, first);
    stage_give(stage, second);
    stage_give(stage, small);
    stage_give(stage, own);
    stage_give(stage, later);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_trim(stage, true);
}

/* Memory that came from elsewhere. */
static void imports(struct stage *stage)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct exported exported;
    struct xseg_pool *pool = NULL;
    void *seen = NULL, *base = NULL;

    stage->stride = STRIDE;
    options.exportable = true;
    while (stage_again(stage, xseg_pool_create(stage->allocator, 0, &options, &pool)))
        ;
    void *block = stage_take_from(stage, pool, 50 * MIB, NULL);
    while (stage_again(stage, exported_try(stage->allocator, block, XSEG_HANDLE_FD, &exported)))
        ;
    while (stage_again(stage, exported_import(stage->allocator, &exported, &seen, &base)))
        ;
    exported_drop(&exported);
    open_peer(stage);
    armed_begin();
    allow(stage, seen, 50 * MIB);
    assert_true(reaches_all(block, 50 * MIB) && reaches_all(seen, 50 * MIB));
    while (stage_again(stage, xseg_import_close(stage->allocator, base)))
        ;
    while (stage_again(stage, xseg_export_close(stage->allocator, block)))
        ;
    stage_give(stage, block);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    stage_trim(stage, true);
}

static const struct armed_scenario scenarios[] = {
    {"before and after", before_and_after, 4, 4},
    {"imports", imports, 4, 4},
};

int main(void)
{
    const struct armed_sweep sweep = {"peer", scenarios,        COUNT_OF(scenarios),
                                      NULL,   before_and_after, 200};

    return armed_run(&sweep);
}
