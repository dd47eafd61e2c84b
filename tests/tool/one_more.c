/* SPDX-License-Identifier: MIT */
/*
 * The cost of one more object when many objects exist.
 *
 *     one_more CASE COUNT...      ascending counts
 *
 * The program creates the objects of the case one at a time.  After each count, it measures the next 64 objects: under
 * callgrind, each one writes its instructions to a dump named CASE:COUNT, which complexity.py reads.  Everything else
 * runs without instrumentation, which takes a tenth of the time.
 *
 * For each count, it prints the line "CASE COUNT HOST_BYTES", with the host memory that the library reports.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#ifdef HAVE_CALLGRIND
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_START_INSTRUMENTATION ((void)0)
#define CALLGRIND_STOP_INSTRUMENTATION  ((void)0)
#define CALLGRIND_ZERO_STATS            ((void)0)
#define CALLGRIND_DUMP_STATS_AT(name)   ((void)0)
#endif

#include "tests/support/exported_handles.h"
#include "xseg/sim.h"
#include "xseg/xseg.h"

#define MIB  ((size_t)1 << 20)
#define TIB  ((uint64_t)1 << 40)
#define MOST 1000128u /* of anything */

enum { WINDOW = 64 };

/* The few entry points of the driver that the program calls itself, by their plain C types. */
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuStreamCreate(xseg_stream *stream, unsigned flags);
int cuStreamDestroy_v2(xseg_stream stream);

static struct xseg_allocator *allocator;
static struct xseg_pool *exportable;
static void *block[MOST];

static void expect(xseg_status status, const char *what)
{
    char text[1024];

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(text, sizeof(text));
    (void)fprintf(stderr, "%s: %s: %s\n", what, xseg_status_name(status), text);
    exit(2);
}

static void expect_driver(int result, const char *what)
{
    if (result == 0)
        return;
    (void)fprintf(stderr, "%s: %d\n", what, result);
    exit(2);
}

static void *allocate(struct xseg_pool *pool, size_t bytes, xseg_stream stream)
{
    struct xseg_request request = {sizeof(request)};
    void *ptr = NULL;

    request.pool = pool;
    request.bytes = bytes;
    request.stream = stream;
    expect(xseg_alloc_with(allocator, &request, &ptr), "xseg_alloc_with");
    return ptr;
}

static xseg_stream make_stream(void)
{
    xseg_stream stream = NULL;

    expect_driver(cuStreamCreate(&stream, 1), "cuStreamCreate");
    return stream;
}

/* --- Cases: each makes one more. --- */

/* A stream that comes, has a block of each kind, and goes. */
static void passing_stream(unsigned at)
{
    const xseg_stream stream = make_stream();

    (void)at;
    for (unsigned kind = 0; kind < 2; kind++)
        expect(xseg_free(allocator, allocate(NULL, kind == 0 ? 4096 : 4 * MIB, stream)),
               "xseg_free");
    expect(xseg_stream_retire(allocator, 0, stream), "xseg_stream_retire");
    expect_driver(cuStreamDestroy_v2(stream), "cuStreamDestroy");
}

static void living_stream(unsigned at)
{
    block[at] = allocate(NULL, 4096, make_stream());
}

/* A pool that comes, has a block, and goes.  Its page stays cached until memory is short, so the device has few. */
static void passing_pool(unsigned at)
{
    const struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    (void)at;
    expect(xseg_pool_create(allocator, 0, &options, &pool), "xseg_pool_create");
    expect(xseg_free(allocator, allocate(pool, 4096, NULL)), "xseg_free");
    expect(xseg_pool_release(pool), "xseg_pool_release");
}

static void living_pool(unsigned at)
{
    const struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    expect(xseg_pool_create(allocator, 0, &options, &pool), "xseg_pool_create");
    block[at] = allocate(pool, 4096, NULL);
}

/* A classic segment with a block that fills it. */
static void segment(unsigned at)
{
    block[at] = allocate(NULL, 12 * MIB, NULL);
}

static void small_block(unsigned at)
{
    block[at] = allocate(NULL, 512 + at % 16 * 512, NULL);
}

static void large_block(unsigned at)
{
    block[at] = allocate(NULL, 2 * MIB + at % 16 * 512, NULL);
}

static void pin(unsigned at)
{
    block[at] = allocate(NULL, 2 * MIB, NULL);
    expect(xseg_pin(allocator, block[at], 2 * MIB), "xseg_pin");
}

static void leaving(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    (void)mapping;
}

static void observer(unsigned at)
{
    struct xseg_observer wanted = {sizeof(wanted)};
    uint64_t id = 0;

    (void)at;
    wanted.on_unmap = leaving;
    expect(xseg_observer_add(allocator, &wanted, &id), "xseg_observer_add");
}

