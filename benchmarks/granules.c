/* SPDX-License-Identifier: MIT */
/*
 * Calls on granules of a range with 10^5 committed granules: one granule at a time at random offsets, and 64 adjacent ones.
 *
 * Rows contain the host time per granule.  Rows "without the driver" are differences: the time of a call minus the time of the
 * same driver calls ("driver only").
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"

#define GRANULE     ((uint64_t)2 << 20)
#define GRANULES    100000u
#define GROUP       64u    /* granules of a group */
#define STRIDE      1567u  /* distance between granules of a group that are not adjacent */
#define PENDING     10000u /* granules that are pending unmap */
#define BUSY_STREAM 1u
#define IDLE_STREAM 2u

/* Structures of the driver, with plain C types. */
struct location {
    int type, id; /* type 1: a device */
};

struct page_properties {
    int type, handle_types; /* type 1: pinned */
    struct location location;
    void *win32;
    uint64_t flags;
};

struct access {
    struct location location;
    int flags; /* 3: to read and write */
};

static struct {
    struct xseg_range *range;
    uint64_t seed;
    /* For the driver's time. */
    uint64_t base, page[GROUP];
    void *event;
    struct access access;
} state = {.seed = 1, .access = {{1, 0}, 3}};

static struct {
    int (*reserve)(uint64_t *base, size_t bytes, size_t alignment, uint64_t address,
                   uint64_t flags);
    int (*create)(uint64_t *page, size_t bytes, const struct page_properties *properties,
                  uint64_t flags);
    int (*map)(uint64_t address, size_t bytes, size_t offset, uint64_t page, uint64_t flags);
    int (*set_access)(uint64_t address, size_t bytes, const struct access *access, size_t count);
    int (*unmap)(uint64_t address, size_t bytes);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, xseg_stream stream);
    int (*event_query)(void *event);
} driver;

static void check(bool condition, const char *operation)
{
    if (!condition)
        bench_fail(operation);
}

/* The first granule of the next group. */
static uint64_t next_group(void)
{
    state.seed = state.seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state.seed >> 33) % (GRANULES - GROUP);
}

static uint64_t offset_of(uint64_t first, unsigned i)
{
    return (first + i * STRIDE) % GRANULES * GRANULE;
}

/* --- The calls. --- */

static void commit(uint64_t offset, uint64_t count, unsigned stream)
{
    check(xseg_range_commit(state.range, offset, count * GRANULE, bench_xseg.streams[stream]) ==
              XSEG_OK,
          "xseg_range_commit");
}

static void decommit(uint64_t offset, uint64_t count, unsigned stream)
{
    check(xseg_range_decommit(state.range, offset, count * GRANULE, bench_xseg.streams[stream]) ==
              XSEG_OK,
          "xseg_range_decommit");
}

static void commit_singly(uint64_t first, unsigned stream)
{
    for (unsigned i = 0; i < GROUP; i++)
        commit(offset_of(first, i), 1, stream);
}

static void decommit_singly(uint64_t first, unsigned stream)
{
    for (unsigned i = 0; i < GROUP; i++)
        decommit(offset_of(first, i), 1, stream);
}

static void commit_adjacent(uint64_t first, unsigned stream)
{
    commit(first * GRANULE, GROUP, stream);
}

static void decommit_adjacent(uint64_t first, unsigned stream)
{
    decommit(first * GRANULE, GROUP, stream);
}

/* A timed function, and the functions before and after it. */
struct timed_case {
    void (*before)(uint64_t first, unsigned stream);
    void (*timed)(uint64_t first, unsigned stream);
    void (*after)(uint64_t first, unsigned stream);
    unsigned stream;
};

static void no_operation(uint64_t first, unsigned stream)
{
    (void)first;
    (void)stream;
}

/* --- The same driver calls. --- */

static void driver_map(uint64_t offset, unsigned page)
{
    check(driver.map(state.base + offset, GRANULE, 0, state.page[page], 0) == 0, "cuMemMap");
}

static void driver_set_access(uint64_t offset, uint64_t count)
{
    check(driver.set_access(state.base + offset, count * GRANULE, &state.access, 1) == 0,
          "cuMemSetAccess");
}

