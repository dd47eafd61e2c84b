/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/environment.h"
#include "src/base/error.h"
#include "src/base/span.h"
#include "src/base/stack.h"
#include "src/base/string_util.h"
#include "src/core/budget/budget.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/history/history.h"
#include "src/core/instance/instance.h"
#include "src/core/pool/share.h"
#include "src/core/reclaim/decay.h"
#include "src/core/register/register.h"
#include "src/core/report/memory_stats.h"
#include "src/core/report/snapshot.h"

/* --- Background thread. --- */

/* Sleep until the next pass or round may be due.  Returns false if the thread must stop. */
static bool sleep_until_due(struct xseg_background *background, uint64_t nanoseconds)
{
    struct timespec deadline = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &deadline);
    nanoseconds += (uint64_t)deadline.tv_nsec;
    deadline.tv_sec += (time_t)(nanoseconds / XSEG_SECOND);
    deadline.tv_nsec = (long)(nanoseconds % XSEG_SECOND);
    XSEG_ASSERT(deadline.tv_nsec >= 0 && deadline.tv_nsec < (long)XSEG_SECOND);
    (void)pthread_mutex_lock(&background->lock);
    while (!background->is_stopping &&
           pthread_cond_timedwait(&background->wake, &background->lock, &deadline) != ETIMEDOUT)
        continue;
    const bool must_continue = !background->is_stopping;
    (void)pthread_mutex_unlock(&background->lock);
    return must_continue;
}

