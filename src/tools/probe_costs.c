/* SPDX-License-Identifier: MIT */
#include "src/tools/probe_costs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

#define RESULT_NOT_READY 600
#define EVENT_NO_TIMING  2u

/* A small allocation, then the sizes of pages and segments. */
static const uint64_t alloc_sizes[] = {64 << 10, 2 * MIB, 20 * MIB, 64 * MIB, 512 * MIB};
static const uint64_t page_sizes[] = {2 * MIB, 20 * MIB, 64 * MIB, 512 * MIB};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* What the calls of a round work on. */
struct round {
    struct probe_driver *driver;
    const char *doing;
    uint64_t base, page, handle[PROBE_RUN_PAGES];
    unsigned pages, created, mapped;
    uint64_t address; /* of an allocation; 0: none */
    void *event;
};

typedef bool step(struct round *round);

/* The samples of a row, idle and busy. */
struct row {
    struct probe_cost *cost; /* NULL: there is no room for it */
    uint64_t sample[2][PROBE_SAMPLES];
    unsigned samples[2], waits;
};

static int compare(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

static struct probe_span span_of(uint64_t *sample, unsigned samples)
{
    struct probe_span span = {.samples = samples};

    if (samples == 0)
        return span;
    qsort(sample, samples, sizeof(*sample), compare);
    span.median = sample[samples / 2];
    span.low = sample[samples / 4];
    span.high = sample[samples - 1 - samples / 4];
    return span;
}

static void row_begin(struct row *row, struct probe_costs *costs, const char *call, uint64_t bytes,
                      unsigned pages, unsigned calls)
{
    memset(row, 0, sizeof(*row));
    if (costs->count == PROBE_COSTS)
        return;
    row->cost = &costs->cost[costs->count++];
    *row->cost = (struct probe_cost){.call = call, .bytes = bytes, .pages = pages, .calls = calls};
}

static void row_end(struct row *row)
{
    if (!row->cost)
        return;
    row->cost->idle = span_of(row->sample[false], row->samples[false]);
    row->cost->busy = span_of(row->sample[true], row->samples[true]);
    row->cost->waits = row->waits * 2 > row->samples[true];
}

/* Take a step and its time; with the device busy, if that is asked for. */
static bool timed(struct round *round, struct row *row, bool busy, step *take)
{
    struct probe_driver *driver = round->driver;
    uint64_t start, taken;
    bool worked, waited = false;

    if (busy && !probe_driver_work(driver))
        return take(round);
    start = probe_driver_clock(driver);
    worked = take(round);
    taken = probe_driver_clock(driver) - start;
    if (busy) {
        waited = !probe_driver_is_working(driver);
        (void)probe_driver_settle(driver);
    }
    if (worked) {
        row->sample[busy][row->samples[busy]++] = taken;
        row->waits += waited;
    }
    return worked;
}

/* --- Steps: each leaves the round as what it says it is. --- */

static bool create_page(struct round *round)
{
    const struct probe_properties properties = probe_driver_properties(round->driver);

    if (PROBE_CALL(round->driver, round->doing, create, &round->handle[round->created], round->page,
                   &properties, 0) != 0)
        return false;
    round->created++;
    return true;
}

static bool map_page(struct round *round)
{
    if (PROBE_CALL(round->driver, round->doing, map, round->base + round->mapped * round->page,
                   round->page, 0, round->handle[round->mapped], 0) != 0)
        return false;
    round->mapped++;
    return true;
}

static bool allow_together(struct round *round)
{
    const struct probe_access rights = probe_driver_access(round->driver);

    return PROBE_CALL(round->driver, round->doing, set_access, round->base,
                      round->mapped * round->page, &rights, 1) == 0;
}

static bool allow_each(struct round *round)
{
    const struct probe_access rights = probe_driver_access(round->driver);

    for (unsigned i = 0; i < round->mapped; i++)
        if (PROBE_CALL(round->driver, round->doing, set_access, round->base + i * round->page,
                       round->page, &rights, 1) != 0)
            return false;
    return true;
}

static bool unmap_together(struct round *round)
{
    if (PROBE_CALL(round->driver, round->doing, unmap, round->base, round->mapped * round->page) !=
        0)
        return false;
    round->mapped = 0;
    return true;
}

/* From the top, so that what is left is a run. */
static bool unmap_each(struct round *round)
{
    for (; round->mapped > 0; round->mapped--)
        if (PROBE_CALL(round->driver, round->doing, unmap,
                       round->base + (round->mapped - 1) * round->page, round->page) != 0)
            return false;
    return true;
}

static bool release_page(struct round *round)
{
    if (PROBE_CALL(round->driver, round->doing, release, round->handle[round->created - 1]) != 0)
        return false;
    round->created--;
    return true;
}

static bool reserve_range(struct round *round)
{
    if (PROBE_CALL(round->driver, round->doing, reserve, &round->base, round->page * round->pages,
                   0, 0, 0) == 0)
        return true;
    round->base = 0;
    return false;
}

static bool unreserve_range(struct round *round)
{
    if (PROBE_CALL(round->driver, round->doing, unreserve, round->base,
                   round->page * round->pages) != 0)
        return false;
    round->base = 0;
    return true;
}

static bool allocate(struct round *round)
{
    if (PROBE_CALL(round->driver, round->doing, memory_alloc, &round->address, round->page) == 0)
        return true;
    round->address = 0;
    return false;
}

static bool free_allocation(struct round *round)
{
    if (PROBE_CALL(round->driver, round->doing, memory_free, round->address) != 0)
        return false;
    round->address = 0;
    return true;
}

static bool create_event(struct round *round)
{
    if (PROBE_CALL(round->driver, round->doing, event_create, &round->event, EVENT_NO_TIMING) == 0)
        return true;
    round->event = NULL;
    return false;
}

static bool record_event(struct round *round)
{
    return PROBE_CALL(round->driver, round->doing, event_record, round->event,
                      round->driver->stream) == 0;
}

/* Not ready is an answer. */
static bool query_event(struct round *round)
{
    const int result = PROBE_CALL(round->driver, round->doing, event_query, round->event);

    return result == 0 || result == RESULT_NOT_READY;
}

static bool destroy_event(struct round *round)
{
    if (PROBE_CALL(round->driver, round->doing, event_destroy, round->event) != 0)
        return false;
    round->event = NULL;
    return true;
}

static bool ask_memory(struct round *round)
{
    size_t free_bytes, total_bytes;

    return PROBE_CALL(round->driver, round->doing, memory_info, &free_bytes, &total_bytes) == 0;
}

/*
 * What a round still has goes, offered once more where it was refused.  Returns false when something
 * is left: then there are no more rounds, so that a driver that keeps everything is not filled.
 */
static bool put_back(struct round *round)
{
    struct probe_driver *driver = round->driver;
    bool all = true;

    for (; round->mapped > 0; round->mapped--)
        all &= PROBE_RETURN(driver, round->doing, unmap,
                            round->base + (round->mapped - 1) * round->page, round->page);
    for (; round->created > 0; round->created--)
        all &= PROBE_RETURN(driver, round->doing, release, round->handle[round->created - 1]);
    if (round->address)
        all &= PROBE_RETURN(driver, round->doing, memory_free, round->address);
    if (round->event)
        all &= PROBE_RETURN(driver, round->doing, event_destroy, round->event);
    round->address = 0;
    round->event = NULL;
    return all;
}

static void put_range_back(struct round *round)
{
    if (round->base)
        (void)PROBE_RETURN(round->driver, round->doing, unreserve, round->base,
                           round->page * round->pages);
    round->base = 0;
}

/* --- Rows that belong together, because each round makes all their calls in turn. --- */

#define MOST_STAGES 5

struct stage {
    const char *call;
    step *take;
};

/*
 * Samples of a chain of steps, idle and busy.  The first step that fails ends them; the rows keep
 * what they have.
 */
static void measure_chain(struct round *round, struct probe_costs *costs, uint64_t bytes,
                          const struct stage *stage, unsigned stages)
{
    struct row row[MOST_STAGES];
    bool fine = true;

    for (unsigned i = 0; i < stages; i++)
        row_begin(&row[i], costs, stage[i].call, bytes, 1, 1);
    for (unsigned busy = 0; busy <= (unsigned)costs->is_busy; busy++)
        for (unsigned n = 0; n < PROBE_SAMPLES && fine; n++) {
            for (unsigned i = 0; i < stages && fine; i++)
                fine = timed(round, &row[i], busy != 0, stage[i].take);
            fine = put_back(round) && fine;
        }
    for (unsigned i = 0; i < stages; i++)
        row_end(&row[i]);
}

/* A run of pages: access and unmap in one call, or in one for each page. */
static void measure_run(struct round *round, struct probe_costs *costs, step *allow, step *unmap,
                        unsigned calls)
{
    struct row access_row, unmap_row;
    bool fine = true;

    row_begin(&access_row, costs, "cuMemSetAccess", round->page, round->pages, calls);
    row_begin(&unmap_row, costs, "cuMemUnmap", round->page, round->pages, calls);
    for (unsigned busy = 0; busy <= (unsigned)costs->is_busy; busy++)
        for (unsigned n = 0; n < PROBE_SAMPLES && fine; n++) {
            while (fine && round->mapped < round->pages)
                fine = create_page(round) && map_page(round);
            fine = fine && timed(round, &access_row, busy != 0, allow) &&
                   timed(round, &unmap_row, busy != 0, unmap);
            fine = put_back(round) && fine;
        }
    row_end(&access_row);
    row_end(&unmap_row);
}

/* --- All of it. --- */

static bool has_room(const struct probe_device *device, struct probe_costs *costs, uint64_t bytes)
{
    if (bytes <= device->free_bytes / 2)
        return true;
    if (costs->skipped == 0 || bytes < costs->skipped)
        costs->skipped = bytes;
    return false;
}

static const char *doing_of(char *text, size_t capacity, uint64_t bytes)
{
    if (bytes < MIB)
        (void)snprintf(text, capacity, "costs of %u KiB", (unsigned)(bytes >> 10));
    else
        (void)snprintf(text, capacity, "costs of %u MiB", (unsigned)(bytes >> 20));
    return text;
}

static void measure_pages(struct probe_driver *driver, const struct probe_device *device,
                          struct probe_costs *costs)
{
    static const struct stage stages[MOST_STAGES] = {{"cuMemCreate", create_page},
                                                     {"cuMemMap", map_page},
                                                     {"cuMemSetAccess", allow_together},
                                                     {"cuMemUnmap", unmap_together},
                                                     {"cuMemRelease", release_page}};
    char doing[48];

    for (unsigned i = 0; i < COUNT_OF(page_sizes); i++) {
        struct round round = {.driver = driver, .page = page_sizes[i], .pages = 1};

        round.doing = doing_of(doing, sizeof(doing), round.page);
        if (round.page % device->granularity != 0 || !has_room(device, costs, round.page) ||
            !reserve_range(&round))
            continue;
        measure_chain(&round, costs, round.page, stages, COUNT_OF(stages));
        put_range_back(&round);
    }
}

static void measure_runs(struct probe_driver *driver, const struct probe_device *device,
                         struct probe_costs *costs)
{
    struct round round = {.driver = driver,
                          .doing = "costs of a run of pages",
                          .page = PROBE_RUN_PAGE,
                          .pages = PROBE_RUN_PAGES};

    if (round.page % device->granularity != 0 ||
        !has_room(device, costs, round.page * round.pages) || !reserve_range(&round))
        return;
    if (device->access_trial == 0 && device->unmap_trial == 0)
        measure_run(&round, costs, allow_together, unmap_together, 1);
    measure_run(&round, costs, allow_each, unmap_each, round.pages);
    put_range_back(&round);
}

static void measure_allocations(struct probe_driver *driver, const struct probe_device *device,
                                struct probe_costs *costs)
{
    static const struct stage stages[] = {{"cuMemAlloc", allocate}, {"cuMemFree", free_allocation}};
    char doing[48];

    for (unsigned i = 0; i < COUNT_OF(alloc_sizes); i++) {
        struct round round = {.driver = driver, .page = alloc_sizes[i]};

        round.doing = doing_of(doing, sizeof(doing), round.page);
        if (has_room(device, costs, round.page))
            measure_chain(&round, costs, round.page, stages, COUNT_OF(stages));
    }
}

static void measure_rest(struct probe_driver *driver, struct probe_costs *costs)
{
    static const struct stage events[] = {{"cuEventCreate", create_event},
                                          {"cuEventRecord", record_event},
                                          {"cuEventQuery", query_event},
                                          {"cuEventDestroy", destroy_event}};
    static const struct stage info[] = {{"cuMemGetInfo", ask_memory}};
    struct round round = {.driver = driver, .doing = "costs of events"};

    measure_chain(&round, costs, 0, events, COUNT_OF(events));
    round.doing = "costs of asking for memory";
    measure_chain(&round, costs, 0, info, COUNT_OF(info));
}

static void measure_ranges(struct probe_driver *driver, struct probe_costs *costs)
{
    static const struct stage stages[] = {{"cuMemAddressReserve", reserve_range},
                                          {"cuMemAddressFree", unreserve_range}};
    struct round round = {
        .driver = driver, .doing = "costs of addresses", .page = 64 * GIB, .pages = 1};

    measure_chain(&round, costs, round.page, stages, COUNT_OF(stages));
    put_range_back(&round);
}

void probe_costs_measure(struct probe_driver *driver, const struct probe_device *device,
                         struct probe_costs *costs)
{
    memset(costs, 0, sizeof(*costs));
    costs->is_busy = probe_driver_prepare_work(driver);
    if (probe_device_is_expandable(device)) {
        measure_ranges(driver, costs);
        measure_pages(driver, device, costs);
        measure_runs(driver, device, costs);
    }
    measure_allocations(driver, device, costs);
    measure_rest(driver, costs);
}
