/* SPDX-License-Identifier: MIT */
#include "src/core/instance/background.h"
#include "src/core/instance/housekeeping.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/core/budget/budget.h"
#include "src/core/device/allocator.h"
#include "src/core/reclaim/decay.h"

/* Sleep until the next look may be due; false when the thread is to end. */
static bool rest(struct xseg_background *background, uint64_t nanoseconds)
{
    struct timespec until = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    nanoseconds += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(nanoseconds / 1000000000u);
    until.tv_nsec = (long)(nanoseconds % 1000000000u);
    XSEG_ASSERT(until.tv_nsec >= 0 && until.tv_nsec < 1000000000);
    (void)pthread_mutex_lock(&background->lock);
    while (!background->ends &&
           pthread_cond_timedwait(&background->wake, &background->lock, &until) != ETIMEDOUT)
        continue;
    const bool goes_on = !background->ends;
    (void)pthread_mutex_unlock(&background->lock);
    return goes_on;
}

static uint64_t interval(struct xseg_allocator *allocator)
{
    return xseg_min(xseg_decay_interval(xseg_allocator_config(allocator)),
                    xseg_budget_interval(allocator));
}

static void decay(struct xseg_allocator *allocator, const struct xseg_config *config)
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        /* The loss of a device is reported to the next call of the user. */
        if (device != NULL)
            (void)xseg_decay_background_pass(device, config);
    }
}

static void *run(void *self)
{
    struct xseg_allocator *allocator = self;
    uint64_t due = 0;

    while (rest(allocator->background, interval(allocator))) {
        const struct xseg_config *config = xseg_allocator_config(allocator);

        xseg_budget_round(allocator);
        /* A budget has more turns than decay needs looks. */
        if (config->decays && xseg_clock_system() >= due) {
            decay(allocator, config);
            due = xseg_clock_system() + xseg_decay_interval(config);
        }
        xseg_housekeeping_end_call(allocator);
    }
    return NULL;
}

static int start(struct xseg_allocator *allocator)
{
    struct xseg_background *background = allocator->background;
    pthread_condattr_t monotonic;
    sigset_t all, before;

    XSEG_ASSERT(!background->runs);
    background->ends = false;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&background->lock, NULL);
    (void)pthread_cond_init(&background->wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    /* Signals of the program are handled by its own threads. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&background->thread, NULL, run, allocator);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

xseg_status xseg_background_start(struct xseg_allocator *allocator)
{
    struct xseg_background *background = allocator->background;

    if (background->runs)
        return XSEG_OK;
    const int error = start(allocator);
    background->runs = error == 0;
    if (error == 0) {
        (void)pthread_setname_np(background->thread, "xseg");
        return XSEG_OK;
    }
    (void)pthread_cond_destroy(&background->wake);
    (void)pthread_mutex_destroy(&background->lock);
    return xseg_fail(XSEG_ERR_HOST_MEMORY,
                     "background thread cannot be created, %s (%d); raise the limit on threads, or "
                     "disable background_thread and budget_file",
                     strerror(error), error);
}

void xseg_background_end(struct xseg_allocator *allocator)
{
    struct xseg_background *background = allocator->background;

    if (!background->runs)
        return;
    (void)pthread_mutex_lock(&background->lock);
    background->ends = true;
    (void)pthread_cond_signal(&background->wake);
    (void)pthread_mutex_unlock(&background->lock);
    (void)pthread_join(background->thread, NULL);
    (void)pthread_cond_destroy(&background->wake);
    (void)pthread_mutex_destroy(&background->lock);
    background->runs = false;
}
