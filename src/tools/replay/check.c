/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/check.h"

#include <inttypes.h>
#include <stdio.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/message.h"

#define PRINTED_MAX 10 /* differences per file */

/* The offset of the row of an `s` line in struct xseg_statistics, where its numbers are contiguous. */
static const size_t row_offsets[XTRACE_ROW_COUNT] = {
    [XTRACE_ROW_ALLOCATION] = offsetof(struct xseg_statistics, allocation),
    [XTRACE_ROW_SEGMENT] = offsetof(struct xseg_statistics, segment),
    [XTRACE_ROW_ACTIVE] = offsetof(struct xseg_statistics, active),
    [XTRACE_ROW_INACTIVE_SPLIT] = offsetof(struct xseg_statistics, inactive_split),
    [XTRACE_ROW_ALLOCATED_BYTES] = offsetof(struct xseg_statistics, allocated_bytes),
    [XTRACE_ROW_RESERVED_BYTES] = offsetof(struct xseg_statistics, reserved_bytes),
    [XTRACE_ROW_ACTIVE_BYTES] = offsetof(struct xseg_statistics, active_bytes),
    [XTRACE_ROW_INACTIVE_SPLIT_BYTES] = offsetof(struct xseg_statistics, inactive_split_bytes),
    [XTRACE_ROW_REQUESTED_BYTES] = offsetof(struct xseg_statistics, requested_bytes),
    [XTRACE_ROW_OVERSIZE_ALLOCATIONS] = offsetof(struct xseg_statistics, oversize_allocations),
    [XTRACE_ROW_OVERSIZE_SEGMENTS] = offsetof(struct xseg_statistics, oversize_segments),
    [XTRACE_ROW_NUM_ALLOC_RETRIES] = offsetof(struct xseg_statistics, num_alloc_retries),
    [XTRACE_ROW_NUM_OOMS] = offsetof(struct xseg_statistics, num_ooms),
    [XTRACE_ROW_NUM_SYNC_ALL_STREAMS] = offsetof(struct xseg_statistics, num_sync_all_streams),
    [XTRACE_ROW_NUM_DEVICE_ALLOC] = offsetof(struct xseg_statistics, num_device_alloc),
    [XTRACE_ROW_NUM_DEVICE_FREE] = offsetof(struct xseg_statistics, num_device_free),
};

/* The rows whose current values are a `=` line, in its order. */
static const enum xtrace_row current_rows[] = {
    XTRACE_ROW_ALLOCATED_BYTES, XTRACE_ROW_ACTIVE_BYTES,    XTRACE_ROW_INACTIVE_SPLIT_BYTES,
    XTRACE_ROW_RESERVED_BYTES,  XTRACE_ROW_REQUESTED_BYTES, XTRACE_ROW_ALLOCATION,
    XTRACE_ROW_ACTIVE,          XTRACE_ROW_SEGMENT,         XTRACE_ROW_INACTIVE_SPLIT,
};

static const char *const part_names[] = {"current", "peak", "allocated", "freed"};
static const char *const group_names[] = {"", "small.", "large."};

void check_init(struct check *check, enum check_mode mode, const char *file,
                const struct xtrace *trace)
{
    *check = (struct check){.mode = mode, .file = file, .trace = trace};
}

void check_places(struct check *check, void *const *blocks, uint64_t *bases)
{
    check->blocks = blocks;
    check->bases = bases;
}

size_t check_until(const struct check *check)
{
    if (check->mode != CHECK_EXACT || check->next == check->trace->answer_count)
        return SIZE_MAX;
    return check->trace->answers[check->next].after;
}

/* Count a difference.  Returns whether it is printed. */
static bool count_difference(struct check *check)
{
    return check->differences++ < PRINTED_MAX;
}

static uint64_t get_number(const struct xseg_statistics *stats, enum xtrace_row row, unsigned index)
{
    const char *begin = (const char *)stats + row_offsets[row];

    return *(const uint64_t *)(const void *)(begin + index * sizeof(uint64_t));
}

