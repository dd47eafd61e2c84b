/* SPDX-License-Identifier: MIT */
#include "src/core/history/labels.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/hash_table.h"
#include "src/base/host_memory.h"

#define BUCKETS      ((size_t)1 << 17)
#define BUCKET_BYTES (BUCKETS * sizeof(uint32_t))

/* A record: a label, or free. */
struct label {
    char text[XSEG_HISTORY_LABEL_BYTES]; /* padded with zeros */
    uint32_t next;                       /* in the chain, or in the free list */
    _Atomic uint16_t mark;               /* 0: free */
};

_Static_assert(sizeof(struct label) % XSEG_BUMP_UNIT == 0, "records are contiguous");

/* Limit of the strings while there are readers, which prevent sweeps from dropping labels. */
#define MAX_BYTES   (2 * XSEG_HISTORY_LABELS_BYTES)
#define MAX_RECORDS (MAX_BYTES / sizeof(uint64_t))

void xseg_history_labels_init(struct xseg_history_labels *labels)
{
    memset(labels, 0, sizeof(*labels));
    xseg_mutex_init(&labels->lock, XSEG_RANK_LEAF);
    labels->sweep = 1;
    labels->max_fresh = XSEG_HISTORY_LABELS_FRESH;
}

void xseg_history_labels_fini(struct xseg_history_labels *labels)
{
    xseg_demand_zero_free(labels->bucket, BUCKET_BYTES);
    labels->bucket = NULL;
    xseg_bump_fini(&labels->memory);
    xseg_mutex_fini(&labels->lock);
}

static bool allocate_table(struct xseg_history_labels *labels)
{
    if (labels->memory.base == NULL &&
        !xseg_bump_init(&labels->memory, (MAX_RECORDS + 1) * sizeof(struct label)))
        return false;
    labels->bucket = xseg_demand_zero_alloc(BUCKET_BYTES);
    return labels->bucket != NULL;
}

static struct label *label_at(const struct xseg_history_labels *labels, uint32_t label)
{
    return xseg_bump_at(&labels->memory, label);
}

/* The stored form of a string: truncated, and padded with zeros to whole words. */
struct key {
    char text[XSEG_HISTORY_LABEL_BYTES];
    size_t bytes; /* with the terminator and the padding */
    size_t bucket;
};

static struct key make_label_key(const char *text)
{
    const size_t length = strnlen(text, XSEG_HISTORY_LABEL_BYTES - 1);
    struct key key = {.bytes = xseg_round_up(length + 1, sizeof(uint64_t))};

    memcpy(key.text, text, length);
    key.bucket = xseg_hash_words(key.text, key.bytes / sizeof(uint64_t), 0) % BUCKETS;
    return key;
}

static void set_mark(struct label *record, uint16_t mark)
{
    atomic_store_explicit(&record->mark, mark, memory_order_relaxed);
}

static uint16_t mark_of(const struct label *record)
{
    return atomic_load_explicit(&record->mark, memory_order_relaxed);
}

static uint32_t find_label(const struct xseg_history_labels *labels, const struct key *key)
{
    uint32_t label = labels->bucket[key->bucket];

    while (label != 0 && memcmp(label_at(labels, label)->text, key->text, key->bytes) != 0)
        label = label_at(labels, label)->next;
    return label;
}

/* Allocate a record.  Returns 0 on host allocation failure. */
static uint32_t alloc_record(struct xseg_history_labels *labels)
{
    const uint32_t label = labels->free;

    if (label != 0) {
        labels->free = label_at(labels, label)->next;
        return label;
    }
    const struct label *record = xseg_bump_alloc(&labels->memory, sizeof(*record));
    return record == NULL ? 0 : xseg_bump_handle(&labels->memory, record);
}

enum xseg_history_labels_outcome xseg_history_labels_add(struct xseg_history_labels *labels,
                                                         const char *text, uint32_t *label)
{
    const struct key key = make_label_key(text);
    const size_t max = labels->readers != 0 ? MAX_BYTES : XSEG_HISTORY_LABELS_BYTES;

    *label = 0;
    if (labels->bucket == NULL && !allocate_table(labels))
        return XSEG_HISTORY_LABELS_NO_MEMORY;
    *label = find_label(labels, &key);
    if (*label != 0) {
        set_mark(label_at(labels, *label), labels->sweep);
        return XSEG_HISTORY_LABELS_FOUND;
    }
    if (labels->bytes + key.bytes > max && strcmp(text, XSEG_HISTORY_LABELS_OTHER) != 0)
        return XSEG_HISTORY_LABELS_FULL;
    *label = alloc_record(labels);
    if (*label == 0)
        return XSEG_HISTORY_LABELS_NO_MEMORY;
    struct label *record = label_at(labels, *label);
    memcpy(record->text, key.text, sizeof(record->text));
    record->next = labels->bucket[key.bucket];
    set_mark(record, labels->sweep);
    labels->bucket[key.bucket] = *label;
    labels->bytes += key.bytes;
    labels->count++;
    labels->fresh++;
    return XSEG_HISTORY_LABELS_ADDED;
}

