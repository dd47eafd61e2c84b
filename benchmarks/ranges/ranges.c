/* SPDX-License-Identifier: MIT */
/*
 * Memory and driver time of two KV caches that share a GPU.
 *
 *   bench-ranges [--seconds S]
 *
 * Two engines (engine.h) serve requests (requests.h) for 20 minutes, a "day", on a simulated GPU of 80 GiB with the driver
 * costs of an A100.  They run in one process on one allocator, and take turns as their steps end.  All values are counted or
 * modeled, so a seed determines the tables.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/ranges/engine.h"
#include "xseg/sim.h"

#define GIB     1073741824.0
#define MIB     ((uint64_t)1 << 20)
#define SECONDS 1200.0

/* Driver functions, declared with plain C types. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);

static const struct model model[ENGINES] = {
    {"8 B",
     128 << 10,
     (uint64_t)15 << 30,
     160,
     9000,
     60,
     30,
     {0x9E3779B97F4A7C15u, 2.6, 0.35, 500, 350, {1200, 800, 500, 1800}}},
    {"14 B",
     192 << 10,
     (uint64_t)28 << 30,
     128,
     16000,
     90,
     55,
     {0xD1B54A32D192ED03u, 1.6, 0.75, 500, 350, {1500, 600, 900, 400}}},
};

#define PLAIN  "expandable_segments:True"
#define CACHED "expandable_segments:True,page_cache_mb:512"

static const struct mode mode[] = {
    {"halves", "each engine permanently has half of the memory without weights", PLAIN, 2 * MIB,
     true, 0, false},
    {"commit", "memory is committed and decommitted as the sequences need it", PLAIN, 2 * MIB,
     false, 0, false},
    {"prepare", "commit, with 64 pages per engine that are prepared while steps run", PLAIN,
     2 * MIB, false, 64, false},
    {"cache", "commit, with page_cache_mb:512", CACHED, 2 * MIB, false, 0, false},
    {"cache, 8 MiB", "cache, with pages of 8 MiB", CACHED, 8 * MIB, false, 0, false},
    {"share", "cache, with system prompts that are stored and computed once", CACHED, 2 * MIB,
     false, 0, true},
};
#define MODES (sizeof(mode) / sizeof(mode[0]))

static const char *const call[] = {"cuMemCreate",  "cuMemMap",         "cuMemSetAccess",
                                   "cuMemUnmap",   "cuMemRelease",     "cuEventRecord",
                                   "cuEventQuery", "cuStreamWaitEvent"};
static const char *const waits[] = {"cuStreamSynchronize", "cuEventSynchronize",
                                    "cuCtxSynchronize"};
#define CALLS (sizeof(call) / sizeof(call[0]))

/* Results of a mode.  Bytes are averages over time, except peaks. */
struct result {
    double tokens, committed, physical;
    uint64_t peak, driver_ns, calls[CALLS], waits, recommits;
    struct engine engine[ENGINES]; /* the final counters */
    uint64_t step_driver_p99_ns[ENGINES], step_driver_max_ns[ENGINES];
};

/* --- Time. --- */

/* Integrals of bytes over time. */
struct sums {
    uint64_t time_ns;                   /* of the last call of accumulate() */
    double tokens, committed, physical; /* byte-nanoseconds */
};

/* Add the time since the last call.  The bytes at the end of a driver call count for its whole duration. */
static void accumulate(struct sums *sums, const struct gpu *gpu)
{
    const uint64_t now = xseg_sim_clock();
    const double elapsed_ns = (double)(now - sums->time_ns);

    for (unsigned i = 0; i < ENGINES; i++) {
        sums->tokens +=
            elapsed_ns * (double)(gpu->engine[i].tokens * gpu->engine[i].model->token_bytes);
        sums->committed += elapsed_ns * (double)(gpu->engine[i].needed * gpu->mode->granule);
    }
    sums->physical += elapsed_ns * (double)(xseg_sim_used(0) - gpu->weight_used);
    sums->time_ns = now;
}

/* Compare the engines' counts with those of the library, which counts a shared page at each mapping. */
static void check_counts(const struct gpu *gpu)
{
    for (unsigned i = 0; i < ENGINES && !gpu->mode->halves; i++) {
        const struct engine *engine = &gpu->engine[i];
        struct xseg_range_info info = {sizeof(info)};
        uint64_t shared = 0;

        for (uint32_t index = 0; index < engine->model->slots; index++)
            shared += engine->slot[index].shared;
        require(xseg_range_query(engine->range, &info) == XSEG_OK, "xseg_range_query");
        require(info.committed_bytes ==
                    (engine->needed + engine->ended + shared) * gpu->mode->granule,
                "committed bytes differ from the library's");
    }
}

