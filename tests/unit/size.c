/* SPDX-License-Identifier: MIT */
/* The arithmetic of sizes, by the reference's own vectors. */
#include "src/core/config/size.h"
#include "tests/support/test.h"

TEST(sizes_are_rounded)
{
    static const struct {
        uint32_t divisions;
        uint64_t bytes, rounded;
    } row[] = {
        {0, 1, 512},
        {0, 511, 512},
        {0, 512, 512},
        {0, 513, 1024},
        {1, 1200, 1536},
        {4, 1200, 1536},
        {4, 2048, 2048},
        {4, 5000, 5120},
        {4, 84 * MIB, 96 * MIB},
        {8, 84 * MIB, 88 * MIB},
        {2, 400 * MIB, 512 * MIB},
        {2, 64 * MIB, 64 * MIB},
        {16, 3 * GIB + 1, 3 * GIB + 128 * MIB},
        {8, MIB + 1, MIB + 128 * KIB},
    };

    for (unsigned i = 0; i < XSEG_COUNT_OF(row); i++) {
        struct xseg_config config;

        xseg_config_init(&config);
        for (unsigned at = 0; at < XSEG_CONFIG_INTERVALS; at++)
            config.roundup_divisions[at] = row[i].divisions;
        assert_int_equal(xseg_size_round(&config, row[i].bytes), row[i].rounded);
    }
}

/* Each interval has divisions of its own; the first and the last are open-ended. */
TEST(requests_belong_to_intervals)
{
    struct xseg_config config;

    xseg_config_init(&config);
    config.roundup_divisions[0] = 2;
    config.roundup_divisions[9] = 4;
    config.roundup_divisions[15] = 8;
    assert_int_equal(xseg_size_round(&config, 700 * KIB), 768 * KIB);
    assert_int_equal(xseg_size_round(&config, MIB + 1), MIB + 512 * KIB);
    assert_int_equal(xseg_size_round(&config, 3 * MIB + 1), 3 * MIB + 512);
    assert_int_equal(xseg_size_round(&config, 600 * MIB), 640 * MIB);
    assert_int_equal(xseg_size_round(&config, 100 * GIB), 104 * GIB);
}

TEST(segment_sizes_follow_the_request)
{
    struct xseg_config config;

    xseg_config_init(&config);
    assert_int_equal(xseg_size_segment(&config, 512), 2 * MIB);
    assert_int_equal(xseg_size_segment(&config, MIB), 2 * MIB);
    assert_int_equal(xseg_size_segment(&config, MIB + 512), 20 * MIB);
    assert_int_equal(xseg_size_segment(&config, 10 * MIB - 512), 20 * MIB);
    assert_int_equal(xseg_size_segment(&config, 10 * MIB), 10 * MIB);
    assert_int_equal(xseg_size_segment(&config, 10 * MIB + 512), 12 * MIB);
    config.large_segment_bytes = 64 * MIB;
    assert_int_equal(xseg_size_segment(&config, 2 * MIB), 64 * MIB);
    assert_true(xseg_size_is_small(MIB));
    assert_false(xseg_size_is_small(MIB + 512));
}
