/* SPDX-License-Identifier: MIT */
/* Processes that share a device by a budget file: requests, releases, waits, and invalid files. */
#include "tests/support/history_list.h"
#include "tests/support/members.h"
#include "tests/support/trim_due.h"

TEST_OF_TWO_MEMBERS(idle_memory_moves_to_another_member_and_back, members_end)
{
    member_make_idle(first, 900 * MIB);
    assert_int_equal(member_call(first, MEMBER_QUERY, 0, 0).physical, 900 * MIB);
    /* 400 MiB are within the share of 512; 124 of 1024 are free.  The idle member keeps 900 - 400 to 1024 - 400 MiB. */
    assert_int_equal(member_expect_ok(second, MEMBER_ALLOC, 0, 400 * MIB).physical, 400 * MIB);
    assert_in_range(member_call(first, MEMBER_QUERY, 0, 0).physical, 500 * MIB, 624 * MIB);
    /* The other member releases its idle memory. */
    assert_ok(member_call(second, MEMBER_FREE, 0, 0).status);
    EXPECT_OK(member_call(first, MEMBER_ALLOC, 0, 900 * MIB));
    assert_true(member_call(second, MEMBER_QUERY, 0, 0).physical <= (1024 - 900) * MIB);
}

/* Other members also release the memory that the requesting member leaves free: 1024 - 400 - 100 = 524 MiB remain. */
TEST_WITH(memory_that_remains_free_is_requested, members_begin, members_end)
{
    const unsigned idle = member_start(""), requester = member_start("device_free_min_mb:100");

    member_make_idle(idle, 900 * MIB);
    assert_int_equal(member_expect_ok(requester, MEMBER_ALLOC, 0, 400 * MIB).physical, 400 * MIB);
    assert_in_range(member_call(idle, MEMBER_QUERY, 0, 0).physical, 500 * MIB, 524 * MIB);
}

/* A member requests 400 MiB, and is denied because another member, *holder, has allocated 900 MiB. */
static struct member_response expect_denied_request(unsigned *holder)
{
    *holder = member_start("");
    const unsigned requester = member_start("");

    assert_ok(member_call(*holder, MEMBER_ALLOC, 0, 900 * MIB).status);
    assert_ok(member_call(requester, MEMBER_ALLOC, 0, 20 * MIB).status);
    return member_expect_denied(requester, MEMBER_ALLOC, 1, 400 * MIB);
}

TEST_WITH(allocated_memory_is_not_reclaimed, members_begin, members_end)
{
    unsigned holder;
    const struct member_response response = expect_denied_request(&holder);

    assert_non_null(strstr(response.text, "used by others"));
    assert_int_equal(member_call(holder, MEMBER_QUERY, 0, 0).physical, 900 * MIB);
    assert_int_equal(response.warnings, 0);
}

/* Pages that a waiting member creates would reduce the free memory of the device for the other members. */
TEST_WITH(waiting_member_creates_no_pages, members_begin, members_end)
{
    unsigned holder;
    const struct member_response response = expect_denied_request(&holder);

    /* The free 104 MiB are 52 small pages.  Fewer than 10 steps of the fallback chain create each page at most once. */
    assert_true(response.creates < 10 * 52);
}

TEST_WITH(release_keeps_the_minimum_of_a_member, members_begin, members_end)
{
    const unsigned idle = member_start("budget_share:0.25,budget_min_mb:300"),
                   requester = member_start("budget_share:0.75");

    member_make_idle(idle, 700 * MIB);
    assert_ok(member_call(requester, MEMBER_ALLOC, 0, 700 * MIB).status);
    /* The minimum, and the memory that the request leaves: 1024 - 700. */
    assert_in_range(member_call(idle, MEMBER_QUERY, 0, 0).physical, 300 * MIB, 324 * MIB);
    (void)member_expect_denied(requester, MEMBER_ALLOC, 1, 100 * MIB);
    assert_true(member_call(idle, MEMBER_QUERY, 0, 0).physical >= 300 * MIB);
}