static struct sums run_engines(struct gpu *gpu, uint64_t until_ns)
{
    struct sums sums = {.time_ns = xseg_sim_clock()};
    uint64_t passes = 0;

    for (;;) {
        struct engine *next = &gpu->engine[0];
        const uint64_t now = xseg_sim_clock();

        for (unsigned i = 1; i < ENGINES; i++)
            if (gpu->engine[i].wake_ns < next->wake_ns)
                next = &gpu->engine[i];
        const uint64_t wake = next->wake_ns < until_ns ? next->wake_ns : until_ns;
        if (wake > now)
            xseg_sim_advance(wake - now);
        accumulate(&sums, gpu);
        if (xseg_sim_clock() >= until_ns)
            return sums;
        engine_pass(next, until_ns);
        accumulate(&sums, gpu);
        if (++passes % 1024 == 0)
            check_counts(gpu);
    }
}

/* --- Modes. --- */

static void open_gpu(struct gpu *gpu, const struct mode *selected)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_options options = {sizeof(options)};
    void *context = NULL;

    settings.costs = "a100";
    settings.memory_bytes = (uint64_t)80 << 30;
    require(xseg_sim_reset(&settings) == XSEG_OK, "xseg_sim_reset");
    require(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 &&
                cuCtxPushCurrent_v2(context) == 0,
            "open the simulated driver");
    options.driver = BENCH_DRIVER;
    require(xseg_open(selected->config, &options, &gpu->allocator) == XSEG_OK, "xseg_open");
    gpu->mode = selected;
    for (unsigned i = 0; i < ENGINES; i++)
        require(xseg_alloc(gpu->allocator, 0, model[i].weight_bytes, NULL, &gpu->weights[i]) ==
                    XSEG_OK,
                "xseg_alloc");
    gpu->weight_used = xseg_sim_used(0);
    gpu->cache_bytes = settings.memory_bytes - gpu->weight_used;
}

static void close_gpu(struct gpu *gpu)
{
    for (unsigned i = 0; i < ENGINES; i++) {
        engine_close(&gpu->engine[i]);
        require(xseg_free(gpu->allocator, gpu->weights[i]) == XSEG_OK, "xseg_free");
    }
    require(xseg_close(gpu->allocator) == XSEG_OK, "xseg_close");
    require(xseg_sim_used(0) == 0, "memory was not released");
}

static int compare_u64(const void *first, const void *second)
{
    const uint64_t a = *(const uint64_t *)first, b = *(const uint64_t *)second;

    return (a > b) - (a < b);
}

