/* SPDX-License-Identifier: MIT */
/* Random operations of a service on busy streams of the strict simulator, which ends the process if memory is unmapped
 * during work.  After every 1,000 operations of a thread all audits run.
 *
 *     test-stress-service [OPERATIONS [SEED [CASE]]]
 */
#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "tests/stress/stress.h"
#include "tests/support/random_program.h"
#include "tests/support/trim_due.h"

#define THREADS              3u
#define STREAMS              4u
#define POOLS                3u
#define SLOTS                400u
#define PINS                 8u
#define SHARED_BLOCKS        6u
#define OPERATIONS_PER_AUDIT 1000u
#define MEMORY               (1536 * MIB)
#define MAX_ADVANCE_NS       UINT64_C(20000000) /* 20 ms */

static uint64_t operations = 40000, seed = 20261122;

struct service {
    struct xseg_allocator *allocator;
    xseg_stream stream[STREAMS];
    uint64_t operations_per_thread;
    unsigned threads;
    atomic_uint_fast64_t served, failed, paused, shared_blocks;
};

struct slot {
    void *ptr;
    struct xseg_pool *pool; /* NULL: the default pool */
    unsigned stream;
    size_t bytes;
};

struct worker {
    struct service *service;
    uint64_t random;
    struct slot slot[SLOTS];
    struct xseg_pool *pool[POOLS];
    bool is_paused[POOLS];
    struct {
        const char *ptr; /* NULL: none */
        size_t bytes;
    } pin[PINS];
    struct {
        void *exported, *imported; /* NULL: not exported, or released */
    } shared_block[SHARED_BLOCKS];
};

/* Sizes as of requests, growing caches and activations, and occasionally of a model. */
static size_t random_bytes(struct worker *worker)
{
    const uint64_t kind = below(worker, 100);

    if (kind < 60)
        return 1 + below(worker, 32 * KIB);
    if (kind < 85)
        return 1 + below(worker, 2 * MIB);
    if (kind < 98)
        return 1 + below(worker, 24 * MIB);
    return 1 + below(worker, 150 * MIB);
}

/* Whether a request on a small device may end with this status. */
static bool is_valid_status(xseg_status status)
{
    return status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
           status == XSEG_ERR_PAUSED;
}

/* --- Operations. --- */

static void queue_work(struct worker *worker, const struct slot *slot, unsigned stream)
{
    CHECK_OK(xseg_sim_launch_on(worker->service->stream[stream], 1 + below(worker, MAX_ADVANCE_NS),
                                (uint64_t)(uintptr_t)slot->ptr, slot->bytes));
}

static void free_slot(struct worker *worker, struct slot *slot)
{
    CHECK_OK(xseg_free(worker->service->allocator, slot->ptr));
    slot->ptr = NULL;
}

static void alloc_slot(struct worker *worker, struct slot *slot)
{
    struct service *service = worker->service;

    slot->stream = (unsigned)below(worker, STREAMS);
    slot->bytes = random_bytes(worker);
    slot->pool = below(worker, 8) == 0 ? worker->pool[below(worker, POOLS)] : NULL;
    const struct xseg_request request = {
        sizeof(request),
        .bytes = slot->bytes,
        .stream = service->stream[slot->stream],
        .pool = slot->pool,
        .alignment = below(worker, 50) == 0 ? (size_t)512 << below(worker, 14) : 0,
    };
    const xseg_status status = xseg_alloc_with(service->allocator, &request, &slot->ptr);
    CHECK(is_valid_status(status));
    atomic_fetch_add_explicit(status == XSEG_OK ? &service->served : &service->failed, 1,
                              memory_order_relaxed);
    if (status != XSEG_OK)
        slot->ptr = NULL;
    else if (below(worker, 2) == 0)
        queue_work(worker, slot, slot->stream);
}

