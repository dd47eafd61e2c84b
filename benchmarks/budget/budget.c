/* SPDX-License-Identifier: MIT */
/*
 * Sessions of two services with independent peaks that one GPU can serve, for five ways to share the GPU.
 *
 *   bench-budget [--hours H] [--return-ms MS]
 *
 * Two services (sessions.h) run for a week on a simulated GPU of 40 GiB with the driver costs of an A100: in one process, or
 * in two (server.h).  The sum of their averages fits on the GPU, the sum of their peaks does not.  A session is rejected
 * unless all its blocks can be allocated.
 *
 * The processes run in lock step on simulated clocks.  Therefore all values are counted or modeled, and reproducible, except
 * the time that a request waits for the other process, which is measured.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "benchmarks/budget/server.h"

#define GPU_BYTES  (40 * GIB)
#define CONFIG_MAX 512u
#define DECAY      "idle_ms:120000"

/* One way to share the GPU. */
struct mode {
    const char *name, *description;
    const char *config;
    unsigned processes;
    bool ticks;  /* whether decay passes run every ten seconds */
    bool budget; /* with a shared budget file */
};

static const struct mode mode[] = {
    {"together", "one process serves both services: the reference", "", 1, false, false},
    {"halves", "per_process_memory_fraction:0.5 each", ",per_process_memory_fraction:0.5", 2, false,
     false},
    {"decayed", DECAY " each, with a decay pass every ten seconds", "," DECAY, 2, true, false},
    {"budget", "budget_file and budget_share:0.5 each", "", 2, false, true},
    {"budget, decayed", "both", "," DECAY, 2, true, true},
};
#define MODES (sizeof(mode) / sizeof(mode[0]))

/* Sessions of a service. */
struct counters {
    uint64_t begun, served,
        after_release; /* sessions; after_release: served while the other process released memory */
    uint64_t avoidable; /* rejected, although the free memory was sufficient */
    double load;        /* of served sessions: bytes times nanoseconds */
};

/* Results of requests: served without the other process, served with memory that it released, rejected. */
enum kind { SERVED, AFTER_RELEASE, REJECTED, KINDS };

/* Delay of a request because of memory, in nanoseconds. */
struct delay {
    uint64_t own;    /* modeled time of its driver calls */
    uint64_t others; /* modeled time of concurrent driver calls of the other process */
    uint64_t waited; /* measured time of waiting for the other process */
};

struct outcome {
    struct counters counters[SERVICES];
    struct delay *delays; /* of the served requests, followed by those of the rejected ones */
    size_t served, rejected;
    uint64_t waits[KINDS]; /* calls in which requests wait for the device */
    uint64_t calls[CALLS], driver_ns;
    double physical; /* bytes, average over time */
    double took_s;   /* measured */
};

/* State of a run. */
struct run_state {
    const struct mode *mode;
    const struct week *week;
    struct server server[SERVICES];
    struct server_response last[SERVICES]; /* of each process */
    bool *is_live;                         /* of each session */
    uint64_t live_bytes, at_ns;
    struct outcome *outcome;
};

static uint64_t total(struct delay delay)
{
    return delay.own + delay.others + delay.waited;
}

/* --- Runs. --- */

static struct server_response send_command(struct run_state *run_state, unsigned process,
                                           enum server_task task, uint32_t session)
{
    const struct server_command command = {task, session, run_state->at_ns};

    run_state->last[process] = server_do(&run_state->server[process], command);
    return run_state->last[process];
}

/* Physical memory is constant between two events. */
static void advance_to(struct run_state *run_state, uint64_t at_ns)
{
    for (unsigned i = 0; i < run_state->mode->processes; i++)
        run_state->outcome->physical +=
            (double)run_state->last[i].physical * (double)(at_ns - run_state->at_ns);
    run_state->at_ns = at_ns;
}

static void count(struct run_state *run_state, const struct session *session, bool served,
                  bool has_released)
{
    struct counters *counters = &run_state->outcome->counters[session->service];
    const double load = (double)session->bytes * (double)(session->end_ns - session->begin_ns);

    counters->begun++;
    counters->served += served;
    counters->load += served ? load : 0;
    counters->after_release += served && has_released;
    counters->avoidable += !served && run_state->live_bytes + session->bytes <= GPU_BYTES;
}