TEST_WITH(ranges_and_classic_segments_take_part, members_begin, members_end)
{
    const unsigned classic_member = member_start("expandable_segments:False"),
                   range_member = member_start("");

    for (unsigned i = 0; i < 9; i++)
        assert_ok(member_call(classic_member, MEMBER_ALLOC, i, 100 * MIB).status);
    for (unsigned i = 0; i < 9; i++)
        assert_ok(member_call(classic_member, MEMBER_FREE, i, 0).status);
    assert_int_equal(member_expect_ok(range_member, MEMBER_COMMIT, 0, 512 * MIB).allocated,
                     512 * MIB);
    EXPECT_OK(member_call(classic_member, MEMBER_ALLOC, 0, 400 * MIB));
}

TEST_OF_TWO_MEMBERS(resumed_pool_requests_memory, members_end)
{
    assert_ok(member_call(first, MEMBER_ALLOC_IN_POOL, 0, 500 * MIB).status);
    assert_ok(member_call(first, MEMBER_PAUSE, 0, 0).status);
    assert_ok(member_call(second, MEMBER_ALLOC, 0, 900 * MIB).status);
    (void)member_expect_denied(first, MEMBER_RESUME, 0, 0);
    assert_ok(member_call(second, MEMBER_FREE, 0, 0).status);
    /* Wait until the other member has published its idle memory. */
    (void)usleep(200000);
    assert_int_equal(member_expect_ok(first, MEMBER_RESUME, 0, 0).physical, 500 * MIB);
}

/* Idle memory of a retained pool cannot be released. */
TEST_OF_TWO_MEMBERS(memory_of_a_retained_pool_is_not_awaited, members_end)
{
    assert_ok(member_call(first, MEMBER_ALLOC_IN_POOL, 0, 900 * MIB).status);
    assert_ok(member_call(first, MEMBER_FREE, 0, 0).status);
    (void)member_expect_denied(second, MEMBER_ALLOC, 0, 400 * MIB);
    assert_int_equal(member_call(first, MEMBER_QUERY, 0, 0).idle, 900 * MIB);
    assert_ok(member_call(first, MEMBER_ALLOC_IN_POOL, 1, 600 * MIB).status);
}

TEST_OF_TWO_MEMBERS(captures_send_no_request, members_end)
{
    member_make_idle(first, 900 * MIB);
    assert_ok(member_call(second, MEMBER_ALLOC, 1, 2 * MIB).status);
    /* A capture of the requesting member. */
    assert_ok(member_call(second, MEMBER_MARK, 0, 0).status);
    (void)member_expect_denied(second, MEMBER_ALLOC, 0, 400 * MIB);
    assert_ok(member_call(second, MEMBER_UNMARK, 0, 0).status);
    assert_int_equal(member_call(first, MEMBER_QUERY, 0, 0).physical, 900 * MIB);
    /* A capture of the idle member: it releases nothing. */
    assert_ok(member_call(first, MEMBER_MARK, 0, 0).status);
    (void)member_expect_denied(second, MEMBER_ALLOC, 0, 400 * MIB);
    assert_int_equal(member_call(first, MEMBER_QUERY, 0, 0).physical, 900 * MIB);
    assert_ok(member_call(first, MEMBER_UNMARK, 0, 0).status);
    assert_ok(member_call(second, MEMBER_ALLOC, 0, 400 * MIB).status);
}

TEST_WITH(killed_and_stopped_members_block_no_others, members_begin, members_end)
{
    const unsigned killed = member_start(""), requester = member_start(""),
                   stopped = member_start("");

    assert_ok(member_call(killed, MEMBER_ALLOC, 0, 600 * MIB).status);
    member_make_idle(stopped, 300 * MIB);
    (void)kill(members.process[stopped].pid, SIGSTOP);
    (void)member_expect_denied(requester, MEMBER_ALLOC, 0, 300 * MIB);
    member_kill(killed);
    assert_ok(member_call(requester, MEMBER_ALLOC, 0, 600 * MIB).status);
    (void)kill(members.process[stopped].pid, SIGCONT);
    EXPECT_OK(member_call(requester, MEMBER_ALLOC, 1, 200 * MIB));
}

static bool count_demand(void *context, const struct xseg_budget_entry *entry)
{
    *(unsigned *)context += entry->demand_bytes > 0;
    return true;
}

