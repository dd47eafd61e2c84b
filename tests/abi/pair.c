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

#define BEHIND 0xa5a5a5a5a5a5a5a5u
/* A structure with a word behind it. */
#define FENCED(type, name, ...) \
    struct {                    \
        struct type it;         \
        uint64_t behind;        \
    } name = {__VA_ARGS__, BEHIND}
#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            char said[1024] = "";                                                             \
            xseg_error_message(said, sizeof(said));                                           \
            fprintf(stderr, "pair.c:%d: not so: %s (last error: %s)\n", __LINE__, #condition, \
                    said);                                                                    \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)
#define DONE(call) CHECK((call) == XSEG_OK)

/* How many of each were seen: the library hands them to a function, and says how long they are. */
static struct {
    unsigned keys, blocks, reasons, mappings, entries, frames, shortages, traces, came, entered,
        shares;
} seen;

/* A callback that counts a structure if a condition holds; `end` is its last statement. */
#define SEE(result, counter, type, condition, end)                    \
    static result see_##counter(void *context, const struct type *it) \
    {                                                                 \
        (void)context;                                                \
        seen.counter += (condition);                                  \
        end;                                                          \
    }

SEE(bool, keys, xseg_config_key, it->struct_size > sizeof(size_t) && it->name != NULL, return true)
SEE(bool, shares, xseg_budget_entry, it->struct_size > sizeof(size_t) && it->is_readable,
    return true)
SEE(bool, blocks, xseg_block_info, it->base == context && it->state == XSEG_BLOCK_ALLOCATED,
    return true)
SEE(bool, reasons, xseg_reason, it->kind == XSEG_REASON_ALLOCATED && it->block == context,
    return true)
SEE(bool, mappings, xseg_mapping, it->bytes != 0 && it->generation != 0, return true)
SEE(bool, entries, xseg_history_entry, it->action == XSEG_HISTORY_ALLOC && it->requested == 3000,
    return true)
SEE(bool, frames, xseg_history_frame, it->pc != NULL, return true)
SEE(void, shortages, xseg_oom_info, it->status == XSEG_ERR_LIMIT && it->bytes == (size_t)1 << 30,
    return )
SEE(void, traces, xseg_trace_entry, it->action == XSEG_TRACE_ALLOC && it->bytes == 3000, return )
SEE(void, came, xseg_mapping, it->bytes != 0, return )

static bool see_entered(void *context, struct xseg_registered *run)
{
    run->handle = context;
    seen.entered++;
    return true;
}

static void see_left(void *context, const struct xseg_registered *run)
{
    CHECK(run->handle == context);
}

static uint32_t gather(void *context)
{
    (void)context;
    return 0;
}

static void *allocate(struct xseg_allocator *allocator, struct xseg_pool *pool)
{
    FENCED(xseg_request, request, {sizeof(struct xseg_request)});
    FENCED(xseg_block_info, info, {sizeof(struct xseg_block_info)});
    void *block = NULL;

    request.it.bytes = 3000;
    request.it.pool = pool;
    request.it.user = &seen;
    DONE(xseg_alloc_with(allocator, &request.it, &block));
    DONE(xseg_block_query(allocator, block, &info.it));
    CHECK(info.it.base == block && info.it.requested == 3000 && info.it.pool == pool);
    CHECK(info.it.user == &seen && info.behind == BEHIND);
    return block;
}

static void look(struct xseg_allocator *allocator, void *block)
{
    FENCED(xseg_scope, where, XSEG_SCOPE_ALL);
    FENCED(xseg_explain_result, sums, {sizeof(struct xseg_explain_result)});
    FENCED(xseg_statistics, stats, {sizeof(struct xseg_statistics)});
    FENCED(xseg_history_summary, summary, {sizeof(struct xseg_history_summary)});
    FENCED(xseg_block_info, info, {sizeof(struct xseg_block_info)});
    struct xseg_device_stats devices[8];
    size_t count = 0;

    where.it.device = 0;
    DONE(xseg_for_each_block(allocator, &where.it, see_blocks, block));
    DONE(xseg_explain(allocator, &where.it, see_reasons, block, &sums.it));
    CHECK(sums.it.in_allocated_blocks >= 3000 && sums.behind == BEHIND);
    DONE(xseg_stats_get(allocator, &where.it, &stats.it));
    CHECK(stats.it.requested_bytes[XSEG_STAT_ALL].current >= 3000 && stats.behind == BEHIND);
    DONE(xseg_device_stats_get(allocator, devices, sizeof(devices[0]), 8, &count));
    for (size_t i = 0; i < count && i < 8; i++)
        CHECK(devices[i].struct_size > sizeof(size_t) && devices[i].device == (int)i);
    CHECK(devices[0].allocated_bytes >= 3000);
    DONE(xseg_for_each_mapping(allocator, &where.it, see_mappings, NULL));
    DONE(xseg_for_each_event(allocator, 0, see_entries, NULL, &summary.it));
    CHECK(summary.it.events != 0 && summary.it.stacks != 0 && summary.behind == BEHIND);
    DONE(xseg_block_query(allocator, block, &info.it));
    DONE(xseg_history_stack(allocator, info.it.stack, see_frames, NULL));
    CHECK(seen.blocks == 1 && seen.reasons == 1 && seen.mappings != 0 && seen.entries != 0 &&
          seen.frames != 0);
}

