/* SPDX-License-Identifier: MIT */
/*
 * How much memory do two KV caches take that share a card, and what does it cost them to do so?
 *
 *   bench-ranges [--seconds S]
 *
 * Two engines (engine.h) serve their requests (requests.h) for 20 minutes, a "day", on one simulated card of 80 GiB that
 * costs what an A100 does.  They run in one process, on one allocator, and take turns as their steps end.  Everything is
 * counted or modelled, nothing is timed: the same seed gives the same table.
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

/* From the driver's interface, by their plain C types. */
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

static const struct way way[] = {
    {"halves", "each engine has half of what the weights leave, for good", PLAIN, 2 * MIB, true, 0,
     false},
    {"commit", "memory comes and goes with what the sequences need", PLAIN, 2 * MIB, false, 0,
     false},
    {"prepare", "the same, with 64 pages prepared for each engine while steps run", PLAIN, 2 * MIB,
     false, 64, false},
    {"cache", "as commit, with page_cache_mb:512", CACHED, 2 * MIB, false, 0, false},
    {"cache, 8 MiB", "the same, with pages of 8 MiB", CACHED, 8 * MIB, false, 0, false},
    {"share", "as cache, and system prompts are shared: in memory once, computed once", CACHED,
     2 * MIB, false, 0, true},
};
#define WAYS (sizeof(way) / sizeof(way[0]))

static const char *const call[] = {"cuMemCreate",  "cuMemMap",         "cuMemSetAccess",
                                   "cuMemUnmap",   "cuMemRelease",     "cuEventRecord",
                                   "cuEventQuery", "cuStreamWaitEvent"};
static const char *const waits[] = {"cuStreamSynchronize", "cuEventSynchronize",
                                    "cuCtxSynchronize"};
#define CALLS (sizeof(call) / sizeof(call[0]))

/* What came of one way.  Bytes are weighted by time, but for peaks. */
struct result {
    double tokens, committed, physical;
    uint64_t peak, driver_ns, calls[CALLS], waits, retaken;
    struct engine engine[ENGINES]; /* what it counted */
    uint64_t path_99_ns[ENGINES], path_worst_ns[ENGINES];
};

/* --- Time. --- */

/* Bytes since the last look at them. */
struct sums {
    uint64_t at_ns;
    double tokens, committed, physical; /* byte-nanoseconds */
};

/* Weigh what has been since the last time: during a call the larger of before and after is not known, so the end counts. */
static void weigh(struct sums *sums, const struct card *card)
{
    const uint64_t now = xseg_sim_clock();
    const double past = (double)(now - sums->at_ns);

    for (unsigned i = 0; i < ENGINES; i++) {
        sums->tokens +=
            past * (double)(card->engine[i].tokens * card->engine[i].model->token_bytes);
        sums->committed += past * (double)(card->engine[i].needed * card->way->granule);
    }
    sums->physical += past * (double)(xseg_sim_used(0) - card->weight_used);
    sums->at_ns = now;
}

/* What the engines count as committed is what the library does, but that it counts a shared page at each place. */
static void check(const struct card *card)
{
    for (unsigned i = 0; i < ENGINES && !card->way->halves; i++) {
        const struct engine *engine = &card->engine[i];
        struct xseg_range_info info = {sizeof(info)};
        uint64_t twice = 0;

        for (uint32_t at = 0; at < engine->model->slots; at++)
            twice += engine->slot[at].shared;
        require(xseg_range_query(engine->range, &info) == XSEG_OK, "xseg_range_info");
        require(info.committed_bytes ==
                    (engine->needed + engine->ended + twice) * card->way->granule,
                "what is committed");
    }
}

static struct sums run(struct card *card, uint64_t until_ns)
{
    struct sums sums = {.at_ns = xseg_sim_clock()};
    uint64_t passes = 0;

