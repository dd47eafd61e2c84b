/* SPDX-License-Identifier: MIT */
/*
 * How much of two services whose peaks are independent does one card serve, by how they share it?
 *
 *   bench-budget [--hours H] [--return-ms MS]
 *
 * Two services (sessions.h) have a week on a simulated card of 40 GiB that costs what an A100 does: in one process, or each
 * in a process of its own (server.h).  Their means fit beside each other, their peaks do not.  A session whose blocks are
 * not all to be had is not served.
 *
 * The processes go in lock step: each happening is done before the next, on clocks that only orders move.  So everything is
 * counted or modelled, the same each time, but for the time that a request waits for another process: that is the
 * machine's.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "benchmarks/budget/server.h"

#define CARD_BYTES  (40 * GIB)
#define CONFIG_MOST 512u
#define DECAY       "idle_ms:120000"

/* How the services share the card. */
struct way {
    const char *name, *what;
    const char *config;
    unsigned processes;
    bool ticks;  /* trim_due() every ten seconds, for decay */
    bool budget; /* with the ledger */
};

static const struct way way[] = {
    {"together", "one process serves both: the yardstick", "", 1, false, false},
    {"halves", "per_process_memory_fraction:0.5 each", ",per_process_memory_fraction:0.5", 2, false,
     false},
    {"decayed", DECAY " each, with trim_due() every ten seconds", "," DECAY, 2, true, false},
    {"budget", "budget_file and budget_share:0.5 each", "", 2, false, true},
    {"budget, decayed", "both", "," DECAY, 2, true, true},
};
#define WAYS (sizeof(way) / sizeof(way[0]))

/* What came of a service. */
struct tally {
    uint64_t came, served, lent; /* sessions; served with what the other process gave meanwhile */
    uint64_t needless;           /* refused, although as much as they need was in no block */
    double load;                 /* of those that were served: bytes times nanoseconds */
};

/* What comes of requests: served without the other process, with memory of it, not at all. */
enum kind { SERVED, LENT, REFUSED, KINDS };

/* The time that a request takes for want of memory, in nanoseconds. */
struct delay {
    uint64_t own;    /* in its driver calls: modelled */
    uint64_t others; /* in those of the other process meanwhile: modelled */
    uint64_t waited; /* for the other process: measured */
};

struct outcome {
    struct tally tally[SERVICES];
    struct delay *delays; /* of the requests that were served, and behind them the refused ones */
    size_t served, refused;
    uint64_t waits[KINDS]; /* calls of requests that wait for the device */
    uint64_t calls[CALLS], driver_ns;
    double physical; /* bytes of the card, weighted by time */
    double took_s;   /* of the machine */
};

/* A way under way. */
struct play {
    const struct way *way;
    const struct week *week;
    struct server server[SERVICES];
    struct server_answer last[SERVICES]; /* of each process */
    bool *is_live;                       /* of each session */
    uint64_t live_bytes, at_ns;
    struct outcome *outcome;
};

static uint64_t total(struct delay delay)
{
    return delay.own + delay.others + delay.waited;
}

/* --- One way. --- */

static struct server_answer tell(struct play *play, unsigned process, enum server_task task,
                                 uint32_t session)
{
    const struct server_order order = {task, session, play->at_ns};

    play->last[process] = server_do(&play->server[process], order);
    return play->last[process];
}

/* The memory of the processes up to a time is what they had after the last happening. */
static void pass(struct play *play, uint64_t at_ns)
{
    for (unsigned i = 0; i < play->way->processes; i++)
        play->outcome->physical += (double)play->last[i].physical * (double)(at_ns - play->at_ns);
    play->at_ns = at_ns;
}

static void count(struct play *play, const struct session *session, bool served, bool was_lent)
{
    struct tally *tally = &play->outcome->tally[session->service];
    const double load = (double)session->bytes * (double)(session->end_ns - session->begin_ns);

    tally->came++;
    tally->served += served;
    tally->load += served ? load : 0;
    tally->lent += served && was_lent;
    tally->needless += !served && play->live_bytes + session->bytes <= CARD_BYTES;
}