static void export(unsigned at)
{
    block[at] = allocate(exportable, 2 * MIB, NULL);
    expect(export_and_close_handles(allocator, block[at]), "xseg_export_handles");
}

/* A granule that leaves, behind one of two streams that do not end. */
static void leaving_granule(unsigned at)
{
    static struct xseg_range *range;
    static xseg_stream stream[2];
    const uint64_t page = 2 * MIB;

    for (unsigned i = 0; range == NULL && i < 2; i++) {
        expect_driver(cuStreamCreate(&stream[i], 1), "cuStreamCreate");
        expect(xseg_sim_launch(stream[i], UINT64_MAX), "xseg_sim_launch");
    }
    if (range == NULL)
        expect(xseg_range_reserve(allocator, 0, MOST * page, NULL, &range), "xseg_range_reserve");
    expect(xseg_range_commit(range, at * page, page, stream[at % 2]), "xseg_range_commit");
    expect(xseg_range_decommit(range, at * page, page, stream[at % 2]), "xseg_range_decommit");
}

/* A granule of a short, a longer or a very long range: committed, given up, taken back, and given up again. */
static void granule_of_range(unsigned at)
{
    static struct xseg_range *range[3];
    static const unsigned granules[] = {100, 2000, MOST};
    const unsigned which = at < granules[0] ? 0 : at < granules[1] ? 1 : 2;
    const uint64_t page = 2 * MIB;

    for (unsigned i = 0; i < 3 && range[i] == NULL; i++)
        expect(xseg_range_reserve(allocator, 0, granules[i] * page, NULL, &range[i]),
               "xseg_range_reserve");
    for (unsigned i = 0; i < 2; i++) {
        expect(xseg_range_commit(range[which], at * page, page, NULL), "xseg_range_commit");
        expect(xseg_range_decommit(range[which], at * page, page, NULL), "xseg_range_decommit");
    }
}

/* Commit a granule of a range and decommit it, which nothing else has to do with. */
static void use_a_granule(void)
{
    static struct xseg_range *range;
    const uint64_t page = 2 * MIB;

    if (range == NULL)
        expect(xseg_range_reserve(allocator, 0, page, NULL, &range), "xseg_range_reserve");
    expect(xseg_range_commit(range, 0, page, NULL), "xseg_range_commit");
    expect(xseg_range_decommit(range, 0, page, NULL), "xseg_range_decommit");
}

static void held_granule(unsigned at)
{
    static struct xseg_range *range;
    const uint64_t page = 2 * MIB;

    if (range == NULL)
        expect(xseg_range_reserve(allocator, 0, MOST * page, NULL, &range), "xseg_range_reserve");
    expect(xseg_range_commit(range, at * page, page, NULL), "xseg_range_commit");
    expect(xseg_range_hold(range, at * page, page), "xseg_range_hold");
    expect(xseg_range_decommit(range, at * page, page, NULL), "xseg_range_decommit");
    use_a_granule();
}

static struct xseg_range *prepared[MOST];

static void prepared_range(unsigned at)
{
    expect(xseg_range_reserve(allocator, 0, 2 * MIB, NULL, &prepared[at]), "xseg_range_reserve");
    expect(xseg_range_prepare(prepared[at], 2 * MIB), "xseg_range_prepare");
    use_a_granule();
}

/* Release all these ranges.  glibc sorts freed chunks, 10,000 in each call: uncounted allocations trigger that. */
static void release_prepared(unsigned count)
{
    static unsigned first;
    void *volatile chunk;

    for (; first < count; first++)
        expect(xseg_range_release(prepared[first]), "xseg_range_release");
    first += WINDOW;
    for (unsigned i = 0; i < 4; i++) {
        chunk = malloc(64 << 10);
        free(chunk);
    }
    use_a_granule();
}

static void released_range(unsigned at)
{
    (void)at;
    use_a_granule();
}

static bool enter(void *context, struct xseg_registered *run)
{
    (void)context;
    (void)run;
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    (void)context;
    (void)run;
}

/* Each registration is another one, by its context. */
static void add_registration(const void *address, size_t bytes, unsigned at)
{
    struct xseg_registrar registrar = {sizeof(registrar)};
    uint64_t id = 0;

    registrar.context = &block[at];
    registrar.enter = enter;
    registrar.leave = leave;
    expect(xseg_register(allocator, address, bytes, &registrar, &id), "xseg_register");
}

static void registration(unsigned at)
{
    block[at] = allocate(NULL, 2 * MIB, NULL);
    add_registration(block[at], 2 * MIB, at);
}

static void registration_of_one_page(unsigned at)
{
    if (block[0] == NULL)
        block[0] = allocate(NULL, 2 * MIB, NULL);
    add_registration(block[0], 2 * MIB, at);
}

