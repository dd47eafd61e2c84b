/* SPDX-License-Identifier: MIT */
/* Members in user, pid and time namespaces of their own, as containers have them, and members of several users, on a ledger
 * that is named by its path. */
#include <grp.h>
#include <sys/prctl.h>

#include "src/base/shared_budget.h"
#include "tests/support/members.h"
#include "tests/support/namespaces.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

static struct xseg_shared_budget ledger;

static int end(void **state)
{
    xseg_shared_budget_close(&ledger);
    return members_end(state);
}

static void expect_lending(unsigned one, unsigned other)
{
    EXPECT_OK(member_call(one, 'a', 0, 900 * MIB));
    EXPECT_OK(member_call(one, 'f', 0, 0));
    EXPECT_OK(member_call(other, 'a', 0, 400 * MIB));
    EXPECT_OK(member_call(other, 'f', 0, 0));
    assert_int_equal(member_call(one, ' ', 0, 0).lines, 0);
    assert_int_equal(member_call(other, ' ', 0, 0).lines, 0);
}

/* Be pid 1 of a new container, whose parent ends with it, and whom it does not outlive. */
static void begin_inside(int socket)
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

static void be_a_container(int socket)
{
    if (!namespaces_enter(CLONE_NEWUSER | CLONE_NEWPID))
        _exit(77);
    begin_inside(socket);
}

/* Its clock is ahead by some days. */
static void be_a_container_of_another_time(int socket)
{
    static const char ahead[] = "monotonic 500000 0";

    if (!namespaces_enter(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWTIME))
        _exit(77);
    const int file = open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, ahead, sizeof(ahead) - 1) != (ssize_t)sizeof(ahead) - 1)
        _exit(77);
    (void)close(file);
    begin_inside(socket);
}

static void try_a_container(void)
{
    be_a_container(-1);
}

static void try_another_time(void)
{
    be_a_container_of_another_time(-1);
}

static bool can(void (*enter)(void))
{
    if (namespaces_can(enter))
        return true;
    print_message("# this system lets no process enter such namespaces: nothing was tried\n");
    return false;
}

static unsigned count_slots(void)
{
    unsigned count = 0;

    assert_ok(xseg_shared_budget_read(&ledger));
    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_SLOTS; i++)
        count += ledger.seen[i].state != XSEG_SHARED_BUDGET_FREE;
    return count;
}

TEST_WITH(containers_lend_and_end, members_begin, end)
{
    unsigned count = 3;

    if (!can(try_a_container))
        return;
    members.at_start = be_a_container;
    const unsigned one = member_start(""), other = member_start("");
    expect_lending(one, other);
    expect_lending(other, one);
    assert_ok(xseg_shared_budget_open(&ledger, members.budget_file));
    assert_int_equal(count_slots(), 3);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(ledger.seen[i].record.pid, 1);
    /* What a dead one had in use is free. */
    EXPECT_OK(member_call(one, 'a', 1, 600 * MIB));
    member_kill(one);
    for (unsigned tries = 0; count != 2 && tries < 3000; tries++) {
        (void)usleep(10000);
        count = count_slots();
    }
    assert_int_equal(count, 2);
    EXPECT_OK(member_call(other, 'a', 1, 1000 * MIB));
    EXPECT_OK(member_call(other, 'f', 1, 0));
    /* The next one takes its place; nor is one outside of containers another matter. */
    const unsigned third = member_start("");
    expect_lending(third, other);
    members.at_start = NULL;
    expect_lending(other, member_start(""));
}

TEST_WITH(a_clock_of_its_own_makes_no_difference, members_begin, end)
{
    if (!can(try_another_time))
        return;
    members.at_start = be_a_container_of_another_time;
    const unsigned ahead = member_start("");
    members.at_start = NULL;
    const unsigned other = member_start("");
    for (unsigned i = 0; i < 2; i++) {
        expect_lending(ahead, other);
        expect_lending(other, ahead);
    }
}

/* --- Users of a group. --- */

#define GROUP 60000u

static uid_t next_user = GROUP;

static void be_a_user_of_the_group(void)
{
    const gid_t group = GROUP;

    (void)umask(077);
    if (setgroups(1, &group) != 0 || setegid(next_user) != 0 || seteuid(next_user) != 0)
        _exit(2);
}

/* As docs/processes.md has it for notebooks: a folder whose set-group-ID bit gives the file to the group. */
TEST_WITH(users_of_a_group_lend_to_each_other, members_begin, end)
{
    struct stat file;

    if (geteuid() != 0) {
        print_message("# only the superuser may be several users: nothing was tried\n");
        return;
    }
    assert_int_equal(chown(members.folder, 0, GROUP), 0);
    assert_int_equal(chmod(members.folder, 02770), 0);
    members.before_open = be_a_user_of_the_group;
    next_user++;
    const unsigned one = member_start("");
    EXPECT_OK(member_call(one, ' ', 0, 0));
    next_user++;
    const unsigned other = member_start("");
    expect_lending(one, other);
    expect_lending(other, one);
    assert_int_equal(stat(members.budget_file, &file), 0);
    assert_int_equal(file.st_mode, S_IFREG | 0660);
    assert_int_equal(file.st_gid, GROUP);
    assert_int_equal(file.st_uid, GROUP + 1);
}