/*
 * The other process advances its clock before the request, and reports its driver time afterwards.  A request can demand
 * memory without success and then be served from its own process, so every request of at least the shortest wait is charged.
 */
static void begin(struct run_state *run_state, uint32_t number)
{
    const struct session *session = &run_state->week->sessions[number];
    const bool has_other = run_state->mode->processes > 1;
    const unsigned own = has_other ? session->service : 0, other = 1 - own;
    struct outcome *outcome = run_state->outcome;
    struct server_response before = {0}, after = {0};

    if (has_other)
        before = send_command(run_state, other, SERVER_POLL, 0);
    const struct server_response response = send_command(run_state, own, SERVER_BEGIN, number);
    if (has_other)
        after = send_command(run_state, other, SERVER_POLL, 0);
    const bool has_released = after.physical < before.physical;
    const struct delay delay = {
        .own = response.driver_ns,
        .others = after.all_driver_ns - before.all_driver_ns,
        .waited = run_state->mode->budget &&
                          (has_released || !response.served || response.host_ns >= MILLISECOND_NS)
                      ? response.host_ns
                      : 0,
    };
    count(run_state, session, response.served, has_released);
    run_state->is_live[number] = response.served;
    run_state->live_bytes += response.served ? session->bytes : 0;
    if (response.served)
        outcome->delays[outcome->served++] = delay;
    else
        outcome->delays[run_state->week->count - ++outcome->rejected] = delay;
    outcome->waits[!response.served ? REJECTED
                   : has_released   ? AFTER_RELEASE
                                    : SERVED] += response.waits;
}

static void end(struct run_state *run_state, uint32_t number)
{
    const struct session *session = &run_state->week->sessions[number];

    if (!run_state->is_live[number])
        return;
    (void)send_command(run_state, run_state->mode->processes > 1 ? session->service : 0, SERVER_END,
                       number);
    run_state->live_bytes -= session->bytes;
}

static void configure(const struct mode *used, const char *budget_path, unsigned return_ms,
                      char *config)
{
    (void)snprintf(config, CONFIG_MAX, "expandable_segments:True%s", used->config);
    if (used->budget)
        (void)snprintf(config + strlen(config), CONFIG_MAX - strlen(config),
                       ",budget_file:%s,budget_share:0.5,budget_wait_ms:%u", budget_path,
                       return_ms);
}

static void open_run(struct run_state *run_state, const char *budget_path, unsigned return_ms)
{
    char config[CONFIG_MAX], name[64];
    const struct server_machine machine = {name, GPU_BYTES};

    (void)snprintf(name, sizeof(name), "bench-budget-%d", (int)getpid());
    configure(run_state->mode, budget_path, return_ms, config);
    run_state->is_live = calloc(run_state->week->count + 1, sizeof(*run_state->is_live));
    run_state->outcome->delays =
        calloc(run_state->week->count + 1, sizeof(*run_state->outcome->delays));
    require(run_state->is_live != NULL && run_state->outcome->delays != NULL, "out of host memory");
    for (unsigned i = 0; i < SERVICES; i++)
        run_state->live_bytes += services[i].weight_bytes;
    for (unsigned i = 0; i < run_state->mode->processes; i++)
        run_state->server[i] =
            server_start(&machine, run_state->week, run_state->mode->processes > 1 ? 1u << i : 3u,
                         config, run_state->mode->ticks);
}

static void close_run(struct run_state *run_state)
{
    for (unsigned i = 0; i < run_state->mode->processes; i++) {
        const struct server_response response = server_end(&run_state->server[i], run_state->at_ns);

        run_state->outcome->driver_ns += response.all_driver_ns;
        for (unsigned c = 0; c < CALLS; c++)
            run_state->outcome->calls[c] += response.calls[c];
    }
    run_state->outcome->physical /= run_state->at_ns != 0 ? (double)run_state->at_ns : 1;
    free(run_state->is_live);
}

