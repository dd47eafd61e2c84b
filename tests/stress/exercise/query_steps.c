/* SPDX-License-Identifier: MIT */
/* Steps that query state, and steps about whole allocators. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/stress/exercise/world.h"
#include "tests/support/driver.h"
#include "tests/support/env.h"

/* Check that the statistics of each device are consistent in themselves, also during calls of other threads. */
static void check_devices(const struct world *world)
{
    struct xseg_device_stats devices[64];
    size_t count = 0;

    CHECK_OK(CALL(xseg_device_stats_get, world->allocator, devices, sizeof(devices[0]),
                  COUNT_OF(devices), &count));
    CHECK(count == world->options.devices);
    for (size_t i = 0; i < count; i++) {
        CHECK(devices[i].device == (int)i && devices[i].is_open == (devices[i].total_bytes != 0));
        CHECK(devices[i].reserved_bytes <= devices[i].physical_bytes);
        CHECK(devices[i].idle_bytes <= devices[i].physical_bytes);
        CHECK((devices[i].free_bytes == UINT64_MAX) == (devices[i].free_age_ms == UINT64_MAX));
    }
}

void step_stats(struct worker *worker)
{
    struct world *world = worker->world;
    struct xseg_statistics stats = {sizeof(stats)};
    struct pool *pool = chance(worker, 2) ? any_own_pool(worker) : NULL;
    struct xseg_scope scope = scope_of(worker, pool);
    const uint64_t epoch = fault_epoch();

    check_devices(world);
    xseg_status status = CALL(xseg_stats_get, world->allocator, &scope, &stats);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_ARGUMENT && pool != NULL && pool->features & FEATURE(RELEASED)));
    scope.pool = NULL;
    if (!chance(worker, 16))
        return;
    world->are_totals_reset = true;
    status = CALL(xseg_stats_reset, world->allocator, &scope, 1 + (unsigned)below(worker, 3));
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
}

static bool visit_block(void *context, const struct xseg_block_info *block)
{
    uint64_t *remaining = context;

    CHECK(block->bytes > 0);
    CHECK(block->user == NULL || block->user == user_of(block->requested));
    return --*remaining > 0;
}

static bool visit_reason(void *context, const struct xseg_reason *reason)
{
    uint64_t *remaining = context;

    CHECK(reason->bytes == reason->allocated_bytes + reason->pending_bytes + reason->claimed_bytes +
                               reason->cached_bytes);
    CHECK(CALL_PLAIN(xseg_reason_message, reason->kind)[0] != 0);
    return --*remaining > 0;
}

static bool visit_mapping(void *context, const struct xseg_mapping *mapping)
{
    uint64_t *remaining = context;

    CHECK(mapping->bytes > 0 && mapping->generation != 0);
    return --*remaining > 0;
}

/* During calls of other threads only the sums of one explanation are consistent. */
void step_explain(struct worker *worker)
{
    struct world *world = worker->world;
    struct xseg_explain_result result = {sizeof(result)};
    struct pool *pool = chance(worker, 3) ? any_own_pool(worker) : NULL;
    struct xseg_scope scope = scope_of(worker, pool);
    uint64_t remaining = 1 + below(worker, 200);

    scope.one_stream = chance(worker, 4);
    scope.stream = any_stream(worker, scope.device)->handle;
    const xseg_status status = CALL(xseg_explain, world->allocator, &scope,
                                    chance(worker, 2) ? visit_reason : NULL, &remaining, &result);
    if (status == XSEG_OK)
        CHECK(result.reserved == result.allocated + result.pending + result.claimed + result.pool +
                                     result.pinned + result.capture + result.stream + result.keep +
                                     result.decay + result.policy + result.exported +
                                     result.registered + result.above_share);
    remaining = 1 + below(worker, 200);
    (void)CALL(xseg_for_each_block, world->allocator, &scope, visit_block, &remaining);
    remaining = 1 + below(worker, 200);
    (void)CALL(xseg_for_each_mapping, world->allocator, &scope, visit_mapping, &remaining);
}

