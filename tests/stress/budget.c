/* SPDX-License-Identifier: MIT */
/*
 * Processes with two threads each on one shared device with a shared budget file.  They allocate, free, commit, decommit, trim,
 * pause and reconfigure at random, while the parent kills, stops, continues and starts them.  Between two such phases all
 * members are idle, and audits, the used memory of the device, the budget file and the served shares must agree.
 *
 *     test-stress-budget [SECONDS [SEED [CASE]]]
 *
 * SECONDS is the duration of each case; a failure prints its seed.  CASE is a name with wildcards (*).
 */
#include <sys/mman.h>
#include <time.h>

#include "src/base/align.h"
#include "src/base/shared_budget.h"
#include "src/core/budget/budget.h"
#include "tests/stress/budget/member.h"
#include "tests/stress/stress.h"
#include "tests/support/shared_budgets.h"
#include "tests/support/sim_shared.h"

#define PAGE     (2 * MIB)
#define HANG_S   120.0 /* seconds that only a hang exceeds */
#define SETTLE_S 60.0  /* seconds within which statistics settle */

int cuMemGetInfo_v2(size_t *free, size_t *total);

static struct budget_shared *shared;
static struct xseg_shared_budget budget_file;
static unsigned seats, round_number;
static pid_t pid[SEATS]; /* 0: empty seat */
static bool is_stopped[SEATS];
static uint64_t seed = 20261125, seconds = 5;
static struct {
    uint64_t random;
} parent;
static struct {
    unsigned started, killed, stopped, idle_phases, share_requests, share_attempts;
} counts;

