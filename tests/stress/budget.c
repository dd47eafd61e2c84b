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

#define PAGE             (2 * MIB)
#define HANG_TIMEOUT_S   120.0 /* only a hang takes longer */
#define SETTLE_TIMEOUT_S 60.0  /* maximum time until the statistics of all members settle */

int cuMemGetInfo_v2(size_t *free, size_t *total);

static struct budget_shared *shared;
static struct xseg_shared_budget budget_file;
static unsigned member_count, round_number;
static pid_t pid[MEMBERS]; /* 0: no process */
static bool is_stopped[MEMBERS];
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

static void kill_all(void)
{
    for (unsigned i = 0; i < MEMBERS; i++)
        if (pid[i] != 0) {
            (void)kill(pid[i], SIGKILL);
            (void)waitpid(pid[i], NULL, 0);
            pid[i] = 0;
        }
}

/* Kill all members, and fail the test. */
#define FAIL(...)                                                                                  \
    do {                                                                                           \
        kill_all();                                                                                \
        print_error("seed %" PRIu64 ", %u members, round %u\n", seed, member_count, round_number); \
        fail_msg(__VA_ARGS__);                                                                     \
    } while (0)

static void start_member(unsigned member)
{
    struct budget_member *state = &shared->member[member];
    const uint64_t member_seed = rng_next(&parent.random) >> 20;

    atomic_store(&state->completed_order, atomic_load(&state->last_order));
    (void)fflush(NULL);
    pid[member] = fork();
    assert_true(pid[member] >= 0);
    if (pid[member] == 0)
        budget_member_run(shared, member, member_seed);
    is_stopped[member] = false;
    counts.started++;
}

static void kill_member(unsigned member)
{
    (void)kill(pid[member], SIGKILL);
    (void)waitpid(pid[member], NULL, 0);
    pid[member] = 0;
    counts.killed++;
}

static void stop_or_continue(unsigned member)
{
    is_stopped[member] = !is_stopped[member];
    (void)kill(pid[member], is_stopped[member] ? SIGSTOP : SIGCONT);
    counts.stopped += is_stopped[member];
}

static void send_order(unsigned member, enum budget_order command)
{
    shared->member[member].order = command;
    (void)atomic_fetch_add(&shared->member[member].last_order, 1);
}

static void wait_for_order(unsigned member)
{
    const struct budget_member *state = &shared->member[member];
    const double deadline = now() + HANG_TIMEOUT_S;

    while (atomic_load(&state->completed_order) != atomic_load(&state->last_order)) {
        int status = 0;

        if (waitpid(pid[member], &status, WNOHANG) == pid[member]) {
            pid[member] = 0;
            FAIL("member %u has exited: status %#x", member, (unsigned)status);
        }
        if (now() > deadline)
            FAIL("member %u hangs with order %c", member, state->order);
        (void)usleep(200);
    }
}

