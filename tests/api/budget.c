/* SPDX-License-Identifier: MIT */
/* Processes that share a device by a budget file: requests, releases, waits, and invalid files. */
#include "tests/support/history_list.h"
#include "tests/support/members.h"
#include "tests/support/trim_due.h"

TEST_OF_TWO_MEMBERS(idle_memory_moves_to_another_member_and_back, members_end)
{
    member_make_idle(one, 900 * MIB);
    assert_int_equal(member_call(one, ' ', 0, 0).taken, 900 * MIB);
    /* 400 MiB are within the share of 512; 124 of 1024 are free. */
    assert_int_equal(member_expect_ok(other, 'a', 0, 400 * MIB).taken, 400 * MIB);
    assert_in_range(member_call(one, ' ', 0, 0).taken, 500 * MIB, 624 * MIB);
    /* The other member releases its idle memory. */
    assert_ok(member_call(other, 'f', 0, 0).status);
    EXPECT_OK(member_call(one, 'a', 0, 900 * MIB));
    assert_true(member_call(other, ' ', 0, 0).taken <= 124 * MIB);
}

/* The others also release the memory that the member leaves free. */
TEST_WITH(memory_that_remains_free_is_requested, members_begin, members_end)
{
    const unsigned one = member_start(""), other = member_start("device_free_min_mb:100");

    member_make_idle(one, 900 * MIB);
    assert_int_equal(member_expect_ok(other, 'a', 0, 400 * MIB).taken, 400 * MIB);
    assert_in_range(member_call(one, ' ', 0, 0).taken, 500 * MIB, 524 * MIB);
}

/* A member requests 400 MiB, and is denied because another member, *one, has allocated 900 MiB. */
static struct member_answer request_in_vain(unsigned *one)
{
    *one = member_start("");
    const unsigned other = member_start("");

    assert_ok(member_call(*one, 'a', 0, 900 * MIB).status);
    assert_ok(member_call(other, 'a', 0, 20 * MIB).status);
    return member_expect_denied(other, 'a', 1, 400 * MIB);
}

TEST_WITH(allocated_memory_is_not_reclaimed, members_begin, members_end)
{
    unsigned one;
    const struct member_answer answer = request_in_vain(&one);

    assert_non_null(strstr(answer.text, "used by others"));
    assert_int_equal(member_call(one, ' ', 0, 0).taken, 900 * MIB);
    assert_int_equal(answer.lines, 0);
}

/* Pages created while waiting would count as missing memory for the others. */
TEST_WITH(waiting_member_creates_no_pages, members_begin, members_end)
{
    unsigned one;
    const struct member_answer answer = request_in_vain(&one);

    /* The free 104 MiB are 52 small pages; some steps before and after the wait try to create each once. */
    assert_true(answer.creates < 10 * 52);
}

TEST_WITH(release_keeps_the_minimum_of_a_member, members_begin, members_end)
{
    const unsigned one = member_start("budget_share:0.25,budget_min_mb:300"),
                   other = member_start("budget_share:0.75");

    member_make_idle(one, 700 * MIB);
    assert_ok(member_call(other, 'a', 0, 700 * MIB).status);
    assert_in_range(member_call(one, ' ', 0, 0).taken, 300 * MIB, 324 * MIB);
    (void)member_expect_denied(other, 'a', 1, 100 * MIB);
    assert_true(member_call(one, ' ', 0, 0).taken >= 300 * MIB);
}

TEST_WITH(ranges_and_classic_segments_take_part, members_begin, members_end)
{
    const unsigned one = member_start("expandable_segments:False"), other = member_start("");

    for (unsigned i = 0; i < 9; i++)
        assert_ok(member_call(one, 'a', i, 100 * MIB).status);
    for (unsigned i = 0; i < 9; i++)
        assert_ok(member_call(one, 'f', i, 0).status);
    assert_int_equal(member_expect_ok(other, 'c', 0, 512 * MIB).allocated, 512 * MIB);
    EXPECT_OK(member_call(one, 'a', 0, 400 * MIB));
}

