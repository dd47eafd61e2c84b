/* SPDX-License-Identifier: MIT */
/*
 * Calls on granules of a range with 10^5 committed granules: one granule at a time at random offsets, and 64 adjacent ones.
 *
 * The rows have the host time per granule, and the rest without the driver's time.  The driver's time is measured with the
 * same driver calls ("driver only").
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"

#define GRANULE  ((uint64_t)2 << 20)
#define GRANULES 100000u
#define GROUP    64u    /* granules of a group */
#define APART    1567u  /* distance of the granules of a group that are not adjacent */
#define PENDING  10000u /* granules that are pending unmap */
#define BUSY     1u     /* streams */
#define IDLE     2u

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
} scene = {.seed = 1, .access = {{1, 0}, 3}};

static struct {
    int (*reserve)(uint64_t *base, size_t bytes, size_t alignment, uint64_t at, uint64_t flags);
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
    scene.seed = scene.seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (scene.seed >> 33) % (GRANULES - GROUP);
}

static uint64_t offset_of(uint64_t first, unsigned i)
{
    return (first + i * APART) % GRANULES * GRANULE;
}

/* --- The calls. --- */

static void commit(uint64_t offset, uint64_t count, unsigned stream)
{
    check(xseg_range_commit(scene.range, offset, count * GRANULE, bench_xseg.streams[stream]) ==
              XSEG_OK,
          "xseg_range_commit");
}

