/* SPDX-License-Identifier: MIT */
#include "src/base/signal_flag.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"

#define NUMBERS 65 /* of signals, and 0 */

static atomic_uint count[NUMBERS]; /* the only thing that the handler writes to */
static unsigned users[NUMBERS];    /* of process `owner` */
static pid_t owner;

/* The process that changes the table; 0: none.  A mutex would stay locked for ever in a child that was forked while
 * another thread had it. */
static atomic_int holder;

static void take_lock(void)
{
    const int own = getpid();
    int seen = 0;

    /* A number that is not this process's own is that of a parent, whose threads are not here. */
    while (!atomic_compare_exchange_weak(&holder, &seen, own))
        if (seen == own) {
            (void)sched_yield();
            seen = 0;
        }
    if (owner != own)
        memset(users, 0, sizeof(users));
    owner = own;
}

static void give_lock(void)
{
    atomic_store(&holder, 0);
}

static void raise_flag(int number)
{
    atomic_fetch_add_explicit(&count[number], 1, memory_order_relaxed);
}

static bool is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) == 0 && action->sa_handler == raise_flag;
}

static bool is_default(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) == 0 && action->sa_handler == SIG_DFL;
}

static xseg_status refuse(const char *what, const struct sigaction *action)
{
    const bool ignores = (action->sa_flags & SA_SIGINFO) == 0 && action->sa_handler == SIG_IGN;

    return xseg_fail(XSEG_ERR_CONFIG,
                     "%s: the process %s this signal already: name another one, or reset it to "
                     "SIG_DFL before",
                     what, ignores ? "ignores" : "handles");
}

/* Install the handler where nobody else has one. */
static xseg_status install(int number, const char *what)
{
    struct sigaction ours = {.sa_handler = raise_flag, .sa_flags = SA_RESTART | SA_ONSTACK}, now;

    (void)sigemptyset(&ours.sa_mask);
    if (sigaction(number, NULL, &now) != 0)
        return xseg_fail(XSEG_ERR_CONFIG, "%s: the system refuses: %s", what, strerror(errno));
    if (is_ours(&now))
        return XSEG_OK;
    if (!is_default(&now))
        return refuse(what, &now);
    if (sigaction(number, &ours, &now) != 0)
        return xseg_fail(XSEG_ERR_CONFIG, "%s: the system refuses: %s", what, strerror(errno));
    if (is_ours(&now) || is_default(&now))
        return XSEG_OK;
    /* Another thread has set a handler between the two calls. */
    (void)sigaction(number, &now, NULL);
    return refuse(what, &now);
}

xseg_status xseg_signal_flag_take(int number, const char *what)
{
    XSEG_ASSERT(number > 0 && number < NUMBERS);
    take_lock();
    const xseg_status status = install(number, what);
    if (status == XSEG_OK)
        users[number]++;
    give_lock();
    return status;
}

/* Reset the signal to SIG_DFL unless the program has set a handler of its own. */
static void uninstall(int number)
{
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    struct sigaction now;

    if (sigaction(number, NULL, &now) != 0 || !is_ours(&now))
        return;
    /* Another thread may set a handler between the two calls. */
    if (sigaction(number, &standard, &now) == 0 && !is_ours(&now))
        (void)sigaction(number, &now, NULL);
}

void xseg_signal_flag_give(int number)
{
    XSEG_ASSERT(number > 0 && number < NUMBERS);
    take_lock();
    XSEG_ASSERT(users[number] > 0);
    if (--users[number] == 0)
        uninstall(number);
    give_lock();
}

unsigned xseg_signal_flag_count(int number)
{
    XSEG_ASSERT(number > 0 && number < NUMBERS);
    return atomic_load_explicit(&count[number], memory_order_relaxed);
}