static uint64_t sleep_duration(struct xseg_allocator *allocator)
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

    while (sleep_until_due(allocator->background, sleep_duration(allocator))) {
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
    sigset_t all_signals, previous;

    XSEG_ASSERT(!background->is_running);
    background->is_stopping = false;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&background->lock, NULL);
    (void)pthread_cond_init(&background->wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    /* Threads of the program handle its signals. */
    (void)sigfillset(&all_signals);
    (void)pthread_sigmask(SIG_SETMASK, &all_signals, &previous);
    const int error = pthread_create(&background->thread, NULL, run_background_thread, allocator);
    (void)pthread_sigmask(SIG_SETMASK, &previous, NULL);
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

/* --- Allocation of the state. --- */

/* An allocator and the state of modules above `device`. */
struct allocator_state {
    struct xseg_allocator allocator; /* must be first: free() receives its address */
    struct xseg_background background;
    struct xseg_registrations registrations;
    struct xseg_oom_snapshots oom_snapshots;
    struct xseg_publisher publisher;
    struct xseg_budget budget;
};

_Static_assert(offsetof(struct allocator_state, allocator) == 0,
               "an allocator is freed by its own address");

/* --- Warnings once per process. --- */

#if XSEG_CHECKS > 0
static void log_self_checks(const struct xseg_log *log)
{
    static atomic_flag is_logged = ATOMIC_FLAG_INIT;

    if (!atomic_flag_test_and_set(&is_logged))
        xseg_log_line(
            log, XSEG_LOG_WARNING,
            "self-checks: enabled at level %d and slow; build with --buildtype=release for "
            "production",
            XSEG_CHECKS);
}
#endif

/* Log the variables that secure_getenv() hides from a process with elevated privileges. */
static void log_ignored_variables(const struct xseg_log *log)
{
    static const char *const variable[] = {
        "XSEG_DRIVER",
        "XSEG_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
    };
    static atomic_flag is_logged = ATOMIC_FLAG_INIT;
    char names[128];
    struct xseg_strbuf list;

    xseg_strbuf_init(&list, names, sizeof(names));
    for (unsigned i = 0; i < XSEG_COUNT_OF(variable); i++)
        if (getenv(variable[i]) != NULL && secure_getenv(variable[i]) == NULL)
            xseg_strbuf_printf(&list, "%s%s", list.length > 0 ? ", " : "", variable[i]);
    if (list.length > 0 && !atomic_flag_test_and_set(&is_logged))
        xseg_log_line(log, XSEG_LOG_WARNING,
                      "environment: ignored in a set-user-ID process, %s; pass the values to "
                      "xseg_open()",
                      names);
}

/* Log that an argument of xseg_open() hides a different string in XSEG_ALLOC_CONF. */
static void log_hidden_config(const struct xseg_log *log, const char *argument)
{
    static atomic_flag is_logged = ATOMIC_FLAG_INIT;
    const char *variable = secure_getenv("XSEG_ALLOC_CONF");

    if (argument != NULL && variable != NULL && strcmp(argument, variable) != 0 &&
        !atomic_flag_test_and_set(&is_logged))
        xseg_log_line(
            log, XSEG_LOG_WARNING,
            "configuration: XSEG_ALLOC_CONF is ignored, because the program passes a string to "
            "xseg_open(); pass NULL to use the variable");
}

static void log_process_warnings(const struct xseg_log *log, const char *argument)
{
#if XSEG_CHECKS > 0
    log_self_checks(log);
#endif
    log_ignored_variables(log);
    log_hidden_config(log, argument);
}

void xseg_allocator_log_stack_method(const struct xseg_log *log, uint64_t settings)
{
    static atomic_flag is_logged = ATOMIC_FLAG_INIT;

    if (xseg_history_settings_capture(settings) && !xseg_stack_prepare() &&
        !atomic_flag_test_and_set(&is_logged))
        xseg_log_line(
            log, XSEG_LOG_WARNING,
            "history_stacks: libunwind cannot be loaded, so call stacks are about 25 times "
            "slower; install libunwind.so.8 (Debian: libunwind8)");
}

/* --- Open and close. --- */

static xseg_status load_first_version(struct xseg_allocator *allocator, const char *text,
                                      uint64_t *named)
{
    struct xseg_config_version *version = calloc(1, sizeof(*version));

    if (version == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, configuration");
    const xseg_status status =
        xseg_config_load(&version->config, text, &allocator->config_source, named);
    if (status != XSEG_OK) {
        free(version);
        return status;
    }
    XSEG_ASSERT(allocator->versions == NULL);
    allocator->versions = version;
    xseg_allocator_apply_config(allocator, version);
    return XSEG_OK;
}

static void free_allocator(struct xseg_allocator *allocator)
{
    struct xseg_config_version *version = allocator->versions, *older;

    xseg_publisher_fini(allocator->publisher);
    xseg_budget_fini(allocator->budget);
    for (; version != NULL; version = older) {
        older = version->older;
        free(version);
    }
    xseg_registrations_fini(allocator->registrations);
    if (allocator->driver != NULL)
        xseg_driver_close(allocator->driver);
    free(allocator->device);
    xseg_stream_cache_fini(&allocator->stream_cache);
    xseg_page_map_fini(&allocator->page_map);
    xseg_wipe_on_fork_free(allocator->fast_frees_enabled, sizeof(*allocator->fast_frees_enabled));
    xseg_fork_guard_fini(&allocator->fork);
    xseg_history_store_fini(&allocator->history);
    xseg_observers_fini(&allocator->observers);
    xseg_mutex_fini(&allocator->open_lock);
    free(allocator);
}

/* Initialize the state of modules above `device`. */
static void init_module_state(struct allocator_state *state)
{
    struct xseg_allocator *allocator = &state->allocator;

    allocator->background = &state->background;
    allocator->registrations = &state->registrations;
    xseg_registrations_init(allocator->registrations, allocator);
    allocator->oom_snapshots = &state->oom_snapshots;
    xseg_oom_snapshots_init(allocator->oom_snapshots);
    allocator->publisher = &state->publisher;
    xseg_publisher_init(allocator->publisher);
    allocator->budget = &state->budget;
    xseg_budget_init(allocator->budget);
}

xseg_status xseg_allocator_open(const char *config, const char *driver, const struct xseg_log *log,
                                const struct xseg_clock *clock, struct xseg_allocator **out)
{
    struct allocator_state *state = calloc(1, sizeof(*state));
    uint64_t named = 0;
    xseg_status status;

    XSEG_ASSERT(log != NULL && clock != NULL);
    if (state == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, allocator");
    struct xseg_allocator *allocator = &state->allocator;
    init_module_state(state);
    allocator->log = *log;
    allocator->clock = *clock;
    xseg_mutex_init(&allocator->open_lock, XSEG_RANK_FIRST);
    xseg_observers_init(&allocator->observers);
    xseg_history_store_init(&allocator->history, clock);
    allocator->fast_frees_enabled = xseg_wipe_on_fork_alloc(sizeof(*allocator->fast_frees_enabled),
                                                            &allocator->fast_frees_are_wiped);
    if (allocator->fast_frees_enabled == NULL || !xseg_fork_guard_init(&allocator->fork) ||
        !xseg_page_map_init(&allocator->page_map) ||
        !xseg_stream_cache_init(&allocator->stream_cache, &allocator->page_map.lock)) {
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, page map");
        goto free_all;
    }
    status = load_first_version(allocator, config, &named);
    if (status == XSEG_OK)
        status = xseg_driver_open(driver, &allocator->driver);
    if (status != XSEG_OK)
        goto free_all;
    xseg_nvtx_start();
    allocator->device_count = xseg_driver_device_count(allocator->driver);
    XSEG_ASSERT(allocator->device_count >= 0);
    allocator->device = calloc((size_t)allocator->device_count, sizeof(*allocator->device));
    if (allocator->device == NULL) {
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of devices");
        goto free_all;
    }
    if (xseg_config_has_thread(xseg_allocator_config(allocator)))
        status = xseg_background_start(allocator);
    if (status != XSEG_OK)
        goto free_all;
    log_process_warnings(&allocator->log, config);
    xseg_allocator_log_stack_method(&allocator->log,
                                    xseg_history_store_settings(&allocator->history));
    xseg_allocator_log_unused_keys(allocator, named);
    xseg_environment_check(&allocator->log);
    xseg_publisher_apply_config(allocator);
    xseg_budget_apply_config(allocator);
    *out = allocator;
    return XSEG_OK;

free_all:
    free_allocator(allocator);
    return status;
}

/* Run a step of closing on every open device, until a step fails. */
static xseg_status run_step_on_devices(struct xseg_allocator *allocator,
                                       xseg_status (*step)(struct xseg_device *device))
{
    xseg_status status = XSEG_OK;

    for (int i = 0; i < allocator->device_count && status == XSEG_OK; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        status = device != NULL ? step(device) : XSEG_OK;
    }
    return status;
}

static void run_on_devices(struct xseg_allocator *allocator,
                           void (*step)(struct xseg_device *device))
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            step(device);
    }
}

xseg_status xseg_allocator_close(struct xseg_allocator *allocator)
{
    char reason[256];

    /* No device is freed before all devices can be freed, so the handle stays usable until then. */
    xseg_status status = run_step_on_devices(allocator, xseg_device_check_none_allocated);
    if (status == XSEG_OK)
        status = xseg_registrations_check_none(allocator->registrations);
    if (status == XSEG_OK)
        status = run_step_on_devices(allocator, xseg_device_release_memory);
    if (status != XSEG_OK)
        return status;
    xseg_background_stop(allocator);
    status = run_step_on_devices(allocator, xseg_device_release_context);
    if (status == XSEG_OK)
        status = xseg_driver_release_kept_contexts(allocator->driver);
    if (status == XSEG_OK) {
        run_on_devices(allocator, xseg_pools_notify_all);
        run_on_devices(allocator, xseg_device_free);
        free_allocator(allocator);
        return XSEG_OK;
    }
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    run_on_devices(allocator, xseg_device_retain_context);
    run_on_devices(allocator, xseg_peers_renew);
    /* If the thread cannot be started again, only calls of the application release idle memory. */
    if (xseg_config_has_thread(xseg_allocator_config(allocator)))
        (void)xseg_background_start(allocator);
    return xseg_fail(status, "%s", reason);
}

/* --- Devices. --- */

static xseg_status open_new_device(struct xseg_allocator *allocator, int ordinal,
                                   struct xseg_device **out)
{
    XSEG_ASSERT(ordinal >= 0 && ordinal < allocator->device_count);
    struct xseg_device *device;
    char vmm_reason[384] = "";
    xseg_status status = XSEG_OK;

    xseg_mutex_lock(&allocator->open_lock);
    device = xseg_allocator_open_device(allocator, ordinal);
    if (device == NULL)
        status = xseg_device_open(allocator, ordinal, vmm_reason, sizeof(vmm_reason), &device);
    XSEG_ASSERT(status != XSEG_OK || device->context.ordinal == ordinal);
    if (status == XSEG_OK)
        atomic_store_explicit(&allocator->device[ordinal], device, memory_order_release);
    xseg_mutex_unlock(&allocator->open_lock);
    if (status != XSEG_OK)
        return status;
    xseg_budget_add(device);
    xseg_log_line(&allocator->log, XSEG_LOG_INFO,
                  "device %d: opened, %" PRIu64 " MiB, %s, driver calls over several mappings %s",
                  ordinal, device->context.total_bytes >> 20,
                  device->context.has_vmm ? "virtual memory management" : "classic segments only",
                  device->context.batches_unmap && device->context.batches_access
                      ? "supported"
                      : "not supported");
    const struct xseg_config *config = xseg_allocator_config(allocator);
    if (config->exportable && !device->pool.options.exportable)
        xseg_log_line(
            &allocator->log, XSEG_LOG_WARNING, "device %d: exportable has no effect, %s", ordinal,
            !device->context.has_vmm ? "virtual memory management is unavailable"
            : atomic_load_explicit(&device->sharing->has_deferred_probe, memory_order_relaxed)
                ? "too little free memory for the driver "
                  "test, repeated at the next growth"
                : device->sharing->exportable.reason);
    if (vmm_reason[0] != '\0' && config->expandable_segments)
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING,
                      "device %d: segments are classic%s, %s; set "
                      "expandable_segments:False to avoid this warning",
                      ordinal,
                      config->unmap_on_free || config->guard_page
                          ? ", unmap_on_free and guard_page have no effect"
                          : "",
                      vmm_reason);
    *out = device;
    return XSEG_OK;
}

xseg_status xseg_allocator_device(struct xseg_allocator *allocator, int ordinal,
                                  struct xseg_device **out)
{
    if (ordinal < 0 || ordinal >= allocator->device_count)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "device %d does not exist; the driver has devices 0 to %d", ordinal,
                         allocator->device_count - 1);
    struct xseg_device *device = xseg_allocator_open_device(allocator, ordinal);
    if (__builtin_expect(device == NULL, 0))
        return open_new_device(allocator, ordinal, out);
    *out = device;
    return XSEG_OK;
}