TEST_OF_TWO_MEMBERS(resumed_pool_requests_memory, members_end)
{
    assert_ok(member_call(one, 'p', 0, 500 * MIB).status);
    assert_ok(member_call(one, 's', 0, 0).status);
    assert_ok(member_call(other, 'a', 0, 900 * MIB).status);
    (void)member_expect_denied(one, 'w', 0, 0);
    assert_ok(member_call(other, 'f', 0, 0).status);
    (void)usleep(200000);
    assert_int_equal(member_expect_ok(one, 'w', 0, 0).taken, 500 * MIB);
}

/* Idle memory of a retained pool cannot be released. */
TEST_OF_TWO_MEMBERS(memory_of_a_retained_pool_is_not_awaited, members_end)
{
    assert_ok(member_call(one, 'p', 0, 900 * MIB).status);
    assert_ok(member_call(one, 'f', 0, 0).status);
    (void)member_expect_denied(other, 'a', 0, 400 * MIB);
    assert_int_equal(member_call(one, ' ', 0, 0).idle, 900 * MIB);
    assert_ok(member_call(one, 'p', 1, 600 * MIB).status);
}

TEST_OF_TWO_MEMBERS(captures_send_no_request, members_end)
{
    member_make_idle(one, 900 * MIB);
    assert_ok(member_call(other, 'a', 1, 2 * MIB).status);
    assert_ok(member_call(other, 'm', 0, 0).status);
    (void)member_expect_denied(other, 'a', 0, 400 * MIB);
    assert_ok(member_call(other, 'u', 0, 0).status);
    assert_int_equal(member_call(one, ' ', 0, 0).taken, 900 * MIB);
    assert_ok(member_call(one, 'm', 0, 0).status);
    (void)member_expect_denied(other, 'a', 0, 400 * MIB);
    assert_int_equal(member_call(one, ' ', 0, 0).taken, 900 * MIB);
    assert_ok(member_call(one, 'u', 0, 0).status);
    assert_ok(member_call(other, 'a', 0, 400 * MIB).status);
}

TEST_WITH(killed_and_stopped_members_block_no_others, members_begin, members_end)
{
    const unsigned one = member_start(""), other = member_start(""), third = member_start("");

    assert_ok(member_call(one, 'a', 0, 600 * MIB).status);
    member_make_idle(third, 300 * MIB);
    (void)kill(members.process[third].pid, SIGSTOP);
    (void)member_expect_denied(other, 'a', 0, 300 * MIB);
    member_kill(one);
    assert_ok(member_call(other, 'a', 0, 600 * MIB).status);
    (void)kill(members.process[third].pid, SIGCONT);
    EXPECT_OK(member_call(other, 'a', 1, 200 * MIB));
}

TEST_WITH(members_below_their_share_are_served_first, members_begin, members_end)
{
    const unsigned one = member_start(""), greedy = member_start(""), poor = member_start("");

    assert_ok(member_call(one, 'a', 0, 400 * MIB).status);
    assert_ok(member_call(greedy, 'a', 0, 600 * MIB).status);
    assert_ok(member_call(one, 'f', 0, 0).status);
    member_send(greedy, 'a', 1, 380 * MIB);
    member_send(poor, 'a', 0, 300 * MIB);
    const struct member_answer denied = member_receive(greedy), served = member_receive(poor);
    /* `greedy` may be served before `poor` requests. */
    assert_true(served.status == XSEG_OK || denied.status == XSEG_OK);
    assert_true(served.ns < BOUND && denied.ns < BOUND);
}

/* Two members whose requests exceed their shares wait for a third member, not for each other. */
TEST_WITH(members_above_their_share_do_not_deadlock, members_begin, members_end)
{
    const unsigned one = member_start("page_size:small"), two = member_start("page_size:small"),
                   third = member_start("page_size:small");

    assert_ok(member_call(one, 'a', 0, 250 * MIB).status);
    assert_ok(member_call(two, 'a', 0, 250 * MIB).status);
    for (unsigned i = 0; i < 6; i++) {
        member_make_idle(third, 500 * MIB);
        /* Rounds that read the previous demands have ended. */
        (void)usleep(50000);
        member_send(one, 'a', 1, 120 * MIB);
        member_send(two, 'a', 1, 120 * MIB);
        EXPECT_OK(member_receive(one));
        EXPECT_OK(member_receive(two));
        for (unsigned number = one; number <= two; number++) {
            assert_ok(member_call(number, 'f', 1, 0).status);
            assert_ok(member_call(number, 't', 0, 0).status);
        }
    }
}