static uint64_t count_waits(void)
{
    uint64_t count = 0;

    for (unsigned i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
        count += xseg_sim_calls(waits[i]);
    return count;
}

static void save_result(struct result *result, struct gpu *gpu)
{
    for (unsigned i = 0; i < ENGINES; i++) {
        struct engine *engine = &gpu->engine[i];
        struct xseg_range_info info = {sizeof(info)};

        require(xseg_range_query(engine->range, &info) == XSEG_OK, "xseg_range_query");
        result->recommits += info.recommits;
        qsort(engine->counters.step_driver_ns, engine->counters.steps, sizeof(uint64_t),
              compare_u64);
        result->step_driver_p99_ns[i] =
            engine->counters.step_driver_ns[engine->counters.steps * 99 / 100];
        result->step_driver_max_ns[i] = engine->counters.step_driver_ns[engine->counters.steps - 1];
        result->engine[i] = *engine;
    }
}

static void run_mode(const struct mode *selected, double seconds, struct result *result)
{
    struct gpu *gpu = calloc(1, sizeof(*gpu));
    uint64_t before[CALLS];

    require(gpu != NULL, "out of host memory");
    open_gpu(gpu, selected);
    const uint64_t driver_before = xseg_sim_driver_time(), waits_before = count_waits();
    for (unsigned i = 0; i < CALLS; i++)
        before[i] = xseg_sim_calls(call[i]);
    const uint64_t duration_ns = (uint64_t)(seconds * 1e9);
    for (unsigned i = 0; i < ENGINES; i++)
        engine_open(&gpu->engine[i], gpu, &model[i], duration_ns);
    const uint64_t start_ns = xseg_sim_clock();
    const struct sums sums = run_engines(gpu, duration_ns);
    const double elapsed_ns = (double)(xseg_sim_clock() - start_ns);
    result->tokens = sums.tokens / elapsed_ns;
    result->committed = sums.committed / elapsed_ns;
    result->physical = sums.physical / elapsed_ns;
    result->peak = xseg_sim_peak(0) - gpu->weight_used;
    result->driver_ns = xseg_sim_driver_time() - driver_before;
    result->waits = count_waits() - waits_before;
    for (unsigned i = 0; i < CALLS; i++)
        result->calls[i] = xseg_sim_calls(call[i]) - before[i];
    save_result(result, gpu);
    xseg_sim_finish_all();
    close_gpu(gpu);
    free(gpu);
}

/* --- Tables. --- */

static void print_modes(double seconds)
{
    printf("%.0f seconds of two models on a GPU of 80 GiB; all values are counted or modeled\n\n",
           seconds);
    for (unsigned i = 0; i < MODES; i++)
        printf("  %-13s %s\n", mode[i].name, mode[i].description);
    printf("\n");
}

static void print_memory(const struct result *result)
{
    printf("Memory of the caches in GiB, average over time; committed: granules of live tokens\n\n"
           "| mode | tokens | committed | physical | physical / committed | peak |\n"
           "|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < MODES; i++)
        printf("| %s | %.2f | %.2f | %.2f | %.3f | %.2f |\n", mode[i].name, result[i].tokens / GIB,
               result[i].committed / GIB, result[i].physical / GIB,
               result[i].physical / result[i].committed, (double)result[i].peak / GIB);
}

static void print_requests(const struct result *result)
{
    printf("\nRequests; wait: seconds from arrival until a request has a slot\n\n"
           "| mode | model | arrived | served | waiting at the end | interrupted | mean wait | "
           "longest wait | "
           "peak of the cache, GiB |\n"
           "|---|---|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < MODES; i++)
        for (unsigned e = 0; e < ENGINES; e++) {
            const struct engine *engine = &result[i].engine[e];
            const struct counters *counters = &engine->counters;

            printf("| %s | %s | %zu | %" PRIu64 " | %" PRIu32 " | %" PRIu64
                   " | %.2f | %.1f | %.1f |\n",
                   mode[i].name, engine->model->name, engine->request_count, counters->served,
                   engine->waiting_count, counters->interrupted,
                   (double)counters->wait_ns / 1e9 / (double)counters->admitted,
                   (double)counters->max_wait_ns / 1e9,
                   (double)(counters->peak * mode[i].granule) / GIB);
        }
}

static void print_steps(const struct result *result)
{
    printf("\nDriver time before a step is queued, and stalls of the stream that it causes, "
           "modeled\n\n"
           "| mode | model | steps | p99, us | longest, us | stalls | total stall, ms | longest "
           "stall, us |\n"
           "|---|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < MODES; i++)
        for (unsigned e = 0; e < ENGINES; e++) {
            const struct counters *counters = &result[i].engine[e].counters;

            printf("| %s | %s | %zu | %.0f | %.0f | %" PRIu64 " | %.1f | %.0f |\n", mode[i].name,
                   model[e].name, counters->steps, (double)result[i].step_driver_p99_ns[e] / 1e3,
                   (double)result[i].step_driver_max_ns[e] / 1e3, counters->stalls,
                   (double)counters->stall_ns / 1e6, (double)counters->max_stall_ns / 1e3);
        }
}

static void print_calls(const struct result *result)
{
    printf("\nDriver calls, counted; waits are calls in which the host waits for the device\n\n| "
           "mode | driver time, s |");
    for (unsigned c = 0; c < CALLS; c++)
        printf(" %s |", call[c]);
    printf(" waits | recommits | shared |\n|---|---|");
    for (unsigned c = 0; c < CALLS + 3; c++)
        printf("---|");
    for (unsigned i = 0; i < MODES; i++) {
        printf("\n| %s | %.2f |", mode[i].name, (double)result[i].driver_ns / 1e9);
        for (unsigned c = 0; c < CALLS; c++)
            printf(" %" PRIu64 " |", result[i].calls[c]);
        printf(" %" PRIu64 " | %" PRIu64 " | %" PRIu64 " |", result[i].waits, result[i].recommits,
               result[i].engine[0].counters.shared + result[i].engine[1].counters.shared);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static struct result result[MODES];
    double seconds = SECONDS;

    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0) {
            seconds = strtod(argv[++i], NULL);
            continue;
        }
        (void)fprintf(stderr, "usage: %s [--seconds S]\n", argv[0]);
        return 2;
    }
    for (unsigned i = 0; i < MODES; i++)
        run_mode(&mode[i], seconds, &result[i]);
    print_modes(seconds);
    print_memory(result);
    print_requests(result);
    print_steps(result);
    print_calls(result);
    return 0;
}
