/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_costs.h"

#include <stdio.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static const struct probe_stage page_stages[] = {
    {"cuMemCreate", probe_round_create_page},       {"cuMemMap", probe_round_map_page},
    {"cuMemSetAccess", probe_round_set_access_run}, {"cuMemUnmap", probe_round_unmap_run},
    {"cuMemRelease", probe_round_release_page},
};
static const struct probe_stage range_stages[] = {
    {"cuMemAddressReserve", probe_round_reserve_range},
    {"cuMemAddressFree", probe_round_unreserve_range},
};
static const struct probe_stage alloc_stages[] = {
    {"cuMemAlloc", probe_round_allocate},
    {"cuMemFree", probe_round_free_allocation},
};
static const struct probe_stage event_stages[] = {
    {"cuEventCreate", probe_round_create_event},
    {"cuEventRecord", probe_round_record_event},
    {"cuEventQuery", probe_round_query_event},
    {"cuStreamWaitEvent", probe_round_wait_for_event},
    {"cuEventDestroy", probe_round_destroy_event},
};
static const struct probe_stage info_stages[] = {{"cuMemGetInfo", probe_round_query_memory}};
static const struct probe_stage wait_stages[] = {
    {"cuStreamSynchronize", probe_round_wait_for_stream}};

/* Stages of a run of pages: one call, or one call for each page. */
static const struct probe_stage run_stages[] = {
    {"cuMemSetAccess", probe_round_set_access_run},
    {"cuMemUnmap", probe_round_unmap_run},
};
static const struct probe_stage each_stages[] = {
    {"cuMemSetAccess", probe_round_set_access_each},
    {"cuMemUnmap", probe_round_unmap_each},
};

enum kind { RANGE, PAGE, RUN, EACH, ALLOC, OTHER };

#define STAGES(array) (array), COUNT_OF(array)

/* The groups in the order of measurement.  The weight is proportional to the time of a round, most of which is the work of a
 * busy device before each step. */
static const struct group {
    enum kind kind;
    uint64_t bytes; /* of a page */
    const struct probe_stage *stage;
    unsigned stages, pages, threads, weight;
} groups[] = {
    {RANGE, 64 * GIB, STAGES(range_stages), 1, 1, 2},
    {PAGE, 2 * MIB, STAGES(page_stages), 1, 1, 5},
    {PAGE, 4 * MIB, STAGES(page_stages), 1, 1, 5},
    {PAGE, 8 * MIB, STAGES(page_stages), 1, 1, 5},
    {PAGE, 20 * MIB, STAGES(page_stages), 1, 1, 5},
    {PAGE, 32 * MIB, STAGES(page_stages), 1, 1, 5},
    {PAGE, 64 * MIB, STAGES(page_stages), 1, 1, 5},
    {PAGE, 128 * MIB, STAGES(page_stages), 1, 1, 5},
    {PAGE, 256 * MIB, STAGES(page_stages), 1, 1, 6},
    {PAGE, 512 * MIB, STAGES(page_stages), 1, 1, 7},
    {RUN, 2 * MIB, STAGES(run_stages), 10, 1, 3},
    {EACH, 2 * MIB, STAGES(each_stages), 10, 1, 3},
    {RUN, 2 * MIB, STAGES(run_stages), PROBE_RUN_MAX, 1, 6},
    {EACH, 2 * MIB, STAGES(each_stages), PROBE_RUN_MAX, 1, 6},
    {ALLOC, 64 << 10, STAGES(alloc_stages), 1, 1, 2},
    {ALLOC, 2 * MIB, STAGES(alloc_stages), 1, 1, 2},
    {ALLOC, 4 * MIB, STAGES(alloc_stages), 1, 1, 2},
    {ALLOC, 8 * MIB, STAGES(alloc_stages), 1, 1, 2},
    {ALLOC, 20 * MIB, STAGES(alloc_stages), 1, 1, 2},
    {ALLOC, 32 * MIB, STAGES(alloc_stages), 1, 1, 2},
    {ALLOC, 64 * MIB, STAGES(alloc_stages), 1, 1, 2},
    {ALLOC, 128 * MIB, STAGES(alloc_stages), 1, 1, 2},
    {ALLOC, 256 * MIB, STAGES(alloc_stages), 1, 1, 2},
    {ALLOC, 512 * MIB, STAGES(alloc_stages), 1, 1, 3},
    {OTHER, 0, STAGES(event_stages), 1, 1, 5},
    {OTHER, 0, STAGES(info_stages), 1, 1, 1},
    {OTHER, 0, STAGES(wait_stages), 1, 1, 1},
    {PAGE, 2 * MIB, STAGES(page_stages), 1, 2, 2},
    {PAGE, 20 * MIB, STAGES(page_stages), 1, 2, 2},
    {ALLOC, 20 * MIB, STAGES(alloc_stages), 1, 2, 1},
};