/*
 * The other process takes its looks before the request, and is asked afterwards what it did meanwhile.  A request may have
 * asked in vain and been served by its own process, so each that took as long as the shortest wait is charged for it.
 */
static void begin(struct play *play, uint32_t number)
{
    const struct session *session = &play->week->sessions[number];
    const bool has_other = play->way->processes > 1;
    const unsigned own = has_other ? session->service : 0, other = 1 - own;
    struct outcome *outcome = play->outcome;
    struct server_answer before = {0}, after = {0};

    if (has_other)
        before = tell(play, other, SERVER_LOOK, 0);
    const struct server_answer answer = tell(play, own, SERVER_BEGIN, number);
    if (has_other)
        after = tell(play, other, SERVER_LOOK, 0);
    const bool was_lent = after.physical < before.physical;
    const struct delay delay = {
        .own = answer.driver_ns,
        .others = after.all_driver_ns - before.all_driver_ns,
        .waited =
            play->way->budget && (was_lent || !answer.served || answer.host_ns >= MILLISECOND_NS)
                ? answer.host_ns
                : 0,
    };
    count(play, session, answer.served, was_lent);
    play->is_live[number] = answer.served;
    play->live_bytes += answer.served ? session->bytes : 0;
    if (answer.served)
        outcome->delays[outcome->served++] = delay;
    else
        outcome->delays[play->week->count - ++outcome->refused] = delay;
    outcome->waits[!answer.served ? REFUSED : was_lent ? LENT : SERVED] += answer.waits;
}

static void end(struct play *play, uint32_t number)
{
    const struct session *session = &play->week->sessions[number];

    if (!play->is_live[number])
        return;
    (void)tell(play, play->way->processes > 1 ? session->service : 0, SERVER_END, number);
    play->live_bytes -= session->bytes;
}

static void configure(const struct way *one, const char *ledger, unsigned return_ms, char *config)
{
    (void)snprintf(config, CONFIG_MOST, "expandable_segments:True%s", one->config);
    if (one->budget)
        (void)snprintf(config + strlen(config), CONFIG_MOST - strlen(config),
                       ",budget_file:%s,budget_share:0.5,budget_wait_ms:%u", ledger, return_ms);
}

static void open_play(struct play *play, const char *ledger, unsigned return_ms)
{
    char config[CONFIG_MOST], name[64];
    const struct server_machine machine = {name, CARD_BYTES};

    (void)snprintf(name, sizeof(name), "bench-budget-%d", (int)getpid());
    configure(play->way, ledger, return_ms, config);
    play->is_live = calloc(play->week->count + 1, sizeof(*play->is_live));
    play->outcome->delays = calloc(play->week->count + 1, sizeof(*play->outcome->delays));
    require(play->is_live != NULL && play->outcome->delays != NULL, "no host memory");
    for (unsigned i = 0; i < SERVICES; i++)
        play->live_bytes += services[i].weight_bytes;
    for (unsigned i = 0; i < play->way->processes; i++)
        play->server[i] =
            server_start(&machine, play->week, play->way->processes > 1 ? 1u << i : 3u, config,
                         play->way->ticks);
}

static void close_play(struct play *play)
{
    for (unsigned i = 0; i < play->way->processes; i++) {
        const struct server_answer answer = server_end(&play->server[i], play->at_ns);

        play->outcome->driver_ns += answer.all_driver_ns;
        for (unsigned c = 0; c < CALLS; c++)
            play->outcome->calls[c] += answer.calls[c];
    }
    play->outcome->physical /= play->at_ns != 0 ? (double)play->at_ns : 1;
    free(play->is_live);
}