    for (;;) {
        struct engine *next = &card->engine[0];
        const uint64_t now = xseg_sim_clock();

        for (unsigned i = 1; i < ENGINES; i++)
            if (card->engine[i].wake_ns < next->wake_ns)
                next = &card->engine[i];
        const uint64_t wake = next->wake_ns < until_ns ? next->wake_ns : until_ns;
        if (wake > now)
            xseg_sim_advance(wake - now);
        weigh(&sums, card);
        if (xseg_sim_clock() >= until_ns)
            return sums;
        engine_pass(next, until_ns);
        weigh(&sums, card);
        if (++passes % 1024 == 0)
            check(card);
    }
}

/* --- One way. --- */

static void open_card(struct card *card, const struct way *one)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_options options = {sizeof(options)};
    void *context = NULL;

    settings.costs = "a100";
    settings.memory_bytes = (uint64_t)80 << 30;
    require(xseg_sim_reset(&settings) == XSEG_OK, "xseg_sim_reset");
    require(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 &&
                cuCtxPushCurrent_v2(context) == 0,
            "the simulated driver");
    options.driver = BENCH_DRIVER;
    require(xseg_open(one->config, &options, &card->allocator) == XSEG_OK, "xseg_open");
    card->way = one;
    for (unsigned i = 0; i < ENGINES; i++)
        require(xseg_alloc(card->allocator, 0, model[i].weight_bytes, NULL, &card->weights[i]) ==
                    XSEG_OK,
                "xseg_alloc");
    card->weight_used = xseg_sim_used(0);
    card->cache_bytes = settings.memory_bytes - card->weight_used;
}

static void close_card(struct card *card)
{
    for (unsigned i = 0; i < ENGINES; i++) {
        engine_close(&card->engine[i]);
        require(xseg_free(card->allocator, card->weights[i]) == XSEG_OK, "xseg_free");
    }
    require(xseg_close(card->allocator) == XSEG_OK, "xseg_close");
    require(xseg_sim_used(0) == 0, "memory is left");
}

