/* SPDX-License-Identifier: MIT */
/*
 * Which pages are free once the load has dropped?  A service at random, the same from a seed each time,
 * under placement:best_fit and under placement:pages.
 *
 * Hours have two halves: in the first a request comes every second, in the second every ten.  A request
 * lives for 10 to 200 seconds and has
 *
 *   - six caches that live as long, of 128 KiB to 8 MiB, by its length;
 *   - six pieces of small state that live as long, of 2 to 293 KiB;
 *   - eighteen temporaries of up to half a second, of 32 KiB to 8 MiB, by its length up to a bound.
 *
 * One in fifty brings an adapter: twelve blocks of four sizes that live for five and a half hours on
 * average.  Small and large blocks are on streams of their own, so that their pages can be told apart;
 * they never share any.
 *
 * Free is what xseg_trim() could give back: pages without a block, looked at every 20 s in the last
 * third of each hour.  All is counted, but for the time of an allocation, which is measured.
 */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "xseg/sim.h"
#include "xseg/xseg.h"

#define HOUR        3600.0
#define HOURS       12u
#define SEEDS       3u
#define EVENTS_MOST 65536u

enum { SMALL, LARGE, KINDS };

static const uint64_t page_bytes[KINDS] = {(uint64_t)2 << 20, (uint64_t)20 << 20};

/* Something that happens at a time: a block ends, or without one a request comes. */
struct event {
    double time;
    void *block;
};

struct result {
    double free_pages[KINDS], reserved_pages[KINDS];
    uint64_t looks, calls, creates, allocs, spent_ns, returned;
};

struct service {
    struct xseg_allocator *allocator;
    xseg_stream stream[KINDS];
    struct event event[EVENTS_MOST]; /* a heap, the earliest first */
    unsigned events;
    uint64_t seed;
    double now;
    bool empties; /* everything idle goes back at the end of each hour */
    struct result result;
};

/* From the driver's interface, by their plain C types. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxPushCurrent_v2(void *context);
int cuStreamCreate(xseg_stream *stream, unsigned flags);

static void require(bool holds, const char *what)
{
    char text[512] = "";

    if (holds)
        return;
    (void)xseg_error_text(text, sizeof(text));
    (void)fprintf(stderr, "%s: %s\n", what, text);
    exit(1);
}

/* --- Chance: xorshift64*. --- */

static double draw(struct service *service)
{
    service->seed ^= service->seed >> 12;
    service->seed ^= service->seed << 25;
    service->seed ^= service->seed >> 27;
    return (double)(service->seed * UINT64_C(0x2545F4914F6CDD1D) >> 11) / 9007199254740992.0;
}

static double between(struct service *service, double low, double high)
{
    return low + (high - low) * draw(service);
}

/* Every doubling is as likely as another. */
static double any_scale(struct service *service, double low, double high)
{
    return low * pow(high / low, draw(service));
}

/* A time without a memory. */
static double waiting(struct service *service, double mean)
{
    return -mean * log(1.0 - draw(service));
}

/* --- Events. --- */

static void push(struct service *service, double time, void *block)
{
    unsigned at = service->events++;

    require(service->events < EVENTS_MOST, "too many blocks");
    for (; at > 0 && service->event[(at - 1) / 2].time > time; at = (at - 1) / 2)
        service->event[at] = service->event[(at - 1) / 2];
    service->event[at] = (struct event){time, block};
}

static struct event pop(struct service *service)
{
    struct event *event = service->event, first = event[0], last = event[--service->events];
    unsigned at = 0, child;

    while ((child = 2 * at + 1) < service->events) {
        if (child + 1 < service->events && event[child + 1].time < event[child].time)
            child++;
        if (event[child].time >= last.time)
            break;
        event[at] = event[child];
        at = child;
    }
    event[at] = last;
    return first;
}

/* --- The service. --- */

static uint64_t nanoseconds(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void allocate(struct service *service, double bytes, double life)
{
    const size_t size = (size_t)bytes;
    void *block = NULL;

    const uint64_t began = nanoseconds();
    const xseg_status status =
        xseg_alloc(service->allocator, 0, size,
                   service->stream[size > ((size_t)1 << 20) ? LARGE : SMALL], &block);
    service->result.spent_ns += nanoseconds() - began;
    require(status == XSEG_OK, "xseg_alloc");
    service->result.allocs++;
    push(service, service->now + life, block);
}

static void load_adapter(struct service *service)
{
    const double life = waiting(service, 20000);

    for (unsigned layer = 0; layer < 3; layer++) {
        allocate(service, 1.5 * 1048576, life);
        allocate(service, 3.25 * 1048576, life);
        allocate(service, 98304, life);
        allocate(service, 24576, life);
    }
}

static void serve_request(struct service *service)
{
    static const double width[] = {8192, 16384, 12288, 512, 1024};
    const double life = any_scale(service, 10, 200), length = any_scale(service, 64, 4096);
    const double bounded = length < 512 ? length : 512;

    for (unsigned i = 0; i < 18; i++)
        allocate(service, bounded * width[(unsigned)(draw(service) * 5)],
                 between(service, 0.05, 0.55));
    for (unsigned i = 0; i < 6; i++)
        allocate(service, length * 2048, life);
    for (unsigned i = 0; i < 6; i++)
        allocate(service, any_scale(service, 2048, 300000), life);
    if (draw(service) < 0.02)
        load_adapter(service);
}

/* What a trim of one stream could give back, and what is reserved there. */
static void look(struct service *service)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct xseg_trimmed done = XSEG_TRIMMED_INIT;
        struct xseg_where where = XSEG_WHERE_ANY;
        struct xseg_trim_options nothing = XSEG_TRIM_OPTIONS_INIT;

        where.device = 0;
        where.one_stream = true;
        where.stream = service->stream[kind];
        nothing.leave_bytes = UINT64_MAX;
        require(xseg_trim(service->allocator, &where, &nothing, &done) == XSEG_OK, "xseg_trim");
        service->result.free_pages[kind] += (double)(done.kept_asked / page_bytes[kind]);
        service->result.reserved_pages[kind] += (double)(done.left / page_bytes[kind]);
    }
    service->result.looks++;
}

