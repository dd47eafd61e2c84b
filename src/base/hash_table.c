/* SPDX-License-Identifier: MIT */
#include "src/base/hash_table.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"

#define FIRST_CAPACITY 64u

void xseg_hash_table_init(struct xseg_hash_table *table, size_t record_bytes)
{
    XSEG_ASSERT(record_bytes >= sizeof(uint64_t) && record_bytes % sizeof(uint64_t) == 0);
    memset(table, 0, sizeof(*table));
    table->record_bytes = record_bytes;
}

void xseg_hash_table_fini(struct xseg_hash_table *table)
{
    free(table->records);
    table->records = NULL;
    table->capacity = table->used = 0;
}

static uint64_t *record_at(const struct xseg_hash_table *table, size_t index)
{
    return (void *)(table->records + index * table->record_bytes);
}

/* Find the slot of a key, or the empty slot in which a new key belongs. */
static uint64_t *find_slot(const struct xseg_hash_table *table, uint64_t key)
{
    const size_t mask = table->capacity - 1;
    size_t index = (size_t)xseg_hash_word(key, 0) & mask;

    XSEG_ASSERT(key != 0 && table->used < table->capacity);
    while (*record_at(table, index) != 0 && *record_at(table, index) != key)
        index = (index + 1) & mask;
    return record_at(table, index);
}

static bool grow_table(struct xseg_hash_table *table)
{
    struct xseg_hash_table larger = *table;

    larger.capacity = table->capacity == 0 ? FIRST_CAPACITY : 2 * table->capacity;
    larger.records = calloc(larger.capacity, table->record_bytes);
    if (larger.records == NULL)
        return false;
    for (const uint64_t *record = xseg_hash_table_next(table, NULL); record != NULL;
         record = xseg_hash_table_next(table, record))
        memcpy(find_slot(&larger, *record), record, table->record_bytes);
    free(table->records);
    *table = larger;
    return true;
}

void *xseg_hash_table_find(const struct xseg_hash_table *table, uint64_t key)
{
    uint64_t *record = table->used == 0 ? NULL : find_slot(table, key);

    return record == NULL || *record == 0 ? NULL : record;
}

void *xseg_hash_table_find_or_add(struct xseg_hash_table *table, uint64_t key)
{
    if (2 * table->used >= table->capacity && !grow_table(table))
        return NULL;
    uint64_t *record = find_slot(table, key);
    table->used += *record == 0;
    *record = key;
    return record;
}

void *xseg_hash_table_next(const struct xseg_hash_table *table, const void *record)
{
    const unsigned char *previous = record;
    size_t index =
        previous == NULL ? 0 : (size_t)(previous - table->records) / table->record_bytes + 1;

    while (index < table->capacity && *record_at(table, index) == 0)
        index++;
    return index < table->capacity ? record_at(table, index) : NULL;
}
