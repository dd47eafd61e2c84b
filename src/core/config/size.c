/* SPDX-License-Identifier: MIT */
#include "src/core/config/size.h"

#include "src/base/check.h"

/* The interval of roundup_power2_divisions: 0 up to 2 MiB, then one per octave, 15 from 32 GiB
 * on. */
static unsigned interval_of(uint64_t bytes)
{
    XSEG_ASSERT(bytes != 0);
    const unsigned octave = xseg_log2_floor(bytes);

    return octave < 20 ? 0 : octave > 35 ? 15 : octave - 20;
}

/* Round up to the next of `divisions` equal steps between two powers of two. */
static uint64_t round_to_division(uint64_t bytes, uint32_t divisions)
{
    XSEG_ASSERT(xseg_is_power_of_two(divisions));
    if (xseg_is_power_of_two(bytes))
        return bytes;
    const uint64_t power = (uint64_t)1 << xseg_log2_floor(bytes);
    const uint64_t step = power >> xseg_log2_floor(divisions);
    return step == 0 ? power << 1 : xseg_round_up(bytes, step);
}

uint64_t xseg_size_round(const struct xseg_config *config, uint64_t bytes)
{
    XSEG_ASSERT(bytes != 0 && bytes <= XSEG_SIZE_MAX);
    if (bytes < XSEG_SIZE_UNIT)
        return XSEG_SIZE_UNIT;
    const uint32_t divisions = config->roundup_divisions[interval_of(bytes)];
    if (divisions > 1 && bytes > XSEG_SIZE_UNIT * divisions)
        return round_to_division(bytes, divisions);
    return xseg_round_up(bytes, XSEG_SIZE_UNIT);
}

uint64_t xseg_size_segment(const struct xseg_config *config, uint64_t rounded)
{
    XSEG_ASSERT(rounded != 0 && rounded % XSEG_SIZE_UNIT == 0);
    if (xseg_size_is_small(rounded))
        return XSEG_SIZE_SMALL_SEGMENT;
    if (rounded < XSEG_SIZE_OWN_SEGMENT)
        return config->large_segment_bytes;
    return xseg_round_up(rounded, XSEG_SIZE_SEGMENT_STEP);
}