static void write_file(const char *text, mode_t mode)
{
    const int file = open(members.budget_file, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(file, mode), 0);
    (void)close(file);
}

TEST_WITH(invalid_budget_file_is_logged_once, members_begin, members_end)
{
    struct stat before, after;

    write_file("a text file\n", 0600);
    assert_int_equal(stat(members.budget_file, &before), 0);
    const unsigned one = member_start("");
    assert_ok(member_call(one, 'a', 0, 900 * MIB).status);
    (void)member_expect_denied(one, 'a', 1, 300 * MIB);
    (void)usleep(1200000);
    const struct member_answer answer = member_call(one, ' ', 0, 0);
    assert_int_equal(answer.lines, 1);
    assert_non_null(strstr(answer.text, "(not in effect"));
    assert_non_null(strstr(answer.text, members.budget_file));
    assert_int_equal(stat(members.budget_file, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    /* After the file is removed, a new one is created. */
    assert_int_equal(unlink(members.budget_file), 0);
    const unsigned other = member_start("");
    assert_ok(member_call(one, 'f', 0, 0).status);
    (void)usleep(1200000);
    EXPECT_OK(member_call(other, 'a', 0, 400 * MIB));
}

TEST_OF_TWO_MEMBERS(removed_budget_file_is_recreated, members_end)
{
    member_make_idle(one, 900 * MIB);
    assert_ok(member_call(other, 'a', 1, 2 * MIB).status);
    assert_int_equal(unlink(members.budget_file), 0);
    MEMBER_EVENTUALLY(one, answer.lines == 1);
    MEMBER_EVENTUALLY(other, answer.lines == 1);
    (void)usleep(1500000);
    EXPECT_OK(member_call(other, 'a', 0, 400 * MIB));
}

TEST_WITH(excess_shares_are_logged_once, members_begin, members_end)
{
    const unsigned one = member_start("budget_share:0.8"), other = member_start("budget_share:0.8");

    assert_ok(member_call(one, 'a', 0, 2 * MIB).status);
    assert_ok(member_call(other, 'a', 0, 2 * MIB).status);
    MEMBER_EVENTUALLY(one, answer.lines == 1 && strstr(answer.text, "exceeds 1") != NULL);
    MEMBER_EVENTUALLY(other, answer.lines == 1);
    (void)usleep(300000);
    assert_int_equal(member_call(one, ' ', 0, 0).lines, 1);
}

TEST_WITH(large_numbers_are_bounded, members_begin, members_end)
{
    const unsigned one = member_start("budget_min_mb:18446744073709"), other = member_start("");

    member_make_idle(one, 800 * MIB);
    (void)member_expect_denied(other, 'a', 0, UINT64_C(1) << 52);
    (void)member_expect_denied(other, 'a', 0, 400 * MIB);
    assert_int_equal(member_call(one, ' ', 0, 0).taken, 800 * MIB);
}

TEST_ON(invalid_budget_keys_are_rejected, env_open(NULL))
{
    assert_error(xseg_config_set(allocator, "budget_share:1.5"), CONFIG, "budget_share");
    assert_error(xseg_config_set(allocator, "budget_wait_ms:0"), CONFIG, "budget_wait_ms");
    assert_ok(xseg_config_set(allocator, "budget_file:none"));
}

/* --- Observability: reasons for idle memory, events, statistics, and the budget file. --- */

/* A wait that suffices on a loaded host. */
#define PATIENT "budget_wait_ms:4000"

/* Poll a condition for at most 30 s. */
#define EVENTUALLY(condition)                                           \
    do {                                                                \
        for (unsigned tries = 0; !(condition) && tries < 3000; tries++) \
            (void)usleep(10000);                                        \
        assert_true(condition);                                         \
    } while (0)

/* An allocator of this process, which is a member as well; other members are started before. */
static struct xseg_allocator *join(const char *config)
{
    struct xseg_allocator *allocator = NULL;
    char whole[512];

    (void)snprintf(whole, sizeof(whole), "budget_file:%s," PATIENT "%s%s", members.budget_file,
                   config[0] != '\0' ? "," : "", config);
    assert_ok(xseg_sim_reset(&members.sim_settings));
    assert_ok(env_try_open(whole, &allocator));
    return allocator;
}

static void leave(struct xseg_allocator *allocator)
{
    const struct xseg_sim_settings alone = {sizeof(alone)};

    env_close(allocator);
    assert_ok(xseg_sim_reset(&alone));
}

/* Of the memory above the share, and of other memory: an address and an age. */
struct explained {
    uint64_t lowest_above_share, highest_other;
    uint64_t youngest_above_share, oldest_other;
};

static uint64_t min_of(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static uint64_t max_of(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static bool record_reason(void *context, const struct xseg_reason *reason)
{
    struct explained *result = context;
    const uint64_t base = (uint64_t)(uintptr_t)reason->base;

    assert_int_equal(reason->allocated_bytes + reason->pending_bytes + reason->claimed_bytes +
                         reason->cached_bytes,
                     reason->bytes);
    if (reason->kind == XSEG_REASON_ABOVE_SHARE) {
        result->lowest_above_share = min_of(result->lowest_above_share, base);
        result->youngest_above_share = min_of(result->youngest_above_share, reason->age_ms);
    } else {
        result->highest_other = max_of(result->highest_other, base);
        result->oldest_other = max_of(result->oldest_other, reason->age_ms);
    }
    return true;
}

static struct xseg_explain_result explain(struct xseg_allocator *allocator,
                                          struct explained *result)
{
    struct xseg_explain_result sums = {sizeof(sums)};

    *result = (struct explained){UINT64_MAX, 0, UINT64_MAX, 0};
    assert_ok(xseg_explain(allocator, NULL, record_reason, result, &sums));
    assert_int_equal(sums.allocated + sums.pending + sums.claimed + sums.pool + sums.pinned +
                         sums.capture + sums.stream + sums.keep + sums.decay + sums.policy +
                         sums.exported + sums.registered + sums.above_share,
                     sums.reserved);
    return sums;
}

/* Explain, after the first round has computed the share. */
static struct xseg_explain_result explain_share(struct xseg_allocator *allocator,
                                                struct explained *result)
{
    struct xseg_explain_result sums = explain(allocator, result);

    for (unsigned tries = 0; sums.above_share == 0 && tries < 3000; tries++) {
        (void)usleep(10000);
        sums = explain(allocator, result);
    }
    return sums;
}

/* A quarter of 1 GiB is the share; the rest of 700 MiB is above the share, in whole pages. */
TEST_WITH(idle_memory_above_the_share_is_explained, members_begin, members_end)
{
    struct xseg_allocator *allocator = join("budget_share:0.25");
    void *block = env_alloc(allocator, 700 * MIB, NULL);
    struct explained result;

    struct xseg_explain_result sums = explain(allocator, &result);
    assert_int_equal(sums.above_share, 0);
    env_free(allocator, block);
    sums = explain_share(allocator, &result);
    assert_int_equal(sums.reserved, 700 * MIB);
    assert_int_equal(sums.above_share, 460 * MIB);
    assert_int_equal(sums.policy, 240 * MIB);
    assert_true(result.lowest_above_share > result.highest_other);
    /* Allocated memory is not reclaimable. */
    block = env_alloc(allocator, 690 * MIB, NULL);
    assert_int_equal(explain(allocator, &result).above_share, 0);
    env_free(allocator, block);
    assert_ok(xseg_config_set(allocator, "budget_min_mb:500"));
    assert_int_equal(explain_share(allocator, &result).above_share, 200 * MIB);
    assert_ok(xseg_config_set(allocator, "budget_file:none"));
    assert_int_equal(explain(allocator, &result).policy, 700 * MIB);
    leave(allocator);
}

/* The floor keeps memory of the rest. */
TEST_WITH(oldest_memory_is_released_first, members_begin, members_end)
{
    struct xseg_allocator *allocator =
        join("budget_share:0.5,idle_ms:100000,keep_mb:1000,background_thread:True");
    struct explained result;
    void *block[3];

    for (unsigned i = 0; i < 3; i++)
        block[i] = env_alloc(allocator, 200 * MIB, NULL);
    for (unsigned i = 0; i < 3; i++) {
        env_free(allocator, block[i]);
        (void)usleep(20000);
        assert_ok(trim_due(allocator, UINT64_MAX));
    }
    const struct xseg_explain_result sums = explain_share(allocator, &result);
    assert_int_equal(sums.above_share, 100 * MIB);
    assert_int_equal(sums.keep, 500 * MIB);
    assert_true(result.youngest_above_share >= result.oldest_other);
    leave(allocator);
}

/* Without decay the age of idle memory is measured from the first release on. */
TEST_WITH(oldest_memory_is_released_first_without_decay, members_begin, members_end)
{
    const unsigned other = member_start(PATIENT);
    struct xseg_allocator *allocator = join("budget_share:0.5");
    struct explained result;
    void *block[3];

    for (unsigned i = 0; i < 3; i++)
        block[i] = env_alloc(allocator, (i == 1 ? 600 : 150) * MIB, NULL);
    env_free(allocator, block[1]);
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(member_call(other, 'a', i, (200 - 100 * i) * MIB).status);
        (void)usleep(20000);
    }
    member_end(other);
    env_free(allocator, block[0], block[2]);
    const struct xseg_explain_result sums = explain_share(allocator, &result);
    assert_in_range(sums.above_share, 20 * MIB, 400 * MIB);
    /* In the order of addresses, the memory of the last block would be above the share. */
    assert_true(result.lowest_above_share < result.highest_other);
    assert_true(result.youngest_above_share >= result.oldest_other);
    leave(allocator);
}

/* The release of the page cache leaves less reserved memory above the share. */
TEST_WITH(page_cache_is_released_first, members_begin, members_end)
{
    struct xseg_allocator *allocator = join("budget_share:0.25,page_cache_mb:1024");
    void *block = env_alloc(allocator, 300 * MIB, NULL);
    struct explained result;

    assert_ok(xseg_config_set(allocator, "unmap_on_free:True"));
    env_free(allocator, env_alloc(allocator, 400 * MIB, NULL));
    assert_ok(xseg_config_set(allocator, "unmap_on_free:False"));
    env_free(allocator, block);
    const struct xseg_explain_result sums = explain_share(allocator, &result);
    assert_int_equal(sums.page_cache, 400 * MIB);
    assert_int_equal(sums.above_share, 60 * MIB);
    leave(allocator);
}

TEST_WITH(waiting_request_is_recorded, members_begin, members_end)
{
    const unsigned other = member_start(PATIENT);

    struct xseg_allocator *allocator = join("history:all,history_stacks:alloc");
    const xseg_stream stream = env_stream();
    member_make_idle(other, 900 * MIB);
    void *block = env_alloc(allocator, 400 * MIB, stream);
    HISTORY_LIST recorded = history_read(allocator, 0);
    const struct xseg_history_entry ask = history_only(&recorded, XSEG_HISTORY_BUDGET_REQUEST);
    const struct xseg_history_entry alloc = history_only(&recorded, XSEG_HISTORY_ALLOC);
    assert_null(ask.base);
    assert_int_equal(ask.order, 0);
    /* A growth may end with a page of 20 MiB of which it needs 2 MiB: 400 + 18. */
    assert_int_equal(ask.bytes, 418 * MIB);
    assert_int_equal(ask.requested, 418 * MIB);
    assert_ptr_equal(ask.stream, stream);
    assert_int_equal(ask.thread, alloc.thread);
    assert_int_not_equal(ask.stack, 0);
    assert_true(ask.time_ns <= alloc.time_ns);
    assert_int_equal(recorded.entry[0].action, XSEG_HISTORY_BUDGET_REQUEST);
    env_free(allocator, block);
    env_close(allocator, stream);
    member_end(other);
}

TEST_WITH(single_member_sends_no_request, members_begin, members_end)
{
    struct xseg_allocator *allocator = join("history:all");
    void *ptr = NULL;

    void *block = env_alloc(allocator, 700 * MIB, NULL);
    assert_int_equal(xseg_alloc(allocator, 0, 600 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    HISTORY_LIST recorded = history_read(allocator, 0);
    for (size_t i = 0; i < recorded.count; i++)
        assert_int_not_equal(recorded.entry[i].action, XSEG_HISTORY_BUDGET_REQUEST);
    (void)history_only(&recorded, XSEG_HISTORY_OOM);
    env_free(allocator, block);
    leave(allocator);
}

/* Bytes of the release events; each event is followed by its unmap. */
static uint64_t recorded_releases(struct xseg_allocator *allocator)
{
    HISTORY_LIST recorded = history_read(allocator, 0);
    uint64_t released = 0, unmapped = 0;

    for (size_t i = 0; i < recorded.count; i++) {
        const struct xseg_history_entry *entry = &recorded.entry[i];

        assert_int_not_equal(entry->action, XSEG_HISTORY_DECAY);
        unmapped += entry->action == XSEG_HISTORY_SEGMENT_UNMAP ? entry->bytes : 0;
        if (entry->action != XSEG_HISTORY_BUDGET_RELEASE)
            continue;
        released += entry->bytes;
        assert_true(i + 1 < recorded.count);
        assert_int_equal(entry[1].action, XSEG_HISTORY_SEGMENT_UNMAP);
        assert_ptr_equal(entry[1].base, entry->base);
        assert_int_equal(entry[1].bytes, entry->bytes);
    }
    assert_int_equal(released, unmapped);
    return released;
}

static uint64_t taken(struct xseg_allocator *allocator)
{
    return env_stats(allocator).physical_bytes;
}

/* The cause is recorded once for each block of memory. */
TEST_WITH(budget_releases_are_recorded, members_begin, members_end)
{
    const unsigned other = member_start(PATIENT);

    struct xseg_allocator *allocator = join("history:all");
    env_free(allocator, env_alloc(allocator, 900 * MIB, NULL));
    EXPECT_OK(member_call(other, 'a', 0, 400 * MIB));
    /* The release may still be active. */
    EVENTUALLY(recorded_releases(allocator) == 900 * MIB - taken(allocator));
    assert_true(recorded_releases(allocator) >= 276 * MIB);
    leave(allocator);
}

/* The value of a metric of device 0; -1 if there is none. */
static double metric(struct xseg_allocator *allocator, const char *name)
{
    static char page[1 << 16];
    char line[96];

    assert_ok(xseg_metrics(allocator, page, sizeof(page), NULL));
    (void)snprintf(line, sizeof(line), "\n%s{device=\"0\"} ", name);
    const char *found = strstr(page, line);
    return found == NULL ? -1 : strtod(found + strlen(line), NULL);
}

TEST_WITH(metrics_include_the_budget, members_begin, members_end)
{
    const unsigned other = member_start(PATIENT);

    struct xseg_allocator *allocator = join("budget_share:0.25");
    void *block = env_alloc(allocator, 700 * MIB, NULL);
    assert_ok(member_call(other, 'a', 1, 2 * MIB).status);
    EVENTUALLY(metric(allocator, "xseg_budget_other_members") == 1);
    assert_true(metric(allocator, "xseg_budget_share_bytes") == 256.0 * (double)MIB);
    assert_true(metric(allocator, "xseg_budget_above_share_bytes") == 444.0 * (double)MIB);
    assert_true(metric(allocator, "xseg_budget_demand_bytes") == 0);
    assert_true(metric(allocator, "xseg_budget_requests_total") == 0);
    assert_true(metric(allocator, "xseg_budget_released_bytes_total") == 0);
    env_free(allocator, block);
    assert_ok(member_call(other, 'a', 0, 600 * MIB).status);
    EVENTUALLY(metric(allocator, "xseg_budget_released_bytes_total") ==
               (double)(700 * MIB - taken(allocator)));
    assert_ok(member_call(other, 'f', 0, 0).status);
    block = env_alloc(allocator, 600 * MIB, NULL);
    assert_true(metric(allocator, "xseg_budget_requests_total") == 1);
    assert_true(metric(allocator, "xseg_budget_requests_served_total") == 1);
    env_free(allocator, block);
    assert_ok(xseg_config_set(allocator, "budget_file:none"));
    assert_true(metric(allocator, "xseg_budget_share_bytes") < 0);
    assert_true(metric(allocator, "xseg_budget_demand_bytes") < 0);
    assert_true(metric(allocator, "xseg_budget_requests_total") < 0);
    leave(allocator);
}

struct seen {
    struct xseg_budget_entry entry[8];
    char program[8][32], uuid[8][64];
    unsigned count, max;
};

static bool see(void *context, const struct xseg_budget_entry *entry)
{
    struct seen *seen = context;

    assert_int_equal(entry->struct_size, sizeof(*entry));
    assert_true(seen->count < COUNT_OF(seen->entry));
    (void)snprintf(seen->program[seen->count], 32, "%s", entry->program ? entry->program : "");
    (void)snprintf(seen->uuid[seen->count], 64, "%s", entry->uuid ? entry->uuid : "");
    seen->entry[seen->count++] = *entry;
    return seen->count < seen->max;
}

static struct seen read_members(void)
{
    struct seen seen = {.max = COUNT_OF(seen.entry)};

    assert_ok(xseg_budget_members(members.budget_file, see, &seen));
    return seen;
}

static bool has_taken(uint64_t bytes)
{
    const struct seen seen = read_members();

    return seen.count > 0 && seen.entry[0].physical_bytes == bytes;
}

/* A reader needs no slot in the file. */
TEST_WITH(budget_members_are_listed, members_begin, members_end)
{
    const unsigned one = member_start("budget_share:0.7,budget_min_mb:10");
    assert_ok(member_call(one, 'a', 0, 60 * MIB).status);
    assert_ok(member_call(one, 'a', 1, 40 * MIB).status);
    assert_ok(member_call(one, 'f', 0, 0).status);
    const unsigned other = member_start("");
    /* `other` has not opened the device. */
    assert_ok(member_call(other, ' ', 0, 0).status);
    EVENTUALLY(has_taken(100 * MIB) && read_members().entry[0].idle_bytes == 60 * MIB);
    struct seen seen = read_members();
    assert_int_equal(seen.count, 2);
    assert_int_equal(seen.entry[0].slot, 0);
    assert_int_equal(seen.entry[1].slot, 1);
    assert_int_equal(seen.entry[0].pid, members.process[one].pid);
    assert_true(seen.entry[0].is_readable && seen.entry[1].is_readable);
    assert_non_null(strstr(seen.program[0], "test-api"));
    assert_int_equal(strlen(seen.uuid[0]), 36);
    assert_int_equal(seen.uuid[0][8], '-');
    assert_int_equal(seen.entry[0].share_millionths, 700000);
    assert_int_equal(seen.entry[0].min_bytes, 10 * MIB);
    assert_int_equal(seen.entry[0].demand_bytes, 0);
    assert_int_equal(seen.entry[0].released_bytes, 0);
    seen = (struct seen){.max = 1};
    assert_ok(xseg_budget_members(members.budget_file, see, &seen));
    assert_int_equal(seen.count, 1);
    member_end(one);
    assert_int_equal(read_members().count, 1);
    member_end(other);
    assert_int_equal(read_members().count, 0);
}

TEST_WITH(unreadable_member_is_listed, members_begin, members_end)
{
    static const unsigned char nonsense[] = {1, 2, 3};
    const unsigned one = member_start("");
    int status = 0;

    assert_ok(member_call(one, 'a', 0, 60 * MIB).status);
    EVENTUALLY(has_taken(60 * MIB));
    /* A running member would write its record again. */
    assert_int_equal(kill(members.process[one].pid, SIGSTOP), 0);
    assert_int_equal(waitpid(members.process[one].pid, &status, WUNTRACED),
                     members.process[one].pid);
    const int file = open(members.budget_file, O_WRONLY | O_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, nonsense, sizeof(nonsense), 4096), sizeof(nonsense));
    (void)close(file);
    const struct seen seen = read_members();
    assert_int_equal(kill(members.process[one].pid, SIGCONT), 0);
    assert_int_equal(seen.count, 1);
    assert_false(seen.entry[0].is_readable);
    assert_int_equal(seen.entry[0].slot, 0);
    assert_int_equal(seen.entry[0].pid, 0);
    assert_int_equal(seen.entry[0].physical_bytes, 0);
    assert_null(seen.entry[0].program);
    assert_null(seen.entry[0].uuid);
    EVENTUALLY(has_taken(60 * MIB));
    member_end(one);
}

TEST_WITH(invalid_budget_file_names_are_rejected, members_begin, members_end)
{
    struct seen seen = {.max = 1};

    assert_error(xseg_budget_members(NULL, see, &seen), ARGUMENT, "name is NULL");
    assert_error(xseg_budget_members("x", NULL, NULL), ARGUMENT, "visit is NULL");
    assert_error(xseg_budget_members("a b", see, &seen), ARGUMENT, "is invalid, \"a b\"; ");
    assert_error(xseg_budget_members(members.budget_file, see, &seen), FILE, members.budget_file);
    assert_int_equal(access(members.budget_file, F_OK), -1);
    assert_int_equal(seen.count, 0);
}
