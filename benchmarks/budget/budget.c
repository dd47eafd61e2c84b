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
    bool runs_decay; /* whether decay passes run every ten seconds */
    bool budget;     /* with a shared budget file */
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
    uint64_t started, served,
        after_release; /* sessions; after_release: served while the other process released memory */
    uint64_t avoidable; /* rejected, although the free memory was sufficient */
    double byte_ns;     /* of served sessions: bytes times nanoseconds */
};

/* Results of requests: served without the other process, served with memory that it released, rejected. */
enum kind { SERVED, AFTER_RELEASE, REJECTED, KINDS };

/* Delay of a request because of memory. */
struct delay {
    uint64_t own_ns;  /* modeled time of its driver calls */
    uint64_t peer_ns; /* modeled time of concurrent driver calls of the other process */
    uint64_t wait_ns; /* measured time of waiting for the other process */
};

struct outcome {
    struct counters counters[SERVICES];
    struct delay *delays; /* of the served requests, followed by those of the rejected ones */
    size_t served, rejected;
    uint64_t waits[KINDS]; /* calls in which requests wait for the device */
    uint64_t calls[CALLS], driver_ns;
    double physical;  /* bytes, average over time */
    double elapsed_s; /* measured */
};

/* State of a run. */
struct run_state {
    const struct mode *mode;
    const struct week *week;
    struct server server[SERVICES];
    struct server_response last_response[SERVICES]; /* of each process */
    bool *is_active;                                /* of each session */
    uint64_t active_bytes, time_ns;
    struct outcome *outcome;
};

static uint64_t total_delay(struct delay delay)
{
    return delay.own_ns + delay.peer_ns + delay.wait_ns;
}

/* --- Runs. --- */

static struct server_response send_command(struct run_state *run_state, unsigned process,
                                           enum server_task task, uint32_t session)
{
    const struct server_command command = {task, session, run_state->time_ns};

    run_state->last_response[process] = server_execute(&run_state->server[process], command);
    return run_state->last_response[process];
}

/* Physical memory is constant between two events. */
static void advance_to(struct run_state *run_state, uint64_t time_ns)
{
    for (unsigned i = 0; i < run_state->mode->processes; i++)
        run_state->outcome->physical +=
            (double)run_state->last_response[i].physical * (double)(time_ns - run_state->time_ns);
    run_state->time_ns = time_ns;
}

static void count_session(struct run_state *run_state, const struct session *session, bool served,
                          bool has_released)
{
    struct counters *counters = &run_state->outcome->counters[session->service];
    const double byte_ns = (double)session->bytes * (double)(session->end_ns - session->start_ns);

    counters->started++;
    counters->served += served;
    counters->byte_ns += served ? byte_ns : 0;
    counters->after_release += served && has_released;
    counters->avoidable += !served && run_state->active_bytes + session->bytes <= GPU_BYTES;
}

/*
 * The other process advances its clock before the request, and reports its driver time afterwards.  A request can demand
 * memory without success and then be served by its own process, so the wait of every request of at least 1 ms is charged.
 */
static void begin_session(struct run_state *run_state, uint32_t index)
{
    const struct session *session = &run_state->week->sessions[index];
    const bool has_peer = run_state->mode->processes > 1;
    const unsigned own = has_peer ? session->service : 0, peer = 1 - own;
    struct outcome *outcome = run_state->outcome;
    struct server_response before = {0}, after = {0};

    if (has_peer)
        before = send_command(run_state, peer, SERVER_ADVANCE, 0);
    const struct server_response response = send_command(run_state, own, SERVER_BEGIN, index);
    if (has_peer)
        after = send_command(run_state, peer, SERVER_ADVANCE, 0);
    const bool has_released = after.physical < before.physical;
    const struct delay delay = {
        .own_ns = response.driver_ns,
        .peer_ns = after.all_driver_ns - before.all_driver_ns,
        .wait_ns = run_state->mode->budget &&
                           (has_released || !response.served || response.host_ns >= MILLISECOND_NS)
                       ? response.host_ns
                       : 0,
    };
    count_session(run_state, session, response.served, has_released);
    run_state->is_active[index] = response.served;
    run_state->active_bytes += response.served ? session->bytes : 0;
    if (response.served)
        outcome->delays[outcome->served++] = delay;
    else
        outcome->delays[run_state->week->count - ++outcome->rejected] = delay;
    outcome->waits[!response.served ? REJECTED
                   : has_released   ? AFTER_RELEASE
                                    : SERVED] += response.waits;
}