static void order_all_members(enum budget_order command)
{
    for (unsigned i = 0; i < member_count; i++)
        if (pid[i] != 0)
            send_order(i, command);
    for (unsigned i = 0; i < member_count; i++)
        if (pid[i] != 0)
            wait_for_order(i);
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

/* The record of a member in the budget file; NULL: the member has not written one yet. */
static const struct xseg_shared_budget_device *record_of(unsigned member)
{
    for (unsigned slot = 0; slot < XSEG_SHARED_BUDGET_SLOTS; slot++) {
        const struct xseg_shared_budget_entry *entry = &budget_file.entries[slot];

        if (entry->state == XSEG_SHARED_BUDGET_FRESH && entry->record.pid == pid[member] &&
            entry->record.device_count == 1)
            return &entry->record.devices[0];
    }
    return NULL;
}

/* Whether the device, the members and the budget file agree; if not, `text` describes the difference. */
static bool is_consistent(const uint64_t *share, char *text, size_t bytes)
{
    uint64_t used = 0, total = 0, sum = 0;
    unsigned processes = 1; /* the parent has a slot as well */

    order_all_members(ORDER_STATISTICS);
    read_device(&used, &total);
    assert_int_equal(xseg_shared_budget_read(&budget_file), XSEG_OK);
    const unsigned used_slots = budget_file_count(&budget_file);
    for (unsigned i = 0; i < member_count; i++) {
        if (pid[i] == 0)
            continue;
        const struct xseg_shared_budget_device *record = record_of(i);
        processes++;
        sum += shared->member[i].bytes;
        if (record == NULL || record->physical != shared->member[i].bytes || record->demand != 0 ||
            record->share != share[i]) {
            (void)snprintf(text, bytes,
                           "member %u has %" PRIu64 " bytes, and the budget file has %" PRIu64, i,
                           shared->member[i].bytes, record == NULL ? 0 : record->physical);
            return false;
        }
    }
    (void)snprintf(text, bytes,
                   "%" PRIu64 " bytes of the device are in use, and members have %" PRIu64
                   "; %u slots are in use by %u processes",
                   used, sum, used_slots, processes);
    return used == sum && used_slots == processes;
}

static void expect_consistency(const uint64_t *share)
{
    const double deadline = now() + SETTLE_TIMEOUT_S;
    char text[256] = "";

    while (!is_consistent(share, text, sizeof(text))) {
        if (now() > deadline)
            FAIL("%s", text);
        (void)usleep(20000);
    }
}

/* The share of a member according to the budget file; *is_above: for each member, whether it is above its share. */
static uint64_t find_share(unsigned member, bool *is_above)
{
    struct xseg_budget_member input[MEMBERS];
    uint64_t used = 0, total = 0, share = 0;
    unsigned index_of[MEMBERS] = {0}, count = 0;

    read_device(&used, &total);
    for (unsigned i = 0; i < member_count; i++) {
        const struct xseg_shared_budget_device *record = pid[i] != 0 ? record_of(i) : NULL;

        if (record == NULL)
            continue;
        input[count] = (struct xseg_budget_member){
            .physical = record->physical, .idle = record->idle, .configured_share = record->share};
        index_of[count++] = i;
    }
    for (unsigned i = 0; i < count; i++) {
        const struct xseg_budget_split split = xseg_budget_split(input, count, i, total, 0);

        is_above[index_of[i]] = split.above_share != 0;
        if (index_of[i] == member)
            share = split.share;
    }
    return share;
}

/* Expect that a request of a member for its share is served, from the idle memory of members above their shares. */
static void expect_served(unsigned member)
{
    bool is_above[MEMBERS] = {false};
    struct budget_member *state = &shared->member[member];
    const uint64_t share = find_share(member, is_above);
    const uint64_t bytes = share / PAGE * PAGE - xseg_min(share / PAGE * PAGE, 2 * PAGE);
    const double deadline = now() + SETTLE_TIMEOUT_S;

    is_above[member] = true;
    for (unsigned i = 0; i < member_count; i++)
        if (pid[i] != 0 && is_above[i]) {
            send_order(i, ORDER_FREE);
            wait_for_order(i);
        }
    counts.share_requests++;
    do {
        if (now() > deadline)
            FAIL("member %u starves: %" PRIu64 " bytes of its share: %s", member, bytes,
                 state->text);
        state->bytes = bytes;
        send_order(member, ORDER_ALLOCATE);
        wait_for_order(member);
        counts.share_attempts++;
    } while (state->status != XSEG_OK);
    send_order(member, ORDER_FREE_BLOCK);
    wait_for_order(member);
}

/* Draw the configuration of a member for the idle phase; returns its share in the units of the budget file. */
static uint64_t draw_configuration(unsigned member)
{
    static const unsigned shares[] = {0, 0, 0, 10, 20, 40};
    const unsigned percent = shares[below(&parent, COUNT_OF(shares))];

    (void)snprintf(shared->member[member].text, sizeof(shared->member[member].text),
                   "budget_file:%s,budget_wait_ms:2000,budget_min_mb:0,budget_share:%.2f",
                   shared->budget_file, percent / 100.0);
    return (uint64_t)percent * (XSEG_SHARED_BUDGET_FULL_SHARE / 100);
}

static void check_idle_members(void)
{
    uint64_t share[MEMBERS] = {0};
    unsigned member = 0;

    for (unsigned i = 0; i < member_count; i++) {
        if (is_stopped[i] && pid[i] != 0)
            stop_or_continue(i);
        if (pid[i] == 0)
            start_member(i);
    }
    /* The memory of a killed member is available to the others. */
    if (member_count > 2 && below(&parent, 3) == 0)
        kill_member((unsigned)below(&parent, member_count));
    for (unsigned i = 0; i < member_count; i++) {
        share[i] = draw_configuration(i);
        member = pid[i] != 0 && below(&parent, member_count) == 0 ? i : member;
    }
    order_all_members(ORDER_IDLE);
    expect_consistency(share);
    while (pid[member] == 0)
        member = (member + 1) % member_count;
    expect_served(member);
    expect_consistency(share);
    counts.idle_phases++;
}

/* --- While members run. --- */

/* Start, kill, stop or continue a member. */
static void change_member(void)
{
    const unsigned member = (unsigned)below(&parent, member_count);

    if (pid[member] == 0)
        start_member(member);
    else if (counts.killed == 0 || below(&parent, 3) == 0)
        kill_member(member);
    else
        stop_or_continue(member);
}

/* Order a member to free everything, close and exit. */
static void end_member(unsigned member)
{
    const double deadline = now() + HANG_TIMEOUT_S;
    int status = 1;

    send_order(member, ORDER_END);
    while (waitpid(pid[member], &status, WNOHANG) != pid[member]) {
        if (now() > deadline)
            FAIL("member %u hangs as it ends", member);
        (void)usleep(1000);
    }
    pid[member] = 0;
    if (status != 0)
        FAIL("member %u has failed at its end: status %#x", member, (unsigned)status);
}

static void run_rounds(void)
{
    const double deadline = now() + (double)seconds;

    for (round_number = 0; round_number < 3 || now() < deadline; round_number++) {
        const unsigned events = 2 + (unsigned)below(&parent, 6);

        for (unsigned i = 0; i < member_count; i++)
            if (pid[i] != 0)
                send_order(i, ORDER_RUN);
        for (unsigned i = 0; i < events; i++) {
            (void)usleep((useconds_t)(10000 + below(&parent, 120000)));
            change_member();
        }
        check_idle_members();
    }
    for (unsigned i = 0; i < member_count; i++)
        if (pid[i] != 0)
            end_member(i);
}

/* --- Cases. --- */

static int set_up(void **state)
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

static int tear_down(void **state)
{
    kill_all();
    xseg_shared_budget_close(&budget_file);
    (void)munmap(shared, sizeof(*shared));
    return budget_files_end(state);
}

static void print_counts(void)
{
    uint64_t sum[6] = {0};

    for (unsigned i = 0; i < member_count; i++) {
        struct budget_member *state = &shared->member[i];
        const uint64_t counts_of_member[] = {state->requests,        state->denied,
                                             state->commits,         state->changes,
                                             state->budget_requests, state->served};

        for (unsigned k = 0; k < COUNT_OF(counts_of_member); k++)
            sum[k] += counts_of_member[k];
    }
    print_message(
        "# %u members, %u rounds: %u started, %u killed, %u stopped; %" PRIu64 " requests, %" PRIu64
        " denied, %" PRIu64 " commits, %" PRIu64 " changes, %" PRIu64
        " requested from others, %" PRIu64 " of them served; %u shares requested, %u attempts\n",
        member_count, counts.idle_phases, counts.started, counts.killed, counts.stopped, sum[0],
        sum[1], sum[2], sum[3], sum[4], sum[5], counts.share_requests, counts.share_attempts);
}

static void run_members(unsigned count, uint64_t memory)
{
    member_count = count;
    parent.random = (seed + count) * UINT64_C(88172645463325252) | 1;
    shared->sim.memory_bytes = memory;
    shared->block_max = memory / 3;
    shared->sim.shared = shared->sim_name;
    assert_int_equal(xseg_sim_reset(&shared->sim), XSEG_OK);
    assert_int_equal(xseg_shared_budget_open(&budget_file, shared->budget_file), XSEG_OK);
    for (unsigned i = 0; i < member_count; i++)
        start_member(i);
    run_rounds();
    print_counts();
    uint64_t used = 1, total = 0;
    read_device(&used, &total);
    assert_int_equal(used, 0);
    assert_true(counts.killed > 0 && counts.started > member_count);
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
}

TEST_WITH(two_processes_share_a_device, set_up, tear_down)
{
    run_members(2, GIB / 2);
}

TEST_WITH(eight_processes_share_a_device, set_up, tear_down)
{
    run_members(8, GIB);
}

int main(int count, char **arguments)
{
    return stress_main(count, arguments, &seconds, &seed);
}
