/* SPDX-License-Identifier: MIT */
#include "xseg/history.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/stack.h"
#include "src/base/symbolizer.h"
#include "src/core/instance/instance.h"
#include "src/core/report/device_history.h"
#include "src/core/report/snapshot.h"
#include "src/entry.h"

/* Read the history of one device, or of all devices.  The caller ends the merge even after an
 * error. */
static xseg_status read_histories(struct xseg_allocator *allocator, int device,
                                  struct xseg_history_reader *reader)
{
    xseg_status status = XSEG_OK;

    xseg_history_merge_init(&reader->merge);
    for (int i = 0; status == XSEG_OK && i < allocator->device_count; i++) {
        struct xseg_device *opened = xseg_allocator_open_device(allocator, i);

        if (opened != NULL && (device == -1 || device == i))
            status = xseg_device_history_read(opened, reader);
    }
    if (status == XSEG_OK && !xseg_history_merge_begin(&reader->merge))
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, events of the history");
    return status;
}

static void summarize_history(struct xseg_allocator *allocator,
                              const struct xseg_history_reader *reader,
                              struct xseg_history_summary *out)
{
    const struct xseg_stack_depot *depot = xseg_history_store_depot(&allocator->history);

    if (out == NULL)
        return;
    const struct xseg_history_summary sums = {
        .events = reader->count,
        .lost = reader->lost,
        .stacks = depot == NULL ? 0 : xseg_stack_depot_count(depot),
        .stacks_lost = depot == NULL ? 0 : xseg_stack_depot_lost(depot),
        .stack_bytes = depot == NULL ? 0 : xseg_stack_depot_bytes(depot),
    };
    XSEG_ENTRY_COPY_OUT(out, &sums);
}

static xseg_status check_device(const struct xseg_allocator *allocator, int device)
{
    if (device >= -1 && device < allocator->device_count)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_ARGUMENT,
                     "device %d does not exist; use 0 to %d, or -1 for all devices", device,
                     allocator->device_count - 1);
}

xseg_status xseg_for_each_event(struct xseg_allocator *allocator, int device,
                                bool (*visit)(void *context,
                                              const struct xseg_history_entry *entry),
                                void *context, struct xseg_history_summary *summary)
{
    struct xseg_history_reader reader = {.count = 0};
    const struct xseg_history_event *event;
    struct xseg_history_entry entry;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(visit != NULL, "visit is NULL");
    if (summary != NULL)
        XSEG_ENTRY_OUT(summary);
    xseg_status status = check_device(allocator, device);
    if (status != XSEG_OK)
        return status;
    xseg_history_labels_begin_reading(&allocator->history.labels);
    status = read_histories(allocator, device, &reader);
    if (status == XSEG_OK)
        summarize_history(allocator, &reader, summary);
    while (status == XSEG_OK && (event = xseg_history_merge_next(&reader.merge)) != NULL) {
        xseg_device_history_describe(allocator, &reader.moment, event, reader.merge.user, &entry);
        if (!visit(context, &entry))
            break;
    }
    xseg_history_labels_end_reading(&allocator->history.labels);
    xseg_history_merge_fini(&reader.merge);
    return status;
}

xseg_status xseg_history_clear(struct xseg_allocator *allocator, int device)
{
    XSEG_ENTRY(allocator);
    const xseg_status status = check_device(allocator, device);
    for (int i = 0; status == XSEG_OK && i < allocator->device_count; i++) {
        struct xseg_device *opened = xseg_allocator_open_device(allocator, i);

        if (opened != NULL && (device == -1 || device == i))
            xseg_device_history_clear(opened);
    }
    if (status == XSEG_OK)
        xseg_history_sweep(allocator);
    return status;
}

/* --- Stacks, frames, labels. --- */

xseg_status xseg_history_stack(struct xseg_allocator *allocator, uint32_t stack,
                               bool (*visit)(void *context, const struct xseg_history_frame *frame),
                               void *context)
{
    struct xseg_stack_view view;
    struct xseg_stack_frame resolved;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(visit != NULL, "visit is NULL");
    const struct xseg_stack_depot *depot = xseg_history_store_depot(&allocator->history);
    if (depot == NULL || !xseg_stack_depot_get(depot, stack, &view))
        return xseg_fail(XSEG_ERR_ARGUMENT, "unknown stack ID, %" PRIu32, stack);
    for (uint32_t i = 0; i < view.count && xseg_stack_depot_frame(depot, stack, i, &resolved);
         i++) {
        const struct xseg_history_frame frame = {
            .struct_size = sizeof(frame),
            .pc = resolved.pc,
            .module = resolved.path,
            .build_id = resolved.build_id,
            .offset = resolved.offset,
            .function = resolved.symbol,
            .function_offset = resolved.symbol_offset,
            .source = resolved.file,
            .line = resolved.line,
        };

        if (!visit(context, &frame))
            break;
    }
    return XSEG_OK;
}

const char *xseg_history_stack_method(struct xseg_allocator *allocator)
{
    if (allocator != NULL &&
        (xseg_fork_guard_is_child(&allocator->fork) ||
         !xseg_history_settings_capture(xseg_history_store_settings(&allocator->history))))
        return NULL;
    return xseg_stack_prepare() ? XSEG_STACK_FAST_UNWINDER : "backtrace";
}

xseg_status xseg_history_set_hook(struct xseg_allocator *allocator,
                                  const struct xseg_history_hook *hook)
{
    struct xseg_history_hook chosen = {sizeof(chosen)};

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_IN(hook, struct xseg_history_hook, discard);
    XSEG_ENTRY_REQUIRE(hook == NULL || hook->gather != NULL, "hook->gather is NULL");
    if (hook != NULL)
        XSEG_ENTRY_COPY_IN(&chosen, hook);
    return xseg_history_store_set_hook(&allocator->history, hook != NULL ? &chosen : NULL)
               ? XSEG_OK
               : xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, history hook");
}

xseg_status xseg_history_annotate(struct xseg_allocator *allocator, int device, const char *text)
{
    struct xseg_device *opened = NULL;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(text != NULL, "text is NULL");
    const xseg_status status = xseg_allocator_device(allocator, device, &opened);
    return status == XSEG_OK ? xseg_label_annotate(allocator, opened, text) : status;
}

xseg_status xseg_history_label(struct xseg_allocator *allocator, const char *text,
                               const char **before)
{
    XSEG_ENTRY(allocator);
    return xseg_label_set(allocator, text, before);
}

/* Copy the options of the caller.  Members that the header of the caller does not have keep their
 * defaults. */
static struct xseg_snapshot_options
copy_snapshot_options(const struct xseg_snapshot_options *source)
{
    struct xseg_snapshot_options options = {sizeof(options)};

    if (source != NULL)
        XSEG_ENTRY_COPY_IN(&options, source);
    return options;
}

xseg_status xseg_snapshot(struct xseg_allocator *allocator, const char *path,
                          const struct xseg_snapshot_options *options)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(path != NULL && path[0] != '\0', "path is NULL or empty");
    XSEG_ENTRY_IN(options, struct xseg_snapshot_options, max_ms);
    const struct xseg_snapshot_options chosen = copy_snapshot_options(options);
    const struct xseg_snapshot_params params = {
        .include_events = !chosen.without_events,
        .may_query_driver = true,
        .max_host_bytes = chosen.host_bytes,
        .max_file_bytes = UINT64_MAX,
        .deadline_ns = xseg_snapshot_deadline(chosen.max_ms),
    };
    return xseg_snapshot_write_file(allocator, &params, path);
}
