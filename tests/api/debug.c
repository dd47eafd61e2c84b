/* SPDX-License-Identifier: MIT */
/* The helpers for finding errors: frees that are remembered. */
#include "tests/support/scene.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void a_second_free_is_told_about_the_first(void **state)
{
    struct xseg_allocator *allocator = scene_open("free_history:3");
    void *ptr = scene_alloc(allocator, 8 * MIB, NULL), *other[3];
    const uint64_t host_bytes = scene_stats(allocator).host_bytes;
    char thread[64];

    (void)state;
    for (unsigned i = 0; i < 3; i++)
        other[i] = scene_alloc(allocator, 5000, NULL);
    scene_free(allocator, ptr);
    assert_true(scene_stats(allocator).host_bytes > host_bytes);
    scene_free(allocator, other[0]);
    scene_free(allocator, other[1]);
    (void)snprintf(thread, sizeof(thread), "2 frees ago, by thread %d,", (int)gettid());
    scene_expect_error(xseg_free(allocator, ptr), XSEG_ERR_NOT_LIVE, "it lies in cached memory");
    scene_expect_error(xseg_free(allocator, ptr), XSEG_ERR_NOT_LIVE, "; it was freed as number 1,");
    scene_expect_error(xseg_free(allocator, ptr), XSEG_ERR_NOT_LIVE, thread);
    scene_expect_error(xseg_free(allocator, ptr), XSEG_ERR_NOT_LIVE, "with the 8388608 bytes at ");
    scene_expect_error(xseg_free(allocator, ptr), XSEG_ERR_NOT_LIVE, "test-api-debug+0x");
    /* From inside the block, and in a use. */
    scene_expect_error(xseg_use(allocator, (char *)ptr + 7 * MIB, NULL), XSEG_ERR_NOT_LIVE,
                       "number 1,");
    /* The fourth free takes the place of the first. */
    scene_free(allocator, other[2]);
    scene_expect_error(xseg_free(allocator, ptr), XSEG_ERR_NOT_LIVE, "or never handed out");
    assert_int_equal(xseg_error_text(NULL, 0),
                     strlen("0x000000000 is no live block: it lies in cached memory: it was freed "
                            "before, or never handed out"));
    scene_close(allocator);
}

/* A free that failed was none. */
static void a_free_that_failed_is_not_remembered(void **state)
{
    struct xseg_allocator *allocator = scene_open("free_history:8");
    const xseg_stream side = scene_stream();
    void *ptr = scene_alloc(allocator, 5000, NULL);
    char text[1024];

    (void)state;
    assert_int_equal(xseg_sim_launch(side, UINT64_MAX), XSEG_OK);
    assert_int_equal(xseg_use(allocator, ptr, side), XSEG_OK);
    assert_int_equal(xseg_sim_fail("cuEventRecord", 1, 999), XSEG_OK);
    assert_int_equal(xseg_free(allocator, ptr), XSEG_ERR_DRIVER);
    scene_free(allocator, scene_alloc(allocator, 3000, NULL));
    /* The free that succeeds is not noted: were the other one remembered, it would be told. */
    assert_int_equal(xseg_configure(allocator, "free_history:0"), XSEG_OK);
    scene_free(allocator, ptr);
    assert_int_equal(xseg_free(allocator, ptr), XSEG_ERR_NOT_LIVE);
    (void)xseg_error_text(text, sizeof(text));
    assert_null(strstr(text, "as number"));
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    scene_stream_destroy(side);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_free_is_told_about_the_first),
        cmocka_unit_test(a_free_that_failed_is_not_remembered),
    };

    return cmocka_run_group_tests_name("debug", tests, NULL, NULL);
}
