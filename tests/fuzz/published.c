/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a shared statistics file.  Accepted values are within their limits, and can be printed as a table and as
 * JSON.
 *
 * The input replaces the start of a valid file, so that short inputs reach most of the code.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/commands/top/top_table.h"
#include "tests/fuzz/holds.h"

static void check_text(const char *text, size_t room)
{
    HOLDS(memchr(text, 0, room) != NULL);
    for (; *text != '\0'; text++)
        HOLDS(*text >= ' ' && *text <= '~');
}

static void check_frame(const struct xseg_published_sample *frame)
{
    HOLDS(frame->device_count <= XSEG_PUBLISHED_DEVICES);
    HOLDS(frame->pool_count <= XSEG_PUBLISHED_POOLS);
    for (uint32_t i = 0; i < frame->device_count; i++)
        HOLDS(frame->devices[i].ordinal >= 0);
    for (uint32_t i = 0; i < frame->pool_count; i++) {
        HOLDS(frame->pools[i].kind <= XSEG_PUBLISHED_OTHERS && frame->pools[i].ordinal >= 0);
        check_text(frame->pools[i].label, sizeof(frame->pools[i].label));
    }
}

/* Show it as the tool does, in one of the orders. */
static void show(struct publisher *publisher, enum top_by by)
{
    struct publisher *list[] = {publisher};
    const struct publishers publishers = {.list = list, .count = 1, .hidden = 3};
    struct top_table table;
    char line[TOP_LINE];
    int from, length;

    if (!top_table_init(&table, &publishers, by, by != TOP_BY_PID))
        abort();
    HOLDS(table.count >= 1);
    top_table_summary(&table, &publishers, line);
    check_text(line, sizeof(line));
    for (int width = 0; width <= 160; width += 40) {
        const struct top_layout layout = top_table_layout(width, by, 0);

        top_table_head(&layout, by, line, &from, &length);
        HOLDS(from >= 0 && (size_t)(from + length) <= strlen(line));
        for (size_t i = 0; i < table.count; i++) {
            top_table_line(&layout, &table.rows[i], line);
            check_text(line, sizeof(line));
        }
    }
    top_table_fini(&table);
    json_t *object = top_table_json(&publishers, NULL);
    HOLDS(object != NULL);
    json_decref(object);
}

/* A file without figures, over which the input is laid. */
static void fill(struct xseg_published *file)
{
    memset(file, 0, sizeof(*file));
    memcpy(file->magic, XSEG_PUBLISHED_MAGIC, sizeof(file->magic));
    file->version = XSEG_PUBLISHED_VERSION;
    file->bytes = sizeof(*file);
    file->samples[0].device_count = 1;
    file->samples[0].pool_count = 2;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct xseg_published file, head;
    static struct publisher publisher;
    const char *why = NULL;
    size_t skipped = 0;

    /* The first two bytes say where the rest is laid, so that any part of the file can be reached. */
    if (size >= 2) {
        skipped = (size_t)(data[0] | data[1] << 8) % sizeof(file);
        data += 2;
        size -= 2;
    }
    enum top_by by = (enum top_by)(skipped % TOP_BYS);
    fill(&file);
    if (size > sizeof(file) - skipped)
        size = sizeof(file) - skipped;
    memcpy((char *)&file + skipped, data, size);
    publisher = (struct publisher){.pid = 1, .command = "any"};
    if (published_copy(&file, sizeof(file), &head, &publisher.sample, &why)) {
        check_frame(&publisher.sample);
        show(&publisher, by);
    } else {
        HOLDS(why != NULL && why[0] != '\0');
        publisher.problem = why;
        show(&publisher, by);
    }
    /* As much of it as the input has: most of these are too short. */
    why = NULL;
    HOLDS(published_copy(&file, skipped + size, &head, &publisher.sample, &why) || why != NULL);
    return 0;
}
