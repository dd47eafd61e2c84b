/* SPDX-License-Identifier: MIT */
/* Budget files under faults: the allocator continues, logs the fault once, and waits no longer than otherwise. */
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#include "src/base/shared_budget.h"
#include "tests/support/members.h"
#include "tests/support/namespaces.h"

#define SLOTS_AT 4096 /* offset of the slots in the file */
#define SLOT     8192 /* size of a slot */

static struct xseg_shared_budget budget;

static int close_budget_and_members(void **state)
{
    xseg_shared_budget_close(&budget);
    return members_end(state);
}

/* Memory that the holder has freed serves a request of the other member. */
static void expect_transfer(unsigned holder, unsigned requester)
{
    EXPECT_OK(member_call(holder, MEMBER_ALLOC, 60, 900 * MIB));
    EXPECT_OK(member_call(holder, MEMBER_FREE, 60, 0));
    EXPECT_OK(member_call(requester, MEMBER_ALLOC, 61, 400 * MIB));
    EXPECT_OK(member_call(requester, MEMBER_FREE, 61, 0));
}

/* A member without a budget file logs the reason once and uses free memory only, without a wait. */
static void expect_alone(unsigned number, const char *words)
{
    EXPECT_OK(member_call(number, MEMBER_ALLOC, 0, 900 * MIB));
    (void)member_expect_denied(number, MEMBER_ALLOC, 1, 300 * MIB);
    /* Wait for a retry: a member opens the file again once per second. */
    (void)usleep(1300000);
    const struct member_response response = member_call(number, MEMBER_FREE, 0, 0);
    assert_int_equal(response.warnings, 1);
    assert_non_null(strstr(response.text, "(not in effect"));
    if (strstr(response.text, words) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", response.text, words);
}

static void write_at(off_t offset, const void *bytes, size_t count)
{
    const int file = open(members.budget_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(file >= 0);
    assert_int_equal(pwrite(file, bytes, count, offset), count);
    (void)close(file);
}

/* Root can open all files: change the user. */
static void become_nobody(void)
{
    if (geteuid() == 0 && seteuid(65534) != 0)
        _exit(2);
}

TEST_WITH(inaccessible_file_is_not_changed, members_begin, close_budget_and_members)
{
    struct stat after;

    write_at(0, "private", 7);
    assert_int_equal(chmod(members.budget_file, 0), 0);
    assert_int_equal(chmod(members.folder, 0711), 0);
    members.before_open = become_nobody;
    expect_alone(member_start(""), "allow this process to read and write the file");
    assert_int_equal(stat(members.budget_file, &after), 0);
    assert_int_equal(after.st_size, 7);
}

TEST_WITH(unwritable_folder_is_logged, members_begin, close_budget_and_members)
{
    assert_int_equal(chmod(members.folder, 0511), 0);
    members.before_open = become_nobody;
    expect_alone(member_start(""), "Permission denied");
}

/* A file system of 16 KiB for the budget file. */
static void mount_small_file_system(void)
{
    if (!namespaces_enter(geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", members.folder, "tmpfs", 0, "size=16k") != 0)
        _exit(77);
}

TEST_WITH(full_file_system_is_logged, members_begin, close_budget_and_members)
{
    if (!namespaces_can(mount_small_file_system)) {
        print_message("# skipped: this system lets no process mount a tmpfs\n");
        return;
    }
    members.before_open = mount_small_file_system;
    /* SLOTS_AT + 64 * SLOT. */
    expect_alone(member_start(""), "free 528384 bytes");
}

TEST_WITH(file_of_a_newer_version_is_not_used, members_begin, close_budget_and_members)
{
    assert_ok(xseg_shared_budget_open(&budget, members.budget_file));
    xseg_shared_budget_close(&budget);
    /* Version 99, at offset 16. */
    write_at(16, "\x63", 1);
    expect_alone(member_start(""), "does not match, 99 in ");
}

TEST_OF_TWO_MEMBERS(truncated_budget_file_is_recreated, close_budget_and_members)
{
    expect_transfer(first, second);
    assert_int_equal(truncate(members.budget_file, 5000), 0);
    MEMBER_EVENTUALLY(first, response.warnings == 1 &&
                                 strstr(response.text, "has changed to 5000 bytes") != NULL);
    MEMBER_EVENTUALLY(second, response.warnings == 1);
    /* The retries of the next second log nothing. */
    (void)usleep(1300000);
    EXPECT_OK(member_call(first, MEMBER_ALLOC, 0, 300 * MIB));
    assert_int_equal(member_call(first, MEMBER_FREE, 0, 0).warnings, 1);
    /* After the file is removed, the members create a new one. */
    assert_int_equal(unlink(members.budget_file), 0);
    (void)usleep(1500000);
    expect_transfer(first, second);
    assert_int_equal(member_call(first, MEMBER_QUERY, 0, 0).warnings, 1);
}

/* Whether the budget file has this size and only the bytes of foreign_file_is_not_overwritten. */
static bool is_foreign(size_t bytes)
{
    static char contents[20000];
    const int file = open(members.budget_file, O_RDONLY | O_CLOEXEC);
    const ssize_t count = read(file, contents, sizeof(contents));

    (void)close(file);
    for (ssize_t i = 0; i < count; i++)
        if (contents[i] != 'x')
            return false;
    return count == (ssize_t)bytes;
}

/* No member writes to the foreign file, neither while it runs nor at its exit. */
TEST_WITH(foreign_file_is_not_overwritten, members_begin, close_budget_and_members)
{
    static char text[10000];
    const unsigned first = member_start(""), second = member_start("");

    memset(text, 'x', sizeof(text));
    expect_transfer(first, second);
    assert_int_equal(truncate(members.budget_file, 0), 0);
    write_at(0, text, sizeof(text));
    /* A request publishes immediately; a round publishes later. */
    (void)member_call(first, MEMBER_ALLOC, 0, 900 * MIB);
    (void)member_call(second, MEMBER_ALLOC, 1, 900 * MIB);
    MEMBER_EVENTUALLY(first,
                      response.warnings == 1 && strstr(response.text, "(not in effect") != NULL);
    assert_true(is_foreign(sizeof(text)));
    EXPECT_OK(member_configure(first, "budget_file:none"));
    assert_true(is_foreign(sizeof(text)));
    for (unsigned i = 0; i < members.count; i++)
        member_end(i);
    members.count = 0;
    assert_true(is_foreign(sizeof(text)));
}

/* Invalid bytes in a slot last for one round at most, since each member rewrites its record. */
TEST_OF_TWO_MEMBERS(invalid_bytes_in_a_slot_are_overwritten, close_budget_and_members)
{
    unsigned char bytes[SLOT];

    expect_transfer(first, second);
    for (unsigned round = 0; round < 20; round++) {
        memset(bytes, (int)(round * 37), sizeof(bytes));
        write_at(SLOTS_AT + (off_t)(round % 2) * SLOT, bytes, sizeof(bytes));
        member_make_idle(round % 2 == 0 ? first : second, 20 * MIB);
    }
    /* Several rounds: about eight per budget_wait_ms. */
    (void)usleep(300000);
    expect_transfer(first, second);
    assert_int_equal(member_call(first, MEMBER_QUERY, 0, 0).warnings, 0);
    assert_int_equal(member_call(second, MEMBER_QUERY, 0, 0).warnings, 0);
}

/* Join the budget file.  Returns statistics to publish, with the device of the other members. */
static struct xseg_shared_budget_device join_members(void)
{
    assert_ok(xseg_shared_budget_open(&budget, members.budget_file));
    for (unsigned tries = 0; tries < 3000; tries++) {
        assert_ok(xseg_shared_budget_read(&budget));
        for (unsigned slot = 0; slot < XSEG_SHARED_BUDGET_SLOTS; slot++)
            if (budget.entries[slot].state == XSEG_SHARED_BUDGET_FRESH &&
                budget.entries[slot].record.device_count == 1) {
                struct xseg_shared_budget_device statistics = {.physical = 0};

                memcpy(statistics.uuid, budget.entries[slot].record.devices[0].uuid,
                       sizeof(statistics.uuid));
                return statistics;
            }
        (void)usleep(10000);
    }
    fail_msg("no member publishes statistics");
    return (struct xseg_shared_budget_device){.physical = 0};
}

/* Readers end a demand by their own clock, also if the clock of the writer is ahead or the writer is stopped. */
TEST_WITH(demand_with_a_future_time_ends, members_begin, close_budget_and_members)
{
    const unsigned member_id = member_start("");
    struct member_response response;
    unsigned tries = 0;

    EXPECT_OK(member_call(member_id, MEMBER_ALLOC, 0, 600 * MIB));
    struct xseg_shared_budget_device statistics = join_members();
    statistics.demand = 400 * MIB;
    /* One hour ahead. */
    statistics.demand_since = member_clock() + UINT64_C(3600) * 1000000000;
    /* The member exceeds its share, so it is denied free memory while another member requests its share. */
    do {
        statistics.demand_since++;
        assert_ok(xseg_shared_budget_write(&budget, &statistics, 1));
        EXPECT_OK(member_call(member_id, MEMBER_TRIM, 0, 0));
        (void)usleep(100000);
        response = member_call(member_id, MEMBER_ALLOC, 1, 300 * MIB);
        if (response.status == XSEG_OK)
            EXPECT_OK(member_call(member_id, MEMBER_FREE, 1, 0));
    } while (response.status == XSEG_OK && ++tries < 300);
    assert_int_not_equal(response.status, XSEG_OK);
    assert_non_null(strstr(response.text, "other processes request their shares"));
    assert_true(response.ns < MEMBER_MAX_NS);
    for (tries = 0; response.status != XSEG_OK && tries < 100; tries++)
        response = member_call(member_id, MEMBER_ALLOC, 1, 300 * MIB);
    assert_ok(response.status);
    assert_int_equal(response.warnings, 0);
}

/* The age of a demand is that of the last request, so threads that wait in turn do not time out. */
TEST_OF_TWO_MEMBERS(demand_of_threads_that_wait_in_turn_persists, close_budget_and_members)
{
    EXPECT_OK(member_call(first, MEMBER_ALLOC, 0, 900 * MIB));
    EXPECT_OK(member_call(second, MEMBER_ALLOC, 0, 2 * MIB));
    member_send(second, MEMBER_ALLOC_BY_THREADS, 0, 400 * MIB);
    /* Ten times budget_wait_ms. */
    (void)usleep(4000000);
    EXPECT_OK(member_call(first, MEMBER_FREE, 0, 0));
    assert_ok(member_receive(second).status);
}

/* Also if the rounds of the requesting member are rare: about eight in 60 s. */
TEST_WITH(member_that_joins_later_is_requested, members_begin, close_budget_and_members)
{
    const unsigned requester = member_start("");

    EXPECT_OK(member_call(requester, MEMBER_ALLOC, 1, 2 * MIB));
    (void)usleep(300000);
    EXPECT_OK(member_configure(requester, "budget_wait_ms:60000"));
    (void)usleep(300000);
    const unsigned later = member_start("");
    member_make_idle(later, 900 * MIB);
    EXPECT_OK(member_call(requester, MEMBER_ALLOC, 0, 400 * MIB));
}

TEST_WITH(large_values_of_others_have_no_effect, members_begin, close_budget_and_members)
{
    const unsigned member_id = member_start("");

    member_make_idle(member_id, 100 * MIB);
    struct xseg_shared_budget_device statistics = join_members();
    statistics.physical = statistics.idle = statistics.min_bytes = statistics.demand =
        XSEG_SHARED_BUDGET_BYTES_BOUND - 1;
    statistics.demand_since = statistics.released = UINT64_MAX;
    statistics.share = XSEG_SHARED_BUDGET_FULL_SHARE;
    assert_ok(xseg_shared_budget_write(&budget, &statistics, 1));
    (void)usleep(300000);
    EXPECT_OK(member_call(member_id, MEMBER_ALLOC, 0, 900 * MIB));
    (void)member_expect_denied(member_id, MEMBER_ALLOC, 1, 300 * MIB);
}

TEST_WITH(large_values_are_clamped, members_begin, close_budget_and_members)
{
    const unsigned first = member_start("budget_min_mb:1073741824"), second = member_start("");

    (void)member_expect_denied(first, MEMBER_ALLOC, 0, UINT64_C(1) << 51);
    (void)member_expect_denied(second, MEMBER_COMMIT, 0, 4 * GIB);
    EXPECT_OK(member_call(first, MEMBER_ALLOC, 0, 100 * MIB));
    (void)join_members();
    for (unsigned slot = 0; slot < XSEG_SHARED_BUDGET_SLOTS; slot++)
        assert_int_not_equal(budget.entries[slot].state, XSEG_SHARED_BUDGET_UNREADABLE);
    EXPECT_OK(member_configure(first, "budget_min_mb:0"));
    EXPECT_OK(member_call(first, MEMBER_FREE, 0, 0));
    expect_transfer(first, second);
}

TEST_OF_TWO_MEMBERS(fork_in_a_member_has_no_effect, close_budget_and_members)
{
    expect_transfer(first, second);
    for (unsigned i = 0; i < 5; i++)
        EXPECT_OK(member_call(first, MEMBER_FORK, 0, 0));
    expect_transfer(first, second);
    expect_transfer(second, first);
    assert_int_equal(member_call(first, MEMBER_QUERY, 0, 0).warnings, 0);
}

TEST_WITH(budget_file_can_be_changed_at_any_time, members_begin, close_budget_and_members)
{
    const unsigned first = member_start("background_thread:True"), second = member_start("");
    char first_file[256], second_file[256], second_path[160];

    (void)snprintf(second_path, sizeof(second_path), "%s/second", members.folder);
    (void)snprintf(first_file, sizeof(first_file), "budget_file:%s", members.budget_file);
    (void)snprintf(second_file, sizeof(second_file), "budget_file:%s", second_path);
    expect_transfer(first, second);
    for (unsigned i = 0; i < 3; i++) {
        member_make_idle(first, 900 * MIB);
        /* Without the file there are no requests and no releases. */
        EXPECT_OK(member_configure(first, "budget_file:none"));
        (void)member_expect_denied(second, MEMBER_ALLOC, 0, 400 * MIB);
        assert_int_equal(member_call(first, MEMBER_QUERY, 0, 0).physical, 900 * MIB);
        /* With another file the member is alone until the second member joins. */
        EXPECT_OK(member_configure(first, second_file));
        (void)member_expect_denied(second, MEMBER_ALLOC, 0, 400 * MIB);
        EXPECT_OK(member_configure(second, second_file));
        expect_transfer(first, second);
        EXPECT_OK(member_configure(first, first_file));
        EXPECT_OK(member_configure(second, first_file));
        expect_transfer(first, second);
    }
    assert_int_equal(member_call(first, MEMBER_QUERY, 0, 0).warnings, 0);
    assert_int_equal(unlink(second_path), 0);
}

/* --- Members in user, PID and time namespaces, and members of several users with one budget file. --- */

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

/* As expect_transfer(), without a line in the logs of the members. */
static void expect_silent_transfer(unsigned holder, unsigned requester)
{
    expect_transfer(holder, requester);
    assert_int_equal(member_call(holder, MEMBER_QUERY, 0, 0).warnings, 0);
    assert_int_equal(member_call(requester, MEMBER_QUERY, 0, 0).warnings, 0);
}

/* Continue as PID 1 of a new PID namespace, in a child; the parent exits with the status of the child. */
static void enter_child(int socket)
{
    int status = 0;
    const pid_t child = fork();

    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getpid() != 1)
            _exit(2);
        return;
    }
    if (socket >= 0)
        (void)close(socket);
    _exit(waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 2);
}

static void enter_container(int socket)
{
    if (!namespaces_enter(CLONE_NEWUSER | CLONE_NEWPID))
        _exit(77);
    enter_child(socket);
}

/* The clock of the container is ahead by 500,000 s, almost six days. */
static void enter_container_with_clock(int socket)
{
    static const char ahead[] = "monotonic 500000 0";

    if (!namespaces_enter(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWTIME))
        _exit(77);
    const int file = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, ahead, sizeof(ahead) - 1) != (ssize_t)sizeof(ahead) - 1)
        _exit(77);
    (void)close(file);
    enter_child(socket);
}

