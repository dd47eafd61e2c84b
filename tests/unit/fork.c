/* SPDX-License-Identifier: MIT */
/* Noticing a fork, with the page that the kernel wipes and without. */
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/base/host_memory.h"
#include "tests/support/emulator.h"
#include "tests/support/test.h"

/* What a child process answers. */
static bool in_a_child(bool (*question)(struct xseg_fork_guard *guard),
                       struct xseg_fork_guard *guard)
{
    int status = 0;
    const pid_t child = fork();

    if (child == 0)
        _exit(question(guard) ? 0 : 1);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status) == 0;
}

static bool is_child(struct xseg_fork_guard *guard)
{
    return xseg_fork_guard_is_child(guard);
}

TEST(child_is_detected_by_the_wiped_page)
{
    struct xseg_fork_guard guard = {0};

    assert_true(xseg_fork_guard_init(&guard));
    assert_non_null((const void *)(uintptr_t)guard.marker);
    guard.owner = 0; /* not looked at */
    assert_false(xseg_fork_guard_is_child(&guard));
    assert_true(in_a_child(is_child, &guard));
    assert_false(xseg_fork_guard_is_child(&guard));
    xseg_fork_guard_fini(&guard);
}

/* As on a kernel that wipes no pages. */
TEST(child_is_detected_by_its_process_id)
{
    struct xseg_fork_guard guard = {.marker = NULL, .owner = getpid()};

    assert_false(xseg_fork_guard_is_child(&guard));
    assert_true(in_a_child(is_child, &guard));
    xseg_fork_guard_fini(&guard);
}

/* Without a page the kernel has to be asked, which goes on to work after the end. */
TEST(fini_may_be_called_twice)
{
    struct xseg_fork_guard guard = {0};

    assert_true(xseg_fork_guard_init(&guard));
    xseg_fork_guard_fini(&guard);
    assert_null((const void *)(uintptr_t)guard.marker);
    xseg_fork_guard_fini(&guard);
    assert_false(xseg_fork_guard_is_child(&guard));
}

static bool cannot_begin(struct xseg_fork_guard *guard)
{
    const struct rlimit none = {0, 0};

    return setrlimit(RLIMIT_AS, &none) == 0 && !xseg_fork_guard_init(guard) &&
           guard->marker == NULL;
}

TEST(init_fails_without_host_memory)
{
    struct xseg_fork_guard guard = {0};

    if (skip_in_emulator("memory has no limit"))
        return;
    assert_true(in_a_child(cannot_begin, &guard));
}
