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
#define SLOT     8192

static struct xseg_shared_budget budget;

static int end(void **state)
{
    xseg_shared_budget_close(&budget);
    return members_end(state);
}

static void expect_transfer(unsigned one, unsigned other)
{
    EXPECT_OK(member_call(one, 'a', 60, 900 * MIB));
    EXPECT_OK(member_call(one, 'f', 60, 0));
    EXPECT_OK(member_call(other, 'a', 61, 400 * MIB));
    EXPECT_OK(member_call(other, 'f', 61, 0));
}

/* A member without a budget file logs the reason once and uses free memory only, without a wait. */
static void expect_alone(unsigned number, const char *words)
{
    EXPECT_OK(member_call(number, 'a', 0, 900 * MIB));
    (void)member_expect_denied(number, 'a', 1, 300 * MIB);
    /* The member has retried to open the file. */
    (void)usleep(1300000);
    const struct member_answer answer = member_call(number, 'f', 0, 0);
    assert_int_equal(answer.lines, 1);
    assert_non_null(strstr(answer.text, "(not in effect"));
    if (strstr(answer.text, words) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", answer.text, words);
}

static void put(off_t at, const void *bytes, size_t count)
{
    const int file = open(members.budget_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(file >= 0);
    assert_int_equal(pwrite(file, bytes, count, at), count);
    (void)close(file);
}

/* Root can open all files: change the user. */
static void become_nobody(void)
{
    if (geteuid() == 0 && seteuid(65534) != 0)
        _exit(2);
}

TEST_WITH(inaccessible_file_is_not_changed, members_begin, end)
{
    struct stat after;

    put(0, "private", 7);
    assert_int_equal(chmod(members.budget_file, 0), 0);
    assert_int_equal(chmod(members.folder, 0711), 0);
    members.before_open = become_nobody;
    expect_alone(member_start(""), "allow this process to read and write the file");
    assert_int_equal(stat(members.budget_file, &after), 0);
    assert_int_equal(after.st_size, 7);
}

TEST_WITH(unwritable_folder_is_logged, members_begin, end)
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

TEST_WITH(full_file_system_is_logged, members_begin, end)
{
    if (!namespaces_can(mount_small_file_system)) {
        print_message("# skipped: this system lets no process mount a tmpfs\n");
        return;
    }
    members.before_open = mount_small_file_system;
    expect_alone(member_start(""), "free 528384 bytes");
}

TEST_WITH(file_of_a_newer_version_is_not_used, members_begin, end)
{
    assert_ok(xseg_shared_budget_open(&budget, members.budget_file));
    xseg_shared_budget_close(&budget);
    put(16, "\x63", 1);
    expect_alone(member_start(""), "does not match, 99 in ");
}

TEST_OF_TWO_MEMBERS(truncated_budget_file_is_recreated, end)
{
    expect_transfer(one, other);
    assert_int_equal(truncate(members.budget_file, 5000), 0);
    MEMBER_EVENTUALLY(one, answer.lines == 1 &&
                               strstr(answer.text, "has changed to 5000 bytes") != NULL);
    MEMBER_EVENTUALLY(other, answer.lines == 1);
    (void)usleep(1300000);
    EXPECT_OK(member_call(one, 'a', 0, 300 * MIB));
    assert_int_equal(member_call(one, 'f', 0, 0).lines, 1);
    /* After its removal the members create a new file. */
    assert_int_equal(unlink(members.budget_file), 0);
    (void)usleep(1500000);
    expect_transfer(one, other);
    assert_int_equal(member_call(one, ' ', 0, 0).lines, 1);
}

static bool is_foreign(size_t bytes)
{
    static char read_bytes[20000];
    const int file = open(members.budget_file, O_RDONLY | O_CLOEXEC);
    const ssize_t count = read(file, read_bytes, sizeof(read_bytes));

    (void)close(file);
    for (ssize_t i = 0; i < count; i++)
        if (read_bytes[i] != 'x')
            return false;
    return count == (ssize_t)bytes;
}

/* No member writes to the foreign file, neither while it runs nor at its exit. */
TEST_WITH(foreign_file_is_not_overwritten, members_begin, end)
{
    static char text[10000];
    const unsigned one = member_start(""), other = member_start("");

    memset(text, 'x', sizeof(text));
    expect_transfer(one, other);
    assert_int_equal(truncate(members.budget_file, 0), 0);
    put(0, text, sizeof(text));
    /* A request publishes immediately; a round publishes later. */
    (void)member_call(one, 'a', 0, 900 * MIB);
    (void)member_call(other, 'a', 1, 900 * MIB);
    MEMBER_EVENTUALLY(one, answer.lines == 1 && strstr(answer.text, "(not in effect") != NULL);
    assert_true(is_foreign(sizeof(text)));
    EXPECT_OK(member_configure(one, "budget_file:none"));
    assert_true(is_foreign(sizeof(text)));
    for (unsigned i = 0; i < members.count; i++)
        member_end(i);
    members.count = 0;
    assert_true(is_foreign(sizeof(text)));
}

/* Invalid bytes in a slot last for one round at most, since each member rewrites its record. */
TEST_OF_TWO_MEMBERS(invalid_bytes_in_a_slot_are_overwritten, end)
{
    unsigned char bytes[SLOT];

    expect_transfer(one, other);
    for (unsigned round = 0; round < 20; round++) {
        memset(bytes, (int)(round * 37), sizeof(bytes));
        put(SLOTS_AT + (off_t)(round % 2) * SLOT, bytes, sizeof(bytes));
        member_make_idle(round % 2 == 0 ? one : other, 20 * MIB);
    }
    (void)usleep(300000);
    expect_transfer(one, other);
    assert_int_equal(member_call(one, ' ', 0, 0).lines, 0);
    assert_int_equal(member_call(other, ' ', 0, 0).lines, 0);
}

/* Join the budget file.  Returns statistics to publish, with the device of the other members. */
static struct xseg_shared_budget_device join_members(void)
{
    assert_ok(xseg_shared_budget_open(&budget, members.budget_file));
    for (unsigned tries = 0; tries < 3000; tries++) {
        assert_ok(xseg_shared_budget_read(&budget));
        for (unsigned slot = 0; slot < XSEG_SHARED_BUDGET_SLOTS; slot++)
            if (budget.seen[slot].state == XSEG_SHARED_BUDGET_FRESH &&
                budget.seen[slot].record.device_count == 1) {
                struct xseg_shared_budget_device figures = {.physical = 0};

                memcpy(figures.uuid, budget.seen[slot].record.devices[0].uuid,
                       sizeof(figures.uuid));
                return figures;
            }
        (void)usleep(10000);
    }
    fail_msg("no member publishes statistics");
    return (struct xseg_shared_budget_device){.physical = 0};
}

/* A demand ends by the clock of the readers, if the clock of the writer is ahead or the writer is stopped. */
TEST_WITH(demand_with_a_future_time_ends, members_begin, end)
{
    const unsigned one = member_start("");
    struct member_answer answer;
    unsigned tries = 0;

    EXPECT_OK(member_call(one, 'a', 0, 600 * MIB));
    struct xseg_shared_budget_device figures = join_members();
    figures.demand = 400 * MIB;
    figures.demand_since = member_clock() + UINT64_C(3600) * 1000000000;
    /* The member exceeds its share, so it is denied free memory while another member requests its share. */
    do {
        figures.demand_since++;
        assert_ok(xseg_shared_budget_write(&budget, &figures, 1));
        EXPECT_OK(member_call(one, 't', 0, 0));
        (void)usleep(100000);
        answer = member_call(one, 'a', 1, 300 * MIB);
        if (answer.status == XSEG_OK)
            EXPECT_OK(member_call(one, 'f', 1, 0));
    } while (answer.status == XSEG_OK && ++tries < 300);
    assert_int_not_equal(answer.status, XSEG_OK);
    assert_non_null(strstr(answer.text, "other processes request their shares"));
    assert_true(answer.ns < BOUND);
    for (tries = 0; answer.status != XSEG_OK && tries < 100; tries++)
        answer = member_call(one, 'a', 1, 300 * MIB);
    assert_ok(answer.status);
    assert_int_equal(answer.lines, 0);
}

/* The age of a demand is that of the last request, so threads that wait in turn do not time out. */
TEST_OF_TWO_MEMBERS(demand_of_threads_that_wait_in_turn_persists, end)
{
    EXPECT_OK(member_call(one, 'a', 0, 900 * MIB));
    EXPECT_OK(member_call(other, 'a', 0, 2 * MIB));
    member_send(other, 'T', 0, 400 * MIB);
    (void)usleep(4000000);
    EXPECT_OK(member_call(one, 'f', 0, 0));
    assert_ok(member_receive(other).status);
}

/* Also with a long time between rounds. */
TEST_WITH(member_that_joins_later_is_requested, members_begin, end)
{
    const unsigned one = member_start("");

    EXPECT_OK(member_call(one, 'a', 1, 2 * MIB));
    (void)usleep(300000);
    EXPECT_OK(member_configure(one, "budget_wait_ms:60000"));
    (void)usleep(300000);
    const unsigned other = member_start("");
    member_make_idle(other, 900 * MIB);
    EXPECT_OK(member_call(one, 'a', 0, 400 * MIB));
}

TEST_WITH(large_values_of_others_have_no_effect, members_begin, end)
{
    const unsigned one = member_start("");

    member_make_idle(one, 100 * MIB);
    struct xseg_shared_budget_device figures = join_members();
    figures.physical = figures.idle = figures.floor = figures.demand =
        XSEG_SHARED_BUDGET_BYTES_BOUND - 1;
    figures.demand_since = figures.released = UINT64_MAX;
    figures.share = XSEG_SHARED_BUDGET_WHOLE_SHARE;
    assert_ok(xseg_shared_budget_write(&budget, &figures, 1));
    (void)usleep(300000);
    EXPECT_OK(member_call(one, 'a', 0, 900 * MIB));
    (void)member_expect_denied(one, 'a', 1, 300 * MIB);
}

TEST_WITH(large_values_are_clamped, members_begin, end)
{
    const unsigned one = member_start("budget_min_mb:1073741824"), other = member_start("");

    (void)member_expect_denied(one, 'a', 0, UINT64_C(1) << 51);
    (void)member_expect_denied(other, 'c', 0, 4 * GIB);
    EXPECT_OK(member_call(one, 'a', 0, 100 * MIB));
    (void)join_members();
    for (unsigned slot = 0; slot < XSEG_SHARED_BUDGET_SLOTS; slot++)
        assert_int_not_equal(budget.seen[slot].state, XSEG_SHARED_BUDGET_UNREADABLE);
    EXPECT_OK(member_configure(one, "budget_min_mb:0"));
    EXPECT_OK(member_call(one, 'f', 0, 0));
    expect_transfer(one, other);
}

TEST_OF_TWO_MEMBERS(fork_in_a_member_has_no_effect, end)
{
    expect_transfer(one, other);
    for (unsigned i = 0; i < 5; i++)
        EXPECT_OK(member_call(one, 'F', 0, 0));
    expect_transfer(one, other);
    expect_transfer(other, one);
    assert_int_equal(member_call(one, ' ', 0, 0).lines, 0);
}

TEST_WITH(budget_file_can_be_changed_at_any_time, members_begin, end)
{
    const unsigned one = member_start("background_thread:True"), other = member_start("");
    char own[256], second[256], path[160];

    (void)snprintf(path, sizeof(path), "%s/second", members.folder);
    (void)snprintf(own, sizeof(own), "budget_file:%s", members.budget_file);
    (void)snprintf(second, sizeof(second), "budget_file:%s", path);
    expect_transfer(one, other);
    for (unsigned i = 0; i < 3; i++) {
        member_make_idle(one, 900 * MIB);
        /* Without the file there are no requests and no releases. */
        EXPECT_OK(member_configure(one, "budget_file:none"));
        (void)member_expect_denied(other, 'a', 0, 400 * MIB);
        assert_int_equal(member_call(one, ' ', 0, 0).taken, 900 * MIB);
        /* With another file the member is alone until `other` joins. */
        EXPECT_OK(member_configure(one, second));
        (void)member_expect_denied(other, 'a', 0, 400 * MIB);
        EXPECT_OK(member_configure(other, second));
        expect_transfer(one, other);
        EXPECT_OK(member_configure(one, own));
        EXPECT_OK(member_configure(other, own));
        expect_transfer(one, other);
    }
    assert_int_equal(member_call(one, ' ', 0, 0).lines, 0);
    assert_int_equal(unlink(path), 0);
}

/* --- Members in user, PID and time namespaces, and members of several users with one budget file. --- */

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

/* As expect_transfer(), without a line in the logs. */
static void expect_silent_transfer(unsigned one, unsigned other)
{
    expect_transfer(one, other);
    assert_int_equal(member_call(one, ' ', 0, 0).lines, 0);
    assert_int_equal(member_call(other, ' ', 0, 0).lines, 0);
}

/* Continue as PID 1 of a new PID namespace, in a child; the parent exits with the status of the child. */
static void enter_child(int socket)
{
    int status = 0;
    const pid_t inside = fork();

    if (inside == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getpid() != 1)
            _exit(2);
        return;
    }
    if (socket >= 0)
        (void)close(socket);
    _exit(waitpid(inside, &status, 0) == inside && WIFEXITED(status) ? WEXITSTATUS(status) : 2);
}

static void enter_container(int socket)
{
    if (!namespaces_enter(CLONE_NEWUSER | CLONE_NEWPID))
        _exit(77);
    enter_child(socket);
}

/* The clock of the container is ahead by some days. */
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

static bool can(void (*enter)(void))
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
        count += budget.seen[i].state != XSEG_SHARED_BUDGET_FREE;
    return count;
}