static int compare(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

static uint64_t waits_made(void)
{
    uint64_t made = 0;

    for (unsigned i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
        made += xseg_sim_calls(waits[i]);
    return made;
}

static void keep(struct result *result, struct card *card)
{
    for (unsigned i = 0; i < ENGINES; i++) {
        struct engine *engine = &card->engine[i];
        struct xseg_range_info info = {sizeof(info)};

        require(xseg_range_query(engine->range, &info) == XSEG_OK, "xseg_range_info");
        result->retaken += info.recommits;
        qsort(engine->tally.path_ns, engine->tally.steps, sizeof(uint64_t), compare);
        result->path_99_ns[i] = engine->tally.path_ns[engine->tally.steps * 99 / 100];
        result->path_worst_ns[i] = engine->tally.path_ns[engine->tally.steps - 1];
        result->engine[i] = *engine;
    }
}

static void play(const struct way *one, double seconds, struct result *result)
{
    struct card *card = calloc(1, sizeof(*card));
    uint64_t before[CALLS];

    require(card != NULL, "no host memory");
    open_card(card, one);
    const uint64_t driver = xseg_sim_driver_time(), waited = waits_made();
    for (unsigned i = 0; i < CALLS; i++)
        before[i] = xseg_sim_calls(call[i]);
    const uint64_t span = (uint64_t)(seconds * 1e9);
    for (unsigned i = 0; i < ENGINES; i++)
        engine_open(&card->engine[i], card, &model[i], span);
    const uint64_t began = xseg_sim_clock();
    const struct sums sums = run(card, span);
    const double whole = (double)(xseg_sim_clock() - began);
    result->tokens = sums.tokens / whole;
    result->committed = sums.committed / whole;
    result->physical = sums.physical / whole;
    result->peak = xseg_sim_peak(0) - card->weight_used;
    result->driver_ns = xseg_sim_driver_time() - driver;
    result->waits = waits_made() - waited;
    for (unsigned i = 0; i < CALLS; i++)
        result->calls[i] = xseg_sim_calls(call[i]) - before[i];
    keep(result, card);
    xseg_sim_finish_all();
    close_card(card);
    free(card);
}

/* --- The tables. --- */

static void print_ways(double seconds)
{
    printf("%.0f seconds of two models on a card of 80 GiB; all is counted or modelled, nothing "
           "timed\n\n",
           seconds);
    for (unsigned i = 0; i < WAYS; i++)
        printf("  %-13s %s\n", way[i].name, way[i].what);
    printf("\n");
}

static void print_memory(const struct result *result)
{
    printf("Memory for the caches, GiB, weighted by time; committed is what live tokens need, in "
           "granules\n\n"
           "| way | tokens | committed | physical | physical / committed | peak |\n"
           "|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < WAYS; i++)
        printf("| %s | %.2f | %.2f | %.2f | %.3f | %.2f |\n", way[i].name, result[i].tokens / GIB,
               result[i].committed / GIB, result[i].physical / GIB,
               result[i].physical / result[i].committed, (double)result[i].peak / GIB);
}

static void print_requests(const struct result *result)
{
    printf(
        "\nRequests; waited is until a request has a slot, s\n\n"
        "| way | model | came | served | waiting at the end | interrupted | waited, mean | worst | "
        "peak of its cache, GiB |\n"
        "|---|---|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < WAYS; i++)
        for (unsigned e = 0; e < ENGINES; e++) {
            const struct engine *engine = &result[i].engine[e];
            const struct tally *tally = &engine->tally;

            printf("| %s | %s | %zu | %" PRIu64 " | %" PRIu32 " | %" PRIu64
                   " | %.2f | %.1f | %.1f |\n",
                   way[i].name, engine->model->name, engine->request_count, tally->served,
                   engine->waiting_count, tally->interrupted,
                   (double)tally->waited_ns / 1e9 / (double)tally->admitted,
                   (double)tally->waited_worst_ns / 1e9,
                   (double)(tally->peak * way[i].granule) / GIB);
        }
}

static void print_steps(const struct result *result)
{
    printf(
        "\nDriver time before a step is queued, and how long a stream stood still for it, "
        "modelled\n\n"
        "| way | model | steps | p99 us | worst us | stood still, times | in all ms | worst us |\n"
        "|---|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < WAYS; i++)
        for (unsigned e = 0; e < ENGINES; e++) {
            const struct tally *tally = &result[i].engine[e].tally;

            printf("| %s | %s | %zu | %.0f | %.0f | %" PRIu64 " | %.1f | %.0f |\n", way[i].name,
                   model[e].name, tally->steps, (double)result[i].path_99_ns[e] / 1e3,
                   (double)result[i].path_worst_ns[e] / 1e3, tally->stood,
                   (double)tally->stood_ns / 1e6, (double)tally->stood_worst_ns / 1e3);
        }
}

static void print_calls(const struct result *result)
{
    printf("\nDriver calls, counted; waits are calls in which the host waits for the device\n\n| "
           "way | driver s |");
    for (unsigned c = 0; c < CALLS; c++)
        printf(" %s |", call[c]);
    printf(" waits | taken back | shared |\n|---|---|");
    for (unsigned c = 0; c < CALLS + 3; c++)
        printf("---|");
    for (unsigned i = 0; i < WAYS; i++) {
        printf("\n| %s | %.2f |", way[i].name, (double)result[i].driver_ns / 1e9);
        for (unsigned c = 0; c < CALLS; c++)
            printf(" %" PRIu64 " |", result[i].calls[c]);
        printf(" %" PRIu64 " | %" PRIu64 " | %" PRIu64 " |", result[i].waits, result[i].retaken,
               result[i].engine[0].tally.shared + result[i].engine[1].tally.shared);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    static struct result result[WAYS];
    double seconds = SECONDS;

    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0) {
            seconds = strtod(argv[++i], NULL);
            continue;
        }
        (void)fprintf(stderr, "usage: %s [--seconds S]\n", argv[0]);
        return 2;
    }
    for (unsigned i = 0; i < WAYS; i++)
        play(&way[i], seconds, &result[i]);
    print_ways(seconds);
    print_memory(result);
    print_requests(result);
    print_steps(result);
    print_calls(result);
    return 0;
}