/* A measurement in progress. */
struct measurement {
    struct probe_driver *driver;
    const struct probe_device *device;
    struct probe_costs *costs;
    struct probe_budget budget;
    unsigned samples; /* maximum, of a cost */
    bool has_leak;    /* the driver did not release a resource */
};

/* --- Groups. --- */

static bool run_round(struct measurement *measurement, const struct group *group,
                      struct probe_round *round, struct probe_row *rows, enum probe_sampling how)
{
    bool success = true;

    /* Creating and mapping the pages of a run is not measured. */
    while (success && (group->kind == RUN || group->kind == EACH) && round->mapped < round->pages)
        success = probe_round_create_page(round) && probe_round_map_page(round);
    for (unsigned i = 0; i < group->stages && success; i++)
        success = probe_row_measure(&rows[i], round, how, group->stage[i].run);
    if (probe_round_release(round))
        return success;
    measurement->has_leak = true;
    return false;
}

/* Measure a group with an idle and a busy device.  A step that fails ends the measurement; the rows keep their samples. */
static void measure_single_thread(struct measurement *measurement, const struct group *group,
                                  struct probe_round *round, const struct probe_share *share,
                                  struct probe_row *rows)
{
    /* A call for each of many pages takes as long as the work, so the device would not be busy. */
    const bool has_busy = measurement->costs->has_busy && group->pages < PROBE_RUN_MAX;
    bool success = run_round(measurement, group, round, rows, PROBE_FIRST);

    for (unsigned busy = 0; busy <= (unsigned)has_busy; busy++)
        for (unsigned n = 0; n < measurement->samples && success &&
                             probe_share_has_time(share, busy != 0 || !has_busy, n);
             n++)
            success = run_round(measurement, group, round, rows, busy ? PROBE_BUSY : PROBE_IDLE);
}

static void measure_pair(struct measurement *measurement, const struct group *group,
                         const char *purpose, const struct probe_share *share,
                         struct probe_row *rows, struct probe_cost *cost)
{
    const struct probe_chain chain = {
        .purpose = purpose,
        .page = group->bytes,
        .has_range = group->kind == PAGE,
        .samples = measurement->samples,
        .stage = group->stage,
        .stages = group->stages,
    };

    if (!probe_pair_measure(measurement->driver, &chain, share, rows))
        for (unsigned i = 0; i < group->stages; i++)
            cost[i].missing = PROBE_MISSING_THREAD;
}

static bool needs_range(const struct group *group)
{
    return group->kind == PAGE || group->kind == RUN || group->kind == EACH;
}

static const char *format_purpose(char *purpose, size_t capacity, const struct group *group)
{
    const unsigned size = (unsigned)(group->bytes < MIB ? group->bytes >> 10 : group->bytes >> 20);
    const char *unit = group->bytes < MIB ? "KiB" : "MiB";

    if (group->kind == RANGE)
        return "costs of addresses";
    if (group->kind == OTHER)
        return "costs of events, waits and queries";
    if (group->pages > 1)
        (void)snprintf(purpose, capacity, "costs of a run of %u pages", group->pages);
    else
        (void)snprintf(purpose, capacity, "costs of %u %s%s", size, unit,
                       group->threads > 1 ? ", two threads" : "");
    return purpose;
}

static void measure_group(struct measurement *measurement, const struct group *group,
                          const struct probe_share *share, struct probe_cost *cost)
{
    static struct probe_row rows[PROBE_STAGES];
    char purpose[48];
    struct probe_round round = {.driver = measurement->driver,
                                .purpose = format_purpose(purpose, sizeof(purpose), group),
                                .page = group->bytes,
                                .pages = group->pages};

    const unsigned failures = measurement->driver->failures;

    memset(rows, 0, sizeof(rows));
    if (group->threads > 1) {
        measure_pair(measurement, group, round.purpose, share, rows, cost);
    } else if (!needs_range(group) || probe_round_reserve_range(&round)) {
        measure_single_thread(measurement, group, &round, share, rows);
        measurement->has_leak |= !probe_round_release_range(&round);
    }
    for (unsigned i = 0; i < group->stages; i++) {
        cost[i].first = rows[i].first;
        cost[i].has_first = rows[i].has_first;
        cost[i].idle = probe_row_quartiles(&rows[i], false);
        cost[i].busy = probe_row_quartiles(&rows[i], true);
        cost[i].waits = rows[i].blocking * 2 > rows[i].samples[true];
        if (cost[i].idle.samples > 0 || cost[i].missing != PROBE_MISSING_NOTHING)
            continue;
        cost[i].missing =
            measurement->driver->failures > failures ? PROBE_MISSING_CALL : PROBE_MISSING_TIME;
        measurement->costs->is_incomplete |= cost[i].missing == PROBE_MISSING_TIME;
    }
}

