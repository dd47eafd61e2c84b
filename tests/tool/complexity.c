/* SPDX-License-Identifier: MIT */
/*
 * The cost of one more object when many objects exist: test-complexity CASE COUNT..., with ascending counts.
 *
 * The program creates the objects of the case one at a time.  After each count, it measures the next 64 objects: under
 * callgrind, each one writes its instructions to a dump named CASE:COUNT, which complexity.py reads.  The rest of
 * the program runs without instrumentation, which takes a tenth of the time.  For each count, it prints a line
 * "CASE COUNT HOST_BYTES", with the host memory that the library reports.
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

#define MIB         ((size_t)1 << 20)
#define TIB         ((uint64_t)1 << 40)
#define MAX_OBJECTS 1000128u /* the largest count, 10^6, and two windows */

enum { WINDOW = 64 };

/* Entry points of the driver that the program calls, with plain C types. */
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuStreamCreate(xseg_stream *stream, unsigned flags);
int cuStreamDestroy_v2(xseg_stream stream);

static struct xseg_allocator *allocator;
static struct xseg_pool *exportable_pool;
static void *blocks[MAX_OBJECTS];

static void expect(xseg_status status, const char *operation)
{
    char message[1024];

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(message, sizeof(message));
    (void)fprintf(stderr, "%s: %s: %s\n", operation, xseg_status_name(status), message);
    exit(2);
}

