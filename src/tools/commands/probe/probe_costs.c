/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_costs.h"

#include <stdio.h>
#include <string.h>

#include "src/tools/commands/probe/probe_pair.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static const struct probe_stage page_stages[] = {
    {"cuMemCreate", probe_round_create_page},       {"cuMemMap", probe_round_map_page},
    {"cuMemSetAccess", probe_round_allow_together}, {"cuMemUnmap", probe_round_unmap_together},
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
static const struct probe_stage info_stages[] = {{"cuMemGetInfo", probe_round_ask_memory}};
static const struct probe_stage wait_stages[] = {
    {"cuStreamSynchronize", probe_round_wait_for_stream}};

/* A run of pages: how access is set and taken away with it, in one call or in one for each page. */
static const struct probe_stage together_stages[] = {
    {"cuMemSetAccess", probe_round_allow_together},
    {"cuMemUnmap", probe_round_unmap_together},
};
static const struct probe_stage each_stages[] = {
    {"cuMemSetAccess", probe_round_allow_each},
    {"cuMemUnmap", probe_round_unmap_each},
};

enum kind { RANGE, PAGE, TOGETHER, EACH, ALLOC, REST };

#define STAGES(array) (array), COUNT_OF(array)

/*
 * What is measured, in this order.  The weight is about what a round takes; most of it is the work that a
 * busy device has to do for each step.
 */
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
    {TOGETHER, 2 * MIB, STAGES(together_stages), 10, 1, 3},
    {EACH, 2 * MIB, STAGES(each_stages), 10, 1, 3},
    {TOGETHER, 2 * MIB, STAGES(together_stages), PROBE_RUN_MAX, 1, 6},
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
    {REST, 0, STAGES(event_stages), 1, 1, 5},
    {REST, 0, STAGES(info_stages), 1, 1, 1},
    {REST, 0, STAGES(wait_stages), 1, 1, 1},
    {PAGE, 2 * MIB, STAGES(page_stages), 1, 2, 2},
    {PAGE, 20 * MIB, STAGES(page_stages), 1, 2, 2},
    {ALLOC, 20 * MIB, STAGES(alloc_stages), 1, 2, 1},
};

/* A measurement in progress. */
struct measuring {
    struct probe_driver *driver;
    const struct probe_device *device;
    struct probe_costs *costs;
    struct probe_budget budget;
    unsigned samples; /* of a row, at most */
    bool is_kept;     /* something that the driver was to take back */
};

/* --- A group's rows. --- */

static bool play(struct measuring *measuring, const struct group *group, struct probe_round *round,
                 struct probe_row *rows, enum probe_sampling how)
{
    bool fine = true;

    /* Only what becomes of the pages of a run is timed. */
    while (fine && (group->kind == TOGETHER || group->kind == EACH) && round->mapped < round->pages)
        fine = probe_round_create_page(round) && probe_round_map_page(round);
    for (unsigned i = 0; i < group->stages && fine; i++)
        fine = probe_row_take(&rows[i], round, how, group->stage[i].take);
    if (probe_round_put_back(round))
        return fine;
    measuring->is_kept = true;
    return false;
}

/*
 * Samples of a group's steps, idle and busy.  The first step that fails ends them; the rows keep what
 * they have.
 */
static void measure_alone(struct measuring *measuring, const struct group *group,
                          struct probe_round *round, const struct probe_share *share,
                          struct probe_row *rows)
{
    /* Calls for each of many pages take as long as the work does, which would then tell nothing. */
    const bool has_busy = measuring->costs->is_busy && group->pages < PROBE_RUN_MAX;
    bool fine = play(measuring, group, round, rows, PROBE_FIRST);

    for (unsigned busy = 0; busy <= (unsigned)has_busy; busy++)
        for (unsigned n = 0; n < measuring->samples && fine &&
                             probe_share_has_time(share, busy != 0 || !has_busy, n);
             n++)
            fine = play(measuring, group, round, rows, busy ? PROBE_BUSY : PROBE_IDLE);
}

static void measure_pair(struct measuring *measuring, const struct group *group, const char *doing,
                         const struct probe_share *share, struct probe_row *rows,
                         struct probe_cost *cost)
{
    const struct probe_chain chain = {
        .doing = doing,
        .page = group->bytes,
        .has_range = group->kind == PAGE,
        .samples = measuring->samples,
        .stage = group->stage,
        .stages = group->stages,
    };

    if (!probe_pair_measure(measuring->driver, &chain, share, rows))
        for (unsigned i = 0; i < group->stages; i++)
            cost[i].missing = PROBE_MISSING_THREAD;
}

static bool needs_range(const struct group *group)
{
    return group->kind == PAGE || group->kind == TOGETHER || group->kind == EACH;
}

static const char *doing_of(char *text, size_t capacity, const struct group *group)
{
    const unsigned size = (unsigned)(group->bytes < MIB ? group->bytes >> 10 : group->bytes >> 20);
    const char *unit = group->bytes < MIB ? "KiB" : "MiB";

    if (group->kind == RANGE)
        return "costs of addresses";
    if (group->kind == REST)
        return "costs of events, waits and questions";
    if (group->pages > 1)
        (void)snprintf(text, capacity, "costs of a run of %u pages", group->pages);
    else
        (void)snprintf(text, capacity, "costs of %u %s%s", size, unit,
                       group->threads > 1 ? ", two threads" : "");
    return text;
}

