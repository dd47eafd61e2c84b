/* SPDX-License-Identifier: MIT */
#include "src/core/instance/instance.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/core/budget/budget.h"
#include "src/core/device/allocator.h"
#include "src/core/reclaim/decay.h"

/* Sleep until the next pass or round may be due.  Returns false if the thread must stop. */
static bool sleep_until_due(struct xseg_background *background, uint64_t nanoseconds)
{
    struct timespec until = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    nanoseconds += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(nanoseconds / 1000000000u);
    until.tv_nsec = (long)(nanoseconds % 1000000000u);
    XSEG_ASSERT(until.tv_nsec >= 0 && until.tv_nsec < 1000000000);
    (void)pthread_mutex_lock(&background->lock);
    while (!background->is_stopping &&
           pthread_cond_timedwait(&background->wake, &background->lock, &until) != ETIMEDOUT)
        continue;
    const bool continues = !background->is_stopping;
    (void)pthread_mutex_unlock(&background->lock);
    return continues;
}

static uint64_t sleep_time(struct xseg_allocator *allocator)
{
    return xseg_min(xseg_decay_interval(xseg_allocator_config(allocator)),
                    xseg_budget_interval(allocator));
}

static void run_decay_passes(struct xseg_allocator *allocator, const struct xseg_config *config)
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        /* The next call of the application reports the loss of a device. */
        if (device != NULL)
            (void)xseg_decay_background_pass(device, config);
    }
}

static void *run_background_thread(void *self)
{
    struct xseg_allocator *allocator = self;
    uint64_t due = 0;

    while (sleep_until_due(allocator->background, sleep_time(allocator))) {
        const struct xseg_config *config = xseg_allocator_config(allocator);

        xseg_budget_round(allocator);
        /* Rounds of a budget are more frequent than decay passes. */
        if (config->decays && xseg_clock_system() >= due) {
            run_decay_passes(allocator, config);
            due = xseg_clock_system() + xseg_decay_interval(config);
        }
        xseg_housekeeping_end_call(allocator);
    }
    return NULL;
}

static int create_background_thread(struct xseg_allocator *allocator)
{
    struct xseg_background *background = allocator->background;
    pthread_condattr_t monotonic;
    sigset_t all, before;

    XSEG_ASSERT(!background->is_running);
    background->is_stopping = false;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&background->lock, NULL);
    (void)pthread_cond_init(&background->wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    /* Threads of the program handle its signals. */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&background->thread, NULL, run_background_thread, allocator);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

xseg_status xseg_background_start(struct xseg_allocator *allocator)
{
    struct xseg_background *background = allocator->background;

    if (background->is_running)
        return XSEG_OK;
    const int error = create_background_thread(allocator);
    background->is_running = error == 0;
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

void xseg_background_stop(struct xseg_allocator *allocator)
{
    struct xseg_background *background = allocator->background;

    if (!background->is_running)
        return;
    (void)pthread_mutex_lock(&background->lock);
    background->is_stopping = true;
    (void)pthread_cond_signal(&background->wake);
    (void)pthread_mutex_unlock(&background->lock);
    (void)pthread_join(background->thread, NULL);
    (void)pthread_cond_destroy(&background->wake);
    (void)pthread_mutex_destroy(&background->lock);
    background->is_running = false;
}
