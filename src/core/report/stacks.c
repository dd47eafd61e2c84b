/* SPDX-License-Identifier: MIT */
#include "src/core/report/stacks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "src/base/hash_table.h"
#include "src/core/report/words.h"

/* A stack or frame that was written; memo 0: not any more. */
struct place {
    uint64_t key;
    uint32_t memo;
};

/* --- One stack. --- */

void xseg_snapshot_stacks_init(struct xseg_snapshot_stacks *stacks,
                               struct xseg_history_store *store, struct xseg_pickle_writer *pickle)
{
    memset(stacks, 0, sizeof(*stacks));
    xseg_hash_table_init(&stacks->stacks, sizeof(struct place));
    xseg_hash_table_init(&stacks->frames, sizeof(struct place));
    stacks->store = store;
    stacks->pickle = pickle;
}

void xseg_snapshot_stacks_fini(struct xseg_snapshot_stacks *stacks)
{
    xseg_hash_table_fini(&stacks->stacks);
    xseg_hash_table_fini(&stacks->frames);
}

static void write_frame(struct xseg_pickle_writer *pickle, const char *name, size_t name_length,
                        const char *file, size_t file_length, uint64_t line)
{
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_NAME);
    xseg_pickle_string(pickle, name, name_length);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_FILENAME);
    xseg_pickle_string(pickle, file, file_length);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_LINE);
    xseg_pickle_uint(pickle, line);
}

/* A frame of the process: by source, else by its module and the offset in it, as PyTorch writes those of C++. */
static void write_own_frame(struct xseg_snapshot_stacks *stacks,
                            const struct xseg_stack_frame *frame)
{
    struct xseg_pickle_writer *pickle = stacks->pickle;
    /* An address may have been in two modules, one after the other. */
    const uint64_t key =
        xseg_hash_word((uint64_t)(uintptr_t)frame->pc, (uint64_t)(uintptr_t)frame->path) | 1;
    struct place *known = xseg_hash_table_find_or_add(&stacks->frames, key);
    const char *name = frame->symbol == NULL ? "??" : frame->symbol;
    const char *file = frame->file != NULL ? frame->file : frame->path != NULL ? frame->path : "";

    if (known != NULL && known->memo != 0) {
        xseg_pickle_reference(pickle, known->memo);
        return;
    }
    xseg_pickle_open_dict(pickle);
    const uint32_t memo = xseg_pickle_memoize(pickle);
    if (known != NULL)
        known->memo = memo;
    write_frame(pickle, name, strlen(name), file, strlen(file),
                frame->file != NULL ? frame->line : frame->offset);
    if (frame->file == NULL && frame->build_id != NULL) {
        xseg_pickle_key(pickle, XSEG_SNAPSHOT_BUILD_ID);
        xseg_pickle_string(pickle, frame->build_id, strlen(frame->build_id));
    }
    xseg_pickle_close(pickle);
}

/* Write a line of the text that names the user's frames: `function (file:line)`; any other line is a name. */
static void write_users_frame(struct xseg_pickle_writer *pickle, const char *line, size_t length)
{
    const char *end = line + length, *colon = end, *open;
    uint64_t number = 0;

    xseg_pickle_open_dict(pickle);
    if (length > 0 && end[-1] == ')') {
        for (colon = end - 1; colon > line && colon[-1] >= '0' && colon[-1] <= '9';)
            colon--;
        for (const char *digit = colon; digit < end - 1; digit++)
            number = number * 10 + (uint64_t)(*digit - '0');
        colon = colon > line && colon < end - 1 && colon[-1] == ':' ? colon - 1 : end;
    }
    for (open = colon; colon != end && open > line && !(open[0] == '(' && open[-1] == ' ');)
        open--;
    if (colon == end || open == line)
        write_frame(pickle, line, length, "", 0, 0);
    else
        write_frame(pickle, line, (size_t)(open - 1 - line), open + 1, (size_t)(colon - open - 1),
                    number);
    xseg_pickle_close(pickle);
}

static void write_users_frames(struct xseg_snapshot_stacks *stacks, uint32_t frames)
{
    const struct xseg_history_hook *hook = xseg_history_store_hook(stacks->store);
    char *text = stacks->text;

    if (frames == 0 || hook == NULL || hook->name == NULL ||
        !hook->name(hook->context, frames, text, sizeof(stacks->text)))
        return;
    text[sizeof(stacks->text) - 1] = '\0';
    for (const char *line = text; *line != '\0';) {
        const size_t length = strcspn(line, "\n");

        write_users_frame(stacks->pickle, line, length);
        line += length + (line[length] == '\n');
    }
}

/* The items of the list that a stack is. */
static void write_frames(struct xseg_snapshot_stacks *stacks, uint32_t stack, uint32_t frames)
{
    const struct xseg_stack_depot *depot = xseg_history_store_depot(stacks->store);
    struct xseg_stack_frame frame;
    struct xseg_stack_view view;

    write_users_frames(stacks, frames);
    if (stack == 0 || depot == NULL || !xseg_stack_depot_get(depot, stack, &view))
        return;
    for (uint32_t i = 0; i < view.count && xseg_stack_depot_frame(depot, stack, i, &frame); i++)
        write_own_frame(stacks, &frame);
}

/* --- All of them. --- */

void xseg_snapshot_stacks_write(struct xseg_snapshot_stacks *stacks, uint32_t stack,
                                uint32_t frames)
{
    struct xseg_pickle_writer *pickle = stacks->pickle;
    const uint64_t key =
        (uint64_t)frames << 32 | stack; /* 1 more in the table: 0 is no key there */
    struct place *known = xseg_hash_table_find_or_add(&stacks->stacks, key + 1);

    if (known != NULL && known->memo != 0) {
        xseg_pickle_reference(pickle, known->memo);
        return;
    }
    xseg_pickle_open_list(pickle);
    const uint32_t memo = xseg_pickle_memoize(pickle);
    if (known != NULL)
        known->memo = memo;
    write_frames(stacks, stack, frames);
    xseg_pickle_close(pickle);
}

/* Forget the memos above `most`. */
static void forget_above(struct xseg_hash_table *table, uint32_t max)
{
    for (struct place *place = xseg_hash_table_next(table, NULL); place != NULL;
         place = xseg_hash_table_next(table, place))
        if (place->memo > max)
            place->memo = 0;
}

void xseg_snapshot_stacks_rewind(struct xseg_snapshot_stacks *stacks,
                                 const struct xseg_pickle_savepoint *mark)
{
    forget_above(&stacks->stacks, mark->memos);
    forget_above(&stacks->frames, mark->memos);
}
