/* SPDX-License-Identifier: MIT */
#include "xseg/explain.h"

#include <stdlib.h>

#include "src/core/arena/origins.h"
#include "src/core/inspect/explain.h"
#include "src/entry.h"
#include "src/scope.h"

#define BATCH 128u /* blocks that are reported between two looks at an arena */

/* --- Walking. --- */

struct walk {
    struct xseg_selection selection;
    bool (*visit)(void *context, const struct xseg_block_info *block);
    void *context;
    uint64_t now;                  /* of origins.h */
    struct xseg_block_info *batch; /* [BATCH] */
    bool ended;
};

static void walk_arena(void *self, struct xseg_arena *arena)
{
    struct walk *walk = self;
    uint64_t cursor = 0;
    size_t count;

    if (walk->selection.stream != NULL && walk->selection.stream != xseg_arena_stream(arena))
        return;
    while (!walk->ended && (count = xseg_explain_blocks(arena, walk->selection.pool, &cursor,
                                                        walk->now, walk->batch, BATCH)) > 0)
        for (size_t i = 0; i < count && !walk->ended; i++)
            walk->ended = !walk->visit(walk->context, &walk->batch[i]);
}

xseg_status xseg_for_each_block(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                bool (*visit)(void *context, const struct xseg_block_info *block),
                                void *context)
{
    struct walk walk = {.visit = visit, .context = context};
    struct xseg_scope chosen;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(visit != NULL, "visit is NULL");
    xseg_status status = xseg_scope_check(allocator, scope, &chosen);
    if (status != XSEG_OK)
        return status;
    walk.now = xseg_origins_now_by(&allocator->clock, xseg_allocator_config(allocator));
    walk.batch = malloc(BATCH * sizeof(*walk.batch));
    if (walk.batch == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, blocks of a walk");
    xseg_history_labels_begin_reading(&allocator->history.labels);
    for (int i = 0; status == XSEG_OK && !walk.ended && i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_scope_device(allocator, &chosen, i);

        if (device == NULL)
            continue;
        status = xseg_scope_select(device, &chosen, &walk.selection);
        if (status == XSEG_OK)
            xseg_device_visit_arenas(device, walk_arena, &walk);
    }
    xseg_history_labels_end_reading(&allocator->history.labels);
    free(walk.batch);
    return status;
}

/* --- Explaining. --- */

static const struct {
    const char *text;
    size_t sum; /* offset of the sum of this kind in struct xseg_explain_result */
} kinds[] = {
    [XSEG_REASON_ALLOCATED] = {"a live block lies on it",
                               offsetof(struct xseg_explain_result, allocated)},
    [XSEG_REASON_PENDING] = {"freed, but another stream may still use it",
                             offsetof(struct xseg_explain_result, pending)},
    [XSEG_REASON_CLAIMED] = {"being freed right now",
                             offsetof(struct xseg_explain_result, claimed)},
    [XSEG_REASON_POOL] = {"idle, in a pool that somebody holds",
                          offsetof(struct xseg_explain_result, pool)},
    [XSEG_REASON_PINNED] = {"idle, but pinned", offsetof(struct xseg_explain_result, pinned)},
    [XSEG_REASON_CAPTURE] = {"idle, while a capture is under way",
                             offsetof(struct xseg_explain_result, capture)},
    [XSEG_REASON_STREAM] = {"idle, but its stream has work queued",
                            offsetof(struct xseg_explain_result, stream)},
    [XSEG_REASON_KEEP] = {"idle, kept by the floor", offsetof(struct xseg_explain_result, keep)},
    [XSEG_REASON_DECAY] = {"idle, goes back with time",
                           offsetof(struct xseg_explain_result, decay)},
    [XSEG_REASON_POLICY] = {"idle, nothing gives it back",
                            offsetof(struct xseg_explain_result, policy)},
    [XSEG_REASON_EXPORTED] = {"idle, but exported", offsetof(struct xseg_explain_result, exported)},
    [XSEG_REASON_REGISTERED] = {"idle, but registered",
                                offsetof(struct xseg_explain_result, registered)},
    [XSEG_REASON_ABOVE_SHARE] = {"idle, above the share of this process",
                                 offsetof(struct xseg_explain_result, above_share)},
};

const char *xseg_reason_message(enum xseg_reason_kind kind)
{
    return (unsigned)kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[kind].text : "unknown";
}

static void add_reason(struct xseg_explain_result *sums, const struct xseg_reason *reason)
{
    uint64_t *sum = (uint64_t *)(void *)((char *)sums + kinds[reason->kind].sum);

    *sum += reason->bytes;
    sums->reserved += reason->bytes;
    sums->in_allocated_blocks += reason->allocated_bytes;
    sums->single_page_padding += xseg_reason_single_page_rest(reason);
}

static bool is_meant(const struct xseg_reason *reason, const struct xseg_selection *selection)
{
    return (selection->pool == NULL || selection->pool == reason->pool ||
            selection->pool == reason->fallback_pool) &&
           (selection->stream == NULL || selection->stream->handle == reason->stream);
}

/* Keep the selected ones of the reasons from `first` on, and add them up. */
static void sift(struct xseg_reasons *reasons, size_t first, const struct xseg_selection *selection,
                 struct xseg_explain_result *sums)
{
    size_t kept = first;

    for (size_t i = first; i < reasons->count; i++)
        if (is_meant(&reasons->list[i], selection)) {
            reasons->list[kept] = reasons->list[i];
            add_reason(sums, &reasons->list[kept++]);
        }
    reasons->count = kept;
}

static xseg_status explain_all(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                               struct xseg_reasons *reasons, struct xseg_explain_result *sums)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    xseg_status status = XSEG_OK;

    for (int i = 0; status == XSEG_OK && i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_scope_device(allocator, scope, i);
        const size_t first = reasons->count;
        struct xseg_selection selection;

        if (device == NULL)
            continue;
        status = xseg_scope_select(device, scope, &selection);
        if (status == XSEG_OK)
            status = xseg_explain_device(device, config, reasons);
        if (status != XSEG_OK)
            break;
        sift(reasons, first, &selection, sums);
        if (scope->pool != NULL || scope->one_stream)
            continue;
        sums->page_cache += xseg_pages_bytes(&device->pages);
        sums->unreleased += xseg_leftovers_bytes(&device->leftovers);
    }
    return status;
}

xseg_status xseg_explain(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                         bool (*visit)(void *context, const struct xseg_reason *reason),
                         void *context, struct xseg_explain_result *out)
{
    struct xseg_explain_result sums = XSEG_EXPLAIN_RESULT_INIT;
    struct xseg_reasons reasons = {0};
    struct xseg_scope chosen;

    XSEG_ENTRY(allocator);
    if (out != NULL)
        XSEG_ENTRY_OUT(out);
    xseg_status status = xseg_scope_check(allocator, scope, &chosen);
    if (status == XSEG_OK)
        status = explain_all(allocator, &chosen, &reasons, &sums);
    for (size_t i = 0; status == XSEG_OK && visit != NULL && i < reasons.count; i++)
        if (!visit(context, &reasons.list[i]))
            break;
    free(reasons.list);
    if (status == XSEG_OK && out != NULL)
        XSEG_ENTRY_FILL(out, &sums);
    return status;
}
