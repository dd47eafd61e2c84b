/* SPDX-License-Identifier: MIT */
#include "src/core/snapshot/stacks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/hash.h"
#include "src/core/snapshot/words.h"

#define FIRST_BITS 10u

/* --- Numbers by keys. --- */

static struct xseg_snapshot_place *find(const struct xseg_snapshot_table *table, uint64_t key)
{
    const size_t mask = ((size_t)1 << table->bits) - 1;
    size_t at = (size_t)xseg_hash_word(key, 0) & mask;

    while (table->places[at].number != 0 && table->places[at].key != key)
        at = (at + 1) & mask;
    return &table->places[at];
}

static bool grow(struct xseg_snapshot_table *table)
{
    struct xseg_snapshot_table bigger = {.bits =
                                             table->places == NULL ? FIRST_BITS : table->bits + 1};

    bigger.places = calloc((size_t)1 << bigger.bits, sizeof(*bigger.places));
    if (bigger.places == NULL)
        return false;
    for (size_t i = 0; table->places != NULL && i < (size_t)1 << table->bits; i++)
        if (table->places[i].number != 0) {
            *find(&bigger, table->places[i].key) = table->places[i];
            bigger.used++;
        }
    free(table->places);
    *table = bigger;
    return true;
}

/* The place of a key, which is empty if the key is new; NULL without host memory. */
static struct xseg_snapshot_place *get(struct xseg_snapshot_table *table, uint64_t key)
{
    if ((table->places == NULL || table->used >= (size_t)1 << (table->bits - 1)) && !grow(table))
        return NULL;
    return find(table, key);
}

static void fill(struct xseg_snapshot_table *table, struct xseg_snapshot_place *place, uint64_t key,
                 uint32_t number)
{
    XSEG_ASSERT(place->number == 0 && number != 0);
    *place = (struct xseg_snapshot_place){key, number};
    table->used++;
}

/* Take out the numbers above `most`. */
static void keep_up_to(struct xseg_snapshot_table *table, uint32_t most)
{
    struct xseg_snapshot_table kept = {.bits = table->bits};

    if (table->places == NULL)
        return;
    kept.places = calloc((size_t)1 << table->bits, sizeof(*kept.places));
    for (size_t i = 0; kept.places != NULL && i < (size_t)1 << table->bits; i++)
        if (table->places[i].number != 0 && table->places[i].number <= most) {
            *find(&kept, table->places[i].key) = table->places[i];
            kept.used++;
        }
    free(table->places);
    *table = kept;
}

/* --- One stack. --- */

void xseg_snapshot_stacks_init(struct xseg_snapshot_stacks *stacks,
                               struct xseg_history_store *store, struct xseg_document *document)
{
    memset(stacks, 0, sizeof(*stacks));
    stacks->store = store;
    stacks->document = document;
}

void xseg_snapshot_stacks_fini(struct xseg_snapshot_stacks *stacks)
{
    free(stacks->stacks.places);
    free(stacks->frames.places);
    free(stacks->listed);
}

static void write_frame(struct xseg_document *document, const char *name, size_t name_length,
                        const char *file, size_t file_length, uint64_t line)
{
    xseg_document_key(document, XSEG_SNAPSHOT_NAME);
    xseg_document_text(document, name, name_length);
    xseg_document_key(document, XSEG_SNAPSHOT_FILENAME);
    xseg_document_text(document, file, file_length);
    xseg_document_key(document, XSEG_SNAPSHOT_LINE);
    xseg_document_number(document, line);
}

