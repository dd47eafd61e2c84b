/* SPDX-License-Identifier: MIT */
/*
 * Why memory is reserved at the end of a replay, before all blocks are freed: the sums of xseg_explain(), and the
 * largest reasons of each kind.
 *
 * Locking: none; one replay uses an explanation.
 */
#ifndef TOOLS_EXPLANATION_H
#define TOOLS_EXPLANATION_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

#define EXPLANATION_MAX 8 /* listed reasons of one kind */

struct explanation_reason {
    struct xseg_reason reason;
    uint64_t stream, waits_for; /* names in the trace */
};

struct explanation_kind {
    uint64_t bytes, reasons;
    struct explanation_reason largest[EXPLANATION_MAX]; /* [listed], the largest first */
    unsigned listed;
};

struct explanation {
    bool exists;
    bool has_times; /* the trace has a clock; ages are meaningless otherwise */
    struct xseg_explain_result sums;
    struct explanation_kind kind[XSEG_REASON_ABOVE_SHARE + 1];
};

/* Query the allocator.  streams: by index of the trace.  Returns false if the query fails. */
bool explanation_query(struct explanation *explanation, struct xseg_allocator *allocator,
                       const struct xtrace *trace, struct CUstream_st *const *streams);

void explanation_print(FILE *out, const struct explanation *explanation);

/* Make an object of the bytes by kind.  Returns NULL if out of host memory. */
json_t *explanation_json(const struct explanation *explanation);

#endif
