/* SPDX-License-Identifier: MIT */
/*
 * Assertions for accepted traces, which can be replayed: every slot, stream, pool and label is in range, and a slot has
 * at most one block at a time.
 */
#ifndef TESTS_FUZZ_REPLAYABLE_H
#define TESTS_FUZZ_REPLAYABLE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/trace/xtrace.h"
#include "tests/fuzz/holds.h"

static inline void check_op(const struct xtrace *trace, const struct xtrace_op *op, bool *live)
{
    HOLDS(op->line > 0);
    HOLDS(op->kind <= XTRACE_CLOCK);
    HOLDS(op->stream < trace->stream_count && op->awaited < trace->stream_count);
    HOLDS(op->pool < trace->pool_count);
    switch (op->kind) {
    case XTRACE_ALLOC:
        HOLDS(op->slot < trace->slot_count && !live[op->slot]);
        live[op->slot] = !op->failed;
        break;
    case XTRACE_FREE:
    case XTRACE_USE:
        HOLDS(op->slot < trace->slot_count && live[op->slot]);
        live[op->slot] = op->kind == XTRACE_USE;
        break;
    case XTRACE_MARK:
        HOLDS(op->value < trace->label_bytes);
        HOLDS(memchr(trace->labels + op->value, '\0', trace->label_bytes - op->value) != NULL);
        break;
    case XTRACE_CAPTURE_BEGIN:
    case XTRACE_CAPTURE_END:
    case XTRACE_ROUTE_BEGIN:
    case XTRACE_ROUTE_END:
    case XTRACE_POOL_RELEASE:
        HOLDS(op->pool > 0);
        break;
    default:
        break;
    }
}

static inline void check_accepted(const struct xtrace *trace)
{
    bool *live = calloc((size_t)trace->slot_count + 1, sizeof(*live));
    uint32_t after = 0;

    HOLDS(live != NULL);
    for (size_t i = 0; i < trace->op_count; i++)
        check_op(trace, &trace->ops[i], live);
    for (size_t i = 0; i < trace->answer_count; i++) {
        const struct xtrace_answer *answer = &trace->answers[i];

        HOLDS(answer->row < XTRACE_ROW_COUNT);
        HOLDS(answer->after >= after && answer->after <= trace->op_count);
        after = answer->after;
    }
    free(live);
}

/* Read any bytes as a file.  An error in a trace contains a line number. */
static inline void read_any(const uint8_t *data, size_t size)
{
    static const char head[] = "xtrace ";
    FILE *file = size > 0 ? fmemopen((void *)(uintptr_t)data, size, "rb") : tmpfile();
    struct xtrace trace;
    struct xtrace_fault fault = {0, ""};

    if (file == NULL)
        return;
    if (xtrace_read(file, -1, &trace, &fault)) {
        check_accepted(&trace);
        xtrace_fini(&trace);
    } else {
        HOLDS(fault.text[0] != '\0');
        HOLDS(fault.line > 0 || size < sizeof(head) - 1 ||
              memcmp(data, head, sizeof(head) - 1) != 0);
    }
    (void)fclose(file);
}

#endif
