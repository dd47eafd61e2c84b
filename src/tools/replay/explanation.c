/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/explanation.h"

#include <inttypes.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"

/* --- The query. --- */

struct query {
    struct explanation *explanation;
    const struct xtrace *trace;
    struct CUstream_st *const *streams;
};

static uint64_t get_stream_name(const struct query *query, xseg_stream handle)
{
    for (uint32_t i = 0; i < query->trace->stream_count; i++)
        if (query->streams[i] == handle)
            return query->trace->stream_name[i];
    return 0;
}

static bool add_reason(void *self, const struct xseg_reason *reason)
{
    const struct query *query = self;
    struct explanation_kind *kind = &query->explanation->kind[reason->kind];
    unsigned at = kind->listed;

    kind->bytes += reason->bytes;
    kind->reasons++;
    while (at > 0 && kind->largest[at - 1].reason.bytes < reason->bytes)
        at--;
    if (at == EXPLANATION_MAX)
        return true;
    kind->listed += kind->listed < EXPLANATION_MAX;
    memmove(&kind->largest[at + 1], &kind->largest[at],
            (kind->listed - at - 1) * sizeof(kind->largest[0]));
    kind->largest[at] = (struct explanation_reason){*reason, get_stream_name(query, reason->stream),
                                                    get_stream_name(query, reason->waits_for)};
    return true;
}

bool explanation_query(struct explanation *explanation, struct xseg_allocator *allocator,
                       const struct xtrace *trace, struct CUstream_st *const *streams)
{
    struct query query = {explanation, trace, streams};

    memset(explanation, 0, sizeof(*explanation));
    explanation->has_times = trace->has_clock;
    explanation->sums.struct_size = sizeof(explanation->sums);
    explanation->exists =
        xseg_explain(allocator, NULL, add_reason, &query, &explanation->sums) == XSEG_OK;
    return explanation->exists;
}

/* --- Printing. --- */

static void print_share(FILE *out, const char *name, uint64_t bytes, uint64_t total)
{
    (void)fprintf(out, "  %s  %12s  %s\n", amount_share((double)bytes, (double)total).text,
                  amount_bytes(bytes).text, name);
}

/* Describe the pool, unless it is the default pool. */
static const char *describe_pool(const struct xseg_reason *reason)
{
    if (reason->fallback_pool != NULL)
        return ", in memory of a fallback pool";
    return reason->pool != NULL ? ", private pool" : "";
}

static void print_reason(FILE *out, const struct explanation_reason *listed, bool has_times)
{
    const struct xseg_reason *reason = &listed->reason;

    (void)fprintf(out, "%14s%12s at %#" PRIx64 ", %s segment%s, stream %" PRIu64, "",
                  amount_bytes(reason->bytes).text, (uint64_t)(uintptr_t)reason->base,
                  reason->is_small ? "small" : "large", describe_pool(reason), listed->stream);
    if (reason->kind == XSEG_REASON_ALLOCATED && reason->allocated_blocks == 1)
        (void)fprintf(out, ": 1 allocated block of %s covers %s",
                      amount_bytes(reason->block_requested).text,
                      amount_bytes(reason->allocated_bytes).text);
    else if (reason->kind == XSEG_REASON_ALLOCATED)
        (void)fprintf(out, ": %s cover %s, the largest %s",
                      amount_of(reason->allocated_blocks, "allocated block").text,
                      amount_bytes(reason->allocated_bytes).text,
                      amount_bytes(reason->block_requested).text);
    if (reason->kind == XSEG_REASON_PENDING) {
        (void)fprintf(out, ": a block of %s", amount_bytes(reason->block_requested).text);
        if (reason->has_waits_for)
            (void)fprintf(out, " waits for stream %" PRIu64, listed->waits_for);
    }
    if (has_times && reason->block_age_ms != UINT64_MAX)
        (void)fprintf(out, ", allocated %.1f s ago", (double)reason->block_age_ms / 1000);
    if (has_times && reason->age_ms != UINT64_MAX)
        (void)fprintf(out, "; %s for %.1f s",
                      reason->kind < XSEG_REASON_PINNED ? "no block freed here" : "idle",
                      (double)reason->age_ms / 1000);
    (void)fputc('\n', out);
}

void explanation_print(FILE *out, const struct explanation *explanation)
{
    const uint64_t total = explanation->sums.reserved;

    (void)fprintf(out, "why memory is reserved at the end\n");
    for (unsigned i = 0; i <= XSEG_REASON_ABOVE_SHARE; i++) {
        const struct explanation_kind *kind = &explanation->kind[i];

        if (kind->reasons == 0)
            continue;
        print_share(out, xseg_reason_message((enum xseg_reason_kind)i), kind->bytes, total);
        for (unsigned at = 0; at < kind->listed; at++)
            print_reason(out, &kind->largest[at], explanation->has_times);
        if (kind->reasons > kind->listed)
            (void)fprintf(out, "%16s%s more\n", "",
                          amount_count(kind->reasons - kind->listed).text);
    }
    print_share(out, "reserved in total", total, total);
}

json_t *explanation_json(const struct explanation *explanation)
{
    const struct xseg_explain_result *sums = &explanation->sums;
    const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {
        {"allocated", sums->allocated},
        {"pending", sums->pending},
        {"claimed", sums->claimed},
        {"pool", sums->pool},
        {"pinned", sums->pinned},
        {"capture", sums->capture},
        {"stream", sums->stream},
        {"keep", sums->keep},
        {"decay", sums->decay},
        {"policy", sums->policy},
        {"exported", sums->exported},
        {"registered", sums->registered},
        {"above_share", sums->above_share},
        {"reserved", sums->reserved},
        {"in_allocated_blocks", sums->in_allocated_blocks},
        {"single_page_padding", sums->single_page_padding},
    };
    json_t *object = json_object();

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        output_json_set(&object, rows[i].name, json_integer((json_int_t)rows[i].bytes));
    return object;
}
