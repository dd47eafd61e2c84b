/* SPDX-License-Identifier: MIT */
/*
 * What do calls about granules cost among 10^5 that are committed?  One at a time, all over the range, and 64 in a row: host
 * time a granule, and of that what is left when the driver's part is taken off.  That part is the same calls by hand.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dlfcn.h>

#include "benchmarks/measure.h"
#include "benchmarks/subject.h"

#define GRANULE  ((uint64_t)2 << 20)
#define GRANULES 100000u
#define GROUP    64u   /* granules that are worked on at a time */
#define APART    1567u /* granules between two of a group, where they are not in a row */
#define LEAVING  10000u
#define BUSY     1u /* streams */
#define IDLE     2u

/* From the driver's interface, by their plain C types. */
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
    /* By hand. */
    uint64_t base, page[GROUP];
    void *event;
    struct access access;
} scene = {.seed = 1, .access = {{1, 0}, 3}};

static struct {
    int (*reserve)(uint64_t *base, size_t bytes, size_t alignment, uint64_t at, uint64_t flags);
    int (*create)(uint64_t *page, size_t bytes, const struct page_properties *what, uint64_t flags);
    int (*map)(uint64_t address, size_t bytes, size_t offset, uint64_t page, uint64_t flags);
    int (*set_access)(uint64_t address, size_t bytes, const struct access *access, size_t count);
    int (*unmap)(uint64_t address, size_t bytes);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, xseg_stream stream);
    int (*event_query)(void *event);
} driver;

static void must(bool holds, const char *what)
{
    if (!holds)
        subject_fail(what);
}

/* The next group: its first granule.  The others are behind it, or APART from each other. */
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
    must(xseg_range_commit(scene.range, offset, count * GRANULE, subject_xseg.streams[stream]) ==
             XSEG_OK,
         "xseg_range_commit");
}

static void decommit(uint64_t offset, uint64_t count, unsigned stream)
{
    must(xseg_range_decommit(scene.range, offset, count * GRANULE, subject_xseg.streams[stream]) ==
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

/* A case: what is timed, and what is done before and after it. */
struct pair {
    void (*before)(uint64_t first, unsigned stream);
    void (*timed)(uint64_t first, unsigned stream);
    void (*after)(uint64_t first, unsigned stream);
    unsigned stream;
};

static void nothing(uint64_t first, unsigned stream)
{
    (void)first;
    (void)stream;
}

/* --- The same by hand. --- */

static void map_by_hand(uint64_t offset, unsigned page)
{
    must(driver.map(scene.base + offset, GRANULE, 0, scene.page[page], 0) == 0, "cuMemMap");
}

static void access_by_hand(uint64_t offset, uint64_t count)
{
    must(driver.set_access(scene.base + offset, count * GRANULE, &scene.access, 1) == 0,
         "cuMemSetAccess");
}

static void unmap_by_hand(uint64_t offset, uint64_t count)
{
    must(driver.unmap(scene.base + offset, count * GRANULE) == 0, "cuMemUnmap");
}

static void map_singly(uint64_t first, unsigned stream)
{
    (void)stream;
    for (unsigned i = 0; i < GROUP; i++) {
        map_by_hand(offset_of(first, i), i);
        access_by_hand(offset_of(first, i), 1);
    }
}

static void unmap_singly(uint64_t first, unsigned stream)
{
    (void)stream;
    for (unsigned i = 0; i < GROUP; i++)
        unmap_by_hand(offset_of(first, i), 1);
}

static void map_row(uint64_t first, unsigned stream)
{
    (void)stream;
    for (unsigned i = 0; i < GROUP; i++)
        map_by_hand((first + i) * GRANULE, i);
    access_by_hand(first * GRANULE, GROUP);
}

static void unmap_row(uint64_t first, unsigned stream)
{
    (void)stream;
    unmap_by_hand(first * GRANULE, GROUP);
}

/* A decommit records an event; and the look that it takes asks about one. */
static void record_singly(uint64_t first, unsigned stream)
{
    (void)first;
    for (unsigned i = 0; i < GROUP; i++) {
        must(driver.event_record(scene.event, subject_xseg.streams[stream]) == 0, "cuEventRecord");
        (void)driver.event_query(scene.event);
    }
}

static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);

    must(symbol != NULL, name);
    memcpy(function, &symbol, sizeof(symbol));
}