/* A frame of the process: by source, else by its module and the offset in it, as PyTorch writes those of C++. */
static void write_own_frame(struct xseg_snapshot_stacks *stacks,
                            const struct xseg_stack_frame *frame)
{
    struct xseg_document *document = stacks->document;
    /* An address may have been in two modules, one after the other. */
    const uint64_t key =
        xseg_hash_word((uint64_t)(uintptr_t)frame->pc, (uint64_t)(uintptr_t)frame->path);
    struct xseg_snapshot_place *known = get(&stacks->frames, key);
    const char *name = frame->symbol == NULL ? "??" : frame->symbol;
    const char *file = frame->file != NULL ? frame->file : frame->path != NULL ? frame->path : "";

    if (known != NULL && known->number != 0) {
        xseg_document_recall(document, known->number);
        return;
    }
    xseg_document_dict(document);
    const uint32_t memo = xseg_document_remember(document);
    if (known != NULL && memo != 0)
        fill(&stacks->frames, known, key, memo);
    write_frame(document, name, strlen(name), file, strlen(file),
                frame->file != NULL ? frame->line : frame->offset);
    if (frame->file == NULL && frame->build_id != NULL) {
        xseg_document_key(document, XSEG_SNAPSHOT_BUILD_ID);
        xseg_document_text(document, frame->build_id, strlen(frame->build_id));
    }
    xseg_document_close(document);
}

/* Write a line of the text that names the user's frames: `function (file:line)`; any other line is a name. */
static void write_users_frame(struct xseg_document *document, const char *line, size_t length)
{
    const char *end = line + length, *colon = end, *open;
    uint64_t number = 0;

    xseg_document_dict(document);
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
        write_frame(document, line, length, "", 0, 0);
    else
        write_frame(document, line, (size_t)(open - 1 - line), open + 1, (size_t)(colon - open - 1),
                    number);
    xseg_document_close(document);
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

        write_users_frame(stacks->document, line, length);
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

/* Note that JSON has a stack in its table.  Returns its number there from 1 on; 0 without host memory. */
static uint32_t list(struct xseg_snapshot_stacks *stacks, uint64_t key)
{
    if (stacks->listed_count == stacks->listed_room) {
        const size_t room = stacks->listed_room == 0 ? 1024 : 2 * stacks->listed_room;
        uint64_t *listed = realloc(stacks->listed, room * sizeof(*listed));

        if (listed == NULL)
            return 0;
        stacks->listed = listed;
        stacks->listed_room = room;
    }
    stacks->listed[stacks->listed_count++] = key;
    return (uint32_t)stacks->listed_count;
}

static void write_number(struct xseg_snapshot_stacks *stacks, uint64_t key)
{
    struct xseg_snapshot_place *known = get(&stacks->stacks, key);
    uint32_t number = known == NULL ? 0 : known->number;

    if (known != NULL && number == 0) {
        number = list(stacks, key);
        if (number != 0)
            fill(&stacks->stacks, known, key, number);
    }
    stacks->lacks_memory |= number == 0;
    xseg_document_signed(stacks->document, (int64_t)number - 1);
}

void xseg_snapshot_stacks_write(struct xseg_snapshot_stacks *stacks, uint32_t stack,
                                uint32_t frames)
{
    struct xseg_document *document = stacks->document;
    const uint64_t key = (uint64_t)frames << 32 | stack;
    struct xseg_snapshot_place *known;

    if (document->format == XSEG_DOCUMENT_JSON) {
        write_number(stacks, key);
        return;
    }
    known = get(&stacks->stacks, key);
    if (known != NULL && known->number != 0) {
        xseg_document_recall(document, known->number);
        return;
    }
    xseg_document_list(document);
    const uint32_t memo = xseg_document_remember(document);
    if (known != NULL)
        fill(&stacks->stacks, known, key, memo);
    write_frames(stacks, stack, frames);
    xseg_document_close(document);
}

void xseg_snapshot_stacks_rewind(struct xseg_snapshot_stacks *stacks,
                                 const struct xseg_document_mark *mark)
{
    if (stacks->document->format == XSEG_DOCUMENT_JSON)
        return; /* a table with more stacks than are used does no harm */
    keep_up_to(&stacks->stacks, mark->memos);
    keep_up_to(&stacks->frames, mark->memos);
}

void xseg_snapshot_stacks_list(struct xseg_snapshot_stacks *stacks)
{
    xseg_document_list(stacks->document);
    for (size_t i = 0; i < stacks->listed_count; i++) {
        xseg_document_list(stacks->document);
        write_frames(stacks, (uint32_t)stacks->listed[i], (uint32_t)(stacks->listed[i] >> 32));
        xseg_document_close(stacks->document);
    }
    xseg_document_close(stacks->document);
}
