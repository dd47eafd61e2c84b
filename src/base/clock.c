/* SPDX-License-Identifier: MIT */
#include "src/base/clock.h"

#include <time.h>

static uint64_t read_clock(const struct xseg_clock *clock, clockid_t id)
{
    struct timespec time = {0};

    if (clock->read != NULL)
        return clock->read(clock->context);
    (void)clock_gettime(id, &time);
    return (uint64_t)time.tv_sec * XSEG_SECOND + (uint64_t)time.tv_nsec;
}

uint64_t xseg_clock_coarse(const struct xseg_clock *clock)
{
    return read_clock(clock, CLOCK_MONOTONIC_COARSE);
}

uint64_t xseg_clock_fine(const struct xseg_clock *clock)
{
    return read_clock(clock, CLOCK_MONOTONIC);
}

uint64_t xseg_clock_system(void)
{
    const struct xseg_clock system = {0};

    return xseg_clock_fine(&system);
}