void step_block_query(struct worker *worker)
{
    struct block *block = any_block(worker);
    struct xseg_block_info info = {sizeof(info)};

    if (block == NULL)
        return;
    CHECK_OK(CALL(xseg_block_query, worker->world->allocator,
                  block->ptr + below(worker, block->bytes), &info));
    CHECK(info.base == block->ptr && info.state == XSEG_BLOCK_ALLOCATED);
    CHECK(info.requested == block->bytes);
    CHECK(info.pool == (block->pool == NULL ? NULL : block->pool->handle));
}

static bool visit_key(void *context, const struct xseg_config_key *key)
{
    unsigned *keys = context;

    CHECK(key->name[0] != 0 && key->value != NULL && key->default_value != NULL);
    ++*keys;
    return true;
}

/* Expect that the current configuration is a valid string. */
static void check_keys(const char *config)
{
    const char *source = NULL;
    unsigned keys = 0;

    CHECK_OK(CALL(xseg_config_keys, config, &source, visit_key, &keys));
    CHECK(strcmp(source, "argument") == 0 && keys > 0);
    CHECK(CALL(xseg_config_keys, "no_such_key:1", NULL, NULL, NULL) == XSEG_ERR_CONFIG);
}

void step_strings(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->world->allocator;
    struct xseg_driver_call calls[128];
    char text[4096];
    size_t needed = 0, count = 0;

    CHECK_OK(CALL(xseg_config_get, allocator, NULL, 0, &needed));
    CHECK_OK(CALL(xseg_config_get, allocator, text, sizeof(text), NULL));
    /* Another thread may configure between the two calls. */
    CHECK(strlen(text) + 1 == needed || worker->world->options.threads > 1);
    check_keys(text);
    CHECK(strcmp(CALL_PLAIN(xseg_config_source, allocator), "argument") == 0);
    CHECK(CALL_PLAIN(xseg_history_stack_method, NULL) != NULL);
    CHECK(CALL_PLAIN(xseg_status_name, XSEG_ERR_BUSY)[0] != 0);
    (void)CALL_PLAIN(xseg_error_message, text, sizeof(text));
    CHECK_OK(CALL(xseg_driver_calls, allocator, calls, COUNT_OF(calls), &count));
    CHECK(count > 0 && count <= COUNT_OF(calls));
}

/* --- Allocators. --- */

static bool check_budget_entry(void *context, const struct xseg_budget_entry *entry)
{
    (void)context;
    CHECK(entry->idle_bytes <= entry->physical_bytes);
    return true;
}

/* Add a budget file to a configuration, and return its name; the caller removes the file. */
static void name_budget_file(const struct worker *worker, char *config, size_t bytes, char *name,
                             size_t name_bytes)
{
    const size_t length = strlen(config);

    (void)snprintf(name, name_bytes, "/dev/shm/xseg-exercise-%d-%u", (int)getpid(), worker->number);
    (void)snprintf(config + length, bytes - length, "%sbudget_file:%s", length == 0 ? "" : ",",
                   name);
}