static void try_container(void)
{
    enter_container(-1);
}

static void try_container_with_clock(void)
{
    enter_container_with_clock(-1);
}

static bool can_enter(void (*enter)(void))
{
    if (namespaces_can(enter))
        return true;
    print_message("# skipped: this system lets no process enter such namespaces\n");
    return false;
}

static unsigned count_slots(void)
{
    unsigned count = 0;

    assert_ok(xseg_shared_budget_read(&budget));
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        count += budget.entries[i].state != XSEG_SHARED_BUDGET_FREE;
    return count;
}

TEST_WITH(containers_share_memory_and_exit, members_begin, close_budget_and_members)
{
    unsigned count = 3;

    if (!can_enter(try_container))
        return;
    members.at_start = enter_container;
    const unsigned first = member_start(""), second = member_start("");
    expect_silent_transfer(first, second);
    expect_silent_transfer(second, first);
    assert_ok(xseg_shared_budget_open(&budget, members.budget_file));
    assert_int_equal(count_slots(), 3);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(budget.entries[i].record.pid, 1);
    /* The memory of an exited member is free. */
    EXPECT_OK(member_call(first, MEMBER_ALLOC, 1, 600 * MIB));
    member_kill(first);
    for (unsigned tries = 0; count != 2 && tries < 3000; tries++) {
        (void)usleep(10000);
        count = count_slots();
    }
    assert_int_equal(count, 2);
    EXPECT_OK(member_call(second, MEMBER_ALLOC, 1, 1000 * MIB));
    EXPECT_OK(member_call(second, MEMBER_FREE, 1, 0));
    /* The next member reuses the slot; a member outside of containers can join. */
    const unsigned third = member_start("");
    expect_silent_transfer(third, second);
    members.at_start = NULL;
    expect_silent_transfer(second, member_start(""));
}