/* Format the name of a number, such as "active_bytes.small.peak". */
static void format_name(const struct xtrace_answer *answer, unsigned index, char *out, size_t bytes)
{
    const enum xtrace_row row = (enum xtrace_row)answer->row;

    if (row == XTRACE_ROW_NOW)
        (void)snprintf(out, bytes, "%s", xtrace_row_name(current_rows[index]));
    else if (xtrace_row_numbers(row) == 1)
        (void)snprintf(out, bytes, "%s", xtrace_row_name(row));
    else
        (void)snprintf(out, bytes, "%s.%s%s", xtrace_row_name(row), group_names[index / 4],
                       part_names[index % 4]);
}

/* Compare a number with the tape.  Returns true if it differs; so do the next two functions. */
static bool check_number(struct check *check, const struct xtrace_answer *answer, unsigned index,
                         uint64_t actual)
{
    uint64_t expected = answer->number[index];
    char name[64];

    if (actual == expected)
        return false;
    if (!count_difference(check))
        return true;
    format_name(answer, index, name, sizeof(name));
    message_print("%s:%" PRIu32 ": %s is %" PRIu64 ", expected %" PRIu64, check->file, answer->line,
                  name, actual, expected);
    return true;
}

static bool check_place(struct check *check, const struct xtrace_answer *answer)
{
    const struct xtrace_op *op = &check->trace->ops[answer->after - 1];
    const uint64_t address = (uintptr_t)check->blocks[op->slot], offset = answer->number[1];
    uint64_t *base = &check->bases[answer->number[0]];

    if (*base == 0)
        *base = address - offset;
    if (address - *base == offset)
        return false;
    if (count_difference(check))
        message_print("%s:%" PRIu32 ": the block is at %#" PRIx64 ", expected %#" PRIx64,
                      check->file, answer->line, address, *base + offset);
    return true;
}

static bool check_row(struct check *check, const struct xtrace_answer *answer,
                      const struct xseg_statistics *stats)
{
    enum xtrace_row row = (enum xtrace_row)answer->row;
    bool has_difference = false;

    if (row == XTRACE_ROW_PLACE)
        return check_place(check, answer);
    for (unsigned i = 0; i < xtrace_row_numbers(row); i++)
        has_difference |= check_number(check, answer, i,
                                       row == XTRACE_ROW_NOW ? get_number(stats, current_rows[i], 0)
                                                             : get_number(stats, row, i));
    return has_difference;
}

static void begin_step(struct check *check, uint32_t after)
{
    check->steps++;
    check->step_open = true;
    check->step_differs = false;
    check->last_after = after;
    if (check->pending_difference) {
        check->pending_difference = false;
        check->step_differs = true;
        check->mismatches++;
    }
}

void check_answers(struct check *check, size_t done, const struct xseg_statistics *stats)
{
    while (check_until(check) == done) {
        const struct xtrace_answer *answer = &check->trace->answers[check->next++];

        if (answer->row == XTRACE_ROW_NOW || !check->step_open ||
            check->last_after != answer->after)
            begin_step(check, answer->after);
        if (check_row(check, answer, stats) && !check->step_differs) {
            check->step_differs = true;
            check->mismatches++;
        }
    }
}

void check_served(struct check *check)
{
    if (check->mode == CHECK_SUCCESS && !check->ended)
        check->steps++;
}

void check_only_tape(struct check *check)
{
    if (check->mode == CHECK_EXACT)
        check->pending_difference = true;
    if (check->mode == CHECK_SUCCESS && !check->ended) {
        check->steps++;
        check->mismatches++;
    }
}

void check_only_replay(struct check *check, const struct xtrace_op *op)
{
    if (check->mode == CHECK_EXACT) {
        check->pending_difference = true;
        if (count_difference(check))
            message_print("%s:%" PRIu32 ": allocated %s, expected out of memory", check->file,
                          op->line, amount_of(op->value, "byte").text);
    }
    if (check->mode == CHECK_SUCCESS && !check->ended) {
        check->ended = true;
        check->ended_line = op->line;
    }
}

void check_fini(struct check *check)
{
    /* The last allocation had another result, and no answer follows it. */
    if (check->mode == CHECK_EXACT && check->pending_difference)
        begin_step(check, UINT32_MAX);
    if (check->differences > PRINTED_MAX)
        message_print("%s: %s", check->file,
                      amount_of(check->differences - PRINTED_MAX, "more difference").text);
}