static void decommit(uint64_t offset, uint64_t count, unsigned stream)
{
    check(xseg_range_decommit(scene.range, offset, count * GRANULE, bench_xseg.streams[stream]) ==
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

static void commit_row(uint64_t first, unsigned stream)
{
    commit(first * GRANULE, GROUP, stream);
}

static void decommit_row(uint64_t first, unsigned stream)
{
    decommit(first * GRANULE, GROUP, stream);
}

/* A case: the timed function, and the functions before and after it. */
struct pair {
    void (*before)(uint64_t first, unsigned stream);
    void (*timed)(uint64_t first, unsigned stream);
    void (*after)(uint64_t first, unsigned stream);
    unsigned stream;
};

static void do_nothing(uint64_t first, unsigned stream)
{
    (void)first;
    (void)stream;
}

/* --- The same driver calls. --- */

static void driver_map(uint64_t offset, unsigned page)
{
    check(driver.map(scene.base + offset, GRANULE, 0, scene.page[page], 0) == 0, "cuMemMap");
}

static void driver_set_access(uint64_t offset, uint64_t count)
{
    check(driver.set_access(scene.base + offset, count * GRANULE, &scene.access, 1) == 0,
          "cuMemSetAccess");
}

static void driver_unmap(uint64_t offset, uint64_t count)
{
    check(driver.unmap(scene.base + offset, count * GRANULE) == 0, "cuMemUnmap");
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

static void map_row(uint64_t first, unsigned stream)
{
    (void)stream;
    for (unsigned i = 0; i < GROUP; i++)
        driver_map((first + i) * GRANULE, i);
    driver_set_access(first * GRANULE, GROUP);
}

static void unmap_row(uint64_t first, unsigned stream)
{
    (void)stream;
    driver_unmap(first * GRANULE, GROUP);
}

/* A decommit records an event, and polls one. */
static void record_singly(uint64_t first, unsigned stream)
{
    (void)first;
    for (unsigned i = 0; i < GROUP; i++) {
        check(driver.event_record(scene.event, bench_xseg.streams[stream]) == 0, "cuEventRecord");
        (void)driver.event_query(scene.event);
    }
}

static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    check(symbol != NULL, name);
    memcpy(function, &symbol, sizeof(symbol));
}

static void open_driver(void)
{
    const char *named = getenv("XSEG_DRIVER");
    void *library =
        dlopen(named != NULL && *named != '\0' ? named : BENCH_DRIVER, RTLD_NOW | RTLD_LOCAL);
    const struct page_properties properties = {.type = 1, .location = {1, 0}};

    check(library != NULL, "dlopen");
    find(library, "cuMemAddressReserve", &driver.reserve);
    find(library, "cuMemCreate", &driver.create);
    find(library, "cuMemMap", &driver.map);
    find(library, "cuMemSetAccess", &driver.set_access);
    find(library, "cuMemUnmap", &driver.unmap);
    find(library, "cuEventCreate", &driver.event_create);
    find(library, "cuEventRecord", &driver.event_record);
    find(library, "cuEventQuery", &driver.event_query);
    check(driver.reserve(&scene.base, GRANULES * GRANULE, 0, 0, 0) == 0, "cuMemAddressReserve");
    for (unsigned i = 0; i < GROUP; i++)
        check(driver.create(&scene.page[i], GRANULE, &properties, 0) == 0, "cuMemCreate");
    check(driver.event_create(&scene.event, 2 /* without times */) == 0, "cuEventCreate");
}

/* --- Measuring. --- */

/* Runs whole groups; the time is scaled to `count` granules. */
static uint64_t work(void *self, uint64_t count)
{
    const struct pair *pair = self;
    const uint64_t groups = (count + GROUP - 1) / GROUP;
    uint64_t spent = 0;

    for (uint64_t i = 0; i < groups; i++) {
        const uint64_t first = next_group();

        pair->before(first, pair->stream);
        const uint64_t began = measure_now();
        pair->timed(first, pair->stream);
        spent += measure_now() - began;
        pair->after(first, pair->stream);
    }
    return spent * count / (groups * GROUP);
}

static double measure_pair(const char *name, struct pair pair)
{
    return measure_steps(&(struct measure){"granules", name, 8 * GROUP, work, &pair});
}

/* Measure a call, and print the rest of its time without the driver's. */
static void measure_own(const char *name, struct pair pair, double driver_ns)
{
    char text[64];
    const double ns = measure_pair(name, pair);

    (void)snprintf(text, sizeof(text), "%s, without the driver", name);
    measure_print("granules", text, "ns, by difference", ns - driver_ns, "");
}

static uint64_t calls(void)
{
    static const char *const name[] = {"cuMemCreate",  "cuMemMap",         "cuMemSetAccess",
                                       "cuMemUnmap",   "cuEventRecord",    "cuEventQuery",
                                       "cuMemRelease", "cuStreamWaitEvent"};
    uint64_t made = 0;

    for (unsigned i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        made += bench_driver_calls(name[i]);
    return made;
}

/* Recommit on a busy stream, whose granules are pending unmap. */
static void measure_recommit(void)
{
    const double record = measure_pair("record and query, driver only",
                                       (struct pair){do_nothing, record_singly, do_nothing, BUSY});

    bench_set_busy(BUSY, true);
    decommit_singly(0, BUSY);
    const uint64_t before = calls();
    commit_singly(0, BUSY);
    measure_print("granules", "recommit one: driver calls", "calls, counted",
                  (double)(calls() - before), "");
    (void)measure_pair("recommit one",
                       (struct pair){decommit_singly, commit_singly, do_nothing, BUSY});
    (void)measure_pair("recommit 64", (struct pair){decommit_row, commit_row, do_nothing, BUSY});
    measure_own("decommit one", (struct pair){do_nothing, decommit_singly, commit_singly, BUSY},
                record);
    measure_own("decommit 64", (struct pair){do_nothing, decommit_row, commit_row, BUSY},
                record / GROUP);
    /* Each of these has a separate event. */
    for (unsigned i = 0; i < PENDING; i++)
        decommit((GRANULES + i) * GRANULE, 1, BUSY);
    measure_own("decommit one, 10^4 pending",
                (struct pair){do_nothing, decommit_singly, commit_singly, BUSY}, record);
    (void)measure_pair("recommit one, 10^4 pending",
                       (struct pair){decommit_singly, commit_singly, do_nothing, BUSY});
    bench_set_busy(BUSY, false);
    decommit(0, 0, BUSY);
}

/* On an idle stream, pages are moved to the page cache immediately, and mapped from there. */
static void measure_mapping(void)
{
    const double map_one = measure_pair("map one, driver only",
                                        (struct pair){do_nothing, map_singly, unmap_singly, IDLE});
    const double map_64 =
        measure_pair("map 64, driver only", (struct pair){do_nothing, map_row, unmap_row, IDLE});
    const double unmap_64 =
        measure_pair("unmap 64, driver only", (struct pair){map_row, unmap_row, do_nothing, IDLE});

    measure_own("commit one from the cache",
                (struct pair){decommit_singly, commit_singly, do_nothing, IDLE}, map_one);
    measure_own("commit 64 from the cache",
                (struct pair){decommit_row, commit_row, do_nothing, IDLE}, map_64);
    measure_own("decommit 64 into the cache",
                (struct pair){do_nothing, decommit_row, commit_row, IDLE}, unmap_64);
}

int main(int argc, char **argv)
{
    measure_open(argc, argv, 3);
    if (!measure_fits("granules", "10^5", (GRANULES + PENDING + GROUP) * GRANULE))
        return 0;
    check(xseg_config_set(bench_xseg.allocator, "page_cache_mb:1024") == XSEG_OK,
          "xseg_config_set");
    check(xseg_range_reserve(bench_xseg.allocator, 0, (GRANULES + PENDING) * GRANULE, NULL,
                             &scene.range) == XSEG_OK,
          "xseg_range_reserve");
    open_driver();
    commit(0, GRANULES, IDLE);
    commit(GRANULES * GRANULE, PENDING, IDLE);
    measure_recommit();
    measure_mapping();
    decommit(0, GRANULES, IDLE);
    check(xseg_range_release(scene.range) == XSEG_OK, "xseg_range_release");
    return 0;
}
