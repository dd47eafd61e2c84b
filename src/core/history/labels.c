/* SPDX-License-Identifier: MIT */
#include "src/core/history/labels.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/hash_table.h"
#include "src/base/host_memory.h"

#define BUCKETS      ((size_t)1 << 17)
#define BUCKET_BYTES (BUCKETS * sizeof(uint32_t))

/* A record: a label, or one that has been dropped. */
struct label {
    char text[XSEG_HISTORY_LABEL_BYTES]; /* filled up with zeros */
    uint32_t next;                       /* of its chain, or free */
    _Atomic uint16_t mark;               /* 0: no label */
};

_Static_assert(sizeof(struct label) % XSEG_BUMP_UNIT == 0, "records lie side by side");

/* Readers keep labels that would be dropped, so while there are any, texts may take twice the room. */
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

static bool make(struct xseg_history_labels *labels)
{
    if (labels->memory.base == NULL &&
        !xseg_bump_init(&labels->memory, (MAX_RECORDS + 1) * sizeof(struct label)))
        return false;
    labels->bucket = xseg_demand_zero_alloc(BUCKET_BYTES);
    return labels->bucket != NULL;
}

static struct label *at(const struct xseg_history_labels *labels, uint32_t label)
{
    return xseg_bump_at(&labels->memory, label);
}

/* A text, cut and filled up with zeros to whole words. */
struct wanted {
    char text[XSEG_HISTORY_LABEL_BYTES];
    size_t bytes; /* with the terminator, in whole words */
    size_t bucket;
};

static struct wanted prepare(const char *text)
{
    const size_t length = strnlen(text, XSEG_HISTORY_LABEL_BYTES - 1);
    struct wanted wanted = {.bytes = xseg_round_up(length + 1, sizeof(uint64_t))};

    memcpy(wanted.text, text, length);
    wanted.bucket = xseg_hash_words(wanted.text, wanted.bytes / sizeof(uint64_t), 0) % BUCKETS;
    return wanted;
}

static void set_mark(struct label *record, uint16_t mark)
{
    atomic_store_explicit(&record->mark, mark, memory_order_relaxed);
}

static uint16_t mark_of(const struct label *record)
{
    return atomic_load_explicit(&record->mark, memory_order_relaxed);
}

static uint32_t find(const struct xseg_history_labels *labels, const struct wanted *wanted)
{
    uint32_t label = labels->bucket[wanted->bucket];

    while (label != 0 && memcmp(at(labels, label)->text, wanted->text, wanted->bytes) != 0)
        label = at(labels, label)->next;
    return label;
}

/* A record for a new label; 0 without host memory. */
static uint32_t take_record(struct xseg_history_labels *labels)
{
    const uint32_t label = labels->free;

    if (label != 0) {
        labels->free = at(labels, label)->next;
        return label;
    }
    const struct label *record = xseg_bump_alloc(&labels->memory, sizeof(*record));
    return record == NULL ? 0 : xseg_bump_handle(&labels->memory, record);
}

enum xseg_history_labels_outcome xseg_history_labels_add(struct xseg_history_labels *labels,
                                                         const char *text, uint32_t *label)
{
    const struct wanted wanted = prepare(text);
    const size_t max = labels->readers != 0 ? MAX_BYTES : XSEG_HISTORY_LABELS_BYTES;

    *label = 0;
    if (labels->bucket == NULL && !make(labels))
        return XSEG_HISTORY_LABELS_NO_MEMORY;
    *label = find(labels, &wanted);
    if (*label != 0) {
        set_mark(at(labels, *label), labels->sweep);
        return XSEG_HISTORY_LABELS_FOUND;
    }
    if (labels->bytes + wanted.bytes > max && strcmp(text, XSEG_HISTORY_LABELS_OTHER) != 0)
        return XSEG_HISTORY_LABELS_FULL;
    *label = take_record(labels);
    if (*label == 0)
        return XSEG_HISTORY_LABELS_NO_MEMORY;
    struct label *record = at(labels, *label);
    memcpy(record->text, wanted.text, sizeof(record->text));
    record->next = labels->bucket[wanted.bucket];
    set_mark(record, labels->sweep);
    labels->bucket[wanted.bucket] = *label;
    labels->bytes += wanted.bytes;
    labels->count++;
    labels->fresh++;
    return XSEG_HISTORY_LABELS_ADDED;
}

const char *xseg_history_labels_text(const struct xseg_history_labels *labels, uint32_t label)
{
    return label == 0 ? NULL : at(labels, label)->text;
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

/* --- A sweep. --- */

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
    /* A block that is freed meanwhile may still name a label that was dropped. */
    if (label != 0 && mark_of(at(labels, label)) != 0)
        set_mark(at(labels, label), labels->sweep);
}

/* Drop the labels of a chain that are not in use. */
static void drop_from(struct xseg_history_labels *labels, uint32_t *first)
{
    uint32_t *link = first, label;

    while ((label = *link) != 0) {
        struct label *record = at(labels, label);

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
        drop_from(labels, &labels->bucket[i]);
    labels->fresh = 0;
    labels->max_fresh = XSEG_HISTORY_LABELS_FRESH + labels->count;
}

/* --- The audit. --- */

bool xseg_history_labels_audit(struct xseg_history_labels *labels, struct xseg_violation *violation)
{
    const size_t end = labels->bucket == NULL ? 0 : labels->memory.used / XSEG_BUMP_UNIT;
    size_t bytes = 0, records = 0, spare = 0;
    uint32_t count = 0;

    for (size_t i = 1; i < end; i += sizeof(struct label) / XSEG_BUMP_UNIT) {
        const struct label *record = at(labels, (uint32_t)i);

        records++;
        if (mark_of(record) == 0)
            continue;
        const struct wanted wanted = prepare(record->text);
        XSEG_INVARIANT(violation, "LABEL-1", find(labels, &wanted) == i, "label %zu is not found",
                       i);
        bytes += wanted.bytes;
        count++;
    }
    XSEG_INVARIANT(violation, "LABEL-1", bytes == labels->bytes && count == labels->count,
                   "%" PRIu32 " labels of %zu bytes, not %" PRIu32 " of %zu", count, bytes,
                   labels->count, labels->bytes);
    for (uint32_t label = labels->free; label != 0 && spare <= records;
         label = at(labels, label)->next) {
        XSEG_INVARIANT(violation, "LABEL-2", mark_of(at(labels, label)) == 0,
                       "label %" PRIu32 " is in use, and free", label);
        spare++;
    }
    XSEG_INVARIANT(violation, "LABEL-2", count + spare == records,
                   "%" PRIu32 " labels and %zu free records, of %zu", count, spare, records);
    return true;
}
