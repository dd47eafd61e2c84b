/* SPDX-License-Identifier: MIT */
#include "src/core/inspect/device_figures.h"

#define MILLISECOND UINT64_C(1000000)

/* What blocks have, while the arenas are added up, in bytes. */
struct blocks {
    uint64_t live, pending;
    uint64_t reserved; /* memory of both; blocks of a paused pool have none */
};

static void add_arena(void *self, struct xseg_arena *arena)
{
    struct blocks *blocks = self;
    const struct xseg_counts *counts = &arena->counts;
    const uint64_t live = xseg_counts_current(counts, XSEG_COUNT_ALLOCATED_BYTES);
    const uint64_t pending = xseg_counts_read_row(counts, XSEG_COUNT_ACTIVE_BYTES).current;

    blocks->live += live;
    blocks->pending += pending;
    blocks->reserved +=
        xseg_min(live + pending, xseg_counts_current(counts, XSEG_COUNT_RESERVED_BYTES));
}

/* What is free by the driver's last answer.  Others have what they had then; what is taken here is known. */
static void read_free(const struct xseg_device *device, uint64_t now,
                      struct xseg_device_figures *out)
{
    uint64_t others = 0, age = 0;

    out->free_bytes = out->free_age_ms = UINT64_MAX;
    if (!xseg_dated_read(&device->used_elsewhere, now, &others, &age))
        return;
    out->free_bytes = out->total_bytes - xseg_min(out->total_bytes, others + out->physical_bytes);
    out->free_age_ms = age / MILLISECOND;
}

void xseg_device_figures_read(struct xseg_allocator *allocator, int ordinal, uint64_t now,
                              struct xseg_device_figures *out)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, ordinal);
    struct blocks blocks = {0};

    *out = (struct xseg_device_figures){.struct_bytes = sizeof(*out), .device = ordinal};
    if (device == NULL)
        return;
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t page_cache = xseg_pages_bytes(&device->pages);
    xseg_device_visit_arenas(device, add_arena, &blocks);
    out->is_open = true;
    out->is_lost = xseg_context_is_lost(&device->context);
    out->total_bytes = device->context.total_bytes;
    out->limit_bytes = xseg_device_limit(device);
    out->physical_bytes = reserved + page_cache + xseg_leftovers_bytes(&device->leftovers);
    out->reserved_bytes = reserved;
    out->live_bytes = blocks.live;
    out->pending_bytes = blocks.pending;
    out->idle_bytes = reserved - xseg_min(reserved, blocks.reserved) + page_cache;
    read_free(device, now, out);
}
