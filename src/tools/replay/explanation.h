/* SPDX-License-Identifier: MIT */
/*
 * Why memory is reserved when a replay ends, before everything is freed: the sums of xseg_explain(),
 * and the largest reasons of each kind.
 *
 * Locking: none; it belongs to one replay.
 */
#ifndef TOOLS_EXPLANATION_H
#define TOOLS_EXPLANATION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

#define EXPLAINED_MAX 8 /* reasons of one kind that are told one by one */

struct explanation_reason {
    struct xseg_reason reason;
    uint64_t stream, waits_for; /* as the trace names them */
};

struct explanation_kind {
    uint64_t bytes, reasons;
    struct explanation_reason largest[EXPLAINED_MAX]; /* the largest first */
    unsigned listed;
};

struct explanation {
    bool is_there;
    bool has_times; /* the trace has a clock: else ages mean nothing */
    struct xseg_explain_result sums;
    struct explanation_kind kind[XSEG_REASON_ABOVE_SHARE + 1];
};

/* Ask the allocator.  streams: the trace's, by number.  Returns false if it refuses. */
bool explanation_query(struct explanation *explanation, struct xseg_allocator *allocator,
                       const struct xtrace *trace, struct CUstream_st *const *streams);

void explanation_print(FILE *out, const struct explanation *explanation);

/* Bytes by kind.  Returns NULL without host memory. */
json_t *explanation_json(const struct explanation *explanation);

#endif
