/* SPDX-License-Identifier: MIT */
/*
 * A tape's answers against what the allocator says.
 *
 * Exact: each `=` line is a step.  The `p` and `s` lines that follow belong to it; where an operation stands
 * between, they are a step of their own.  A step agrees if every number of it does, and if the
 * allocation before it failed here exactly where it failed on the tape.
 *
 * A `p` line says where a block is relative to the segment that it is in, and which block that segment began with.  So
 * the address of the first block of a segment decides what is expected of the others.
 *
 * Floor: each allocation that the tape served is a step, up to the first that failed on the tape and
 * not here: from there on the programmes differ.  A step agrees if the allocation was served here.
 *
 * The first few differences are printed on standard error as FILE:LINE.
 *
 * Locking: none; it belongs to one replay.
 */
#ifndef TOOLS_CHECK_H
#define TOOLS_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

enum check_mode { CHECK_OFF, CHECK_EXACT, CHECK_FLOOR };

struct check {
    enum check_mode mode;
    const char *file;
    const struct xtrace *trace;
    void *const *blocks; /* [slots of the trace] */
    uint64_t *bases;     /* [trace->place_count], of segments; 0 until the first block of one */
    size_t next;         /* answer that comes next */
    uint64_t steps, mismatches;
    uint64_t differences;    /* lines that were, or would have been, printed */
    uint32_t last_after;     /* where the answer before stood */
    bool step_open;          /* a step was begun by an answer at last_after */
    bool step_differs;       /* and is counted as a mismatch already */
    bool pending_difference; /* an allocation went another way; the next answer's step differs */
    bool ended;              /* floor: the programmes differ from here on */
    uint32_t ended_line;
};

void check_init(struct check *check, enum check_mode mode, const char *file,
                const struct xtrace *trace);

/* Say where the blocks of a replay are, and where bases may be noted, all of which are 0. */
void check_places(struct check *check, void *const *blocks, uint64_t *bases);

/* Operations that can be replayed before the next answer is looked at. */
size_t check_until(const struct check *check);

/* Look at all answers that stand directly after `done` operations. */
void check_answers(struct check *check, size_t done, const struct xseg_statistics *stats);

/* Allocations that went as they did on the tape, for the floor. */
void check_served(struct check *check);

/* An allocation that only the tape served, or only this allocator. */
void check_only_tape(struct check *check);
void check_only_here(struct check *check, const struct xtrace_op *op);

/* Close the last step; say how many differences were not printed. */
void check_fini(struct check *check);

#endif