static double read_machine_clock(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void run(const struct way *one, const struct week *week, const char *ledger,
                unsigned return_ms, struct outcome *outcome)
{
    struct play play = {.way = one, .week = week, .outcome = outcome};
    const double began = read_machine_clock();

    open_play(&play, ledger, return_ms);
    for (size_t i = 0; i < 2 * week->count; i++) {
        const struct happening *happening = &week->happenings[i];

        pass(&play, happening->at_ns);
        if (happening->is_begin)
            begin(&play, happening->session);
        else
            end(&play, happening->session);
    }
    close_play(&play);
    outcome->took_s = read_machine_clock() - began;
}

/* --- The tables. --- */

static struct tally both(const struct outcome *outcome)
{
    const struct tally *a = &outcome->tally[0], *b = &outcome->tally[1];

    return (struct tally){a->came + b->came, a->served + b->served, a->lent + b->lent,
                          a->needless + b->needless, a->load + b->load};
}

static double percent(double part, double whole)
{
    return whole == 0 ? 100 : 100 * part / whole;
}

static void print_served(const struct outcome *outcome)
{
    const struct tally yard = both(&outcome[0]);

    printf("Sessions, counted\n\n"
           "| way | served of %s | of %s | served | of together's | GiB hours | of together's | "
           "refused | needlessly | "
           "lent |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n",
           services[0].name, services[1].name);
    for (unsigned i = 0; i < WAYS; i++) {
        const struct tally sum = both(&outcome[i]);
        const struct tally *one = outcome[i].tally;

        printf("| %s | %" PRIu64 " of %" PRIu64 " | %" PRIu64 " of %" PRIu64
               " | %.1f %% | %.1f %% | %.0f | %.1f %% | %zu | %" PRIu64 " | %" PRIu64 " |\n",
               way[i].name, one[0].served, one[0].came, one[1].served, one[1].came,
               percent((double)sum.served, (double)sum.came),
               percent((double)sum.served, (double)yard.served), sum.load / (double)GIB / 3600e9,
               percent(sum.load, yard.load), outcome[i].refused, sum.needless, sum.lent);
    }
    printf("\nGiB hours: bytes of the served sessions times their time\n"
           "needlessly: as many bytes as the session needs were in no block, wherever\n"
           "lent: served while the other process gave memory back\n");
}

static int compare(const void *left, const void *right)
{
    const uint64_t a = total(*(const struct delay *)left), b = total(*(const struct delay *)right);

    return (a > b) - (a < b);
}

/* The delay that a part of the requests has at the most. */
static struct delay quantile(const struct delay *sorted, size_t count, double part)
{
    const struct delay none = {0, 0, 0};

    return count != 0 ? sorted[(size_t)(part * (double)(count - 1))] : none;
}

static void sort_delays(struct outcome *outcome, size_t count)
{
    qsort(outcome->delays, outcome->served, sizeof(struct delay), compare);
    qsort(outcome->delays + count - outcome->refused, outcome->refused, sizeof(struct delay),
          compare);
}

/* How many requests were served with no more delay than some time. */
static size_t served_within(const struct outcome *outcome, uint64_t time)
{
    size_t some = 0;

    while (some < outcome->served && total(outcome->delays[some]) <= time)
        some++;
    return some;
}

static void print_delays(const struct outcome *outcome, size_t count)
{
    const uint64_t yard = total(quantile(outcome[0].delays, outcome[0].served, 1));

    printf("\nWhat shortage adds to a request, ms: in its driver calls and in those of the other "
           "process meanwhile, both "
           "modelled,\nand waiting for that, measured\n\n"
           "| way | served: p99 | worst | of which own + other's + waiting | within together's "
           "worst | of together's | "
           "refused: worst, of which |\n"
           "|---|---|---|---|---|---|---|\n");
    for (unsigned i = 0; i < WAYS; i++) {
        const struct outcome *one = &outcome[i];
        const struct delay worst = quantile(one->delays, one->served, 1);
        const struct delay usual = quantile(one->delays, one->served, 0.99);
        const size_t within = served_within(one, yard);

        const struct delay never = quantile(one->delays + count - one->refused, one->refused, 1);

        printf("| %s | %.1f | %.1f | %.1f + %.1f + %.1f | %zu | %.1f %% | %.1f + %.1f + %.1f |\n",
               way[i].name, (double)total(usual) / 1e6, (double)total(worst) / 1e6,
               (double)worst.own / 1e6, (double)worst.others / 1e6, (double)worst.waited / 1e6,
               within, percent((double)within, (double)outcome[0].served), (double)never.own / 1e6,
               (double)never.others / 1e6, (double)never.waited / 1e6);
    }
}

static void print_calls(const struct outcome *outcome)
{
    printf("\nCalls in which requests wait for the device, counted; driver calls of all processes, "
           "counted, their time, "
           "modelled;\nphysical is what the processes have of the card, weighted by time\n\n"
           "| way | waits: served | lent | refused | physical GiB | driver s |");
    for (unsigned c = 0; c < CALLS; c++)
        printf(" %s |", server_call[c]);
    printf("\n|---|---|---|---|---|---|");
    for (unsigned c = 0; c < CALLS; c++)
        printf("---|");
    for (unsigned i = 0; i < WAYS; i++) {
        const uint64_t *waits = outcome[i].waits;

        printf("\n| %s | %" PRIu64 " | %" PRIu64 " | %" PRIu64 " | %.2f | %.1f |", way[i].name,
               waits[SERVED], waits[LENT], waits[REFUSED], outcome[i].physical / (double)GIB,
               (double)outcome[i].driver_ns / 1e9);
        for (unsigned c = 0; c < CALLS; c++)
            printf(" %" PRIu64 " |", outcome[i].calls[c]);
    }
    printf("\n");
}

/* How much the sessions that come need on average and at the most, each service by itself and both. */
static void print_week(const struct week *week, double hours, unsigned return_ms)
{
    uint64_t live[SERVICES + 1] = {0}, peak[SERVICES + 1] = {0};
    double load = 0;

    for (unsigned s = 0; s < SERVICES; s++)
        live[s] = services[s].weight_bytes, live[SERVICES] += live[s];
    const double weights = (double)live[SERVICES];
    for (size_t i = 0; i < 2 * week->count; i++) {
        const struct session *session = &week->sessions[week->happenings[i].session];
        const unsigned places[2] = {session->service, SERVICES};

        for (unsigned p = 0; p < 2; p++) {
            uint64_t *bytes = &live[places[p]];

            *bytes =
                week->happenings[i].is_begin ? *bytes + session->bytes : *bytes - session->bytes;
            peak[places[p]] = *bytes > peak[places[p]] ? *bytes : peak[places[p]];
        }
        if (week->happenings[i].is_begin)
            load += (double)session->bytes * (double)(session->end_ns - session->begin_ns);
    }
    printf("%.0f hours of two services on a card of %.0f GiB, %zu sessions: with the weights they "
           "would need %.1f GiB on average,\n"
           "%.1f and %.1f GiB at their peaks, %.1f GiB both at once; budget_wait_ms is %u\n\n",
           hours, (double)CARD_BYTES / (double)GIB, week->count,
           (weights + load / (hours * 3600e9)) / (double)GIB, (double)peak[0] / (double)GIB,
           (double)peak[1] / (double)GIB, (double)peak[SERVICES] / (double)GIB, return_ms);
    for (unsigned i = 0; i < WAYS; i++)
        printf("  %-16s%s\n", way[i].name, way[i].what);
    printf("\n");
}

int main(int argc, char **argv)
{
    static struct outcome outcome[WAYS];
    char folder[] = "/dev/shm/xseg-bench-XXXXXX", ledger[64];
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
    (void)snprintf(ledger, sizeof(ledger), "%s/ledger", folder);
    print_week(&week, hours, return_ms);
    for (unsigned i = 0; i < WAYS; i++) {
        run(&way[i], &week, ledger, return_ms, &outcome[i]);
        (void)fprintf(stderr, "%s: %.1f s\n", way[i].name, outcome[i].took_s);
        (void)unlink(ledger);
    }
    (void)rmdir(folder);
    print_served(outcome);
    for (unsigned i = 0; i < WAYS; i++)
        sort_delays(&outcome[i], week.count);
    print_delays(outcome, week.count);
    print_calls(outcome);
    free(week.sessions);
    free(week.happenings);
    return 0;
}