TEST_WITH(member_with_another_clock_shares_memory, members_begin, close_budget_and_members)
{
    if (!can_enter(try_container_with_clock))
        return;
    members.at_start = enter_container_with_clock;
    const unsigned ahead = member_start("");
    members.at_start = NULL;
    const unsigned unshifted = member_start("");
    for (unsigned i = 0; i < 2; i++) {
        expect_silent_transfer(ahead, unshifted);
        expect_silent_transfer(unshifted, ahead);
    }
}

#define GROUP 60000u

static uid_t next_user = GROUP;

static void become_next_user(void)
{
    const gid_t group = GROUP;

    (void)umask(077);
    if (setgroups(1, &group) != 0 || setegid(next_user) != 0 || seteuid(next_user) != 0)
        _exit(2);
}

/* As in docs/sharing.md for notebooks: the set-group-ID bit of the folder sets the group of the file. */
TEST_WITH(users_of_a_group_share_memory, members_begin, close_budget_and_members)
{
    struct stat file;

    if (geteuid() != 0) {
        print_message("# skipped: only the superuser can become several users\n");
        return;
    }
    assert_int_equal(chown(members.folder, 0, GROUP), 0);
    assert_int_equal(chmod(members.folder, 02770), 0);
    members.before_open = become_next_user;
    next_user++;
    const unsigned first = member_start("");
    EXPECT_OK(member_call(first, MEMBER_QUERY, 0, 0));
    next_user++;
    const unsigned second = member_start("");
    expect_silent_transfer(first, second);
    expect_silent_transfer(second, first);
    assert_int_equal(stat(members.budget_file, &file), 0);
    assert_int_equal(file.st_mode, S_IFREG | 0660);
    assert_int_equal(file.st_gid, GROUP);
    assert_int_equal(file.st_uid, GROUP + 1); /* the first member */
}