static void empty(struct service *service)
{
    struct xseg_trimmed done = XSEG_TRIMMED_INIT;

    require(xseg_trim(service->allocator, NULL, NULL, &done) == XSEG_OK, "xseg_trim");
    service->result.returned += done.returned;
}

/* The hours from the third on are looked at: by then there are as many adapters as there will be. */
static void look_until(struct service *service, double time, double *next)
{
    for (; *next < time; *next += 20) {
        const double part = fmod(*next, HOUR) / HOUR;

        if (*next >= 2 * HOUR && part > 0.7)
            look(service);
        if (service->empties && part > 0.994)
            empty(service);
    }
}

static void run_hours(struct service *service)
{
    double next = 0;

    push(service, 0, NULL);
    while (service->now < HOURS * HOUR) {
        const struct event event = pop(service);

        service->now = event.time;
        look_until(service, service->now, &next);
        if (event.block != NULL) {
            require(xseg_free(service->allocator, event.block) == XSEG_OK, "xseg_free");
            continue;
        }
        push(service, service->now + waiting(service, fmod(service->now, HOUR) < HOUR / 2 ? 1 : 10),
             NULL);
        serve_request(service);
    }
}

static void end(struct service *service)
{
    for (unsigned i = 0; i < service->events; i++)
        if (service->event[i].block != NULL)
            require(xseg_free(service->allocator, service->event[i].block) == XSEG_OK, "xseg_free");
    require(xseg_close(service->allocator) == XSEG_OK, "xseg_close");
}

static struct result play(const char *placement, uint64_t seed, bool empties)
{
    static struct service service;
    struct xseg_sim_settings settings = XSEG_SIM_SETTINGS_INIT;
    struct xseg_options options = XSEG_OPTIONS_INIT;
    char config[64];
    void *context = NULL;

    memset(&service, 0, sizeof(service));
    service.seed = seed * UINT64_C(0x9E3779B97F4A7C15);
    service.empties = empties;
    require(xseg_sim_reset(&settings) == XSEG_OK, "xseg_sim_reset");
    require(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 &&
                cuCtxPushCurrent_v2(context) == 0,
            "the simulated driver");
    for (unsigned kind = 0; kind < KINDS; kind++)
        require(cuStreamCreate(&service.stream[kind], 1) == 0, "cuStreamCreate");
    options.driver = BENCH_DRIVER;
    (void)snprintf(config, sizeof(config), "placement:%s", placement);
    require(xseg_open(config, &options, &service.allocator) == XSEG_OK, "xseg_open");
    run_hours(&service);
    service.result.calls = xseg_sim_calls("cuMemCreate") + xseg_sim_calls("cuMemMap") +
                           xseg_sim_calls("cuMemSetAccess") + xseg_sim_calls("cuMemUnmap") +
                           xseg_sim_calls("cuMemRelease");
    service.result.creates = xseg_sim_calls("cuMemCreate");
    end(&service);
    return service.result;
}

/* --- The table. --- */

static void print_row(const char *name, const struct result *result, uint64_t hours)
{
    const double looks = (double)result->looks;

    printf("| %s | %.0f of %.0f | %.0f of %.0f | %" PRIu64 " | %.1f | %.0f |\n", name,
           result->free_pages[SMALL] / looks, result->reserved_pages[SMALL] / looks,
           result->free_pages[LARGE] / looks, result->reserved_pages[LARGE] / looks, result->calls,
           (double)result->returned / (double)hours / 1073741824.0,
           (double)result->spent_ns / (double)result->allocs);
}

static void compare(bool empties)
{
    struct result sum[2] = {{{0}, {0}, 0, 0, 0, 0, 0, 0}, {{0}, {0}, 0, 0, 0, 0, 0, 0}};
    static const char *const placement[2] = {"best_fit", "pages"};

    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        for (unsigned i = 0; i < 2; i++) {
            const struct result one = play(placement[i], seed, empties);

            for (unsigned kind = 0; kind < KINDS; kind++) {
                sum[i].free_pages[kind] += one.free_pages[kind];
                sum[i].reserved_pages[kind] += one.reserved_pages[kind];
            }
            sum[i].looks += one.looks;
            sum[i].calls += one.calls;
            sum[i].creates += one.creates;
            sum[i].allocs += one.allocs;
            sum[i].spent_ns += one.spent_ns;
            sum[i].returned += one.returned;
        }
    printf("\n%s\n\n", empties ? "Emptied at the end of each hour:" : "Nothing goes back:");
    printf("| placement | small pages free | large pages free | driver calls | returned, GiB an "
           "hour | ns an allocation |\n|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < 2; i++)
        print_row(placement[i], &sum[i], SEEDS * HOURS);
    printf("\nfree, pages : best_fit: %.2f small, %.2f large; driver calls %.3f\n",
           sum[1].free_pages[SMALL] / sum[0].free_pages[SMALL],
           sum[1].free_pages[LARGE] / sum[0].free_pages[LARGE],
           (double)sum[1].calls / (double)sum[0].calls);
}

int main(void)
{
    printf("%u hours of a service, %u of them; means of the lulls\n", HOURS, SEEDS);
    compare(false);
    compare(true);
    return 0;
}
