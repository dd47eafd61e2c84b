/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/blame/blame.h"

#include <stdlib.h>
#include <string.h>

/* --- Sums. --- */

static bool compute_sums(struct blame *blame)
{
    struct replay_model model;
    bool success;

    if (blame->device->event_count > 0
            ? !replay_model_init(&model, blame->recording, blame->device)
            : !replay_model_init_at_end(&model, blame->recording, blame->device))
        return false;
    blame->omitted = model.omitted;
    blame->dropped = model.dropped;
    blame->has_times = model.has_times;
    success = fragmentation_play(&blame->sums, &model, blame->sites.count, sites_of, &blame->sites);
    replay_model_fini(&model);
    blame->is_instant = blame->sums.is_instant;
    blame->duration_us = blame->sums.duration_us;
    return success;
}

/* --- Idle pages at the end, by the reasons that xseg writes to snapshots. --- */

static bool is_idle(const struct recording *recording, const struct recording_page *page)
{
    const char *reason = recording_text(recording, page->reason);

    return strcmp(reason, "allocated") != 0 && strcmp(reason, "pending") != 0 &&
           strcmp(reason, "claimed") != 0;
}

static struct blame_reason *find_or_add_reason(struct blame *blame, uint32_t reason)
{
    for (size_t i = 0; i < blame->reason_count; i++)
        if (blame->reasons[i].reason == reason)
            return &blame->reasons[i];
    blame->reasons[blame->reason_count] = (struct blame_reason){.reason = reason};
    return &blame->reasons[blame->reason_count++];
}

static uint32_t get_single_site(const void *context, const struct replay_model_block *block)
{
    (void)context;
    (void)block;
    return 0;
}

/* Compute the idle bytes at the end. */
static bool compute_idle_at_end(const struct blame *blame, uint64_t *out)
{
    struct replay_model model;
    struct fragmentation sums;
    bool success;

    if (!replay_model_init_at_end(&model, blame->recording, blame->device))
        return false;
    success = fragmentation_init(&sums, &model, 1, get_single_site, NULL);
    if (success) {
        fragmentation_finish(&sums, 1);
        *out = (uint64_t)sums.idle;
        fragmentation_fini(&sums);
    }
    replay_model_fini(&model);
    return success;
}

static bool find_reasons(struct blame *blame)
{
    const struct recording_device *device = blame->device;
    uint64_t idle = 0, attributed = 0;

    if (device->page_count == 0)
        return true;
    blame->reasons = calloc(device->page_count + 1, sizeof(*blame->reasons));
    if (!blame->reasons || !compute_idle_at_end(blame, &idle))
        return false;
    for (size_t i = 0; i < device->page_count; i++) {
        const struct recording_page *page = &device->pages[i];

        if (!is_idle(blame->recording, page) || page->bytes > idle - attributed)
            continue;
        find_or_add_reason(blame, page->reason)->bytes += page->bytes;
        attributed += page->bytes;
    }
    if (attributed < idle)
        find_or_add_reason(blame, 0)->bytes += idle - attributed;
    return true;
}

/* --- The order. --- */

fragmentation_sum blame_amount(const struct blame *blame, enum blame_by by, uint32_t number)
{
    const struct fragmentation_site *site = &blame->sums.sites[number];

    switch (by) {
    case BLAME_BY_FRAGMENTED:
        return site->fragmented;
    case BLAME_BY_ALLOCATED:
        return site->allocated;
    case BLAME_BY_PEAK:
        break;
    }
    return site->peak_bytes;
}

fragmentation_sum blame_total(const struct blame *blame, enum blame_by by)
{
    switch (by) {
    case BLAME_BY_FRAGMENTED:
        return blame->sums.reserved - blame->sums.allocated;
    case BLAME_BY_ALLOCATED:
        return blame->sums.allocated;
    case BLAME_BY_PEAK:
        break;
    }
    return blame->sums.peak.allocated;
}

struct ordering {
    const struct blame *blame;
    enum blame_by by;
};

/* Sites with equal amounts remain in the order of the file. */
static int compare_sites(const void *first, const void *second, void *context)
{
    const struct ordering *ordering = context;
    const uint32_t a = *(const uint32_t *)first, b = *(const uint32_t *)second;
    const fragmentation_sum of_a = blame_amount(ordering->blame, ordering->by, a);
    const fragmentation_sum of_b = blame_amount(ordering->blame, ordering->by, b);

    return of_a != of_b ? (of_a < of_b) - (of_a > of_b) : (a > b) - (a < b);
}

static bool sort_sites(struct blame *blame, enum blame_by by)
{
    struct ordering ordering = {blame, by};

    blame->order = malloc(blame->sites.count * sizeof(*blame->order));
    if (!blame->order)
        return false;
    for (uint32_t i = 0; i < blame->sites.count; i++)
        blame->order[i] = i;
    qsort_r(blame->order, blame->sites.count, sizeof(*blame->order), compare_sites, &ordering);
    return true;
}

bool blame_init(struct blame *blame, const struct recording *recording,
                const struct recording_device *device, enum sites_by sites_by, uint32_t depth,
                enum blame_by by)
{
    memset(blame, 0, sizeof(*blame));
    blame->recording = recording;
    blame->device = device;
    if (!sites_init(&blame->sites, recording, sites_by, depth))
        return false;
    if (!compute_sums(blame)) {
        sites_fini(&blame->sites);
        return false;
    }
    if (!find_reasons(blame) || !sort_sites(blame, by)) {
        blame_fini(blame);
        return false;
    }
    return true;
}

void blame_fini(struct blame *blame)
{
    free(blame->order);
    free(blame->reasons);
    fragmentation_fini(&blame->sums);
    sites_fini(&blame->sites);
}
