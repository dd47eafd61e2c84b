/* SPDX-License-Identifier: MIT */
/* What is kept, drawn towards and never passed fits together, and follows the keys that are named. */
#include "src/core/device/device.h"

#include "src/core/config/config_table.h"
#include "tests/support/env.h"

#define NONE UINT64_MAX

TEST(contradictory_limits_are_rejected)
{
    static const struct {
        uint64_t hard, soft, keep;
        bool is_good;
    } row[] = {
        {NONE, NONE, 0, true}, {0, 0, 0, true},     {9, 5, 5, true},  {5, 5, 5, true},
        {9, NONE, 9, true},    {NONE, 5, 4, true},  {4, 5, 0, false}, {9, 4, 5, false},
        {4, NONE, 5, false},   {0, NONE, 1, false},
    };
    struct xseg_config config;
    struct xseg_device_limits bounds;

    xseg_config_init(&config);
    for (size_t i = 0; i < COUNT_OF(row); i++) {
        const struct xseg_limits set = {sizeof(set), row[i].hard, row[i].soft, row[i].keep,
                                        1,           false,       1,           false};
        struct xseg_limits now;

        xseg_device_limits_init(&bounds, &config);
        assert_int_equal(xseg_device_limits_set(&bounds, &set),
                         row[i].is_good ? XSEG_OK : XSEG_ERR_ARGUMENT);
        xseg_device_limits_read(&bounds, &now);
        assert_int_equal(now.hard_bytes, row[i].is_good ? row[i].hard : NONE);
        assert_int_equal(now.soft_bytes, row[i].is_good ? row[i].soft : NONE);
        assert_int_equal(now.keep_bytes, row[i].is_good ? row[i].keep : 0);
    }
}

TEST(only_keys_that_were_set_apply)
{
    const uint64_t hard = (uint64_t)1 << XSEG_CONFIG_HARD_LIMIT,
                   soft = (uint64_t)1 << XSEG_CONFIG_SOFT_LIMIT,
                   keep = (uint64_t)1 << XSEG_CONFIG_KEEP;
    const struct xseg_limits own = {sizeof(own), 50, 40, 30, 1, false, 1, false};
    static struct xseg_device device;
    struct xseg_config config;

    xseg_config_init(&config);
    xseg_device_limits_init(&device.limits, &config);
    assert_int_equal(xseg_device_limits_set(&device.limits, &own), XSEG_OK);
    config.hard_limit_bytes = 35;
    config.soft_limit_bytes = 33;
    config.keep_bytes = 5;
    assert_int_equal(xseg_device_limits_follow(&device, &config, 0, true), XSEG_OK);
    assert_int_equal(xseg_device_limits_hard(&device.limits), 50);
    env_expect_error(xseg_device_limits_follow(&device, &config, hard, true), XSEG_ERR_CONFIG,
                     "soft_bytes exceeds hard_bytes");
    assert_int_equal(xseg_device_limits_hard(&device.limits), 50);
    assert_int_equal(xseg_device_limits_follow(&device, &config, hard | soft, false), XSEG_OK);
    assert_int_equal(xseg_device_limits_hard(&device.limits), 50);
    assert_int_equal(xseg_device_limits_follow(&device, &config, hard | soft, true), XSEG_OK);
    assert_int_equal(xseg_device_limits_hard(&device.limits), 35);
    assert_int_equal(xseg_device_limits_soft(&device.limits), 33);
    assert_int_equal(xseg_device_limits_keep(&device.limits), 30);
    assert_int_equal(xseg_device_limits_follow(&device, &config, keep, true), XSEG_OK);
    assert_int_equal(xseg_device_limits_keep(&device.limits), 5);
}