const char *xseg_history_labels_text(const struct xseg_history_labels *labels, uint32_t label)
{
    return label == 0 ? NULL : label_at(labels, label)->text;
}

/* --- Readers. --- */

void xseg_history_labels_begin_reading(struct xseg_history_labels *labels)
{
    xseg_mutex_lock(&labels->lock);
    labels->readers++;
    xseg_mutex_unlock(&labels->lock);
}

void xseg_history_labels_end_reading(struct xseg_history_labels *labels)
{
    xseg_mutex_lock(&labels->lock);
    XSEG_ASSERT(labels->readers != 0);
    labels->readers--;
    xseg_mutex_unlock(&labels->lock);
}

/* --- Sweeps. --- */

bool xseg_history_labels_is_due(const struct xseg_history_labels *labels)
{
    return labels->fresh >= labels->max_fresh && labels->readers == 0;
}

void xseg_history_labels_begin(struct xseg_history_labels *labels)
{
    labels->sweep = labels->sweep == UINT16_MAX ? 1 : (uint16_t)(labels->sweep + 1);
}

void xseg_history_labels_mark(struct xseg_history_labels *labels, uint32_t label)
{
    /* The origin of a block that is freed concurrently may have a label that was dropped. */
    if (label != 0 && mark_of(label_at(labels, label)) != 0)
        set_mark(label_at(labels, label), labels->sweep);
}

/* Drop the labels of a chain whose mark is old. */
static void drop_chain_labels(struct xseg_history_labels *labels, uint32_t *first)
{
    uint32_t *link = first, label;

    while ((label = *link) != 0) {
        struct label *record = label_at(labels, label);

        if (mark_of(record) == labels->sweep) {
            link = &record->next;
            continue;
        }
        *link = record->next;
        labels->bytes -= xseg_round_up(strlen(record->text) + 1, sizeof(uint64_t));
        labels->count--;
        set_mark(record, 0);
        record->next = labels->free;
        labels->free = label;
    }
}

void xseg_history_labels_drop(struct xseg_history_labels *labels)
{
    if (labels->readers != 0 || labels->bucket == NULL)
        return;
    for (size_t i = 0; i < BUCKETS; i++)
        drop_chain_labels(labels, &labels->bucket[i]);
    labels->fresh = 0;
    labels->max_fresh = XSEG_HISTORY_LABELS_FRESH + labels->count;
}

/* --- Audit. --- */

bool xseg_history_labels_audit(struct xseg_history_labels *labels, struct xseg_violation *violation)
{
    const size_t end = labels->bucket == NULL ? 0 : labels->memory.used / XSEG_BUMP_UNIT;
    size_t bytes = 0, records = 0, free_records = 0;
    uint32_t count = 0;

    for (size_t i = 1; i < end; i += sizeof(struct label) / XSEG_BUMP_UNIT) {
        const struct label *record = label_at(labels, (uint32_t)i);

        records++;
        if (mark_of(record) == 0)
            continue;
        const struct key key = make_label_key(record->text);
        XSEG_INVARIANT(violation, "LABEL-1", find_label(labels, &key) == i,
                       "labels: label %zu is not in its chain", i);
        bytes += key.bytes;
        count++;
    }
    XSEG_INVARIANT(violation, "LABEL-1", bytes == labels->bytes && count == labels->count,
                   "labels: counted %" PRIu32 " of %zu bytes, expected %" PRIu32 " of %zu bytes",
                   count, bytes, labels->count, labels->bytes);
    for (uint32_t label = labels->free; label != 0 && free_records <= records;
         label = label_at(labels, label)->next) {
        XSEG_INVARIANT(violation, "LABEL-2", mark_of(label_at(labels, label)) == 0,
                       "labels: label %" PRIu32 " in the free list has a mark", label);
        free_records++;
    }
    XSEG_INVARIANT(violation, "LABEL-2", count + free_records == records,
                   "labels: %" PRIu32 " labels and %zu free records, expected %zu records", count,
                   free_records, records);
    return true;
}