static void share(struct xseg_allocator *allocator, void *block)
{
    struct xseg_export_token token;
    FENCED(xseg_registrar, registrar, {sizeof(struct xseg_registrar)});
    void *here = NULL;
    uint64_t id = 0;
    uint64_t offset = 0;

    registrar.it.context = &seen;
    registrar.it.enter = see_entered;
    registrar.it.leave = see_left;
    DONE(xseg_register(allocator, block, 3000, &registrar.it, &id));
    DONE(xseg_unregister(allocator, id));
    CHECK(seen.entered == 1);
    DONE(xseg_export(allocator, block, &token, &offset));
    DONE(xseg_import(allocator, 0, &token, &here));
    CHECK(here != NULL && offset % 512 == 0);
    DONE(xseg_import_close(allocator, here));
    DONE(xseg_export_close(allocator, block));
}

static void run_short(struct xseg_allocator *allocator)
{
    FENCED(xseg_scope, where, XSEG_SCOPE_ALL);
    FENCED(xseg_limits, set, XSEG_LIMITS_INIT);
    FENCED(xseg_limits, was, XSEG_LIMITS_INIT);
    FENCED(xseg_trim_options, how, {sizeof(struct xseg_trim_options)});
    FENCED(xseg_trim_result, done, {sizeof(struct xseg_trim_result)});
    void *block = NULL;

    where.it.device = 0;
    how.it.wait = true;
    DONE(xseg_trim(allocator, &where.it, &how.it, &done.it));
    CHECK(done.it.released != 0 && done.behind == BEHIND);
    set.it.hard_bytes = 64 << 20;
    DONE(xseg_limits_get(allocator, &where.it, &was.it));
    DONE(xseg_limits_set(allocator, &where.it, &set.it));
    CHECK(was.it.hard_bytes == UINT64_MAX && was.behind == BEHIND);
    CHECK(xseg_alloc(allocator, 0, (size_t)1 << 30, NULL, &block) == XSEG_ERR_LIMIT);
}

/* A range with options, and what it says of itself. */
static void use_range(struct xseg_allocator *allocator)
{
    FENCED(xseg_range_options, options, {sizeof(struct xseg_range_options)});
    FENCED(xseg_range_info, info, {sizeof(struct xseg_range_info)});
    struct xseg_range *range = NULL;

    options.it.page_bytes = 4 << 20;
    options.it.name = "pair";
    DONE(xseg_range_reserve(allocator, 0, 64 << 20, &options.it, &range));
    DONE(xseg_range_commit(range, 0, 8 << 20, NULL));
    DONE(xseg_range_query(range, &info.it));
    CHECK(info.it.page_bytes == 4 << 20 && info.it.committed_bytes == 8 << 20 &&
          info.behind == BEHIND);
    DONE(xseg_range_decommit(range, 0, 8 << 20, NULL));
    DONE(xseg_range_release(range));
}

/* A budget file that an allocator has open. */
static void share_devices(const char *driver, const char *path)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;
    char name[512], config[600];

    snprintf(name, sizeof(name), "%s.ledger", path);
    snprintf(config, sizeof(config), "budget_file:%s", name);
    options.driver = driver;
    DONE(xseg_open(config, &options, &allocator));
    DONE(xseg_budget_members(name, see_shares, NULL));
    CHECK(seen.shares == 1);
    DONE(xseg_close(allocator));
}

int main(int argc, char **argv)
{
    FENCED(xseg_options, options, {sizeof(struct xseg_options)});
    FENCED(xseg_observer, observer, {sizeof(struct xseg_observer)});
    FENCED(xseg_history_hook, hook, {sizeof(struct xseg_history_hook)});
    FENCED(xseg_pool_options, particulars, {sizeof(struct xseg_pool_options)});
    FENCED(xseg_snapshot_options, how, {sizeof(struct xseg_snapshot_options)});
    struct xseg_allocator *allocator = NULL;
    struct xseg_pool *pool = NULL;
    void *block, *other;
    uint64_t id = 0;

    CHECK(argc == 2);
    DONE(xseg_config_keys(NULL, NULL, see_keys, NULL));
    options.it.driver = getenv("XSEG_DRIVER");
    DONE(xseg_open("expandable_segments:True,history:all,history_stacks:all,block_user:True",
                   &options.it, &allocator));
    observer.it.on_out_of_memory = see_shortages;
    observer.it.on_trace = see_traces;
    observer.it.on_map = see_came;
    DONE(xseg_observer_add(allocator, &observer.it, &id));
    hook.it.gather = gather;
    DONE(xseg_history_set_hook(allocator, &hook.it));
    particulars.it.exportable = true;
    particulars.it.rdma = true;
    particulars.it.name = "pair";
    DONE(xseg_pool_create(allocator, 0, &particulars.it, &pool));
    block = allocate(allocator, NULL);
    other = allocate(allocator, pool);
    look(allocator, block);
    share(allocator, other);
    DONE(xseg_snapshot(allocator, argv[1], &how.it));
    DONE(xseg_free(allocator, other));
    DONE(xseg_pool_release(pool));
    DONE(xseg_free(allocator, block));
    use_range(allocator);
    run_short(allocator);
    CHECK(seen.keys != 0 && seen.shortages == 1 && seen.traces == 2 && seen.came != 0);
    DONE(xseg_observer_remove(allocator, id));
    DONE(xseg_close(allocator));
    share_devices(options.it.driver, argv[1]);
    return 0;
}
