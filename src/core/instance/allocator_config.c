/* SPDX-License-Identifier: MIT */
#include "src/core/instance/instance.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/block/recorder.h"
#include "src/core/budget/budget.h"
#include "src/core/config/config.h"
#include "src/core/config/config_table.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/reclaim.h"
#include "src/core/report/memory_stats.h"

void xseg_allocator_apply_config(struct xseg_allocator *allocator,
                                 struct xseg_config_version *version)
{
    XSEG_ASSERT(version != NULL && allocator->versions != NULL);
    xseg_history_store_configure(&allocator->history, &version->config);
    atomic_store_explicit(&allocator->config, version, memory_order_release);
    atomic_store_explicit(allocator->fast_frees_enabled,
                          version->config.has_fast_frees && allocator->fast_frees_are_wiped,
                          memory_order_release);
    xseg_stream_cache_drop_all(&allocator->stream_cache, -1);
}

void xseg_allocator_log_unused_keys(struct xseg_allocator *allocator, uint64_t named)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    char buffer[512];
    struct xseg_strbuf keys;

    xseg_strbuf_init(&keys, buffer, sizeof(buffer));
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        if ((named >> key & 1) == 0 ||
            xseg_config_has_effect(config, (enum xseg_config_key_id)key) ||
            !xseg_config_is_set(config, (enum xseg_config_key_id)key))
            continue;
        /* A later call can set the fraction, so this key has a separate message. */
        if (key == XSEG_CONFIG_GARBAGE_COLLECTION)
            xseg_log_line(
                &allocator->log, XSEG_LOG_WARNING,
                "configuration: garbage_collection_threshold has no effect, memory fraction is 1; "
                "set per_process_memory_fraction, or fraction by xseg_limits_set() (in PyTorch, "
                "set_per_process_memory_fraction())");
        else
            xseg_strbuf_printf(&keys, "%s%s", keys.length > 0 ? ", " : "",
                               xseg_config_table[key].name);
    }
    for (unsigned i = 0; i < XSEG_CONFIG_IGNORED; i++)
        if ((named >> (XSEG_CONFIG_KEYS + i) & 1) != 0)
            xseg_strbuf_printf(&keys, "%s%s", keys.length > 0 ? ", " : "", xseg_config_ignored[i]);
    if (keys.length > 0)
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING, "configuration: keys have no effect, %s",
                      buffer);
}

/* Check the limits of every open device against a configuration, or set them if `store` is set.
 * Returns the first error. */
static xseg_status apply_limits_to_devices(struct xseg_allocator *allocator,
                                           const struct xseg_config *config, uint64_t named,
                                           bool store)
{
    xseg_status status = XSEG_OK;

    for (int i = 0; status == XSEG_OK && i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            status = xseg_device_limits_apply_config(device, config, named, store);
    }
    return status;
}

/* Whether an open device has a soft limit other than that of the configuration, set by
 * xseg_limits_set(). */
static bool has_device_soft_limit(struct xseg_allocator *allocator,
                                  const struct xseg_config *config)
{
    for (int i = 0; i < allocator->device_count; i++) {
        const struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL && atomic_load_explicit(&device->limits.soft, memory_order_relaxed) !=
                                  config->soft_limit_bytes)
            return true;
    }
    return false;
}

/* Whether an open device has a fraction other than that of the configuration, set by
 * xseg_limits_set(). */
static bool has_device_fraction(struct xseg_allocator *allocator, const struct xseg_config *config)
{
    for (int i = 0; i < allocator->device_count; i++) {
        const struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL && atomic_load_explicit(&device->limits.fraction,
                                                   memory_order_relaxed) != config->memory_fraction)
            return true;
    }
    return false;
}

/* Copy the current configuration to a new version.  Returns NULL on host allocation failure. */
static struct xseg_config_version *copy_current_version(struct xseg_allocator *allocator)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_FIRST));
    struct xseg_config_version *version = calloc(1, sizeof(*version));

    if (version == NULL) {
        (void)xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, configuration");
        return NULL;
    }
    version->config = *xseg_allocator_config(allocator);
    return version;
}

/* Find the version with an equal configuration, or return NULL. */
static struct xseg_config_version *find_equal_version(const struct xseg_allocator *allocator,
                                                      const struct xseg_config *config)
{
    struct xseg_config_version *version = allocator->versions;

    /* Each version is a copy of another one with some members set, so padding bytes are equal as
     * well. */
    while (version != NULL && memcmp(&version->config, config, sizeof(*config)) != 0)
        version = version->older;
    return version;
}

/* Publish a version.  If an older version is equal, the older version is published, and the new one
 * is freed. */
static void publish_version(struct xseg_allocator *allocator, struct xseg_config_version *version)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_FIRST) && version->older == NULL);
    version->config.traced = xseg_observers_trace(&allocator->observers);
    version->config.has_device_soft_limit = has_device_soft_limit(allocator, &version->config);
    version->config.has_device_fraction = has_device_fraction(allocator, &version->config);
    xseg_config_derive(&version->config);
    struct xseg_config_version *equal = find_equal_version(allocator, &version->config);
    if (equal != NULL) {
        free(version);
        version = equal;
    } else {
        version->older = allocator->versions;
        allocator->versions = version;
    }
    xseg_allocator_apply_config(allocator, version);
}

static void trim_devices_to_limits(struct xseg_allocator *allocator)
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            xseg_trim_to_limits(device);
    }
}

static void discard_all_users(struct xseg_allocator *allocator)
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL)
            continue;
        xseg_mutex_lock(&device->memory_lock);
        XSEG_DEVICE_FOR_ARENAS(arena, device)
        {
            xseg_origins_discard_users(arena);
        }
        xseg_mutex_unlock(&device->memory_lock);
    }
}