/* Open a second allocator, which shares only the machine with the first one, allocate, free, and close it. */
void step_second_allocator(struct worker *worker)
{
    struct world *world = worker->world;
    const struct xseg_options options = {sizeof(options), .driver = env_driver(),
                                         .log = env_no_log};
    struct xseg_allocator *second_allocator = NULL;
    const uint64_t epoch = fault_epoch();
    void *ptr = NULL;
    char config[1024], budget_file[64];

    world->had_second_allocator = true;
    (void)world_configuration(world, below(worker, UINT64_C(1) << 40) | 1, config, sizeof(config));
    name_budget_file(worker, config, sizeof(config), budget_file, sizeof(budget_file));
    xseg_status status = CALL(xseg_open, config, &options, &second_allocator);
    failure_record(worker->number, "second allocator with %s: %d", config, status);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
    if (status != XSEG_OK) {
        (void)unlink(budget_file);
        return;
    }
    (void)CALL(xseg_budget_members, budget_file, check_budget_entry, NULL);
    status = CALL(xseg_alloc, second_allocator, any_device(worker), any_size(worker), NULL, &ptr);
    CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
          !fault_was_none(epoch));
    if (status == XSEG_OK) {
        CHECK(CALL(xseg_free, world->allocator, ptr) == XSEG_ERR_NOT_ALLOCATED);
        CHECK(CALL(xseg_close, second_allocator) == XSEG_ERR_BUSY);
        status = CALL(xseg_free, second_allocator, ptr);
        CHECK(status == XSEG_OK || !fault_was_none(epoch));
    }
    fault_lift();
    if (status != XSEG_OK && ptr != NULL)
        CHECK_OK(CALL(xseg_free, second_allocator, ptr));
    CHECK_OK(CALL(xseg_close, second_allocator));
    (void)unlink(budget_file);
}

/* An allocator with allocated blocks does not close, and remains usable. */
void step_close(struct worker *worker)
{
    if (any_block(worker) != NULL)
        CHECK(CALL(xseg_close, worker->world->allocator) == XSEG_ERR_BUSY);
    failure_record(worker->number, "close");
}

static bool calls_are_rejected(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->world->allocator;
    struct block *block = any_block(worker);
    struct pool *pool = any_own_pool(worker);
    void *ptr = NULL;

    return xseg_alloc(allocator, 0, 512, NULL, &ptr) == XSEG_ERR_FORKED && ptr == NULL &&
           (block == NULL || xseg_free(allocator, block->ptr) == XSEG_ERR_FORKED) &&
           xseg_trim(allocator, NULL, NULL, NULL) == XSEG_ERR_FORKED &&
           (pool == NULL || xseg_pool_retain(pool->handle) == XSEG_ERR_FORKED) &&
           xseg_close(allocator) == XSEG_ERR_FORKED;
}

void step_fork(struct worker *worker)
{
    int wait_status = 0;

    /* In a child of a process with several threads, locks of the other threads would stay locked. */
    if (worker->world->options.threads > 1 || worker->world->options.has_background_thread)
        return;
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(calls_are_rejected(worker) ? 0 : 1);
    CHECK(waitpid(child, &wait_status, 0) == child);
    CHECK(wait_status == 0);
    failure_record(worker->number, "fork");
}

/* --- Faults. --- */

void step_fault(struct worker *worker)
{
    char text[120];

    fault_set(worker->random, worker->world->options.devices, text, sizeof(text));
    failure_record(worker->number, "fault: %s", text);
}

void step_lift_faults(struct worker *worker)
{
    fault_lift();
    failure_record(worker->number, "faults are lifted");
}

/* Read the metrics page, which is complete also during calls of other threads. */
void step_metrics(struct worker *worker)
{
    struct world *world = worker->world;
    const uint64_t epoch = fault_epoch();
    const size_t text_bytes = (size_t)1 << 18;
    const bool is_valid_path = chance(worker, 8);
    char *text = malloc(text_bytes);
    size_t needed = 0;

    CHECK(text != NULL);
    xseg_status status = CALL(xseg_metrics, world->allocator, text, text_bytes, &needed);
    CHECK(status == XSEG_OK || !fault_was_none(epoch));
    if (status == XSEG_OK)
        CHECK(needed <= text_bytes && strlen(text) + 1 == needed && text[needed - 2] == '\n');
    free(text);
    if (!chance(worker, 16))
        return;
    status =
        CALL(xseg_metrics_write, world->allocator, is_valid_path ? "/dev/null" : "/dev/null/none");
    CHECK(status == (is_valid_path ? XSEG_OK : XSEG_ERR_FILE) || !fault_was_none(epoch));
}

void step_check(struct worker *worker)
{
    failure_record(worker->number, "check of the world");
    world_check(worker->world);
}
