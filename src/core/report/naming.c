/* SPDX-License-Identifier: MIT */
#include "src/core/report/naming.h"

#include <string.h>
#include <time.h>

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;

    (void)clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void xseg_snapshot_naming_init(struct xseg_snapshot_naming *naming,
                               struct xseg_history_store *store)
{
    memset(naming, 0, sizeof(*naming));
    naming->store = store;
    if (store->clock.read == NULL)
        naming->epoch_ns = read_clock(CLOCK_REALTIME) - read_clock(CLOCK_MONOTONIC);
}

const uint64_t *xseg_snapshot_naming_pool(struct xseg_snapshot_naming *naming, uint32_t number)
{
    static const uint64_t none[2] = {0, 0};
    struct xseg_pool_id *known = &naming->pools[number % XSEG_SNAPSHOT_POOLS];

    if (number == 0)
        return none;
    if (known->pool != number) {
        known->pool = number;
        xseg_history_store_get_pool_id(naming->store, number, known->id);
        if (known->id[0] == 0 && known->id[1] == 0)
            known->id[1] = number;
    }
    return known->id;
}

uint64_t xseg_snapshot_naming_us(const struct xseg_snapshot_naming *naming,
                                 const struct xseg_history_moment *moment, uint64_t ticks)
{
    const int64_t ns = (int64_t)xseg_history_store_ns(naming->store, moment, ticks);

    return (uint64_t)(ns + naming->epoch_ns) / 1000;
}
