/* SPDX-License-Identifier: MIT */
#include "src/core/stats/recent_peak.h"

#include "src/base/align.h"
#include "src/base/check.h"

static uint64_t number_at(uint64_t now)
{
    return now / XSEG_RECENT_PEAK_SLOT + 1;
}

void xseg_recent_peak_init(struct xseg_recent_peak *recent)
{
    for (unsigned i = 0; i < XSEG_RECENT_PEAK_SLOTS; i++) {
        atomic_store(&recent->slot[i].number, 0);
        atomic_store(&recent->slot[i].peak, 0);
    }
}

void xseg_recent_peak_note(struct xseg_recent_peak *recent, uint64_t now, uint64_t before,
                           uint64_t after)
{
    const uint64_t number = number_at(now);
    struct xseg_recent_peak_slot *slot = &recent->slot[number % XSEG_RECENT_PEAK_SLOTS];

    if (atomic_load_explicit(&slot->number, memory_order_relaxed) == number) {
        if (after > atomic_load_explicit(&slot->peak, memory_order_relaxed))
            atomic_store(&slot->peak, after);
        return;
    }
    /* A reader that finds the same number before and after it reads the peak has the peak of that slot. */
    atomic_store(&slot->number, 0);
    atomic_store(&slot->peak, xseg_max(before, after));
    atomic_store(&slot->number, number);
}

uint64_t xseg_recent_peak_read(const struct xseg_recent_peak *recent, uint64_t now,
                               uint64_t current)
{
    const uint64_t last = number_at(now);
    uint64_t most = current;

    for (unsigned i = 0; i < XSEG_RECENT_PEAK_SLOTS; i++) {
        const struct xseg_recent_peak_slot *slot = &recent->slot[i];
        const uint64_t number = atomic_load(&slot->number);
        const uint64_t peak = atomic_load(&slot->peak);

        if (number != 0 && number + XSEG_RECENT_PEAK_SLOTS > last &&
            atomic_load(&slot->number) == number)
            most = xseg_max(most, peak);
    }
    XSEG_ASSERT(most >= current);
    return most;
}