static void open_by_hand(void)
{
    const char *named = getenv("XSEG_DRIVER");
    void *library =
        dlopen(named != NULL && *named != '\0' ? named : BENCH_DRIVER, RTLD_NOW | RTLD_LOCAL);
    const struct page_properties what = {.type = 1, .location = {1, 0}};

    must(library != NULL, "dlopen");
    find(library, "cuMemAddressReserve", &driver.reserve);
    find(library, "cuMemCreate", &driver.create);
    find(library, "cuMemMap", &driver.map);
    find(library, "cuMemSetAccess", &driver.set_access);
    find(library, "cuMemUnmap", &driver.unmap);
    find(library, "cuEventCreate", &driver.event_create);
    find(library, "cuEventRecord", &driver.event_record);
    find(library, "cuEventQuery", &driver.event_query);
    must(driver.reserve(&scene.base, GRANULES * GRANULE, 0, 0, 0) == 0, "cuMemAddressReserve");
    for (unsigned i = 0; i < GROUP; i++)
        must(driver.create(&scene.page[i], GRANULE, &what, 0) == 0, "cuMemCreate");
    must(driver.event_create(&scene.event, 2 /* without times */) == 0, "cuEventCreate");
}

/* --- Measuring. --- */

/* Granules are worked on in whole groups; what is timed is cut to those that were asked for. */
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

/* A call, and what is left of it without the driver. */
static void measure_own(const char *name, struct pair pair, double driver_ns)
{
    char text[64];
    const double ns = measure_pair(name, pair);

    (void)snprintf(text, sizeof(text), "%s, without the driver", name);
    measure_say("granules", text, "ns, by difference", ns - driver_ns);
}

static uint64_t calls(void)
{
    static const char *const name[] = {"cuMemCreate",  "cuMemMap",         "cuMemSetAccess",
                                       "cuMemUnmap",   "cuEventRecord",    "cuEventQuery",
                                       "cuMemRelease", "cuStreamWaitEvent"};
    uint64_t made = 0;

    for (unsigned i = 0; i < sizeof(name) / sizeof(name[0]); i++)
        made += subject_calls(name[i]);
    return made;
}

/* Taking back: on a stream that is at work, so that nothing goes. */
static void measure_taking_back(void)
{
    const double record = measure_pair("record and ask, by hand",
                                       (struct pair){nothing, record_singly, nothing, BUSY});

    subject_make_busy(BUSY, true);
    decommit_singly(0, BUSY);
    const uint64_t before = calls();
    commit_singly(0, BUSY);
    measure_say("granules", "take one back: driver calls", "calls, counted",
                (double)(calls() - before));
    (void)measure_pair("take one back",
                       (struct pair){decommit_singly, commit_singly, nothing, BUSY});
    (void)measure_pair("take 64 back", (struct pair){decommit_row, commit_row, nothing, BUSY});
    measure_own("decommit one", (struct pair){nothing, decommit_singly, commit_singly, BUSY},
                record);
    measure_own("decommit 64", (struct pair){nothing, decommit_row, commit_row, BUSY},
                record / GROUP);
    /* Each of these leaves with an event of its own. */
    for (unsigned i = 0; i < LEAVING; i++)
        decommit((GRANULES + i) * GRANULE, 1, BUSY);
    measure_own("decommit one, while 10^4 leave",
                (struct pair){nothing, decommit_singly, commit_singly, BUSY}, record);
    (void)measure_pair("take one back, while 10^4 leave",
                       (struct pair){decommit_singly, commit_singly, nothing, BUSY});
    subject_make_busy(BUSY, false);
    decommit(0, 0, BUSY);
}

/* On an idle stream pages go into the page cache at once, and come from there. */
static void measure_mapping(void)
{
    const double map_one =
        measure_pair("map one, by hand", (struct pair){nothing, map_singly, unmap_singly, IDLE});
    const double map_64 =
        measure_pair("map 64, by hand", (struct pair){nothing, map_row, unmap_row, IDLE});
    const double unmap_64 =
        measure_pair("unmap 64, by hand", (struct pair){map_row, unmap_row, nothing, IDLE});

    measure_own("commit one from the cache",
                (struct pair){decommit_singly, commit_singly, nothing, IDLE}, map_one);
    measure_own("commit 64 from the cache", (struct pair){decommit_row, commit_row, nothing, IDLE},
                map_64);
    measure_own("decommit 64 into the cache",
                (struct pair){nothing, decommit_row, commit_row, IDLE}, unmap_64);
}

int main(int argc, char **argv)
{
    measure_open(argc, argv, 3);
    if (!measure_fits("granules", "10^5", (GRANULES + LEAVING + GROUP) * GRANULE))
        return 0;
    must(xseg_config_set(subject_xseg.allocator, "page_cache_mb:1024") == XSEG_OK,
         "xseg_config_set");
    must(xseg_range_reserve(subject_xseg.allocator, 0, (GRANULES + LEAVING) * GRANULE, NULL,
                            &scene.range) == XSEG_OK,
         "xseg_range_reserve");
    open_by_hand();
    commit(0, GRANULES, IDLE);
    commit(GRANULES * GRANULE, LEAVING, IDLE);
    measure_taking_back();
    measure_mapping();
    decommit(0, GRANULES, IDLE);
    must(xseg_range_release(scene.range) == XSEG_OK, "xseg_range_release");
    return 0;
}