static double now(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* --- Members. --- */

static void end_all(void)
{
    for (unsigned i = 0; i < SEATS; i++)
        if (pid[i] != 0) {
            (void)kill(pid[i], SIGKILL);
            (void)waitpid(pid[i], NULL, 0);
            pid[i] = 0;
        }
}

/* Kill all members, and fail the test. */
#define FAIL(...)                                                                           \
    do {                                                                                    \
        end_all();                                                                          \
        print_error("seed %" PRIu64 ", %u members, round %u\n", seed, seats, round_number); \
        fail_msg(__VA_ARGS__);                                                              \
    } while (0)

static void start(unsigned seat)
{
    struct budget_seat *place = &shared->seat[seat];
    const uint64_t member_seed = rng_next(&parent.random) >> 20;

    atomic_store(&place->done, atomic_load(&place->ordered));
    (void)fflush(NULL);
    pid[seat] = fork();
    assert_true(pid[seat] >= 0);
    if (pid[seat] == 0)
        budget_member(shared, seat, member_seed);
    is_stopped[seat] = false;
    counts.started++;
}

static void kill_one(unsigned seat)
{
    (void)kill(pid[seat], SIGKILL);
    (void)waitpid(pid[seat], NULL, 0);
    pid[seat] = 0;
    counts.killed++;
}

static void stop_or_continue(unsigned seat)
{
    is_stopped[seat] = !is_stopped[seat];
    (void)kill(pid[seat], is_stopped[seat] ? SIGSTOP : SIGCONT);
    counts.stopped += is_stopped[seat];
}

static void order(unsigned seat, enum budget_order command)
{
    shared->seat[seat].order = command;
    (void)atomic_fetch_add(&shared->seat[seat].ordered, 1);
}

static void await(unsigned seat)
{
    const struct budget_seat *place = &shared->seat[seat];
    const double until = now() + HANG_S;

    while (atomic_load(&place->done) != atomic_load(&place->ordered)) {
        int status = 0;

        if (waitpid(pid[seat], &status, WNOHANG) == pid[seat]) {
            pid[seat] = 0;
            FAIL("member %u has exited: status %#x", seat, (unsigned)status);
        }
        if (now() > until)
            FAIL("member %u hangs with order %c", seat, place->order);
        (void)usleep(200);
    }
}

static void order_all(enum budget_order command)
{
    for (unsigned i = 0; i < seats; i++)
        if (pid[i] != 0)
            order(i, command);
    for (unsigned i = 0; i < seats; i++)
        if (pid[i] != 0)
            await(i);
}

/* --- Checks while all members are idle. --- */

static void read_device(uint64_t *used, uint64_t *total)
{
    size_t free = 0, all = 0;

    env_context_push(0);
    assert_int_equal(cuMemGetInfo_v2(&free, &all), 0);
    env_context_pop(0);
    *used = all - free;
    *total = all;
}

/* The record of a member in the budget file; NULL: none yet. */
static const struct xseg_shared_budget_device *record_of(unsigned seat)
{
    for (unsigned slot = 0; slot < XSEG_SHARED_BUDGET_SLOTS; slot++) {
        const struct xseg_shared_budget_entry *entry = &budget_file.seen[slot];

        if (entry->state == XSEG_SHARED_BUDGET_FRESH && entry->record.pid == pid[seat] &&
            entry->record.device_count == 1)
            return &entry->record.devices[0];
    }
    return NULL;
}

/* Whether the device, the members and the budget file agree; if not, `text` describes the difference. */
static bool agrees(const uint64_t *share, char *text, size_t bytes)
{
    uint64_t used = 0, total = 0, sum = 0;
    unsigned living = 1; /* the parent has a slot as well */

    order_all(ORDER_STATISTICS);
    read_device(&used, &total);
    assert_int_equal(xseg_shared_budget_read(&budget_file), XSEG_OK);
    const unsigned held = budget_file_count(&budget_file);
    for (unsigned i = 0; i < seats; i++) {
        if (pid[i] == 0)
            continue;
        const struct xseg_shared_budget_device *record = record_of(i);
        living++;
        sum += shared->seat[i].bytes;
        if (record == NULL || record->physical != shared->seat[i].bytes || record->demand != 0 ||
            record->share != share[i]) {
            (void)snprintf(text, bytes,
                           "member %u has %" PRIu64 " bytes, and the budget file has %" PRIu64, i,
                           shared->seat[i].bytes, record == NULL ? 0 : record->physical);
            return false;
        }
    }
    (void)snprintf(text, bytes,
                   "%" PRIu64 " bytes of the device are in use, and members have %" PRIu64
                   "; %u slots are in use by %u processes",
                   used, sum, held, living);
    return used == sum && held == living;
}

static void expect_agreement(const uint64_t *share)
{
    const double until = now() + SETTLE_S;
    char text[256] = "";

    while (!agrees(share, text, sizeof(text))) {
        if (now() > until)
            FAIL("%s", text);
        (void)usleep(20000);
    }
}

/* The share of a member according to the budget file; *is_above: for each member, whether it is above its share. */
static uint64_t find_share(unsigned seat, bool *is_above)
{
    struct xseg_budget_member member[SEATS];
    uint64_t used = 0, total = 0, share = 0;
    unsigned at[SEATS] = {0}, count = 0;

    read_device(&used, &total);
    for (unsigned i = 0; i < seats; i++) {
        const struct xseg_shared_budget_device *record = pid[i] != 0 ? record_of(i) : NULL;

        if (record == NULL)
            continue;
        member[count] = (struct xseg_budget_member){
            .physical = record->physical, .idle = record->idle, .named_share = record->share};
        at[count++] = i;
    }
    for (unsigned i = 0; i < count; i++) {
        const struct xseg_budget_split split = xseg_budget_split(member, count, i, total, 0);

        is_above[at[i]] = split.above_share != 0;
        if (at[i] == seat)
            share = split.share;
    }
    return share;
}

/* A member that requests its share gets it, from the idle memory of members above their shares. */
static void expect_served(unsigned seat)
{
    bool is_above[SEATS] = {false};
    struct budget_seat *place = &shared->seat[seat];
    const uint64_t share = find_share(seat, is_above);
    const uint64_t bytes = share / PAGE * PAGE - xseg_min(share / PAGE * PAGE, 2 * PAGE);
    const double until = now() + SETTLE_S;

    is_above[seat] = true;
    for (unsigned i = 0; i < seats; i++)
        if (pid[i] != 0 && is_above[i]) {
            order(i, ORDER_FREE);
            await(i);
        }
    counts.share_requests++;
    do {
        if (now() > until)
            FAIL("member %u starves: %" PRIu64 " bytes of its share: %s", seat, bytes, place->text);
        place->bytes = bytes;
        order(seat, ORDER_ALLOCATE);
        await(seat);
        counts.share_attempts++;
    } while (place->status != XSEG_OK);
    order(seat, ORDER_FREE_BLOCK);
    await(seat);
}

/* Configure a member for the idle phase; returns its share in the units of the budget file. */
static uint64_t configure(unsigned seat)
{
    static const unsigned percent[] = {0, 0, 0, 10, 20, 40};
    const unsigned named = percent[below(&parent, COUNT_OF(percent))];

    (void)snprintf(shared->seat[seat].text, sizeof(shared->seat[seat].text),
                   "budget_file:%s,budget_wait_ms:2000,budget_min_mb:0,budget_share:%.2f",
                   shared->budget_file, named / 100.0);
    return (uint64_t)named * (XSEG_SHARED_BUDGET_WHOLE_SHARE / 100);
}

static void check_idle(void)
{
    uint64_t share[SEATS] = {0};
    unsigned seat = 0;

    for (unsigned i = 0; i < seats; i++) {
        if (is_stopped[i] && pid[i] != 0)
            stop_or_continue(i);
        if (pid[i] == 0)
            start(i);
    }
    /* A member may be missing, and its memory with it. */
    if (seats > 2 && below(&parent, 3) == 0)
        kill_one((unsigned)below(&parent, seats));
    for (unsigned i = 0; i < seats; i++) {
        share[i] = configure(i);
        seat = pid[i] != 0 && below(&parent, seats) == 0 ? i : seat;
    }
    order_all(ORDER_IDLE);
    expect_agreement(share);
    while (pid[seat] == 0)
        seat = (seat + 1) % seats;
    expect_served(seat);
    expect_agreement(share);
    counts.idle_phases++;
}

/* --- While members run. --- */

static void disturb(void)
{
    const unsigned seat = (unsigned)below(&parent, seats);

    if (pid[seat] == 0)
        start(seat);
    else if (counts.killed == 0 || below(&parent, 3) == 0)
        kill_one(seat);
    else
        stop_or_continue(seat);
}

/* Let a member free everything, close and exit. */
static void end_member(unsigned seat)
{
    const double until = now() + HANG_S;
    int status = 1;

    order(seat, ORDER_END);
    while (waitpid(pid[seat], &status, WNOHANG) != pid[seat]) {
        if (now() > until)
            FAIL("member %u hangs as it ends", seat);
        (void)usleep(1000);
    }
    pid[seat] = 0;
    if (status != 0)
        FAIL("member %u has failed at its end: status %#x", seat, (unsigned)status);
}

static void play(void)
{
    const double until = now() + (double)seconds;

    for (round_number = 0; round_number < 3 || now() < until; round_number++) {
        const unsigned events = 2 + (unsigned)below(&parent, 6);

        for (unsigned i = 0; i < seats; i++)
            if (pid[i] != 0)
                order(i, ORDER_PLAY);
        for (unsigned i = 0; i < events; i++) {
            (void)usleep((useconds_t)(10000 + below(&parent, 120000)));
            disturb();
        }
        check_idle();
    }
    for (unsigned i = 0; i < seats; i++)
        if (pid[i] != 0)
            end_member(i);
}

/* --- Cases. --- */

static int begin(void **state)
{
    memset(&counts, 0, sizeof(counts));
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !sim_shared_name(shared->sim_name, sizeof(shared->sim_name)))
        return -1;
    if (budget_files_begin(state) != 0)
        return -1;
    (void)snprintf(shared->budget_file, sizeof(shared->budget_file), "%s", budget_file_path);
    shared->sim = (struct xseg_sim_settings){sizeof(shared->sim)};
    return 0;
}