/* A registration of a separate block, and a granule without a registration. */
static void granule_beside_registrations(unsigned at)
{
    registration(at);
    use_a_granule();
}

/* 10^5 segments of the shortest reservation, 1 GiB, fit into the driver's 128 TiB of addresses. */
#define SHORT "expandable_segments:True,expandable_segments_reserve:1G"

static const struct {
    const char *name, *config;
    void (*make)(unsigned at);
    uint64_t memory_bytes; /* of the device */
    /* NULL: it is `make` that is measured; else this, once `settle` has been called for as many as there are. */
    void (*measured)(unsigned at);
    void (*settle)(unsigned count);
} cases[] = {
    {"passing_stream", "expandable_segments:True", passing_stream, 4 * TIB},
    {"passing_stream_classic", "expandable_segments:False", passing_stream, 4 * TIB},
    {"living_stream", SHORT, living_stream, 4 * TIB},
    {"living_stream_classic", "expandable_segments:False", living_stream, 4 * TIB},
    {"passing_pool", "expandable_segments:True", passing_pool, WINDOW *MIB},
    {"living_pool", SHORT, living_pool, 4 * TIB},
    {"segment", "expandable_segments:False", segment, 4 * TIB},
    {"small_block", "expandable_segments:True", small_block, 4 * TIB},
    {"small_block_classic", "expandable_segments:False", small_block, 4 * TIB},
    {"large_block", "expandable_segments:True", large_block, 4 * TIB},
    {"large_block_classic", "expandable_segments:False", large_block, 4 * TIB},
    {"pin", "expandable_segments:True", pin, 4 * TIB},
    {"observer", "expandable_segments:True", observer, 4 * TIB},
    {"export", "expandable_segments:True", export, 4 * TIB},
    {"leaving_granule", "expandable_segments:True", leaving_granule, 4 * TIB},
    {"granule_of_range", "expandable_segments:True", granule_of_range, 4 * TIB},
    {"held_granule", "expandable_segments:True", held_granule, 4 * TIB},
    {"prepared_range", "expandable_segments:True", prepared_range, 4 * TIB},
    {"released_range", "expandable_segments:True", prepared_range, 4 * TIB, released_range,
     release_prepared},
    {"registration", "expandable_segments:True", registration, 4 * TIB},
    {"registration_of_one_page", "expandable_segments:True", registration_of_one_page, 4 * TIB},
    {"granule_beside_registrations", "expandable_segments:True", granule_beside_registrations,
     4 * TIB},
};

static void open_machine(const char *config, uint64_t memory_bytes)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_options options = {sizeof(options)};
    struct xseg_pool_options of_pool = {sizeof(of_pool)};
    void *context = NULL;

    settings.memory_bytes = memory_bytes;
    settings.skip_checks = true;
    expect(xseg_sim_reset(&settings), "xseg_sim_reset");
    expect(xseg_open(config, &options, &allocator), "xseg_open");
    expect_driver(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    expect_driver(cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
    of_pool.exportable = true;
    if (strstr(config, "True") != NULL)
        expect(xseg_pool_create(allocator, 0, &of_pool, &exportable), "xseg_pool_create");
}

static uint64_t host_bytes(void)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_statistics stats;

    stats.struct_size = sizeof(stats);
    where.device = 0;
    expect(xseg_stats_get(allocator, &where, &stats), "xseg_stats_get");
    return stats.host_bytes;
}

static void measure(const char *name, void (*make)(unsigned at), unsigned at)
{
    char dump[64];

    (void)snprintf(dump, sizeof(dump), "%s:%u", name, at);
    CALLGRIND_START_INSTRUMENTATION;
    for (unsigned i = 0; i < WINDOW; i++) {
        CALLGRIND_ZERO_STATS;
        make(at + i);
        CALLGRIND_DUMP_STATS_AT(dump);
    }
    CALLGRIND_STOP_INSTRUMENTATION;
    (void)printf("%s %u %" PRIu64 "\n", name, at, host_bytes());
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    unsigned made = 0;

    for (size_t i = 0; argc > 2 && i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(argv[1], cases[i].name) != 0)
            continue;
        open_machine(cases[i].config, cases[i].memory_bytes);
        for (int at = 2; at < argc; at++) {
            const unsigned count = (unsigned)strtoul(argv[at], NULL, 10);

            for (; made < count && made + WINDOW < MOST; made++)
                cases[i].make(made);
            if (cases[i].settle != NULL)
                cases[i].settle(made);
            measure(cases[i].name, cases[i].measured != NULL ? cases[i].measured : cases[i].make,
                    made);
            made += WINDOW;
        }
        return 0;
    }
    (void)fprintf(stderr, "usage: one_more CASE COUNT...\n");
    return 2;
}