static void discard_filled_ranges(struct xseg_allocator *allocator)
{
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            xseg_debug_fill_discard(device->fill);
    }
}

static xseg_status set_config(struct xseg_allocator *allocator, const char *text, uint64_t *named)
{
    struct xseg_config_version *version = copy_current_version(allocator);

    XSEG_ASSERT(*named == 0);
    if (version == NULL)
        return XSEG_ERR_HOST_MEMORY;
    xseg_status status = xseg_config_parse(&version->config, text, named);
    if (status == XSEG_OK)
        status = apply_limits_to_devices(allocator, &version->config, *named, false);
    if (status == XSEG_OK && xseg_config_has_thread(&version->config))
        status = xseg_background_start(allocator);
    if (status != XSEG_OK) {
        free(version);
        return status;
    }
    (void)apply_limits_to_devices(allocator, &version->config, *named, true);
    if (version->config.block_user && !xseg_allocator_config(allocator)->block_user)
        discard_all_users(allocator);
    const bool had_debug_fill = xseg_allocator_config(allocator)->debug_fill;
    publish_version(allocator, version);
    if (xseg_allocator_config(allocator)->debug_fill != had_debug_fill)
        discard_filled_ranges(allocator);
    if (!xseg_config_has_thread(xseg_allocator_config(allocator)))
        xseg_background_stop(allocator);
    return XSEG_OK;
}

xseg_status xseg_allocator_set_config(struct xseg_allocator *allocator, const char *config)
{
    uint64_t named = 0;

    xseg_mutex_lock(&allocator->open_lock);
    const xseg_status status = set_config(allocator, config, &named);
    xseg_mutex_unlock(&allocator->open_lock);
    if (status != XSEG_OK)
        return status;
    xseg_allocator_log_unused_keys(allocator, named);
    xseg_allocator_log_stack_method(&allocator->log,
                                    xseg_history_store_settings(&allocator->history));
    trim_devices_to_limits(allocator);
    xseg_publisher_apply_config(allocator);
    xseg_budget_apply_config(allocator);
    return XSEG_OK;
}

static xseg_status set_device_limits(struct xseg_allocator *allocator, struct xseg_device *device,
                                     const struct xseg_limits *new_limits)
{
    const bool had_soft_limit = xseg_allocator_config(allocator)->has_device_soft_limit;
    const bool had_fraction = xseg_allocator_config(allocator)->has_device_fraction;
    struct xseg_config_version *version = copy_current_version(allocator);
    xseg_status status = XSEG_ERR_HOST_MEMORY;

    if (version != NULL)
        status = xseg_device_limits_set(&device->limits, new_limits);
    /* Versions are freed when the allocator closes, so a new version is published only if it
     * differs. */
    if (status == XSEG_OK &&
        (has_device_soft_limit(allocator, &version->config) != had_soft_limit ||
         has_device_fraction(allocator, &version->config) != had_fraction))
        publish_version(allocator, version);
    else
        free(version);
    return status;
}

void xseg_allocator_limits_get(struct xseg_allocator *allocator, const struct xseg_device *device,
                               struct xseg_limits *out)
{
    XSEG_ASSERT(device->allocator == allocator && out != NULL);
    xseg_mutex_lock(&allocator->open_lock);
    xseg_device_limits_read(&device->limits, out);
    xseg_mutex_unlock(&allocator->open_lock);
}

xseg_status xseg_allocator_limits_set(struct xseg_allocator *allocator, struct xseg_device *device,
                                      const struct xseg_limits *limits)
{
    XSEG_ASSERT(device->allocator == allocator && limits != NULL);
    xseg_mutex_lock(&allocator->open_lock);
    const xseg_status status = set_device_limits(allocator, device, limits);
    xseg_mutex_unlock(&allocator->open_lock);
    if (status == XSEG_OK) {
        xseg_trim_to_limits(device);
        xseg_housekeeping_end_call(allocator);
    }
    return status;
}

/* Publish a new configuration if `traced` must change, because observers were added or removed. */
static xseg_status update_tracing(struct xseg_allocator *allocator)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_FIRST));
    if (xseg_observers_trace(&allocator->observers) == xseg_allocator_config(allocator)->traced)
        return XSEG_OK;
    struct xseg_config_version *version = copy_current_version(allocator);
    if (version == NULL)
        return XSEG_ERR_HOST_MEMORY;
    publish_version(allocator, version);
    return XSEG_OK;
}

xseg_status xseg_allocator_add_observer(struct xseg_allocator *allocator,
                                        const struct xseg_observer *observer, uint64_t *id)
{
    uint64_t new_id = 0;

    xseg_mutex_lock(&allocator->open_lock);
    xseg_status status = xseg_observers_add(&allocator->observers, observer, &new_id);
    if (status == XSEG_OK)
        status = update_tracing(allocator);
    xseg_mutex_unlock(&allocator->open_lock);
    XSEG_ASSERT(status != XSEG_OK || new_id != 0);
    if (status == XSEG_OK)
        *id = new_id;
    else if (new_id != 0)
        (void)xseg_observers_remove(&allocator->observers, new_id);
    return status;
}

xseg_status xseg_allocator_remove_observer(struct xseg_allocator *allocator, uint64_t id)
{
    const xseg_status status = xseg_observers_remove(&allocator->observers, id);

    if (status != XSEG_OK)
        return status;
    /* On host allocation failure events are still recorded, and dropped on delivery. */
    xseg_mutex_lock(&allocator->open_lock);
    (void)update_tracing(allocator);
    xseg_mutex_unlock(&allocator->open_lock);
    return XSEG_OK;
}