static void end_session(struct run_state *run_state, uint32_t index)
{
    const struct session *session = &run_state->week->sessions[index];

    if (!run_state->is_active[index])
        return;
    (void)send_command(run_state, run_state->mode->processes > 1 ? session->service : 0, SERVER_END,
                       index);
    run_state->active_bytes -= session->bytes;
}

static void configure(const struct mode *selected, const char *budget_path, unsigned wait_ms,
                      char *config)
{
    (void)snprintf(config, CONFIG_MAX, "expandable_segments:True%s", selected->config);
    if (selected->budget)
        (void)snprintf(config + strlen(config), CONFIG_MAX - strlen(config),
                       ",budget_file:%s,budget_share:0.5,budget_wait_ms:%u", budget_path, wait_ms);
}

static void open_run(struct run_state *run_state, const char *budget_path, unsigned wait_ms)
{
    char config[CONFIG_MAX], name[64];
    const struct server_host host = {name, GPU_BYTES};

    (void)snprintf(name, sizeof(name), "bench-budget-%d", (int)getpid());
    configure(run_state->mode, budget_path, wait_ms, config);
    run_state->is_active = calloc(run_state->week->count + 1, sizeof(*run_state->is_active));
    run_state->outcome->delays =
        calloc(run_state->week->count + 1, sizeof(*run_state->outcome->delays));
    require(run_state->is_active != NULL && run_state->outcome->delays != NULL,
            "out of host memory");
    for (unsigned i = 0; i < SERVICES; i++)
        run_state->active_bytes += services[i].weight_bytes;
    for (unsigned i = 0; i < run_state->mode->processes; i++)
        run_state->server[i] =
            server_start(&host, run_state->week, run_state->mode->processes > 1 ? 1u << i : 3u,
                         config, run_state->mode->runs_decay);
}

static void close_run(struct run_state *run_state)
{
    for (unsigned i = 0; i < run_state->mode->processes; i++) {
        const struct server_response response =
            server_stop(&run_state->server[i], run_state->time_ns);

        run_state->outcome->driver_ns += response.all_driver_ns;
        for (unsigned c = 0; c < CALLS; c++)
            run_state->outcome->calls[c] += response.calls[c];
    }
    run_state->outcome->physical /= run_state->time_ns != 0 ? (double)run_state->time_ns : 1;
    free(run_state->is_active);
}

static double read_host_clock(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void run_mode(const struct mode *selected, const struct week *week, const char *budget_path,
                     unsigned wait_ms, struct outcome *outcome)
{
    struct run_state run_state = {.mode = selected, .week = week, .outcome = outcome};
    const double start_s = read_host_clock();

    open_run(&run_state, budget_path, wait_ms);
    for (size_t i = 0; i < 2 * week->count; i++) {
        const struct event *event = &week->events[i];

        advance_to(&run_state, event->time_ns);
        if (event->is_start)
            begin_session(&run_state, event->session);
        else
            end_session(&run_state, event->session);
    }
    close_run(&run_state);
    outcome->elapsed_s = read_host_clock() - start_s;
}

/* --- Tables. --- */

static struct counters sum_of_services(const struct outcome *outcome)
{
    const struct counters *a = &outcome->counters[0], *b = &outcome->counters[1];

    return (struct counters){a->started + b->started, a->served + b->served,
                             a->after_release + b->after_release, a->avoidable + b->avoidable,
                             a->byte_ns + b->byte_ns};
}

static double percent(double value, double reference)
{
    return reference == 0 ? 100 : 100 * value / reference;
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
               mode[i].name, counters[0].served, counters[0].started, counters[1].served,
               counters[1].started, percent((double)sum.served, (double)sum.started),
               percent((double)sum.served, (double)reference.served),
               sum.byte_ns / (double)GIB / 3600e9, percent(sum.byte_ns, reference.byte_ns),
               outcome[i].rejected, sum.avoidable, sum.after_release);
    }
    printf("\nof reference: relative to the mode `together`\n"
           "GiB hours: bytes of the served sessions times their duration\n"
           "avoidable: rejected, although the bytes that no block used were sufficient\n"
           "after release: served while the other process released memory\n");
}

static int compare_delays(const void *first, const void *second)
{
    const uint64_t a = total_delay(*(const struct delay *)first),
                   b = total_delay(*(const struct delay *)second);

    return (a > b) - (a < b);
}

/* The quantile `fraction` of sorted delays. */
static struct delay quantile(const struct delay *sorted, size_t count, double fraction)
{
    const struct delay none = {0, 0, 0};

    return count != 0 ? sorted[(size_t)(fraction * (double)(count - 1))] : none;
}

