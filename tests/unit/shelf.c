/* SPDX-License-Identifier: MIT */
/* The shelf against an array that is searched from end to end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "src/base/align.h"
#include "src/core/shelf.h"

#define BLOCKS 600u

struct fixture {
    struct xseg_shelf shelf;
    struct xseg_block block[BLOCKS];
    bool there[BLOCKS];
};

static bool comes_before(const struct xseg_block *a, const struct xseg_block *b)
{
    return a->bytes < b->bytes || (a->bytes == b->bytes && a->base < b->base);
}

/* The smallest block that is not below (bytes, base), found the slow way. */
static struct xseg_block *slow_from(struct fixture *f, uint64_t bytes, uint64_t base)
{
    const struct xseg_block least = {.bytes = bytes, .base = base};
    struct xseg_block *best = NULL;

    for (unsigned i = 0; i < BLOCKS; i++)
        if (f->there[i] && !comes_before(&f->block[i], &least) &&
            (best == NULL || comes_before(&f->block[i], best)))
            best = &f->block[i];
    return best;
}

static uint64_t random_bytes(void)
{
    switch (random() % 4) {
    case 0:
        return (uint64_t)(random() % 8 + 1) * 512;
    case 1:
        return (uint64_t)(random() % 4096 + 1) * 512;
    case 2:
        return (uint64_t)(random() % 200000 + 1) * 512;
    default:
        return XSEG_GIB + (uint64_t)(random() % 100) * XSEG_GIB / 64;
    }
}

static void toggle(struct fixture *f, unsigned i)
{
    if (f->there[i]) {
        xseg_shelf_remove(&f->shelf, &f->block[i]);
    } else {
        f->block[i].bytes = random_bytes();
        xseg_shelf_insert(&f->shelf, &f->block[i]);
    }
    f->there[i] = !f->there[i];
}

static void agrees_with_the_slow_search(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct xseg_finding finding;

    (void)state;
    assert_non_null(f);
    srandom(7);
    xseg_shelf_init(&f->shelf);
    for (unsigned i = 0; i < BLOCKS; i++) {
        f->block[i].state = XSEG_BLOCK_CACHED;
        f->block[i].base = (uint64_t)(i * 7919 % BLOCKS + 1) << 30;
    }
    for (unsigned step = 0; step < 20000; step++) {
        const unsigned i = (unsigned)random() % BLOCKS;
        const uint64_t bytes = random_bytes();

        toggle(f, i);
        assert_ptr_equal(xseg_shelf_find(&f->shelf, bytes), slow_from(f, bytes, 0));
        assert_ptr_equal(xseg_shelf_from(&f->shelf, bytes, f->block[i].base),
                         slow_from(f, bytes, f->block[i].base));
        if (f->there[i])
            assert_ptr_equal(xseg_shelf_next(&f->shelf, &f->block[i]),
                             slow_from(f, f->block[i].bytes, f->block[i].base + 1));
        if (step % 1000 == 0)
            assert_true(xseg_shelf_audit(&f->shelf, &finding));
    }
    free(f);
}

/* Requests may ask for more than any device has. */
static void nothing_fits_a_size_that_no_device_has(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    (void)state;
    assert_non_null(f);
    xseg_shelf_init(&f->shelf);
    f->block[0] =
        (struct xseg_block){.state = XSEG_BLOCK_CACHED, .base = 512, .bytes = (1ull << 49) - 512};
    xseg_shelf_insert(&f->shelf, &f->block[0]);
    for (unsigned shift = 20; shift < 64; shift++) {
        struct xseg_block *fitting = shift < 49 ? &f->block[0] : NULL;

        assert_ptr_equal(xseg_shelf_find(&f->shelf, 1ull << shift), fitting);
        assert_ptr_equal(xseg_shelf_from(&f->shelf, 1ull << shift, 512), fitting);
    }
    assert_null(xseg_shelf_find(&f->shelf, UINT64_MAX));
    assert_null(xseg_shelf_from(&f->shelf, UINT64_MAX, UINT64_MAX));
    free(f);
}

/* The audit names what is broken. */
static void the_audit_can_fail(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct xseg_finding finding = {0};

    (void)state;
    assert_non_null(f);
    xseg_shelf_init(&f->shelf);
    f->block[0] = (struct xseg_block){.state = XSEG_BLOCK_CACHED, .base = 512, .bytes = 1024};
    xseg_shelf_insert(&f->shelf, &f->block[0]);
    assert_true(xseg_shelf_audit(&f->shelf, &finding));
    f->block[0].state = XSEG_BLOCK_LIVE;
    assert_false(xseg_shelf_audit(&f->shelf, &finding));
    assert_string_equal(finding.tag, "SHELF-2");
    f->block[0].state = XSEG_BLOCK_CACHED;
    xseg_bits_remove(&f->shelf.filled, 2);
    assert_false(xseg_shelf_audit(&f->shelf, &finding));
    assert_string_equal(finding.tag, "SHELF-1");
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_slow_search),
        cmocka_unit_test(nothing_fits_a_size_that_no_device_has),
        cmocka_unit_test(the_audit_can_fail),
    };

    return cmocka_run_group_tests_name("shelf", tests, NULL, NULL);
}