static void expect_driver(int result, const char *operation)
{
    if (result == 0)
        return;
    (void)fprintf(stderr, "%s: %d\n", operation, result);
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

static xseg_stream create_stream(void)
{
    xseg_stream stream = NULL;

    expect_driver(cuStreamCreate(&stream, 1), "cuStreamCreate");
    return stream;
}

/* --- Cases: each function creates one more object. --- */

/* Create a stream, allocate and free a small and a large block on it, and destroy it. */
static void transient_stream(unsigned index)
{
    const xseg_stream stream = create_stream();

    (void)index;
    for (unsigned kind = 0; kind < 2; kind++)
        expect(xseg_free(allocator, allocate(NULL, kind == 0 ? 4096 : 4 * MIB, stream)),
               "xseg_free");
    expect(xseg_stream_retire(allocator, 0, stream), "xseg_stream_retire");
    expect_driver(cuStreamDestroy_v2(stream), "cuStreamDestroy");
}

static void live_stream(unsigned index)
{
    blocks[index] = allocate(NULL, 4096, create_stream());
}

/* Create a pool with a block and destroy both.  The page remains cached until memory is low, so the device is small. */
static void transient_pool(unsigned index)
{
    const struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    (void)index;
    expect(xseg_pool_create(allocator, 0, &options, &pool), "xseg_pool_create");
    expect(xseg_free(allocator, allocate(pool, 4096, NULL)), "xseg_free");
    expect(xseg_pool_release(pool), "xseg_pool_release");
}

static void live_pool(unsigned index)
{
    const struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    expect(xseg_pool_create(allocator, 0, &options, &pool), "xseg_pool_create");
    blocks[index] = allocate(pool, 4096, NULL);
}

/* A classic segment, filled by one block. */
static void segment(unsigned index)
{
    blocks[index] = allocate(NULL, 12 * MIB, NULL);
}

static void small_block(unsigned index)
{
    blocks[index] = allocate(NULL, 512 + index % 16 * 512, NULL);
}

static void large_block(unsigned index)
{
    blocks[index] = allocate(NULL, 2 * MIB + index % 16 * 512, NULL);
}

static void pin(unsigned index)
{
    blocks[index] = allocate(NULL, 2 * MIB, NULL);
    expect(xseg_pin(allocator, blocks[index], 2 * MIB), "xseg_pin");
}

static void ignore_unmap(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    (void)mapping;
}

static void observer(unsigned index)
{
    struct xseg_observer options = {sizeof(options)};
    uint64_t id = 0;

    (void)index;
    options.on_unmap = ignore_unmap;
    expect(xseg_observer_add(allocator, &options, &id), "xseg_observer_add");
}

static void export(unsigned index)
{
    blocks[index] = allocate(exportable_pool, 2 * MIB, NULL);
    expect(export_and_close_handles(allocator, blocks[index]), "xseg_export_handles");
}

/* A granule whose unmap is pending until the work of one of two streams completes, which it never does. */
static void pending_granule(unsigned index)
{
    static struct xseg_range *range;
    static xseg_stream stream[2];
    const uint64_t page = 2 * MIB;

    for (unsigned i = 0; range == NULL && i < 2; i++) {
        expect_driver(cuStreamCreate(&stream[i], 1), "cuStreamCreate");
        expect(xseg_sim_launch(stream[i], UINT64_MAX), "xseg_sim_launch");
    }
    if (range == NULL)
        expect(xseg_range_reserve(allocator, 0, MAX_OBJECTS * page, NULL, &range),
               "xseg_range_reserve");
    expect(xseg_range_commit(range, index * page, page, stream[index % 2]), "xseg_range_commit");
    expect(xseg_range_decommit(range, index * page, page, stream[index % 2]),
           "xseg_range_decommit");
}

/* A granule of a small, medium or large range: committed, decommitted, committed again, and decommitted again. */
static void granule_of_range(unsigned index)
{
    static struct xseg_range *range[3];
    static const unsigned granules[] = {100, 2000, MAX_OBJECTS};
    const unsigned range_index = index < granules[0] ? 0 : index < granules[1] ? 1 : 2;
    const uint64_t page = 2 * MIB;

    for (unsigned i = 0; i < 3 && range[i] == NULL; i++)
        expect(xseg_range_reserve(allocator, 0, granules[i] * page, NULL, &range[i]),
               "xseg_range_reserve");
    for (unsigned i = 0; i < 2; i++) {
        expect(xseg_range_commit(range[range_index], index * page, page, NULL),
               "xseg_range_commit");
        expect(xseg_range_decommit(range[range_index], index * page, page, NULL),
               "xseg_range_decommit");
    }
}

/* Commit and decommit a granule of a separate range. */
static void use_separate_granule(void)
{
    static struct xseg_range *range;
    const uint64_t page = 2 * MIB;

    if (range == NULL)
        expect(xseg_range_reserve(allocator, 0, page, NULL, &range), "xseg_range_reserve");
    expect(xseg_range_commit(range, 0, page, NULL), "xseg_range_commit");
    expect(xseg_range_decommit(range, 0, page, NULL), "xseg_range_decommit");
}

static void held_granule(unsigned index)
{
    static struct xseg_range *range;
    const uint64_t page = 2 * MIB;

    if (range == NULL)
        expect(xseg_range_reserve(allocator, 0, MAX_OBJECTS * page, NULL, &range),
               "xseg_range_reserve");
    expect(xseg_range_commit(range, index * page, page, NULL), "xseg_range_commit");
    expect(xseg_range_hold(range, index * page, page), "xseg_range_hold");
    expect(xseg_range_decommit(range, index * page, page, NULL), "xseg_range_decommit");
    use_separate_granule();
}

static struct xseg_range *prepared_ranges[MAX_OBJECTS];

static void prepared_range(unsigned index)
{
    expect(xseg_range_reserve(allocator, 0, 2 * MIB, NULL, &prepared_ranges[index]),
           "xseg_range_reserve");
    expect(xseg_range_prepare(prepared_ranges[index], 2 * MIB), "xseg_range_prepare");
    use_separate_granule();
}

/* Release all prepared ranges.  glibc sorts up to 10,000 freed chunks per call: uncounted allocations trigger the sort. */
static void release_prepared(unsigned count)
{
    static unsigned first;
    void *volatile chunk;

    for (; first < count; first++)
        expect(xseg_range_release(prepared_ranges[first]), "xseg_range_release");
    first += WINDOW;
    for (unsigned i = 0; i < 32; i++) {
        chunk = malloc(64 << 10);
        free(chunk);
    }
    use_separate_granule();
}

static void released_range(unsigned index)
{
    (void)index;
    use_separate_granule();
}

static bool register_run(void *context, struct xseg_registered *run)
{
    (void)context;
    (void)run;
    return true;
}

static void deregister_run(void *context, const struct xseg_registered *run)
{
    (void)context;
    (void)run;
}

/* Distinct contexts make the registrations distinct. */
static void add_registration(const void *address, size_t bytes, unsigned index)
{
    struct xseg_registrar registrar = {sizeof(registrar)};
    uint64_t id = 0;

    registrar.context = &blocks[index];
    registrar.enter = register_run;
    registrar.leave = deregister_run;
    expect(xseg_register(allocator, address, bytes, &registrar, &id), "xseg_register");
}

static void registration(unsigned index)
{
    blocks[index] = allocate(NULL, 2 * MIB, NULL);
    add_registration(blocks[index], 2 * MIB, index);
}

static void registration_of_one_page(unsigned index)
{
    if (blocks[0] == NULL)
        blocks[0] = allocate(NULL, 2 * MIB, NULL);
    add_registration(blocks[0], 2 * MIB, index);
}

/* A registration of another block, and a granule without a registration. */
static void granule_with_registrations(unsigned index)
{
    registration(index);
    use_separate_granule();
}

/* 10^5 segments of the shortest reservation, 1 GiB, fit into the driver's 128 TiB of addresses. */
#define SMALL_RESERVATIONS "expandable_segments:True,expandable_segments_reserve:1G"

static const struct {
    const char *name, *config;
    void (*create)(unsigned index);
    uint64_t memory_bytes; /* of the device */
    /* NULL: measure `create`; otherwise measure this function, after `prepare` with the count of objects. */
    void (*measured)(unsigned index);
    void (*prepare)(unsigned count);
} cases[] = {
    {"transient_stream", "expandable_segments:True", transient_stream, 4 * TIB},
    {"transient_stream_classic", "expandable_segments:False", transient_stream, 4 * TIB},
    {"live_stream", SMALL_RESERVATIONS, live_stream, 4 * TIB},
    {"live_stream_classic", "expandable_segments:False", live_stream, 4 * TIB},
    {"transient_pool", "expandable_segments:True", transient_pool, WINDOW *MIB},
    {"live_pool", SMALL_RESERVATIONS, live_pool, 4 * TIB},
    {"segment", "expandable_segments:False", segment, 4 * TIB},
    {"small_block", "expandable_segments:True", small_block, 4 * TIB},
    {"small_block_classic", "expandable_segments:False", small_block, 4 * TIB},
    {"large_block", "expandable_segments:True", large_block, 4 * TIB},
    {"large_block_classic", "expandable_segments:False", large_block, 4 * TIB},
    {"pin", "expandable_segments:True", pin, 4 * TIB},
    {"observer", "expandable_segments:True", observer, 4 * TIB},
    {"export", "expandable_segments:True", export, 4 * TIB},
    {"pending_granule", "expandable_segments:True", pending_granule, 4 * TIB},
    {"granule_of_range", "expandable_segments:True", granule_of_range, 4 * TIB},
    {"held_granule", "expandable_segments:True", held_granule, 4 * TIB},
    {"prepared_range", "expandable_segments:True", prepared_range, 4 * TIB},
    {"released_range", "expandable_segments:True", prepared_range, 4 * TIB, released_range,
     release_prepared},
    {"registration", "expandable_segments:True", registration, 4 * TIB},
    {"registration_of_one_page", "expandable_segments:True", registration_of_one_page, 4 * TIB},
    {"granule_with_registrations", "expandable_segments:True", granule_with_registrations, 4 * TIB},
};

static void open_allocator(const char *config, uint64_t memory_bytes)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_options options = {sizeof(options)};
    struct xseg_pool_options pool_options = {sizeof(pool_options)};
    void *context = NULL;

    settings.memory_bytes = memory_bytes;
    settings.skip_checks = true;
    expect(xseg_sim_reset(&settings), "xseg_sim_reset");
    expect(xseg_open(config, &options, &allocator), "xseg_open");
    expect_driver(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    expect_driver(cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
    pool_options.exportable = true;
    if (strstr(config, "True") != NULL)
        expect(xseg_pool_create(allocator, 0, &pool_options, &exportable_pool), "xseg_pool_create");
}

static uint64_t host_bytes(void)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_statistics stats;

    stats.struct_size = sizeof(stats);
    scope.device = 0;
    expect(xseg_stats_get(allocator, &scope, &stats), "xseg_stats_get");
    return stats.host_bytes;
}

static void measure(const char *name, void (*create)(unsigned index), unsigned index)
{
    char dump[64];

    (void)snprintf(dump, sizeof(dump), "%s:%u", name, index);
    CALLGRIND_START_INSTRUMENTATION;
    for (unsigned i = 0; i < WINDOW; i++) {
        CALLGRIND_ZERO_STATS;
        create(index + i);
        CALLGRIND_DUMP_STATS_AT(dump);
    }
    CALLGRIND_STOP_INSTRUMENTATION;
    (void)printf("%s %u %" PRIu64 "\n", name, index, host_bytes());
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    unsigned created = 0;

    for (size_t i = 0; argc > 2 && i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (strcmp(argv[1], cases[i].name) != 0)
            continue;
        open_allocator(cases[i].config, cases[i].memory_bytes);
        for (int index = 2; index < argc; index++) {
            const unsigned count = (unsigned)strtoul(argv[index], NULL, 10);

            for (; created < count && created + WINDOW < MAX_OBJECTS; created++)
                cases[i].create(created);
            if (cases[i].prepare != NULL)
                cases[i].prepare(created);
            measure(cases[i].name, cases[i].measured != NULL ? cases[i].measured : cases[i].create,
                    created);
            created += WINDOW;
        }
        return 0;
    }
    (void)fprintf(stderr, "usage: test-complexity CASE COUNT...\n");
    return 2;
}
