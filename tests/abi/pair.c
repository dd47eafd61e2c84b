/* SPDX-License-Identifier: MIT */
/*
 * A program that passes and reads each public structure with struct_size.  pair.py compiles it with the headers of one
 * version and runs it with the library of another version, whose structures are longer or shorter.  Bytes past the end
 * of a structure must not be read or written.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <xseg/xseg.h>

#define CANARY 0xa5a5a5a5a5a5a5a5u
/* A structure followed by a canary, which detects writes past its end. */
#define WITH_CANARY(type, name, ...) \
    struct {                         \
        struct type value;           \
        uint64_t canary;             \
    } name = {__VA_ARGS__, CANARY}
#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            char error[1024] = "";                                                            \
            xseg_error_message(error, sizeof(error));                                         \
            fprintf(stderr, "pair.c:%d: failed: %s (last error: %s)\n", __LINE__, #condition, \
                    error);                                                                   \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)
#define CHECK_OK(call) CHECK((call) == XSEG_OK)

/* The numbers of structures that the library has passed to callbacks. */
static struct {
    unsigned keys, blocks, reasons, mappings, entries, frames, oom_infos, traces, mapped,
        registered, members;
} counts;

/* A callback that counts a structure if a condition on its `value` is true; `return_statement` is its last statement. */
#define COUNTER(result, counter, type, condition, return_statement)        \
    static result count_##counter(void *context, const struct type *value) \
    {                                                                      \
        (void)context;                                                     \
        counts.counter += (condition);                                     \
        return_statement;                                                  \
    }

COUNTER(bool, keys, xseg_config_key, value->struct_size > sizeof(size_t) && value->name != NULL,
        return true)
COUNTER(bool, members, xseg_budget_entry, value->struct_size > sizeof(size_t) && value->is_readable,
        return true)
COUNTER(bool, blocks, xseg_block_info,
        value->base == context && value->state == XSEG_BLOCK_ALLOCATED, return true)
COUNTER(bool, reasons, xseg_reason, value->kind == XSEG_REASON_ALLOCATED && value->block == context,
        return true)
COUNTER(bool, mappings, xseg_mapping, value->bytes != 0 && value->generation != 0, return true)
COUNTER(bool, entries, xseg_history_entry,
        value->action == XSEG_HISTORY_ALLOC && value->requested == 3000, return true)
COUNTER(bool, frames, xseg_history_frame, value->pc != NULL, return true)
COUNTER(void, oom_infos, xseg_oom_info,
        value->status == XSEG_ERR_LIMIT && value->bytes == (size_t)1 << 30, return )
COUNTER(void, traces, xseg_trace_entry, value->action == XSEG_TRACE_ALLOC && value->bytes == 3000,
        return )
COUNTER(void, mapped, xseg_mapping, value->bytes != 0, return )

static bool enter(void *context, struct xseg_registered *registered)
{
    registered->handle = context;
    counts.registered++;
    return true;
}

static void leave(void *context, const struct xseg_registered *registered)
{
    CHECK(registered->handle == context);
}

static uint32_t gather(void *context)
{
    (void)context;
    return 0;
}

static void *allocate(struct xseg_allocator *allocator, struct xseg_pool *pool)
{
    WITH_CANARY(xseg_request, request, {sizeof(struct xseg_request)});
    WITH_CANARY(xseg_block_info, info, {sizeof(struct xseg_block_info)});
    void *block = NULL;

    request.value.bytes = 3000;
    request.value.pool = pool;
    request.value.user = &counts;
    CHECK_OK(xseg_alloc_with(allocator, &request.value, &block));
    CHECK_OK(xseg_block_query(allocator, block, &info.value));
    CHECK(info.value.base == block && info.value.requested == 3000 && info.value.pool == pool);
    CHECK(info.value.user == &counts && info.canary == CANARY);
    return block;
}

