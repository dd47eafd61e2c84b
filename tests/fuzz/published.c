/* SPDX-License-Identifier: MIT */
/*
 * Reads any bytes as a shared statistics file.  Accepted values are within their limits, and can be printed as a table and as
 * JSON.
 *
 * The input replaces the start of a valid file, so that short inputs reach most of the code.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/commands/top/top_table.h"
#include "tests/fuzz/holds.h"

static void check_text(const char *text, size_t bytes)
{
    HOLDS(memchr(text, 0, bytes) != NULL);
    for (; *text != '\0'; text++)
        HOLDS(*text >= ' ' && *text <= '~');
}

static void check_sample(const struct xseg_published_sample *sample)
{
    HOLDS(sample->device_count <= XSEG_PUBLISHED_DEVICES);
    HOLDS(sample->pool_count <= XSEG_PUBLISHED_POOLS);
    for (uint32_t i = 0; i < sample->device_count; i++)
        HOLDS(sample->devices[i].ordinal >= 0);
    for (uint32_t i = 0; i < sample->pool_count; i++) {
        HOLDS(sample->pools[i].kind <= XSEG_PUBLISHED_OTHERS && sample->pools[i].ordinal >= 0);
        check_text(sample->pools[i].label, sizeof(sample->pools[i].label));
    }
}

/* Print the statistics as the tool does, in one of its orders. */
static void print_tables(struct publisher *publisher, enum top_by by)
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

/* Initialize a file without statistics; the input replaces a part of it. */
static void init_file(struct xseg_published *file)
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
    const char *error = NULL;
    size_t offset = 0;

    /* The first two bytes are the offset of the replaced part, so that inputs reach any part of the file. */
    if (size >= 2) {
        offset = (size_t)(data[0] | data[1] << 8) % sizeof(file);
        data += 2;
        size -= 2;
    }
    enum top_by by = (enum top_by)(offset % TOP_BYS);
    init_file(&file);
    if (size > sizeof(file) - offset)
        size = sizeof(file) - offset;
    memcpy((char *)&file + offset, data, size);
    publisher = (struct publisher){.pid = 1, .command = "any"};
    if (published_copy(&file, sizeof(file), &head, &publisher.sample, &error)) {
        check_sample(&publisher.sample);
        print_tables(&publisher, by);
    } else {
        HOLDS(error != NULL && error[0] != '\0');
        publisher.error = error;
        print_tables(&publisher, by);
    }
    /* The start of the file up to the end of the input, which is usually too short. */
    error = NULL;
    HOLDS(published_copy(&file, offset + size, &head, &publisher.sample, &error) || error != NULL);
    return 0;
}
