/* SPDX-License-Identifier: MIT */
#include "src/core/history/labels.h"

#include <string.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/base/hash.h"

void xseg_history_labels_init(struct xseg_history_labels *labels, struct xseg_lock *lock)
{
    memset(labels, 0, sizeof(*labels));
    labels->lock = lock;
    atomic_init(&labels->is_made, false);
}

void xseg_history_labels_fini(struct xseg_history_labels *labels)
{
    if (atomic_load_explicit(&labels->is_made, memory_order_relaxed))
        xseg_bump_fini(&labels->memory);
    atomic_store_explicit(&labels->is_made, false, memory_order_relaxed);
}

static bool make(struct xseg_history_labels *labels)
{
    if (!xseg_bump_init(&labels->memory, XSEG_HISTORY_LABELS_BYTES))
        return false;
    if (!xseg_handle_table_init(&labels->table, &labels->memory)) {
        xseg_bump_fini(&labels->memory);
        return false;
    }
    atomic_store_explicit(&labels->is_made, true, memory_order_release);
    return true;
}

/* A text, cut and filled up with zeros to whole words. */
struct wanted {
    char text[XSEG_HISTORY_LABEL_BYTES];
    size_t bytes; /* with the terminator */
    uint32_t hash;
};

static struct wanted prepare(const char *text)
{
    struct wanted wanted = {.bytes = strnlen(text, XSEG_HISTORY_LABEL_BYTES - 1) + 1};

    memcpy(wanted.text, text, wanted.bytes - 1);
    wanted.hash = (uint32_t)xseg_hash_words(
        wanted.text, xseg_round_up(wanted.bytes, sizeof(uint64_t)) / sizeof(uint64_t), 0);
    return wanted;
}

static uint32_t find(const struct xseg_history_labels *labels, const struct wanted *wanted)
{
    struct xseg_handle_search search = xseg_handle_table_search(&labels->table, wanted->hash);
    uint32_t label;

    while ((label = xseg_handle_table_next(&search)) != 0)
        if (strcmp(xseg_bump_at(&labels->memory, label), wanted->text) == 0)
            break;
    return label;
}

/* The lock is held. */
static uint32_t add(struct xseg_history_labels *labels, const struct wanted *wanted)
{
    if (!atomic_load_explicit(&labels->is_made, memory_order_relaxed) && !make(labels))
        return 0;
    const uint32_t found = find(labels, wanted);
    if (found != 0)
        return found;
    char *text = xseg_bump_take(&labels->memory, wanted->bytes);
    if (text == NULL)
        return 0;
    memcpy(text, wanted->text, wanted->bytes);
    const uint32_t label = xseg_bump_handle(&labels->memory, text);
    return xseg_handle_table_add(&labels->table, &labels->memory, wanted->hash, label) ? label : 0;
}

xseg_status xseg_history_labels_add(struct xseg_history_labels *labels, const char *text,
                                    uint32_t *label)
{
    const struct wanted wanted = prepare(text);
    bool is_full = false;

    *label = 0;
    if (atomic_load_explicit(&labels->is_made, memory_order_acquire))
        *label = find(labels, &wanted);
    if (*label != 0)
        return XSEG_OK;
    xseg_lock_take(labels->lock);
    *label = add(labels, &wanted);
    if (atomic_load_explicit(&labels->is_made, memory_order_relaxed))
        is_full = atomic_load_explicit(&labels->memory.was_full, memory_order_relaxed);
    xseg_lock_give(labels->lock);
    if (*label != 0)
        return XSEG_OK;
    return is_full ? xseg_fail(XSEG_ERR_LIMIT,
                               "label \"%s\": %zu MiB of distinct texts are kept already: use "
                               "texts that come again, such as the name of a phase",
                               wanted.text, XSEG_HISTORY_LABELS_BYTES >> 20)
                   : xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the label \"%s\"",
                               wanted.text);
}

const char *xseg_history_labels_text(const struct xseg_history_labels *labels, uint32_t label)
{
    return label == 0 ? NULL : xseg_bump_at(&labels->memory, label);
}