static void check_queries(struct xseg_allocator *allocator, void *block)
{
    WITH_CANARY(xseg_scope, scope, XSEG_SCOPE_ALL);
    WITH_CANARY(xseg_explain_result, sums, {sizeof(struct xseg_explain_result)});
    WITH_CANARY(xseg_statistics, stats, {sizeof(struct xseg_statistics)});
    WITH_CANARY(xseg_history_summary, summary, {sizeof(struct xseg_history_summary)});
    WITH_CANARY(xseg_block_info, info, {sizeof(struct xseg_block_info)});
    struct xseg_device_stats devices[8];
    size_t count = 0;

    scope.value.device = 0;
    CHECK_OK(xseg_for_each_block(allocator, &scope.value, count_blocks, block));
    CHECK_OK(xseg_explain(allocator, &scope.value, count_reasons, block, &sums.value));
    CHECK(sums.value.in_allocated_blocks >= 3000 && sums.canary == CANARY);
    CHECK_OK(xseg_stats_get(allocator, &scope.value, &stats.value));
    CHECK(stats.value.requested_bytes[XSEG_STAT_ALL].current >= 3000 && stats.canary == CANARY);
    CHECK_OK(xseg_device_stats_get(allocator, devices, sizeof(devices[0]), 8, &count));
    for (size_t i = 0; i < count && i < 8; i++)
        CHECK(devices[i].struct_size > sizeof(size_t) && devices[i].device == (int)i);
    CHECK(devices[0].allocated_bytes >= 3000);
    CHECK_OK(xseg_for_each_mapping(allocator, &scope.value, count_mappings, NULL));
    CHECK_OK(xseg_for_each_event(allocator, 0, count_entries, NULL, &summary.value));
    CHECK(summary.value.events != 0 && summary.value.stacks != 0 && summary.canary == CANARY);
    CHECK_OK(xseg_block_query(allocator, block, &info.value));
    CHECK_OK(xseg_history_stack(allocator, info.value.stack, count_frames, NULL));
    CHECK(counts.blocks == 1 && counts.reasons == 1 && counts.mappings != 0 &&
          counts.entries != 0 && counts.frames != 0);
}

static void check_sharing(struct xseg_allocator *allocator, void *block)
{
    struct xseg_export_token token;
    WITH_CANARY(xseg_registrar, registrar, {sizeof(struct xseg_registrar)});
    void *imported = NULL;
    uint64_t id = 0;
    uint64_t offset = 0;

    registrar.value.context = &counts;
    registrar.value.enter = enter;
    registrar.value.leave = leave;
    CHECK_OK(xseg_register(allocator, block, 3000, &registrar.value, &id));
    CHECK_OK(xseg_unregister(allocator, id));
    CHECK(counts.registered == 1);
    CHECK_OK(xseg_export(allocator, block, &token, &offset));
    CHECK_OK(xseg_import(allocator, 0, &token, &imported));
    CHECK(imported != NULL && offset % 512 == 0);
    CHECK_OK(xseg_import_close(allocator, imported));
    CHECK_OK(xseg_export_close(allocator, block));
}

static void check_limits(struct xseg_allocator *allocator)
{
    WITH_CANARY(xseg_scope, scope, XSEG_SCOPE_ALL);
    WITH_CANARY(xseg_limits, limits, XSEG_LIMITS_INIT);
    WITH_CANARY(xseg_limits, previous, XSEG_LIMITS_INIT);
    WITH_CANARY(xseg_trim_options, options, {sizeof(struct xseg_trim_options)});
    WITH_CANARY(xseg_trim_result, result, {sizeof(struct xseg_trim_result)});
    void *block = NULL;

    scope.value.device = 0;
    options.value.wait = true;
    CHECK_OK(xseg_trim(allocator, &scope.value, &options.value, &result.value));
    CHECK(result.value.released != 0 && result.canary == CANARY);
    limits.value.hard_bytes = 64 << 20;
    CHECK_OK(xseg_limits_get(allocator, &scope.value, &previous.value));
    CHECK_OK(xseg_limits_set(allocator, &scope.value, &limits.value));
    CHECK(previous.value.hard_bytes == UINT64_MAX && previous.canary == CANARY);
    CHECK(xseg_alloc(allocator, 0, (size_t)1 << 30, NULL, &block) == XSEG_ERR_LIMIT);
}