TEST_WITH(containers_share_memory_and_exit, members_begin, end)
{
    unsigned count = 3;

    if (!can(try_container))
        return;
    members.at_start = enter_container;
    const unsigned one = member_start(""), other = member_start("");
    expect_silent_transfer(one, other);
    expect_silent_transfer(other, one);
    assert_ok(xseg_shared_budget_open(&budget, members.budget_file));
    assert_int_equal(count_slots(), 3);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(budget.seen[i].record.pid, 1);
    /* The memory of an exited member is free. */
    EXPECT_OK(member_call(one, 'a', 1, 600 * MIB));
    member_kill(one);
    for (unsigned tries = 0; count != 2 && tries < 3000; tries++) {
        (void)usleep(10000);
        count = count_slots();
    }
    assert_int_equal(count, 2);
    EXPECT_OK(member_call(other, 'a', 1, 1000 * MIB));
    EXPECT_OK(member_call(other, 'f', 1, 0));
    /* The next member reuses the slot; a member outside of containers can join. */
    const unsigned third = member_start("");
    expect_silent_transfer(third, other);
    members.at_start = NULL;
    expect_silent_transfer(other, member_start(""));
}

TEST_WITH(member_with_another_clock_shares_memory, members_begin, end)
{
    if (!can(try_container_with_clock))
        return;
    members.at_start = enter_container_with_clock;
    const unsigned ahead = member_start("");
    members.at_start = NULL;
    const unsigned other = member_start("");
    for (unsigned i = 0; i < 2; i++) {
        expect_silent_transfer(ahead, other);
        expect_silent_transfer(other, ahead);
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
TEST_WITH(users_of_a_group_share_memory, members_begin, end)
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
    const unsigned one = member_start("");
    EXPECT_OK(member_call(one, ' ', 0, 0));
    next_user++;
    const unsigned other = member_start("");
    expect_silent_transfer(one, other);
    expect_silent_transfer(other, one);
    assert_int_equal(stat(members.budget_file, &file), 0);
    assert_int_equal(file.st_mode, S_IFREG | 0660);
    assert_int_equal(file.st_gid, GROUP);
    assert_int_equal(file.st_uid, GROUP + 1); /* the first member */
}