/* Wait until a number of members have published a demand, for at most 30 s. */
static void wait_for_demands(unsigned expected)
{
    unsigned count = 0;

    for (unsigned tries = 0; count != expected && tries < 3000; tries++) {
        (void)usleep(10000);
        count = 0;
        assert_ok(xseg_budget_members(members.budget_file, count_demand, &count));
    }
    assert_int_equal(count, expected);
}

/* The idle member is stopped until both requests wait.  Its 400 MiB and 24 free MiB are sufficient for one request.  The
 * smaller request, above the share, has read the demand of the larger one. */
TEST_WITH(members_below_their_share_are_served_first, members_begin, members_end)
{
    const unsigned idle = member_start(""), above_share = member_start("budget_wait_ms:60000"),
                   below_share = member_start("budget_wait_ms:60000");

    assert_ok(member_call(idle, MEMBER_ALLOC, 0, 400 * MIB).status);
    assert_ok(member_call(above_share, MEMBER_ALLOC, 0, 600 * MIB).status);
    assert_ok(member_call(idle, MEMBER_FREE, 0, 0).status);
    assert_int_equal(kill(members.process[idle].pid, SIGSTOP), 0);
    member_send(below_share, MEMBER_ALLOC, 0, 300 * MIB);
    wait_for_demands(1);
    member_send(above_share, MEMBER_ALLOC, 1, 160 * MIB);
    wait_for_demands(2);
    assert_int_equal(kill(members.process[idle].pid, SIGCONT), 0);
    EXPECT_OK(member_receive(below_share));
    struct pollfd response = {members.process[above_share].socket, POLLIN, 0};
    assert_int_equal(poll(&response, 1, 0), 0);
    /* The released memory of the other member serves the request above the share. */
    (void)member_expect_ok(below_share, MEMBER_FREE, 0, 0);
    (void)member_expect_ok(below_share, MEMBER_TRIM, 0, 0);
    EXPECT_OK(member_receive(above_share));
}