static void measure_group(struct measuring *measuring, const struct group *group,
                          const struct probe_share *share, struct probe_cost *cost)
{
    static struct probe_row rows[PROBE_STAGES];
    char text[48];
    struct probe_round round = {.driver = measuring->driver,
                                .doing = doing_of(text, sizeof(text), group),
                                .page = group->bytes,
                                .pages = group->pages};

    const unsigned failures = measuring->driver->failures;

    memset(rows, 0, sizeof(rows));
    if (group->threads > 1) {
        measure_pair(measuring, group, round.doing, share, rows, cost);
    } else if (!needs_range(group) || probe_round_reserve_range(&round)) {
        measure_alone(measuring, group, &round, share, rows);
        measuring->is_kept |= !probe_round_put_range_back(&round);
    }
    for (unsigned i = 0; i < group->stages; i++) {
        probe_row_end(&rows[i], &cost[i]);
        if (cost[i].idle.samples > 0 || cost[i].missing != PROBE_MISSING_NOTHING)
            continue;
        cost[i].missing =
            measuring->driver->failures > failures ? PROBE_MISSING_CALL : PROBE_MISSING_TIME;
        measuring->costs->is_short |= cost[i].missing == PROBE_MISSING_TIME;
    }
}

/* --- All of it. --- */

/* Why a group cannot be measured here. */
static enum probe_missing why_not(struct measuring *measuring, const struct group *group)
{
    const struct probe_device *device = measuring->device;
    struct probe_costs *costs = measuring->costs;
    const uint64_t bytes = group->bytes * group->pages * group->threads;

    if (needs_range(group) && group->bytes % device->granularity != 0)
        return PROBE_MISSING_FIT;
    if (group->kind == TOGETHER && (device->access_trial != 0 || device->unmap_trial != 0))
        return PROBE_MISSING_BATCH;
    if (group->kind != RANGE && group->kind != REST && bytes > device->free_bytes / 2) {
        if (costs->skipped == 0 || bytes < costs->skipped)
            costs->skipped = bytes;
        return PROBE_MISSING_MEMORY;
    }
    if (measuring->is_kept && group->kind != RANGE && group->kind != REST)
        return PROBE_MISSING_KEPT;
    if (probe_budget_is_over(&measuring->budget)) {
        costs->is_short = true;
        return PROBE_MISSING_TIME;
    }
    return PROBE_MISSING_NOTHING;
}

/* The group's rows, without figures.  Returns: the first; NULL if there is no room. */
static struct probe_cost *add_rows(struct probe_costs *costs, const struct group *group)
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

static bool is_for(const struct group *group, bool is_expandable)
{
    return is_expandable || group->kind == ALLOC || group->kind == REST;
}

void probe_costs_measure(struct probe_driver *driver, const struct probe_device *device,
                         unsigned seconds, struct probe_costs *costs,
                         void (*on_rows)(const struct probe_costs *costs, unsigned from,
                                         void *context),
                         void *context)
{
    struct measuring measuring = {.driver = driver,
                                  .device = device,
                                  .costs = costs,
                                  .samples = seconds > 0 ? PROBE_SAMPLES_MAX : PROBE_SAMPLES};
    const bool is_expandable = probe_device_is_expandable(device);
    unsigned weight = 0;

    memset(costs, 0, sizeof(*costs));
    for (size_t i = 0; i < COUNT_OF(groups); i++)
        weight += is_for(&groups[i], is_expandable) ? groups[i].weight : 0;
    probe_budget_init(&measuring.budget, seconds, weight);
    costs->is_busy = probe_driver_prepare_work(driver);
    for (size_t i = 0; i < COUNT_OF(groups); i++) {
        const struct group *group = &groups[i];
        const unsigned from = costs->count;
        struct probe_cost *cost;
        enum probe_missing why;

        if (!is_for(group, is_expandable) || !(cost = add_rows(costs, group)))
            continue;
        const struct probe_share share = probe_budget_share(&measuring.budget, group->weight);
        why = why_not(&measuring, group);
        for (unsigned n = 0; n < group->stages; n++)
            cost[n].missing = why;
        if (why == PROBE_MISSING_NOTHING)
            measure_group(&measuring, group, &share, cost);
        if (on_rows)
            on_rows(costs, from, context);
    }
}

const char *probe_missing_text(enum probe_missing missing)
{
    static const char *const text[] = {
        [PROBE_MISSING_NOTHING] = NULL,
        [PROBE_MISSING_FIT] = "the size is no multiple of the granularity",
        [PROBE_MISSING_BATCH] = "the driver takes one page a call",
        [PROBE_MISSING_MEMORY] = "there is no memory for it",
        [PROBE_MISSING_TIME] = "the time was up",
        [PROBE_MISSING_KEPT] = "the driver took nothing back",
        [PROBE_MISSING_THREAD] = "a second thread could not be started",
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
