/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/min_device.h"

#define MIB        ((uint64_t)1 << 20)
#define GRANULE    ((uint64_t)2)       /* MiB: unit of device memory */
#define DEVICE_MAX ((uint64_t)1 << 24) /* MiB: sufficient for any trace */

struct search {
    const struct xtrace *trace;
    struct replay_settings settings;
    bool requires_all;
};

static bool is_complete(const struct search *search, const struct replay_result *result)
{
    return result->end == REPLAY_DONE && result->oom_at < 0 &&
           (!search->requires_all || result->failed_served == result->failed);
}

/* Replay on a device of `mib` MiB.  Returns whether the trace completes. */
static bool completes(struct search *search, uint64_t mib, struct replay_result *out)
{
    search->settings.device_bytes = mib * MIB;
    replay_run(search->trace, &search->settings, out);
    replay_result_fini(out);
    return is_complete(search, out);
}

/* Find a size on which the trace completes: `high` or, if the trace fails with this size, more.  0: there is none. */
static uint64_t find_sufficient(struct search *search, uint64_t *low, uint64_t high)
{
    struct replay_result result;

    while (!completes(search, high, &result)) {
        if (high >= DEVICE_MAX)
            return 0;
        *low = high;
        high += (high / 16 + GRANULE) / GRANULE * GRANULE;
        if (high > DEVICE_MAX)
            high = DEVICE_MAX;
    }
    return high;
}

bool min_device_find(const struct xtrace *trace, const struct replay_settings *settings,
                     const struct replay_result *large_result, bool requires_all, uint64_t *out)
{
    struct search search = {.trace = trace, .settings = *settings, .requires_all = requires_all};
    struct replay_result result = *large_result;
    uint64_t low, high;

    search.settings.check = CHECK_OFF;
    search.settings.timeline = NULL;
    search.settings.history = NULL;
    search.settings.explain = false;
    search.settings.quiet = true;
    if ((large_result->oom_at >= 0 ||
         (requires_all && large_result->failed_served < large_result->failed)) &&
        !completes(&search, DEVICE_MAX, &result))
        return false;

    low = result.peak_requested / MIB / GRANULE * GRANULE;
    high = find_sufficient(&search, &low, (result.peak_reserved + MIB - 1) / MIB + GRANULE);
    if (high == 0)
        return false;
    while (high - low > (low / 1000 > GRANULE ? low / 1000 : GRANULE)) {
        uint64_t middle = (low + high) / 2 / GRANULE * GRANULE;

        if (completes(&search, middle, &result))
            high = middle;
        else
            low = middle;
    }
    *out = high * MIB;
    return true;
}