static void sort_delays(struct outcome *outcome, size_t count)
{
    qsort(outcome->delays, outcome->served, sizeof(struct delay), compare_delays);
    qsort(outcome->delays + count - outcome->rejected, outcome->rejected, sizeof(struct delay),
          compare_delays);
}

/* Count the requests that were served with a delay of at most `max_ns`. */
static size_t count_served_within(const struct outcome *outcome, uint64_t max_ns)
{
    size_t count = 0;

    while (count < outcome->served && total_delay(outcome->delays[count]) <= max_ns)
        count++;
    return count;
}

static void print_delays(const struct outcome *outcome, size_t count)
{
    const uint64_t reference = total_delay(quantile(outcome[0].delays, outcome[0].served, 1));

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
        const size_t within = count_served_within(current, reference);
        const struct delay rejected =
            quantile(current->delays + count - current->rejected, current->rejected, 1);

        printf("| %s | %.1f | %.1f | %.1f + %.1f + %.1f | %zu | %.1f %% | %.1f + %.1f + %.1f |\n",
               mode[i].name, (double)total_delay(p99) / 1e6, (double)total_delay(worst) / 1e6,
               (double)worst.own_ns / 1e6, (double)worst.peer_ns / 1e6, (double)worst.wait_ns / 1e6,
               within, percent((double)within, (double)outcome[0].served),
               (double)rejected.own_ns / 1e6, (double)rejected.peer_ns / 1e6,
               (double)rejected.wait_ns / 1e6);
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
static void print_week(const struct week *week, double hours, unsigned wait_ms)
{
    uint64_t current[SERVICES + 1] = {0}, peak[SERVICES + 1] = {0};
    double byte_ns = 0;

    for (unsigned s = 0; s < SERVICES; s++)
        current[s] = services[s].weight_bytes, current[SERVICES] += current[s];
    const double weights = (double)current[SERVICES];
    for (size_t i = 0; i < 2 * week->count; i++) {
        const struct session *session = &week->sessions[week->events[i].session];
        const unsigned rows[2] = {session->service, SERVICES};

        for (unsigned p = 0; p < 2; p++) {
            uint64_t *bytes = &current[rows[p]];

            *bytes = week->events[i].is_start ? *bytes + session->bytes : *bytes - session->bytes;
            peak[rows[p]] = *bytes > peak[rows[p]] ? *bytes : peak[rows[p]];
        }
        if (week->events[i].is_start)
            byte_ns += (double)session->bytes * (double)(session->end_ns - session->start_ns);
    }
    printf("%.0f hours of two services on a GPU of %.0f GiB, %zu sessions: all sessions and the "
           "weights "
           "need %.1f GiB on average,\n"
           "%.1f and %.1f GiB at the peaks of the services, %.1f GiB at the common peak; "
           "budget_wait_ms: %u\n\n",
           hours, (double)GPU_BYTES / (double)GIB, week->count,
           (weights + byte_ns / (hours * 3600e9)) / (double)GIB, (double)peak[0] / (double)GIB,
           (double)peak[1] / (double)GIB, (double)peak[SERVICES] / (double)GIB, wait_ms);
    for (unsigned i = 0; i < MODES; i++)
        printf("  %-16s%s\n", mode[i].name, mode[i].description);
    printf("\n");
}

int main(int argc, char **argv)
{
    static struct outcome outcome[MODES];
    char folder[] = "/dev/shm/xseg-bench-XXXXXX", budget_path[64];
    double hours = WEEK_HOURS;
    unsigned wait_ms = 200;

    for (int i = 1; i < argc; i++) {
        if (i + 1 < argc && strcmp(argv[i], "--hours") == 0) {
            hours = strtod(argv[++i], NULL);
        } else if (i + 1 < argc && strcmp(argv[i], "--return-ms") == 0) {
            wait_ms = (unsigned)strtoul(argv[++i], NULL, 10);
        } else {
            (void)fprintf(stderr, "usage: %s [--hours H] [--return-ms MS]\n", argv[0]);
            return 2;
        }
    }
    const struct week week = week_create(hours);
    require(mkdtemp(folder) != NULL, folder);
    (void)snprintf(budget_path, sizeof(budget_path), "%s/budget_path", folder);
    print_week(&week, hours, wait_ms);
    for (unsigned i = 0; i < MODES; i++) {
        run_mode(&mode[i], &week, budget_path, wait_ms, &outcome[i]);
        (void)fprintf(stderr, "%s: %.1f s\n", mode[i].name, outcome[i].elapsed_s);
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
