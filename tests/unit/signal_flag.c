/* SPDX-License-Identifier: MIT */
/* Signals that raise a flag: counting, taking, giving back, and a fork. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "src/base/error.h"
#include "src/base/signal_flag.h"

int __real_sigaction(int number, const struct sigaction *action, struct sigaction *before);
int __wrap_sigaction(int number, const struct sigaction *action, struct sigaction *before);

/* What another thread sets right before the next change; NULL: nothing. */
static void (*meanwhile)(int number);

int __wrap_sigaction(int number, const struct sigaction *action, struct sigaction *before)
{
    struct sigaction other = {.sa_handler = meanwhile};

    if (action != NULL && meanwhile != NULL) {
        meanwhile = NULL;
        assert_int_equal(__real_sigaction(number, &other, NULL), 0);
    }
    return __real_sigaction(number, action, before);
}

static void (*handler_of(int number))(int)
{
    struct sigaction now;

    assert_int_equal(sigaction(number, NULL, &now), 0);
    return now.sa_handler;
}

static void handle(int number)
{
    (void)number;
}

static void handle_with_more(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    (void)context;
}

static void a_signal_is_counted_while_it_is_taken(void **state)
{
    const unsigned before = xseg_signal_flag_count(SIGUSR1);

    (void)state;
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_OK);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(raise(SIGUSR1), 0);
    assert_int_equal(xseg_signal_flag_count(SIGUSR1) - before, 3);
    assert_int_equal(xseg_signal_flag_count(SIGUSR2), 0);
    xseg_signal_flag_give(SIGUSR1);
    assert_true(handler_of(SIGUSR1) == SIG_DFL);
}

static void the_last_one_gives_it_back(void **state)
{
    (void)state;
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_OK);
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_OK);
    xseg_signal_flag_give(SIGUSR1);
    assert_true(handler_of(SIGUSR1) != SIG_DFL);
    xseg_signal_flag_give(SIGUSR1);
    assert_true(handler_of(SIGUSR1) == SIG_DFL);
}

static void what_others_set_stays(void **state)
{
    struct sigaction more = {.sa_sigaction = handle_with_more, .sa_flags = SA_SIGINFO};

    (void)state;
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_OK);
    assert_int_equal(sigaction(SIGUSR1, &more, NULL), 0);
    /* Nobody can take it any more, and giving it back changes nothing. */
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_ERR_CONFIG);
    assert_non_null(strstr(xseg_fail_text()->buffer, "key: the process handles"));
    xseg_signal_flag_give(SIGUSR1);
    assert_int_equal(sigaction(SIGUSR1, NULL, &more), 0);
    assert_true(more.sa_sigaction == handle_with_more);
    assert_true(signal(SIGUSR1, handle) != SIG_ERR);
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_ERR_CONFIG);
    assert_true(signal(SIGUSR1, SIG_IGN) == handle);
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_ERR_CONFIG);
    assert_non_null(strstr(xseg_fail_text()->buffer, "ignores"));
    assert_true(signal(SIGUSR1, SIG_DFL) == SIG_IGN);
}

static void what_others_set_meanwhile_stays(void **state)
{
    (void)state;
    meanwhile = handle;
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_ERR_CONFIG);
    assert_null(meanwhile);
    assert_true(handler_of(SIGUSR1) == handle);
    assert_true(signal(SIGUSR1, SIG_DFL) == handle);
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_OK);
    meanwhile = handle;
    xseg_signal_flag_give(SIGUSR1);
    assert_null(meanwhile);
    assert_true(handler_of(SIGUSR1) == handle);
    assert_true(signal(SIGUSR1, SIG_DFL) == handle);
}

static void a_signal_that_nobody_may_handle_is_refused(void **state)
{
    (void)state;
    assert_int_equal(xseg_signal_flag_take(SIGKILL, "key"), XSEG_ERR_CONFIG);
    assert_non_null(strstr(xseg_fail_text()->buffer, "key: the system refuses: "));
}

/* A call that waits is not disturbed, and the handler's own errno is nobody's. */
static void a_wait_goes_on(void **state)
{
    int ends[2], status = 0;
    char letter = 0;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_OK);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)usleep(20000);
        (void)kill(getppid(), SIGUSR1);
        (void)usleep(20000);
        _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
    }
    assert_int_equal(read(ends[0], &letter, 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    xseg_signal_flag_give(SIGUSR1);
    assert_int_equal(close(ends[0]), 0);
    assert_int_equal(close(ends[1]), 0);
}

static bool take_and_give(void)
{
    if (handler_of(SIGUSR1) == SIG_DFL || raise(SIGUSR1) != 0)
        return false;
    if (xseg_signal_flag_take(SIGUSR1, "key") != XSEG_OK)
        return false;
    xseg_signal_flag_give(SIGUSR1);
    return handler_of(SIGUSR1) == SIG_DFL;
}

static void nobody_in_a_child_has_taken_one(void **state)
{
    const unsigned before = xseg_signal_flag_count(SIGUSR1);
    int status = 0;

    (void)state;
    assert_int_equal(xseg_signal_flag_take(SIGUSR1, "key"), XSEG_OK);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(take_and_give() ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(xseg_signal_flag_count(SIGUSR1), before);
    assert_true(handler_of(SIGUSR1) != SIG_DFL);
    xseg_signal_flag_give(SIGUSR1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_signal_is_counted_while_it_is_taken),
        cmocka_unit_test(the_last_one_gives_it_back),
        cmocka_unit_test(what_others_set_stays),
        cmocka_unit_test(what_others_set_meanwhile_stays),
        cmocka_unit_test(a_signal_that_nobody_may_handle_is_refused),
        cmocka_unit_test(a_wait_goes_on),
        cmocka_unit_test(nobody_in_a_child_has_taken_one),
    };

    return cmocka_run_group_tests_name("signal_flag", tests, NULL, NULL);
}