static bool is_paused_slot(const struct worker *worker, const struct slot *slot)
{
    for (unsigned i = 0; i < POOLS; i++)
        if (worker->is_paused[i] && slot->pool == worker->pool[i])
            return true;
    return false;
}

static void queue_on_any_stream(struct worker *worker)
{
    struct slot *slot = &worker->slot[below(worker, SLOTS)];
    const unsigned stream = (unsigned)below(worker, STREAMS);

    if (slot->ptr == NULL || is_paused_slot(worker, slot))
        return;
    if (stream != slot->stream)
        CHECK_OK(xseg_record_stream(worker->service->allocator, slot->ptr,
                                    worker->service->stream[stream]));
    queue_work(worker, slot, stream);
}

static void alloc_or_free(struct worker *worker)
{
    struct slot *slot = &worker->slot[below(worker, SLOTS)];

    if (slot->ptr != NULL)
        free_slot(worker, slot);
    else
        alloc_slot(worker, slot);
}

/* Free a tenth of the blocks, as at the end of a request. */
static void free_burst(struct worker *worker)
{
    const unsigned first = (unsigned)below(worker, SLOTS);

    for (unsigned i = 0; i < SLOTS / 10; i++)
        if (worker->slot[(first + i) % SLOTS].ptr != NULL)
            free_slot(worker, &worker->slot[(first + i) % SLOTS]);
}

static void advance_clock(struct worker *worker)
{
    xseg_sim_advance(below(worker, MAX_ADVANCE_NS));
    if (below(worker, 20) == 0)
        CHECK_OK(xseg_sim_finish(worker->service->stream[below(worker, STREAMS)]));
}

static void trim_due_memory(struct worker *worker)
{
    CHECK_OK(trim_due(worker->service->allocator, 1 + below(worker, 2000)));
}

static void trim(struct worker *worker)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_trim_options options = {sizeof(options)};
    struct xseg_trim_result result = {sizeof(result)};

    options.wait = below(worker, 20) == 0;
    options.target_bytes = below(worker, 2) == 0 ? below(worker, MEMORY) : 0;
    options.idle_ms = below(worker, 3) == 0 ? below(worker, 100) : 0;
    scope.one_stream = below(worker, 4) == 0;
    scope.stream = worker->service->stream[below(worker, STREAMS)];
    scope.pool = below(worker, 8) == 0 ? worker->pool[below(worker, POOLS)] : NULL;
    CHECK_OK(xseg_trim(worker->service->allocator, &scope, &options, &result));
    CHECK(result.released <= MEMORY);
    /* While another thread pauses a pool, the memory of the pool is counted as not released. */
    CHECK(result.kept_failed == 0 || worker->service->threads > 1);
}

static void configure(struct worker *worker)
{
    static const char *const strings[] = {
        "idle_ms:0",
        "idle_ms:20",
        "idle_ms:200",
        "idle_ms:-1",
        "keep_mb:0",
        "keep_mb:100",
        "keep_window_s:1",
        "keep_window_s:0",
        "soft_limit_mb:500",
        "soft_limit_mb:300",
        "reclaim_us_per_s:100000",
        "reclaim_us_per_s:2000",
        "page_cache_mb:200",
        "page_cache_mb:0",
        "device_free_min_mb:1000",
        "device_free_min_mb:0",
        "history:state",
        "history:nothing",
        "hard_limit_mb:1400",
        "hard_limit_mb:1000000",
    };

    CHECK_OK(
        xseg_config_set(worker->service->allocator, strings[below(worker, COUNT_OF(strings))]));
}

static void set_limits(struct worker *worker)
{
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    const struct xseg_scope scope = {sizeof(scope), .device = 0};

    limits.keep_bytes = below(worker, 100) * MIB;
    limits.soft_bytes = 100 * MIB + below(worker, MEMORY / 2 - 100 * MIB);
    limits.hard_bytes = below(worker, 4) == 0 ? MEMORY / 2 + below(worker, MEMORY / 2) : UINT64_MAX;
    CHECK_OK(xseg_limits_set(worker->service->allocator, &scope, &limits));
}