static void driver_unmap(uint64_t offset, uint64_t count)
{
    check(driver.unmap(state.base + offset, count * GRANULE) == 0, "cuMemUnmap");
}

static void map_singly(uint64_t first, unsigned stream)
{
    (void)stream;
    for (unsigned i = 0; i < GROUP; i++) {
        driver_map(offset_of(first, i), i);
        driver_set_access(offset_of(first, i), 1);
    }
}

static void unmap_singly(uint64_t first, unsigned stream)
{
    (void)stream;
    for (unsigned i = 0; i < GROUP; i++)
        driver_unmap(offset_of(first, i), 1);
}

static void map_adjacent(uint64_t first, unsigned stream)
{
    (void)stream;
    for (unsigned i = 0; i < GROUP; i++)
        driver_map((first + i) * GRANULE, i);
    driver_set_access(first * GRANULE, GROUP);
}

static void unmap_adjacent(uint64_t first, unsigned stream)
{
    (void)stream;
    driver_unmap(first * GRANULE, GROUP);
}

/* A decommit records an event, and polls one. */
static void record_singly(uint64_t first, unsigned stream)
{
    (void)first;
    for (unsigned i = 0; i < GROUP; i++) {
        check(driver.event_record(state.event, bench_xseg.streams[stream]) == 0, "cuEventRecord");
        (void)driver.event_query(state.event);
    }
}

static void load_function(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    check(symbol != NULL, name);
    memcpy(function, &symbol, sizeof(symbol));
}

static void open_driver(void)
{
    const char *driver_path = getenv("XSEG_DRIVER");
    void *library = dlopen(driver_path != NULL && *driver_path != '\0' ? driver_path : BENCH_DRIVER,
                           RTLD_NOW | RTLD_LOCAL);
    const struct page_properties properties = {.type = 1, .location = {1, 0}};

    check(library != NULL, "dlopen");
    load_function(library, "cuMemAddressReserve", &driver.reserve);
    load_function(library, "cuMemCreate", &driver.create);
    load_function(library, "cuMemMap", &driver.map);
    load_function(library, "cuMemSetAccess", &driver.set_access);
    load_function(library, "cuMemUnmap", &driver.unmap);
    load_function(library, "cuEventCreate", &driver.event_create);
    load_function(library, "cuEventRecord", &driver.event_record);
    load_function(library, "cuEventQuery", &driver.event_query);
    check(driver.reserve(&state.base, GRANULES * GRANULE, 0, 0, 0) == 0, "cuMemAddressReserve");
    for (unsigned i = 0; i < GROUP; i++)
        check(driver.create(&state.page[i], GRANULE, &properties, 0) == 0, "cuMemCreate");
    check(driver.event_create(&state.event, 2 /* without times */) == 0, "cuEventCreate");
}

/* --- Measuring. --- */

/* Run groups of granules.  Returns the time, scaled to `count` granules. */
static uint64_t run_groups(void *self, uint64_t count)
{
    const struct timed_case *timed_case = self;
    const uint64_t groups = (count + GROUP - 1) / GROUP;
    uint64_t elapsed_ns = 0;

    for (uint64_t i = 0; i < groups; i++) {
        const uint64_t first = next_group();

        timed_case->before(first, timed_case->stream);
        const uint64_t start_ns = measure_now();
        timed_case->timed(first, timed_case->stream);
        elapsed_ns += measure_now() - start_ns;
        timed_case->after(first, timed_case->stream);
    }
    return elapsed_ns * count / (groups * GROUP);
}

static double measure_case(const char *name, struct timed_case timed_case)
{
    return measure_steps(&(struct measure){"granules", name, 8 * GROUP, run_groups, &timed_case});
}

/* Measure a call, and print its time without the driver's time. */
static void measure_without_driver(const char *name, struct timed_case timed_case, double driver_ns)
{
    char text[64];
    const double ns = measure_case(name, timed_case);

    (void)snprintf(text, sizeof(text), "%s, without the driver", name);
    measure_print("granules", text, "ns, by difference", ns - driver_ns, "");
}