/* Two members whose requests exceed their shares wait for a third member, not for each other. */
TEST_WITH(members_above_their_share_do_not_deadlock, members_begin, members_end)
{
    const unsigned first = member_start("page_size:small"),
                   second = member_start("page_size:small"), idle = member_start("page_size:small");

    assert_ok(member_call(first, MEMBER_ALLOC, 0, 250 * MIB).status);
    assert_ok(member_call(second, MEMBER_ALLOC, 0, 250 * MIB).status);
    for (unsigned i = 0; i < 6; i++) {
        member_make_idle(idle, 500 * MIB);
        /* Rounds that read the previous demands have ended. */
        (void)usleep(50000);
        member_send(first, MEMBER_ALLOC, 1, 120 * MIB);
        member_send(second, MEMBER_ALLOC, 1, 120 * MIB);
        EXPECT_OK(member_receive(first));
        EXPECT_OK(member_receive(second));
        for (unsigned number = first; number <= second; number++) {
            assert_ok(member_call(number, MEMBER_FREE, 1, 0).status);
            assert_ok(member_call(number, MEMBER_TRIM, 0, 0).status);
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
    const unsigned first = member_start("");
    assert_ok(member_call(first, MEMBER_ALLOC, 0, 900 * MIB).status);
    (void)member_expect_denied(first, MEMBER_ALLOC, 1, 300 * MIB);
    /* A member opens the file again once per second. */
    (void)usleep(1200000);
    const struct member_response response = member_call(first, MEMBER_QUERY, 0, 0);
    assert_int_equal(response.warnings, 1);
    assert_non_null(strstr(response.text, "(not in effect"));
    assert_non_null(strstr(response.text, members.budget_file));
    assert_int_equal(stat(members.budget_file, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    /* After the file is removed, a new one is created. */
    assert_int_equal(unlink(members.budget_file), 0);
    const unsigned second = member_start("");
    assert_ok(member_call(first, MEMBER_FREE, 0, 0).status);
    (void)usleep(1200000);
    EXPECT_OK(member_call(second, MEMBER_ALLOC, 0, 400 * MIB));
}

TEST_OF_TWO_MEMBERS(removed_budget_file_is_recreated, members_end)
{
    member_make_idle(first, 900 * MIB);
    assert_ok(member_call(second, MEMBER_ALLOC, 1, 2 * MIB).status);
    assert_int_equal(unlink(members.budget_file), 0);
    MEMBER_EVENTUALLY(first, response.warnings == 1);
    MEMBER_EVENTUALLY(second, response.warnings == 1);
    (void)usleep(1500000);
    EXPECT_OK(member_call(second, MEMBER_ALLOC, 0, 400 * MIB));
}

TEST_WITH(excess_shares_are_logged_once, members_begin, members_end)
{
    const unsigned first = member_start("budget_share:0.8"),
                   second = member_start("budget_share:0.8");

    assert_ok(member_call(first, MEMBER_ALLOC, 0, 2 * MIB).status);
    assert_ok(member_call(second, MEMBER_ALLOC, 0, 2 * MIB).status);
    MEMBER_EVENTUALLY(first, response.warnings == 1 && strstr(response.text, "exceeds 1") != NULL);
    MEMBER_EVENTUALLY(second, response.warnings == 1);
    /* Later rounds log nothing. */
    (void)usleep(300000);
    assert_int_equal(member_call(first, MEMBER_QUERY, 0, 0).warnings, 1);
}

TEST_WITH(large_numbers_are_bounded, members_begin, members_end)
{
    const unsigned idle = member_start("budget_min_mb:18446744073709"),
                   requester = member_start("");

    member_make_idle(idle, 800 * MIB);
    (void)member_expect_denied(requester, MEMBER_ALLOC, 0, UINT64_C(1) << 52);
    (void)member_expect_denied(requester, MEMBER_ALLOC, 0, 400 * MIB);
    assert_int_equal(member_call(idle, MEMBER_QUERY, 0, 0).physical, 800 * MIB);
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

/* An allocator of this process, which is a member as well.  Other members are started before. */
static struct xseg_allocator *open_member(const char *config)
{
    struct xseg_allocator *allocator = NULL;
    char full_config[512];

    (void)snprintf(full_config, sizeof(full_config), "budget_file:%s," PATIENT "%s%s",
                   members.budget_file, config[0] != '\0' ? "," : "", config);
    assert_ok(xseg_sim_reset(&members.sim_settings));
    assert_ok(env_try_open(full_config, &allocator));
    return allocator;
}

static void close_member(struct xseg_allocator *allocator)
{
    const struct xseg_sim_settings unshared = {sizeof(unshared)};

    env_close(allocator);
    assert_ok(xseg_sim_reset(&unshared));
}

/* Addresses and ages of the memory above the share, and of other memory. */
struct explained {
    uint64_t lowest_above_share, highest_other;
    uint64_t youngest_above_share, oldest_other;
};

static uint64_t min_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
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

/* The share is a quarter of 1 GiB, 256 MiB.  The other 444 of 700 MiB are above the share: 23 whole pages of 20 MiB. */
TEST_WITH(idle_memory_above_the_share_is_explained, members_begin, members_end)
{
    struct xseg_allocator *allocator = open_member("budget_share:0.25");
    void *block = env_alloc(allocator, 700 * MIB, NULL);
    struct explained result;

    struct xseg_explain_result sums = explain(allocator, &result);
    assert_int_equal(sums.above_share, 0);
    env_free(allocator, block);
    sums = explain_share(allocator, &result);
    assert_int_equal(sums.reserved, 700 * MIB);
    assert_int_equal(sums.above_share, 23 * 20 * MIB);
    assert_int_equal(sums.policy, (700 - 23 * 20) * MIB);
    assert_true(result.lowest_above_share > result.highest_other);
    /* Allocated memory is not reclaimable. */
    block = env_alloc(allocator, 690 * MIB, NULL);
    assert_int_equal(explain(allocator, &result).above_share, 0);
    env_free(allocator, block);
    assert_ok(xseg_config_set(allocator, "budget_min_mb:500"));
    assert_int_equal(explain_share(allocator, &result).above_share, (700 - 500) * MIB);
    assert_ok(xseg_config_set(allocator, "budget_file:none"));
    assert_int_equal(explain(allocator, &result).policy, 700 * MIB);
    close_member(allocator);
}

/* 600 - 512 = 88 MiB are above the share: 5 whole pages of 20 MiB.  The floor keeps the other pages. */
TEST_WITH(oldest_memory_is_released_first, members_begin, members_end)
{
    struct xseg_allocator *allocator =
        open_member("budget_share:0.5,idle_ms:100000,keep_mb:1000,background_thread:True");
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
    assert_int_equal(sums.above_share, 5 * 20 * MIB);
    assert_int_equal(sums.keep, (600 - 5 * 20) * MIB);
    assert_true(result.youngest_above_share >= result.oldest_other);
    close_member(allocator);
}

/* Without decay the age of idle memory is measured from the first release on. */
TEST_WITH(oldest_memory_is_released_first_without_decay, members_begin, members_end)
{
    const unsigned requester = member_start(PATIENT);
    struct xseg_allocator *allocator = open_member("budget_share:0.5");
    struct explained result;
    void *block[3];

    for (unsigned i = 0; i < 3; i++)
        block[i] = env_alloc(allocator, (i == 1 ? 600 : 150) * MIB, NULL);
    env_free(allocator, block[1]);
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(member_call(requester, MEMBER_ALLOC, i, (200 - 100 * i) * MIB).status);
        (void)usleep(20000);
    }
    member_end(requester);
    env_free(allocator, block[0], block[2]);
    const struct xseg_explain_result sums = explain_share(allocator, &result);
    assert_in_range(sums.above_share, 20 * MIB, 400 * MIB);
    /* If addresses determined the order, the memory of the last block would be above the share. */
    assert_true(result.lowest_above_share < result.highest_other);
    assert_true(result.youngest_above_share >= result.oldest_other);
    close_member(allocator);
}

/* 300 + 400 - 256 = 444 MiB are above the share.  After the release of the page cache 44 MiB are: 3 whole pages. */
TEST_WITH(page_cache_is_released_first, members_begin, members_end)
{
    struct xseg_allocator *allocator = open_member("budget_share:0.25,page_cache_mb:1024");
    void *block = env_alloc(allocator, 300 * MIB, NULL);
    struct explained result;

    assert_ok(xseg_config_set(allocator, "unmap_on_free:True"));
    env_free(allocator, env_alloc(allocator, 400 * MIB, NULL));
    assert_ok(xseg_config_set(allocator, "unmap_on_free:False"));
    env_free(allocator, block);
    const struct xseg_explain_result sums = explain_share(allocator, &result);
    assert_int_equal(sums.page_cache, 400 * MIB);
    assert_int_equal(sums.above_share, 3 * 20 * MIB);
    close_member(allocator);
}

TEST_WITH(waiting_request_is_recorded, members_begin, members_end)
{
    const unsigned idle = member_start(PATIENT);

    struct xseg_allocator *allocator = open_member("history:all,history_stacks:alloc");
    const xseg_stream stream = env_stream();
    member_make_idle(idle, 900 * MIB);
    void *block = env_alloc(allocator, 400 * MIB, stream);
    HISTORY_LIST recorded = history_read(allocator, 0);
    const struct xseg_history_entry request =
        history_single_in(&recorded, XSEG_HISTORY_BUDGET_REQUEST);
    const struct xseg_history_entry alloc = history_single_in(&recorded, XSEG_HISTORY_ALLOC);
    assert_null(request.base);
    assert_int_equal(request.order, 0);
    /* 400 + 18 MiB, since a growth may need only 2 MiB of its last page of 20 MiB. */
    assert_int_equal(request.bytes, 418 * MIB);
    assert_int_equal(request.requested, 418 * MIB);
    assert_ptr_equal(request.stream, stream);
    assert_int_equal(request.thread, alloc.thread);
    assert_int_not_equal(request.stack, 0);
    assert_true(request.time_ns <= alloc.time_ns);
    assert_int_equal(recorded.entry[0].action, XSEG_HISTORY_BUDGET_REQUEST);
    env_free(allocator, block);
    env_close(allocator, stream);
    member_end(idle);
}

TEST_WITH(single_member_sends_no_request, members_begin, members_end)
{
    struct xseg_allocator *allocator = open_member("history:all");
    void *ptr = NULL;

    void *block = env_alloc(allocator, 700 * MIB, NULL);
    assert_int_equal(xseg_alloc(allocator, 0, 600 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    HISTORY_LIST recorded = history_read(allocator, 0);
    for (size_t i = 0; i < recorded.count; i++)
        assert_int_not_equal(recorded.entry[i].action, XSEG_HISTORY_BUDGET_REQUEST);
    (void)history_single_in(&recorded, XSEG_HISTORY_OOM);
    env_free(allocator, block);
    close_member(allocator);
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

static uint64_t physical_bytes(struct xseg_allocator *allocator)
{
    return env_stats(allocator).physical_bytes;
}

/* The cause is recorded once for each block of memory. */
TEST_WITH(budget_releases_are_recorded, members_begin, members_end)
{
    const unsigned requester = member_start(PATIENT);

    struct xseg_allocator *allocator = open_member("history:all");
    env_free(allocator, env_alloc(allocator, 900 * MIB, NULL));
    EXPECT_OK(member_call(requester, MEMBER_ALLOC, 0, 400 * MIB));
    /* The release may still be active. */
    EVENTUALLY(recorded_releases(allocator) == 900 * MIB - physical_bytes(allocator));
    assert_true(recorded_releases(allocator) >= (900 + 400 - 1024) * MIB);
    close_member(allocator);
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
    const unsigned requester = member_start(PATIENT);

    struct xseg_allocator *allocator = open_member("budget_share:0.25");
    void *block = env_alloc(allocator, 700 * MIB, NULL);
    assert_ok(member_call(requester, MEMBER_ALLOC, 1, 2 * MIB).status);
    EVENTUALLY(metric(allocator, "xseg_budget_other_members") == 1);
    assert_true(metric(allocator, "xseg_budget_share_bytes") == 256.0 * (double)MIB);
    assert_true(metric(allocator, "xseg_budget_above_share_bytes") ==
                (700.0 - 256.0) * (double)MIB);
    assert_true(metric(allocator, "xseg_budget_demand_bytes") == 0);
    assert_true(metric(allocator, "xseg_budget_requests_total") == 0);
    assert_true(metric(allocator, "xseg_budget_released_bytes_total") == 0);
    env_free(allocator, block);
    assert_ok(member_call(requester, MEMBER_ALLOC, 0, 600 * MIB).status);
    EVENTUALLY(metric(allocator, "xseg_budget_released_bytes_total") ==
               (double)(700 * MIB - physical_bytes(allocator)));
    assert_ok(member_call(requester, MEMBER_FREE, 0, 0).status);
    block = env_alloc(allocator, 600 * MIB, NULL);
    assert_true(metric(allocator, "xseg_budget_requests_total") == 1);
    assert_true(metric(allocator, "xseg_budget_requests_served_total") == 1);
    env_free(allocator, block);
    assert_ok(xseg_config_set(allocator, "budget_file:none"));
    assert_true(metric(allocator, "xseg_budget_share_bytes") < 0);
    assert_true(metric(allocator, "xseg_budget_demand_bytes") < 0);
    assert_true(metric(allocator, "xseg_budget_requests_total") < 0);
    close_member(allocator);
}

/* Members that xseg_budget_members() has visited, at most `max`. */
struct member_list {
    struct xseg_budget_entry entry[8];
    char program[8][32], uuid[8][64];
    unsigned count, max;
};

static bool add_member(void *context, const struct xseg_budget_entry *entry)
{
    struct member_list *list = context;

    assert_int_equal(entry->struct_size, sizeof(*entry));
    assert_true(list->count < COUNT_OF(list->entry));
    (void)snprintf(list->program[list->count], 32, "%s", entry->program ? entry->program : "");
    (void)snprintf(list->uuid[list->count], 64, "%s", entry->uuid ? entry->uuid : "");
    list->entry[list->count++] = *entry;
    return list->count < list->max;
}

static struct member_list read_members(void)
{
    struct member_list list = {.max = COUNT_OF(list.entry)};

    assert_ok(xseg_budget_members(members.budget_file, add_member, &list));
    return list;
}

static bool first_member_has(uint64_t bytes)
{
    const struct member_list list = read_members();

    return list.count > 0 && list.entry[0].physical_bytes == bytes;
}

/* A reader needs no slot in the file. */
TEST_WITH(budget_members_are_listed, members_begin, members_end)
{
    const unsigned first = member_start("budget_share:0.7,budget_min_mb:10");
    assert_ok(member_call(first, MEMBER_ALLOC, 0, 60 * MIB).status);
    assert_ok(member_call(first, MEMBER_ALLOC, 1, 40 * MIB).status);
    assert_ok(member_call(first, MEMBER_FREE, 0, 0).status);
    const unsigned second = member_start("");
    /* The second member has not opened the device. */
    assert_ok(member_call(second, MEMBER_QUERY, 0, 0).status);
    EVENTUALLY(first_member_has(100 * MIB) && read_members().entry[0].idle_bytes == 60 * MIB);
    struct member_list list = read_members();
    assert_int_equal(list.count, 2);
    assert_int_equal(list.entry[0].slot, 0);
    assert_int_equal(list.entry[1].slot, 1);
    assert_int_equal(list.entry[0].pid, members.process[first].pid);
    assert_true(list.entry[0].is_readable && list.entry[1].is_readable);
    assert_non_null(strstr(list.program[0], "test-api"));
    /* 32 digits and 4 hyphens. */
    assert_int_equal(strlen(list.uuid[0]), 36);
    assert_int_equal(list.uuid[0][8], '-');
    assert_int_equal(list.entry[0].share_millionths, 700000);
    assert_int_equal(list.entry[0].min_bytes, 10 * MIB);
    assert_int_equal(list.entry[0].demand_bytes, 0);
    assert_int_equal(list.entry[0].released_bytes, 0);
    list = (struct member_list){.max = 1};
    assert_ok(xseg_budget_members(members.budget_file, add_member, &list));
    assert_int_equal(list.count, 1);
    member_end(first);
    assert_int_equal(read_members().count, 1);
    member_end(second);
    assert_int_equal(read_members().count, 0);
}

TEST_WITH(unreadable_member_is_listed, members_begin, members_end)
{
    static const unsigned char invalid[] = {1, 2, 3};
    const unsigned member_id = member_start("");
    int status = 0;

    assert_ok(member_call(member_id, MEMBER_ALLOC, 0, 60 * MIB).status);
    EVENTUALLY(first_member_has(60 * MIB));
    /* Overwrite the first slot, at offset 4096.  A running member would write its record again. */
    assert_int_equal(kill(members.process[member_id].pid, SIGSTOP), 0);
    assert_int_equal(waitpid(members.process[member_id].pid, &status, WUNTRACED),
                     members.process[member_id].pid);
    const int file = open(members.budget_file, O_WRONLY | O_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, invalid, sizeof(invalid), 4096), sizeof(invalid));
    (void)close(file);
    const struct member_list list = read_members();
    assert_int_equal(kill(members.process[member_id].pid, SIGCONT), 0);
    assert_int_equal(list.count, 1);
    assert_false(list.entry[0].is_readable);
    assert_int_equal(list.entry[0].slot, 0);
    assert_int_equal(list.entry[0].pid, 0);
    assert_int_equal(list.entry[0].physical_bytes, 0);
    assert_null(list.entry[0].program);
    assert_null(list.entry[0].uuid);
    EVENTUALLY(first_member_has(60 * MIB));
    member_end(member_id);
}

TEST_WITH(invalid_budget_file_names_are_rejected, members_begin, members_end)
{
    struct member_list list = {.max = 1};

    assert_error(xseg_budget_members(NULL, add_member, &list), ARGUMENT, "name is NULL");
    assert_error(xseg_budget_members("x", NULL, NULL), ARGUMENT, "visit is NULL");
    assert_error(xseg_budget_members("a b", add_member, &list), ARGUMENT, "is invalid, \"a b\"; ");
    assert_error(xseg_budget_members(members.budget_file, add_member, &list), FILE,
                 members.budget_file);
    assert_int_equal(access(members.budget_file, F_OK), -1);
    assert_int_equal(list.count, 0);
}