/* Create a range with options and query it. */
static void check_range(struct xseg_allocator *allocator)
{
    WITH_CANARY(xseg_range_options, options, {sizeof(struct xseg_range_options)});
    WITH_CANARY(xseg_range_info, info, {sizeof(struct xseg_range_info)});
    struct xseg_range *range = NULL;

    options.value.page_bytes = 4 << 20;
    options.value.name = "pair";
    CHECK_OK(xseg_range_reserve(allocator, 0, 64 << 20, &options.value, &range));
    CHECK_OK(xseg_range_commit(range, 0, 8 << 20, NULL));
    CHECK_OK(xseg_range_query(range, &info.value));
    CHECK(info.value.page_bytes == 4 << 20 && info.value.committed_bytes == 8 << 20 &&
          info.canary == CANARY);
    CHECK_OK(xseg_range_decommit(range, 0, 8 << 20, NULL));
    CHECK_OK(xseg_range_release(range));
}

/* Query the members of a budget file that an allocator has open. */
static void check_budget(const char *driver, const char *path)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;
    char name[512], config[600];

    snprintf(name, sizeof(name), "%s.budget", path);
    snprintf(config, sizeof(config), "budget_file:%s", name);
    options.driver = driver;
    CHECK_OK(xseg_open(config, &options, &allocator));
    CHECK_OK(xseg_budget_members(name, count_members, NULL));
    CHECK(counts.members == 1);
    CHECK_OK(xseg_close(allocator));
}

int main(int argc, char **argv)
{
    WITH_CANARY(xseg_options, options, {sizeof(struct xseg_options)});
    WITH_CANARY(xseg_observer, observer, {sizeof(struct xseg_observer)});
    WITH_CANARY(xseg_history_hook, hook, {sizeof(struct xseg_history_hook)});
    WITH_CANARY(xseg_pool_options, pool_options, {sizeof(struct xseg_pool_options)});
    WITH_CANARY(xseg_snapshot_options, snapshot_options, {sizeof(struct xseg_snapshot_options)});
    struct xseg_allocator *allocator = NULL;
    struct xseg_pool *pool = NULL;
    void *block, *pool_block;
    uint64_t id = 0;

    CHECK(argc == 2);
    CHECK_OK(xseg_config_keys(NULL, NULL, count_keys, NULL));
    options.value.driver = getenv("XSEG_DRIVER");
    CHECK_OK(xseg_open("expandable_segments:True,history:all,history_stacks:all,block_user:True",
                       &options.value, &allocator));
    observer.value.on_out_of_memory = count_oom_infos;
    observer.value.on_trace = count_traces;
    observer.value.on_map = count_mapped;
    CHECK_OK(xseg_observer_add(allocator, &observer.value, &id));
    hook.value.gather = gather;
    CHECK_OK(xseg_history_set_hook(allocator, &hook.value));
    pool_options.value.exportable = true;
    pool_options.value.rdma = true;
    pool_options.value.name = "pair";
    CHECK_OK(xseg_pool_create(allocator, 0, &pool_options.value, &pool));
    block = allocate(allocator, NULL);
    pool_block = allocate(allocator, pool);
    check_queries(allocator, block);
    check_sharing(allocator, pool_block);
    CHECK_OK(xseg_snapshot(allocator, argv[1], &snapshot_options.value));
    CHECK_OK(xseg_free(allocator, pool_block));
    CHECK_OK(xseg_pool_release(pool));
    CHECK_OK(xseg_free(allocator, block));
    check_range(allocator);
    check_limits(allocator);
    CHECK(counts.keys != 0 && counts.oom_infos == 1 && counts.traces == 2 && counts.mapped != 0);
    CHECK_OK(xseg_observer_remove(allocator, id));
    CHECK_OK(xseg_close(allocator));
    check_budget(options.value.driver, argv[1]);
    return 0;
}
