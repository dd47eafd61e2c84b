/* SPDX-License-Identifier: MIT */
/* Steps about the configuration, limits, trims and prewarming. */
#include <stdio.h>
#include <string.h>

#include "tests/stress/exercise/world.h"
#include "tests/support/rng.h"
#include "xseg/sim.h"

/* A feature, and the strings that enable and disable it. */
static const struct setting {
    enum feature feature;
    const char *on, *off; /* off: NULL: no string disables it */
    unsigned one_in;      /* xseg_open() enables it with the probability 1 / one_in */
    uint64_t excluded;    /* the features that it replaces */
} settings[] = {
    {FEATURE_CLASSIC, "expandable_segments:False", "expandable_segments:True", 5, 0},
    {FEATURE_PAGES_SMALL, "page_size:small", "page_size:fixed", 4, FEATURE(PAGES_AUTO)},
    {FEATURE_PAGES_AUTO, "page_size:auto", "page_size:fixed", 4, FEATURE(PAGES_SMALL)},
    {FEATURE_DECAY, "idle_ms:20", "idle_ms:-1", 3, 0},
    {FEATURE_DEBUG_FILL, "debug_fill:True", "debug_fill:False", 6, 0},
    {FEATURE_GUARD, "guard_page:True", "guard_page:False", 8, 0},
    {FEATURE_UNMAP, "unmap_on_free:True", "unmap_on_free:False", 8, 0},
    {FEATURE_PAGE_CACHE, "page_cache_mb:100", "page_cache_mb:0", 3, 0},
    {FEATURE_AGES, "history:state,publish:True", "history:nothing,publish:False", 3, 0},
    {FEATURE_HISTORY, "history:all,history_stacks:all,history_events:100,block_user:True",
     "history:nothing,block_user:False", 4, 0},
    {FEATURE_HARD, "hard_limit_mb:200", "hard_limit_mb:1000000", 4, 0},
    {FEATURE_SOFT, "soft_limit_mb:100", "soft_limit_mb:190", 4, 0},
    {FEATURE_FRACTION, "per_process_memory_fraction:0.6", "per_process_memory_fraction:1", 4, 0},
    {FEATURE_MAX_SPLIT, "max_split_size_mb:40", "max_split_size_mb:1000000", 4, 0},
    {FEATURE_ROUNDUP, "roundup_power2_divisions:4", "roundup_power2_divisions:1", 4, 0},
    {FEATURE_COLLECT, "garbage_collection_threshold:0.7", NULL, 4, 0},
    {FEATURE_THROW, "throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom:False", 6, 0},
    {FEATURE_REUSE, "graph_capture_record_stream_reuse:True",
     "graph_capture_record_stream_reuse:False", 2, 0},
    {FEATURE_RESERVE, "expandable_segments_reserve:0.25", "expandable_segments_reserve:1.125", 4,
     0},
    {FEATURE_FREE_MIN, "device_free_min_mb:100", "device_free_min_mb:0", 4, 0},
    {FEATURE_WINDOW, "keep_window_s:1", "keep_window_s:0", 4, 0},
};

uint64_t world_configuration(struct world *world, uint64_t seed, char *text, size_t bytes)
{
    uint64_t features = 0;
    size_t length = 0;

    (void)world;
    text[0] = 0;
    for (unsigned i = 0; i < COUNT_OF(settings); i++) {
        if ((rng_next(&seed) >> 16) % settings[i].one_in != 0)
            continue;
        features = (features & ~settings[i].excluded) | UINT64_C(1) << settings[i].feature;
        length += (size_t)snprintf(text + length, bytes - length, "%s%s", length == 0 ? "" : ",",
                                   settings[i].on);
    }
    if ((rng_next(&seed) >> 16) % 4 == 0)
        (void)snprintf(text + length, bytes - length, "%sexportable:True", length == 0 ? "" : ",");
    return features;
}

void step_configure(struct worker *worker)
{
    struct world *world = worker->world;
    const struct setting *setting = &settings[below(worker, COUNT_OF(settings))];
    const uint64_t feature = UINT64_C(1) << setting->feature;
    const bool is_on = setting->off == NULL || chance(worker, 2);
    const uint64_t epoch = fault_epoch();
    uint64_t before = world->features;

    /* Atomically, because other threads configure as well. */
    while (is_on && !atomic_compare_exchange_weak(&world->features, &before,
                                                  (before & ~setting->excluded) | feature))
        continue;
    const xseg_status status =
        CALL(xseg_config_set, world->allocator, is_on ? setting->on : setting->off);
    failure_record(worker->number, "configure %s: %d", is_on ? setting->on : setting->off, status);
    /* CONFIG: the limits contradict each other. */
    CHECK(status == XSEG_OK || status == XSEG_ERR_CONFIG || !fault_was_none(epoch));
    if (is_on != (status == XSEG_OK))
        atomic_fetch_and(&world->features, ~feature);
    atomic_fetch_or(&world->features, FEATURE(RECONFIGURED));
    feature_combine(features_of(world, 0, NULL, NULL), status == XSEG_OK);
}

/* --- Limits. --- */

