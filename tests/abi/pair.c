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
        struct type it;              \
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

/* The numbers of structures that the library passed to callbacks. */
static struct {
    unsigned keys, blocks, reasons, mappings, entries, frames, oom_infos, traces, mapped,
        registered, members;
} counts;

/* A callback that counts a structure if a condition holds; `end` is its last statement. */
#define COUNTER(result, counter, type, condition, end)                  \
    static result count_##counter(void *context, const struct type *it) \
    {                                                                   \
        (void)context;                                                  \
        counts.counter += (condition);                                  \
        end;                                                            \
    }

COUNTER(bool, keys, xseg_config_key, it->struct_size > sizeof(size_t) && it->name != NULL,
        return true)
COUNTER(bool, members, xseg_budget_entry, it->struct_size > sizeof(size_t) && it->is_readable,
        return true)
COUNTER(bool, blocks, xseg_block_info, it->base == context && it->state == XSEG_BLOCK_ALLOCATED,
        return true)
COUNTER(bool, reasons, xseg_reason, it->kind == XSEG_REASON_ALLOCATED && it->block == context,
        return true)
COUNTER(bool, mappings, xseg_mapping, it->bytes != 0 && it->generation != 0, return true)
COUNTER(bool, entries, xseg_history_entry,
        it->action == XSEG_HISTORY_ALLOC && it->requested == 3000, return true)
COUNTER(bool, frames, xseg_history_frame, it->pc != NULL, return true)
COUNTER(void, oom_infos, xseg_oom_info,
        it->status == XSEG_ERR_LIMIT && it->bytes == (size_t)1 << 30, return )
COUNTER(void, traces, xseg_trace_entry, it->action == XSEG_TRACE_ALLOC && it->bytes == 3000,
        return )
COUNTER(void, mapped, xseg_mapping, it->bytes != 0, return )

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

    request.it.bytes = 3000;
    request.it.pool = pool;
    request.it.user = &counts;
    CHECK_OK(xseg_alloc_with(allocator, &request.it, &block));
    CHECK_OK(xseg_block_query(allocator, block, &info.it));
    CHECK(info.it.base == block && info.it.requested == 3000 && info.it.pool == pool);
    CHECK(info.it.user == &counts && info.canary == CANARY);
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

    scope.it.device = 0;
    CHECK_OK(xseg_for_each_block(allocator, &scope.it, count_blocks, block));
    CHECK_OK(xseg_explain(allocator, &scope.it, count_reasons, block, &sums.it));
    CHECK(sums.it.in_allocated_blocks >= 3000 && sums.canary == CANARY);
    CHECK_OK(xseg_stats_get(allocator, &scope.it, &stats.it));
    CHECK(stats.it.requested_bytes[XSEG_STAT_ALL].current >= 3000 && stats.canary == CANARY);
    CHECK_OK(xseg_device_stats_get(allocator, devices, sizeof(devices[0]), 8, &count));
    for (size_t i = 0; i < count && i < 8; i++)
        CHECK(devices[i].struct_size > sizeof(size_t) && devices[i].device == (int)i);
    CHECK(devices[0].allocated_bytes >= 3000);
    CHECK_OK(xseg_for_each_mapping(allocator, &scope.it, count_mappings, NULL));
    CHECK_OK(xseg_for_each_event(allocator, 0, count_entries, NULL, &summary.it));
    CHECK(summary.it.events != 0 && summary.it.stacks != 0 && summary.canary == CANARY);
    CHECK_OK(xseg_block_query(allocator, block, &info.it));
    CHECK_OK(xseg_history_stack(allocator, info.it.stack, count_frames, NULL));
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

    registrar.it.context = &counts;
    registrar.it.enter = enter;
    registrar.it.leave = leave;
    CHECK_OK(xseg_register(allocator, block, 3000, &registrar.it, &id));
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

    scope.it.device = 0;
    options.it.wait = true;
    CHECK_OK(xseg_trim(allocator, &scope.it, &options.it, &result.it));
    CHECK(result.it.released != 0 && result.canary == CANARY);
    limits.it.hard_bytes = 64 << 20;
    CHECK_OK(xseg_limits_get(allocator, &scope.it, &previous.it));
    CHECK_OK(xseg_limits_set(allocator, &scope.it, &limits.it));
    CHECK(previous.it.hard_bytes == UINT64_MAX && previous.canary == CANARY);
    CHECK(xseg_alloc(allocator, 0, (size_t)1 << 30, NULL, &block) == XSEG_ERR_LIMIT);
}

/* Create a range with options and query it. */
static void check_range(struct xseg_allocator *allocator)
{
    WITH_CANARY(xseg_range_options, options, {sizeof(struct xseg_range_options)});
    WITH_CANARY(xseg_range_info, info, {sizeof(struct xseg_range_info)});
    struct xseg_range *range = NULL;

    options.it.page_bytes = 4 << 20;
    options.it.name = "pair";
    CHECK_OK(xseg_range_reserve(allocator, 0, 64 << 20, &options.it, &range));
    CHECK_OK(xseg_range_commit(range, 0, 8 << 20, NULL));
    CHECK_OK(xseg_range_query(range, &info.it));
    CHECK(info.it.page_bytes == 4 << 20 && info.it.committed_bytes == 8 << 20 &&
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
    void *block, *other;
    uint64_t id = 0;

    CHECK(argc == 2);
    CHECK_OK(xseg_config_keys(NULL, NULL, count_keys, NULL));
    options.it.driver = getenv("XSEG_DRIVER");
    CHECK_OK(xseg_open("expandable_segments:True,history:all,history_stacks:all,block_user:True",
                       &options.it, &allocator));
    observer.it.on_out_of_memory = count_oom_infos;
    observer.it.on_trace = count_traces;
    observer.it.on_map = count_mapped;
    CHECK_OK(xseg_observer_add(allocator, &observer.it, &id));
    hook.it.gather = gather;
    CHECK_OK(xseg_history_set_hook(allocator, &hook.it));
    pool_options.it.exportable = true;
    pool_options.it.rdma = true;
    pool_options.it.name = "pair";
    CHECK_OK(xseg_pool_create(allocator, 0, &pool_options.it, &pool));
    block = allocate(allocator, NULL);
    other = allocate(allocator, pool);
    check_queries(allocator, block);
    check_sharing(allocator, other);
    CHECK_OK(xseg_snapshot(allocator, argv[1], &snapshot_options.it));
    CHECK_OK(xseg_free(allocator, other));
    CHECK_OK(xseg_pool_release(pool));
    CHECK_OK(xseg_free(allocator, block));
    check_range(allocator);
    check_limits(allocator);
    CHECK(counts.keys != 0 && counts.oom_infos == 1 && counts.traces == 2 && counts.mapped != 0);
    CHECK_OK(xseg_observer_remove(allocator, id));
    CHECK_OK(xseg_close(allocator));
    check_budget(options.it.driver, argv[1]);
    return 0;
}