/* Every other pool is exportable. */
static struct xseg_pool *make_pool(struct xseg_allocator *allocator, unsigned index)
{
    const struct xseg_pool_options options = {sizeof(options), .exportable = index % 2 == 0};
    struct xseg_pool *pool = NULL;

    CHECK_OK(xseg_pool_create(allocator, 0, &options, &pool));
    return pool;
}

static void replace_pool(struct worker *worker)
{
    const unsigned i = (unsigned)below(worker, POOLS);

    if (worker->is_paused[i])
        return;
    CHECK_OK(xseg_pool_release(worker->pool[i]));
    worker->pool[i] = make_pool(worker->service->allocator, i);
}

/* Pause a pool, or resume it if enough memory is available. */
static void pause_or_resume(struct worker *worker)
{
    const unsigned i = (unsigned)below(worker, POOLS);
    xseg_status status;

    if (worker->is_paused[i]) {
        status = xseg_pool_resume(worker->pool[i]);
        CHECK(is_valid_status(status) && status != XSEG_ERR_PAUSED);
        worker->is_paused[i] = status != XSEG_OK;
        return;
    }
    /* The call fails if another thread has queued more work. */
    xseg_sim_finish_all();
    status = xseg_pool_pause(worker->pool[i],
                             below(worker, 4) == 0 ? XSEG_KEEP_HOST : XSEG_KEEP_NOTHING, NULL);
    CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_UNSUPPORTED);
    worker->is_paused[i] = status == XSEG_OK;
    if (status == XSEG_OK)
        atomic_fetch_add_explicit(&worker->service->paused, 1, memory_order_relaxed);
}

/* Pin a part of a block, or unpin a part whose block may have been freed. */
static void pin_or_unpin(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->service->allocator;
    const unsigned i = (unsigned)below(worker, PINS);
    const struct slot *slot = &worker->slot[below(worker, SLOTS)];

    if (worker->pin[i].ptr != NULL) {
        CHECK_OK(xseg_unpin(allocator, worker->pin[i].ptr, worker->pin[i].bytes));
        worker->pin[i].ptr = NULL;
    } else if (slot->ptr != NULL) {
        const size_t begin = below(worker, slot->bytes);
        const size_t bytes = 1 + below(worker, slot->bytes - begin);
        const xseg_status status = xseg_pin(allocator, (const char *)slot->ptr + begin, bytes);

        CHECK(status == XSEG_OK || status == XSEG_ERR_PAUSED);
        if (status == XSEG_OK) {
            worker->pin[i].ptr = (const char *)slot->ptr + begin;
            worker->pin[i].bytes = bytes;
        }
    }
}

/* A block of an exportable pool (pools 0 and 2), or NULL. */
static const struct slot *find_exportable(struct worker *worker)
{
    const uint64_t first = below(worker, SLOTS);

    for (unsigned i = 0; i < SLOTS; i++) {
        const struct slot *slot = &worker->slot[(first + i) % SLOTS];

        if (slot->ptr != NULL && (slot->pool == worker->pool[0] || slot->pool == worker->pool[2]))
            return slot;
    }
    return NULL;
}

/* Export a block and import it in this process, or close the export or the import, in either order. */
static void export_or_close(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->service->allocator;
    const unsigned i = (unsigned)below(worker, SHARED_BLOCKS);
    void **address = below(worker, 2) == 0 ? &worker->shared_block[i].exported
                                           : &worker->shared_block[i].imported;
    const struct slot *slot = find_exportable(worker);
    struct xseg_export_token token;

    if (*address != NULL) {
        CHECK((address == &worker->shared_block[i].exported
                   ? xseg_export_close(allocator, *address)
                   : xseg_import_close(allocator, *address)) == XSEG_OK);
        *address = NULL;
    }
    if (worker->shared_block[i].exported != NULL || worker->shared_block[i].imported != NULL ||
        slot == NULL)
        return;
    xseg_status status = xseg_export(allocator, slot->ptr, &token, NULL);
    CHECK(status == XSEG_OK || status == XSEG_ERR_PAUSED || status == XSEG_ERR_UNSUPPORTED);
    if (status != XSEG_OK)
        return;
    worker->shared_block[i].exported = slot->ptr;
    status = xseg_import(allocator, 0, &token, &worker->shared_block[i].imported);
    CHECK_OK(status);
    atomic_fetch_add_explicit(&worker->service->shared_blocks, 1, memory_order_relaxed);
}