void step_limits(struct worker *worker)
{
    struct world *world = worker->world;
    struct xseg_limits limits = XSEG_LIMITS_INIT, current = XSEG_LIMITS_INIT;
    struct pool *pool = chance(worker, 2) ? any_own_pool(worker) : NULL;
    const struct xseg_scope scope = scope_of(worker, pool);
    const uint64_t epoch = fault_epoch();

    if (pool != NULL) {
        limits.hard_bytes = chance(worker, 2) ? UINT64_MAX : below(worker, 200) * MIB;
    } else {
        limits.keep_bytes = below(worker, 50) * MIB;
        limits.soft_bytes = chance(worker, 2) ? UINT64_MAX : (50 + below(worker, 100)) * MIB;
        limits.hard_bytes = chance(worker, 2) ? UINT64_MAX : (150 + below(worker, 400)) * MIB;
        if (limits.hard_bytes < limits.soft_bytes)
            limits.soft_bytes = limits.hard_bytes;
        limits.has_fraction = chance(worker, 2);
        limits.fraction = chance(worker, 2) ? 1 : (double)(50 + below(worker, 50)) / 100;
    }
    const xseg_status status = chance(worker, 4)
                                   ? CALL(xseg_limits_get, world->allocator, &scope, &current)
                                   : CALL(xseg_limits_set, world->allocator, &scope, &limits);
    failure_record(worker->number, "limits of %s %d: hard %llu MiB: %d",
                   pool == NULL ? "device" : "a pool of device", scope.device,
                   (unsigned long long)(limits.hard_bytes / MIB), status);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
    feature_combine(features_of(world, scope.device, pool, NULL) |
                        (pool == NULL ? FEATURE(HARD) | FEATURE(SOFT) : FEATURE(POOL_LIMIT)),
                    status == XSEG_OK);
}

/* --- Trims and prewarming. --- */

static uint64_t physical_bytes(struct world *world)
{
    uint64_t sum = 0;

    for (int device = 0; device < (int)world->options.devices; device++) {
        const struct xseg_scope scope = {sizeof(scope), .device = device};
        struct xseg_statistics stats = {sizeof(stats)};

        if (CALL(xseg_stats_get, world->allocator, &scope, &stats) == XSEG_OK)
            sum += stats.physical_bytes;
    }
    return sum;
}

void step_trim(struct worker *worker)
{
    struct world *world = worker->world;
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_trim_options options = {sizeof(options)};
    struct xseg_trim_result result = {sizeof(result)};
    struct pool *pool = chance(worker, 4) ? any_own_pool(worker) : NULL;
    const uint64_t epoch = fault_epoch(), before = physical_bytes(world);

    options.wait = chance(worker, 3);
    options.target_bytes = chance(worker, 4) ? below(worker, world->memory) : 0;
    options.idle_ms = chance(worker, 6) ? below(worker, 50) : 0;
    scope.device = chance(worker, 3) ? any_device(worker) : -1;
    if (pool != NULL) {
        scope.device = chance(worker, 2) ? pool->device : -1;
        scope.pool = pool->handle;
    }
    if (chance(worker, 4)) {
        scope.device = pool == NULL ? any_device(worker) : pool->device;
        scope.one_stream = true;
        scope.stream = any_stream(worker, scope.device)->handle;
    }
    const xseg_status status = CALL(xseg_trim, world->allocator, &scope, &options, &result);
    failure_record(worker->number, "trim device %d, stream %p, pool %p, wait %d: %d, %llu released",
                   scope.device, scope.one_stream ? (void *)scope.stream : NULL, (void *)scope.pool,
                   options.wait, status, (unsigned long long)result.released);
    record_features(world, FEATURE(TRIM), scope.device < 0 ? 0 : scope.device, pool, NULL,
                    status == XSEG_OK);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_ARGUMENT && pool != NULL && pool->features & FEATURE(RELEASED)));
    if (status == XSEG_OK && fault_was_none(epoch) && world->options.threads == 1 &&
        !world->options.has_background_thread && world->options.faults == 0)
        CHECK(result.released == before - physical_bytes(world) && result.kept_failed == 0);
}

void step_trim_due(struct worker *worker)
{
    const struct xseg_trim_options options = {
        .struct_size = sizeof(options),
        .due_only = true,
        .max_us = 1 + below(worker, 2000),
    };

    CHECK_OK(CALL(xseg_trim, worker->world->allocator, NULL, &options, NULL));
}

void step_prewarm(struct worker *worker)
{
    struct world *world = worker->world;
    struct pool *pool = chance(worker, 2) ? any_own_pool(worker) : NULL;
    struct xseg_scope scope = scope_of(worker, pool);
    const uint64_t epoch = fault_epoch();
    const size_t bytes = any_size(worker);

    scope.one_stream = chance(worker, 2);
    scope.stream = any_stream(worker, scope.device)->handle;
    const xseg_status status = CALL(xseg_prewarm, world->allocator, &scope, bytes);
    failure_record(worker->number, "prewarm %zu bytes of device %d, pool %p: %d", bytes,
                   scope.device, (void *)scope.pool, status);
    record_features(world, FEATURE(PREWARM), scope.device, pool, NULL, status == XSEG_OK);
    CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
          status == XSEG_ERR_PAUSED || !fault_was_none(epoch) ||
          (status == XSEG_ERR_ARGUMENT && pool != NULL && pool->features & FEATURE(RELEASED)));
}