static int end(void **state)
{
    end_all();
    xseg_shared_budget_close(&budget_file);
    (void)munmap(shared, sizeof(*shared));
    return budget_files_end(state);
}

static void print_counts(void)
{
    uint64_t sum[6] = {0};

    for (unsigned i = 0; i < seats; i++) {
        struct budget_seat *place = &shared->seat[i];
        const uint64_t counts_of_seat[] = {place->requests, place->denied,          place->commits,
                                           place->changes,  place->budget_requests, place->served};

        for (unsigned k = 0; k < COUNT_OF(counts_of_seat); k++)
            sum[k] += counts_of_seat[k];
    }
    print_message(
        "# %u members, %u rounds: %u started, %u killed, %u stopped; %" PRIu64 " requests, %" PRIu64
        " denied, %" PRIu64 " commits, %" PRIu64 " changes, %" PRIu64
        " requested from others, %" PRIu64 " of them served; %u shares requested, %u attempts\n",
        seats, counts.idle_phases, counts.started, counts.killed, counts.stopped, sum[0], sum[1],
        sum[2], sum[3], sum[4], sum[5], counts.share_requests, counts.share_attempts);
}

static void run_members(unsigned members, uint64_t memory)
{
    seats = members;
    parent.random = (seed + members) * UINT64_C(88172645463325252) | 1;
    shared->sim.memory_bytes = memory;
    shared->block_max = memory / 3;
    shared->sim.shared = shared->sim_name;
    assert_int_equal(xseg_sim_reset(&shared->sim), XSEG_OK);
    assert_int_equal(xseg_shared_budget_open(&budget_file, shared->budget_file), XSEG_OK);
    for (unsigned i = 0; i < seats; i++)
        start(i);
    play();
    print_counts();
    uint64_t used = 1, total = 0;
    read_device(&used, &total);
    assert_int_equal(used, 0);
    assert_true(counts.killed > 0 && counts.started > seats);
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
}

TEST_WITH(two_processes_share_a_device, begin, end)
{
    run_members(2, GIB / 2);
}

TEST_WITH(eight_processes_share_a_device, begin, end)
{
    run_members(8, GIB);
}

int main(int count, char **arguments)
{
    return stress_main(count, arguments, &seconds, &seed);
}