static bool visit_block(void *context, const struct xseg_block_info *block)
{
    uint64_t *remaining = context;

    CHECK(block->bytes > 0);
    return --*remaining > 0;
}

/* Query statistics, the reasons of memory and blocks, as the dashboard of a service does. */
static void query_state(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->service->allocator;
    struct xseg_explain_result sums = {sizeof(sums)};
    struct xseg_statistics stats = {sizeof(stats)};
    const struct xseg_scope scope = {sizeof(scope), .device = 0};
    uint64_t remaining = 1 + below(worker, 300);

    CHECK_OK(xseg_stats_get(allocator, &scope, &stats));
    /* Pages that are remapped between two arenas during the sum may be counted twice. */
    CHECK(stats.reserved_bytes[0].current <= 2 * MEMORY);
    CHECK_OK(xseg_explain(allocator, NULL, NULL, NULL, &sums));
    CHECK(sums.reserved == sums.allocated + sums.pending + sums.claimed + sums.pool + sums.pinned +
                               sums.capture + sums.stream + sums.keep + sums.decay + sums.policy +
                               sums.exported + sums.registered);
    CHECK_OK(xseg_for_each_block(allocator, NULL, visit_block, &remaining));
}

static void prewarm(struct worker *worker)
{
    const struct xseg_scope scope = {
        sizeof(scope),
        .device = 0,
        .one_stream = true,
        .stream = worker->service->stream[below(worker, STREAMS)],
    };
    const xseg_status status =
        xseg_prewarm(worker->service->allocator, &scope, random_bytes(worker));
    CHECK(is_valid_status(status));
}

/* Create a stream, queue work on a block of it, free the block, and retire the stream during the work. */
static void use_temporary_stream(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->service->allocator;
    struct slot slot = {.bytes = random_bytes(worker)};
    const xseg_stream stream = env_stream();
    const xseg_status status = xseg_alloc(allocator, 0, slot.bytes, stream, &slot.ptr);

    if (status == XSEG_OK) {
        CHECK_OK(xseg_sim_launch_on(stream, 1 + below(worker, MAX_ADVANCE_NS),
                                    (uint64_t)(uintptr_t)slot.ptr, slot.bytes));
        CHECK_OK(xseg_free(allocator, slot.ptr));
    }
    CHECK(is_valid_status(status));
    CHECK_OK(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
}

/* The weights add up to 10,000. */
static const struct {
    unsigned weight;
    void (*run)(struct worker *worker);
} choices[] = {
    {7768, alloc_or_free},  {900, queue_on_any_stream}, {600, advance_clock},
    {200, trim_due_memory}, {60, free_burst},           {60, trim},
    {40, configure},        {20, set_limits},           {40, query_state},
    {40, prewarm},          {2, replace_pool},          {10, pause_or_resume},
    {40, pin_or_unpin},     {20, use_temporary_stream}, {200, export_or_close},
};

static void run_operation(struct worker *worker)
{
    const uint64_t number = rng_next(&worker->random) >> 16;

    choices[program_draw(number, &choices[0].weight, sizeof(choices[0]), COUNT_OF(choices))].run(
        worker);
}

static void audit(struct xseg_allocator *allocator)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    struct xseg_violation violation = {0};

    if (device != NULL && !xseg_device_audit(device, &violation)) {
        (void)fprintf(stderr, "%s: %s\n", violation.tag, violation.text);
        abort();
    }
}