/* --- All groups. --- */

/* Get the reason why a group cannot be measured. */
static enum probe_missing find_missing_reason(struct measurement *measurement,
                                              const struct group *group)
{
    const struct probe_device *device = measurement->device;
    struct probe_costs *costs = measurement->costs;
    const uint64_t bytes = group->bytes * group->pages * group->threads;

    if (needs_range(group) && group->bytes % device->granularity != 0)
        return PROBE_MISSING_FIT;
    if (group->kind == RUN && (device->access_probe != 0 || device->unmap_probe != 0))
        return PROBE_MISSING_BATCH;
    if (group->kind != RANGE && group->kind != OTHER && bytes > device->free_bytes / 2) {
        if (costs->skipped == 0 || bytes < costs->skipped)
            costs->skipped = bytes;
        return PROBE_MISSING_MEMORY;
    }
    if (measurement->has_leak && group->kind != RANGE && group->kind != OTHER)
        return PROBE_MISSING_KEPT;
    if (probe_budget_is_over(&measurement->budget)) {
        costs->is_incomplete = true;
        return PROBE_MISSING_TIME;
    }
    return PROBE_MISSING_NOTHING;
}

/* Add the costs of a group, without samples.  Returns the first one, or NULL if the array is full. */
static struct probe_cost *add_costs(struct probe_costs *costs, const struct group *group)
{
    struct probe_cost *first = &costs->cost[costs->count];

    if (costs->count + group->stages > PROBE_COSTS)
        return NULL;
    for (unsigned i = 0; i < group->stages; i++)
        costs->cost[costs->count++] = (struct probe_cost){
            .call = group->stage[i].call,
            .bytes = group->bytes,
            .pages = group->pages,
            .calls = group->kind == EACH ? group->pages : 1,
            .threads = group->threads,
        };
    return first;
}

static bool is_applicable(const struct group *group, bool is_expandable)
{
    return is_expandable || group->kind == ALLOC || group->kind == OTHER;
}

void probe_costs_measure(struct probe_driver *driver, const struct probe_device *device,
                         unsigned seconds, struct probe_costs *costs,
                         void (*on_rows)(const struct probe_costs *costs, unsigned from,
                                         void *context),
                         void *context)
{
    struct measurement measurement = {.driver = driver,
                                      .device = device,
                                      .costs = costs,
                                      .samples = seconds > 0 ? PROBE_SAMPLES_MAX : PROBE_SAMPLES};
    const bool is_expandable = probe_device_is_expandable(device);
    unsigned weight = 0;

    memset(costs, 0, sizeof(*costs));
    for (size_t i = 0; i < COUNT_OF(groups); i++)
        weight += is_applicable(&groups[i], is_expandable) ? groups[i].weight : 0;
    probe_budget_init(&measurement.budget, seconds, weight);
    costs->has_busy = probe_driver_prepare_work(driver);
    for (size_t i = 0; i < COUNT_OF(groups); i++) {
        const struct group *group = &groups[i];
        const unsigned from = costs->count;
        struct probe_cost *cost;
        enum probe_missing reason;

        if (!is_applicable(group, is_expandable) || !(cost = add_costs(costs, group)))
            continue;
        const struct probe_share share = probe_budget_share(&measurement.budget, group->weight);
        reason = find_missing_reason(&measurement, group);
        for (unsigned n = 0; n < group->stages; n++)
            cost[n].missing = reason;
        if (reason == PROBE_MISSING_NOTHING)
            measure_group(&measurement, group, &share, cost);
        if (on_rows)
            on_rows(costs, from, context);
    }
}

const char *probe_missing_text(enum probe_missing missing)
{
    static const char *const text[] = {
        [PROBE_MISSING_NOTHING] = NULL,
        [PROBE_MISSING_FIT] = "the size is not a multiple of the granularity",
        [PROBE_MISSING_BATCH] = "the driver accepts one page per call",
        [PROBE_MISSING_MEMORY] = "not enough free memory",
        [PROBE_MISSING_TIME] = "the time limit was reached",
        [PROBE_MISSING_KEPT] = "the driver did not release memory",
        [PROBE_MISSING_THREAD] = "the second thread could not be started",
        [PROBE_MISSING_CALL] = "a call failed",
    };

    return text[missing];
}

const struct probe_cost *probe_costs_find(const struct probe_costs *costs, const char *call,
                                          uint64_t bytes, unsigned pages, unsigned calls)
{
    for (unsigned i = 0; i < costs->count; i++) {
        const struct probe_cost *cost = &costs->cost[i];

        if (strcmp(cost->call, call) == 0 && cost->bytes == bytes && cost->pages == pages &&
            cost->calls == calls && cost->threads == 1)
            return cost;
    }
    return NULL;
}