static double read_machine_clock(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void run(const struct mode *used, const struct week *week, const char *budget_path,
                unsigned return_ms, struct outcome *outcome)
{
    struct run_state run_state = {.mode = used, .week = week, .outcome = outcome};
    const double began = read_machine_clock();

    open_run(&run_state, budget_path, return_ms);
    for (size_t i = 0; i < 2 * week->count; i++) {
        const struct event *event = &week->events[i];

        advance_to(&run_state, event->at_ns);
        if (event->is_begin)
            begin(&run_state, event->session);
        else
            end(&run_state, event->session);
    }
    close_run(&run_state);
    outcome->took_s = read_machine_clock() - began;
}

/* --- Tables. --- */

static struct counters sum_of_services(const struct outcome *outcome)
{
    const struct counters *a = &outcome->counters[0], *b = &outcome->counters[1];

    return (struct counters){a->begun + b->begun, a->served + b->served,
                             a->after_release + b->after_release, a->avoidable + b->avoidable,
                             a->load + b->load};
}

static double percent(double part, double whole)
{
    return whole == 0 ? 100 : 100 * part / whole;
}

static void print_served(const struct outcome *outcome)
{
    const struct counters reference = sum_of_services(&outcome[0]);

    printf("Sessions, counted\n\n"
           "| mode | served of %s | of %s | served | of reference | GiB hours | of reference | "
           "rejected | avoidable | "
           "after release |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n",
           services[0].name, services[1].name);
    for (unsigned i = 0; i < MODES; i++) {
        const struct counters sum = sum_of_services(&outcome[i]);
        const struct counters *counters = outcome[i].counters;

        printf("| %s | %" PRIu64 " of %" PRIu64 " | %" PRIu64 " of %" PRIu64
               " | %.1f %% | %.1f %% | %.0f | %.1f %% | %zu | %" PRIu64 " | %" PRIu64 " |\n",
               mode[i].name, counters[0].served, counters[0].begun, counters[1].served,
               counters[1].begun, percent((double)sum.served, (double)sum.begun),
               percent((double)sum.served, (double)reference.served),
               sum.load / (double)GIB / 3600e9, percent(sum.load, reference.load),
               outcome[i].rejected, sum.avoidable, sum.after_release);
    }
    printf("\nof reference: relative to the mode `together`\n"
           "GiB hours: bytes of the served sessions times their duration\n"
           "avoidable: rejected, although the bytes that no block used were sufficient\n"
           "after release: served while the other process released memory\n");
}

static int compare(const void *left, const void *right)
{
    const uint64_t a = total(*(const struct delay *)left), b = total(*(const struct delay *)right);

    return (a > b) - (a < b);
}

/* The quantile `part` of sorted delays. */
static struct delay quantile(const struct delay *sorted, size_t count, double part)
{
    const struct delay none = {0, 0, 0};

    return count != 0 ? sorted[(size_t)(part * (double)(count - 1))] : none;
}

static void sort_delays(struct outcome *outcome, size_t count)
{
    qsort(outcome->delays, outcome->served, sizeof(struct delay), compare);
    qsort(outcome->delays + count - outcome->rejected, outcome->rejected, sizeof(struct delay),
          compare);
}

/* The number of requests that were served with a delay of at most `time`. */
static size_t served_within(const struct outcome *outcome, uint64_t time)
{
    size_t number = 0;

    while (number < outcome->served && total(outcome->delays[number]) <= time)
        number++;
    return number;
}

static void print_delays(const struct outcome *outcome, size_t count)
{
    const uint64_t reference = total(quantile(outcome[0].delays, outcome[0].served, 1));

    printf("\nDelay of requests because of memory, ms: own driver calls and concurrent ones of the "
           "other "
           "process (modeled),\nand waiting for the other process (measured)\n\n"
           "| mode | served: p99 | longest | = own + other's + waiting | within the reference's "
           "longest | of reference | "
           "rejected: longest = own + other's + waiting |\n"
           "|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < MODES; i++) {
        const struct outcome *current = &outcome[i];
        const struct delay worst = quantile(current->delays, current->served, 1);
        const struct delay p99 = quantile(current->delays, current->served, 0.99);
        const size_t within = served_within(current, reference);
        const struct delay denied =
            quantile(current->delays + count - current->rejected, current->rejected, 1);

        printf("| %s | %.1f | %.1f | %.1f + %.1f + %.1f | %zu | %.1f %% | %.1f + %.1f + %.1f |\n",
               mode[i].name, (double)total(p99) / 1e6, (double)total(worst) / 1e6,
               (double)worst.own / 1e6, (double)worst.others / 1e6, (double)worst.waited / 1e6,
               within, percent((double)within, (double)outcome[0].served), (double)denied.own / 1e6,
               (double)denied.others / 1e6, (double)denied.waited / 1e6);
    }
}

static void print_calls(const struct outcome *outcome)
{
    printf("\nCalls in which requests wait for the device, and driver calls of all processes "
           "(counted); "
           "driver time (modeled);\nphysical memory of the processes, average over time\n\n"
           "| mode | waits: served | after release | rejected | physical, GiB | driver time, s |");
    for (unsigned c = 0; c < CALLS; c++)
        printf(" %s |", server_call[c]);
    printf("\n|---|---|---|---|---|---|");
    for (unsigned c = 0; c < CALLS; c++)
        printf("---|");
    for (unsigned i = 0; i < MODES; i++) {
        const uint64_t *waits = outcome[i].waits;

        printf("\n| %s | %" PRIu64 " | %" PRIu64 " | %" PRIu64 " | %.2f | %.1f |", mode[i].name,
               waits[SERVED], waits[AFTER_RELEASE], waits[REJECTED],
               outcome[i].physical / (double)GIB, (double)outcome[i].driver_ns / 1e9);
        for (unsigned c = 0; c < CALLS; c++)
            printf(" %" PRIu64 " |", outcome[i].calls[c]);
    }
    printf("\n");
}

/* Print the average and peak memory that all sessions would need, for each service and for both. */
static void print_week(const struct week *week, double hours, unsigned return_ms)
{
    uint64_t live[SERVICES + 1] = {0}, peak[SERVICES + 1] = {0};
    double load = 0;

    for (unsigned s = 0; s < SERVICES; s++)
        live[s] = services[s].weight_bytes, live[SERVICES] += live[s];
    const double weights = (double)live[SERVICES];
    for (size_t i = 0; i < 2 * week->count; i++) {
        const struct session *session = &week->sessions[week->events[i].session];
        const unsigned rows[2] = {session->service, SERVICES};

        for (unsigned p = 0; p < 2; p++) {
            uint64_t *bytes = &live[rows[p]];

            *bytes = week->events[i].is_begin ? *bytes + session->bytes : *bytes - session->bytes;
            peak[rows[p]] = *bytes > peak[rows[p]] ? *bytes : peak[rows[p]];
        }
        if (week->events[i].is_begin)
            load += (double)session->bytes * (double)(session->end_ns - session->begin_ns);
    }
    printf("%.0f hours of two services on a GPU of %.0f GiB, %zu sessions: all sessions and the "
           "weights "
           "need %.1f GiB on average,\n"
           "%.1f and %.1f GiB at the peaks of the services, %.1f GiB at the common peak; "
           "budget_wait_ms: %u\n\n",
           hours, (double)GPU_BYTES / (double)GIB, week->count,
           (weights + load / (hours * 3600e9)) / (double)GIB, (double)peak[0] / (double)GIB,
           (double)peak[1] / (double)GIB, (double)peak[SERVICES] / (double)GIB, return_ms);
    for (unsigned i = 0; i < MODES; i++)
        printf("  %-16s%s\n", mode[i].name, mode[i].description);
    printf("\n");
}

int main(int argc, char **argv)
{
    static struct outcome outcome[MODES];
    char folder[] = "/dev/shm/xseg-bench-XXXXXX", budget_path[64];
    double hours = WEEK_HOURS;
    unsigned return_ms = 200;

    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "--hours") == 0) {
            hours = strtod(argv[++i], NULL);
        } else if (i + 1 < argc && strcmp(argv[i], "--return-ms") == 0) {
            return_ms = (unsigned)strtoul(argv[++i], NULL, 10);
        } else {
            (void)fprintf(stderr, "usage: %s [--hours H] [--return-ms MS]\n", argv[0]);
            return 2;
        }
    }
    const struct week week = week_make(hours);
    require(mkdtemp(folder) != NULL, folder);
    (void)snprintf(budget_path, sizeof(budget_path), "%s/budget_path", folder);
    print_week(&week, hours, return_ms);
    for (unsigned i = 0; i < MODES; i++) {
        run(&mode[i], &week, budget_path, return_ms, &outcome[i]);
        (void)fprintf(stderr, "%s: %.1f s\n", mode[i].name, outcome[i].took_s);
        (void)unlink(budget_path);
    }
    (void)rmdir(folder);
    print_served(outcome);
    for (unsigned i = 0; i < MODES; i++)
        sort_delays(&outcome[i], week.count);
    print_delays(outcome, week.count);
    print_calls(outcome);
    free(week.sessions);
    free(week.events);
    return 0;
}