static void *run_operations(void *self)
{
    struct worker *worker = self;

    for (uint64_t i = 1; i <= worker->service->operations_per_thread; i++) {
        run_operation(worker);
        if (i % OPERATIONS_PER_AUDIT == 0)
            audit(worker->service->allocator);
    }
    return NULL;
}

/* --- A service. --- */

static void open_service(struct service *service, const char *config)
{
    /* As with a real driver, handles of destroyed streams are reused. */
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = MEMORY,
                                               .reuse_handles = true};

    service->allocator = env_open_quietly(&settings, config);
    for (unsigned i = 0; i < STREAMS; i++)
        service->stream[i] = env_stream();
}

static void end_worker(struct worker *worker)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (worker->slot[i].ptr != NULL)
            free_slot(worker, &worker->slot[i]);
    for (unsigned i = 0; i < PINS; i++)
        if (worker->pin[i].ptr != NULL)
            CHECK_OK(
                xseg_unpin(worker->service->allocator, worker->pin[i].ptr, worker->pin[i].bytes));
    for (unsigned i = 0; i < SHARED_BLOCKS; i++) {
        struct xseg_allocator *allocator = worker->service->allocator;

        if (worker->shared_block[i].exported != NULL)
            CHECK_OK(xseg_export_close(allocator, worker->shared_block[i].exported));
        if (worker->shared_block[i].imported != NULL)
            CHECK_OK(xseg_import_close(allocator, worker->shared_block[i].imported));
    }
    /* Paused pools are released too: their saved contents are discarded. */
    for (unsigned i = 0; i < POOLS; i++)
        CHECK_OK(xseg_pool_release(worker->pool[i]));
}

static void close_service(struct service *service)
{
    audit(service->allocator);
    (void)expect_all_released(service->allocator);
    env_close(service->allocator, service->stream[0], service->stream[1], service->stream[2],
              service->stream[3]);
}

static void run_service(const char *config, unsigned threads)
{
    struct service service = {.operations_per_thread = operations / threads, .threads = threads};
    struct worker *worker = calloc(threads, sizeof(*worker));
    pthread_t thread[THREADS];

    assert_non_null(worker);
    open_service(&service, config);
    for (unsigned i = 0; i < threads; i++) {
        worker[i].service = &service;
        worker[i].random = (seed + i) * UINT64_C(88172645463325252) | 1;
        for (unsigned pool = 0; pool < POOLS; pool++)
            worker[i].pool[pool] = make_pool(service.allocator, pool);
    }
    threads_start(thread, run_operations, worker, threads);
    threads_join(thread, threads);
    for (unsigned i = 0; i < threads; i++)
        end_worker(&worker[i]);
    print_message("# %s: %" PRIu64 " operations, %" PRIu64 " requests served, %" PRIu64
                  " failed, %" PRIu64 " pauses, %" PRIu64 " shares\n",
                  config, operations, service.served, service.failed, service.paused,
                  service.shared_blocks);
    assert_true(service.served > service.operations_per_thread / 4);
    assert_true(service.failed > 0);
    assert_true((service.shared_blocks > 0) == (strstr(config, "segments:True") != NULL));
    close_service(&service);
    free(worker);
}

TEST(service_runs_without_the_background_thread)
{
    run_service("expandable_segments:True,idle_ms:50", 1);
}

TEST(service_runs_with_the_background_thread)
{
    run_service("expandable_segments:True,idle_ms:50,background_thread:True", 1);
}

TEST(service_runs_on_several_threads)
{
    run_service("expandable_segments:True,idle_ms:50,background_thread:True", THREADS);
}

TEST(service_runs_on_classic_segments)
{
    run_service("expandable_segments:False,idle_ms:50", THREADS);
}

int main(int count, char **arguments)
{
    return stress_main(count, arguments, &operations, &seed);
}