static uint64_t count_driver_calls(void)
{
    static const char *const name[] = {"cuMemCreate",  "cuMemMap",         "cuMemSetAccess",
                                       "cuMemUnmap",   "cuEventRecord",    "cuEventQuery",
                                       "cuMemRelease", "cuStreamWaitEvent"};
    uint64_t count = 0;

    for (unsigned i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        count += bench_driver_calls(name[i]);
    return count;
}

/* Recommit on a busy stream, whose granules are pending unmap. */
static void measure_recommit(void)
{
    const double record =
        measure_case("record and query, driver only",
                     (struct timed_case){no_operation, record_singly, no_operation, BUSY_STREAM});

    bench_set_busy(BUSY_STREAM, true);
    decommit_singly(0, BUSY_STREAM);
    const uint64_t before = count_driver_calls();
    commit_singly(0, BUSY_STREAM);
    measure_print("granules", "recommit one: driver calls", "calls, counted",
                  (double)(count_driver_calls() - before), "");
    (void)measure_case("recommit one", (struct timed_case){decommit_singly, commit_singly,
                                                           no_operation, BUSY_STREAM});
    (void)measure_case("recommit 64", (struct timed_case){decommit_adjacent, commit_adjacent,
                                                          no_operation, BUSY_STREAM});
    measure_without_driver(
        "decommit one",
        (struct timed_case){no_operation, decommit_singly, commit_singly, BUSY_STREAM}, record);
    measure_without_driver(
        "decommit 64",
        (struct timed_case){no_operation, decommit_adjacent, commit_adjacent, BUSY_STREAM},
        record / GROUP);
    /* Each of these has a separate event. */
    for (unsigned i = 0; i < PENDING; i++)
        decommit((GRANULES + i) * GRANULE, 1, BUSY_STREAM);
    measure_without_driver(
        "decommit one, 10^4 pending",
        (struct timed_case){no_operation, decommit_singly, commit_singly, BUSY_STREAM}, record);
    (void)measure_case(
        "recommit one, 10^4 pending",
        (struct timed_case){decommit_singly, commit_singly, no_operation, BUSY_STREAM});
    bench_set_busy(BUSY_STREAM, false);
    decommit(0, 0, BUSY_STREAM);
}

/* On an idle stream, pages are moved to the page cache immediately, and mapped from there. */
static void measure_mapping(void)
{
    const double map_one =
        measure_case("map one, driver only",
                     (struct timed_case){no_operation, map_singly, unmap_singly, IDLE_STREAM});
    const double map_64 =
        measure_case("map 64, driver only",
                     (struct timed_case){no_operation, map_adjacent, unmap_adjacent, IDLE_STREAM});
    const double unmap_64 =
        measure_case("unmap 64, driver only",
                     (struct timed_case){map_adjacent, unmap_adjacent, no_operation, IDLE_STREAM});

    measure_without_driver(
        "commit one from the cache",
        (struct timed_case){decommit_singly, commit_singly, no_operation, IDLE_STREAM}, map_one);
    measure_without_driver(
        "commit 64 from the cache",
        (struct timed_case){decommit_adjacent, commit_adjacent, no_operation, IDLE_STREAM}, map_64);
    measure_without_driver(
        "decommit 64 into the cache",
        (struct timed_case){no_operation, decommit_adjacent, commit_adjacent, IDLE_STREAM},
        unmap_64);
}

int main(int argc, char **argv)
{
    measure_open(argc, argv, 3);
    if (!measure_fits("granules", "10^5", (GRANULES + PENDING + GROUP) * GRANULE))
        return 0;
    check(xseg_config_set(bench_xseg.allocator, "page_cache_mb:1024") == XSEG_OK,
          "xseg_config_set");
    check(xseg_range_reserve(bench_xseg.allocator, 0, (GRANULES + PENDING) * GRANULE, NULL,
                             &state.range) == XSEG_OK,
          "xseg_range_reserve");
    open_driver();
    commit(0, GRANULES, IDLE_STREAM);
    commit(GRANULES * GRANULE, PENDING, IDLE_STREAM);
    measure_recommit();
    measure_mapping();
    decommit(0, GRANULES, IDLE_STREAM);
    check(xseg_range_release(state.range) == XSEG_OK, "xseg_range_release");
    return 0;
}
