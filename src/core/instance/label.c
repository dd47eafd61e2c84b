/* SPDX-License-Identifier: MIT */
#include "src/core/instance/label.h"

#include "src/base/error.h"
#include "src/core/instance/history_sweep.h"
#include "src/core/report/device_history.h"

/* Find or add a string, and set its label for the calling thread, or keep it for the thread next to its own. */
struct giving {
    const char *text; /* NULL: no label, for the thread itself */
    bool is_aside;    /* keep it next to the thread's own */
    bool keeps_last;
    bool is_due; /* set: a sweep is due */
    uint32_t label, last;
};

static enum xseg_history_labels_outcome give_once(struct xseg_history_store *store,
                                                  struct giving *giving)
{
    enum xseg_history_labels_outcome outcome = XSEG_HISTORY_LABELS_FOUND;

    xseg_mutex_lock(&store->labels.lock);
    if (giving->text != NULL)
        outcome = xseg_history_labels_add(&store->labels, giving->text, &giving->label);
    giving->is_due = xseg_history_labels_is_due(&store->labels);
    if (outcome <= XSEG_HISTORY_LABELS_ADDED) {
        if (giving->is_aside)
            xseg_history_retain_label(store, giving->label);
        else
            giving->last =
                xseg_history_set_label(store, giving->label, giving->text, giving->keeps_last);
    }
    xseg_mutex_unlock(&store->labels.lock);
    return outcome;
}

static xseg_status give(struct xseg_allocator *allocator, struct giving *giving)
{
    struct xseg_history_store *store = &allocator->history;
    enum xseg_history_labels_outcome outcome = XSEG_HISTORY_LABELS_NO_MEMORY;

    /* A sweep must see what threads have. */
    if (giving->text == NULL || xseg_history_context_register())
        outcome = give_once(store, giving);
    if (outcome == XSEG_HISTORY_LABELS_FULL) {
        xseg_history_sweep(allocator);
        outcome = give_once(store, giving);
    } else if (outcome == XSEG_HISTORY_LABELS_ADDED && giving->is_due) {
        xseg_history_sweep(allocator);
    }
    if (outcome == XSEG_HISTORY_LABELS_FULL) {
        giving->text = XSEG_HISTORY_LABELS_OTHER;
        outcome = give_once(store, giving);
    }
    if (outcome == XSEG_HISTORY_LABELS_NO_MEMORY)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, label \"%.*s\"",
                         (int)XSEG_HISTORY_LABEL_BYTES - 1, giving->text);
    return XSEG_OK;
}

xseg_status xseg_label_set(struct xseg_allocator *allocator, const char *text, const char **last)
{
    struct giving giving = {.text = text, .keeps_last = last != NULL};
    const xseg_status status = give(allocator, &giving);

    if (status == XSEG_OK && last != NULL)
        *last = xseg_history_labels_text(&allocator->history.labels, giving.last);
    return status;
}

xseg_status xseg_label_annotate(struct xseg_allocator *allocator, struct xseg_device *device,
                                const char *text)
{
    struct giving giving = {.text = text, .is_aside = true};

    if (!xseg_history_settings_record(xseg_history_settings(&device->history),
                                      XSEG_HISTORY_ANNOTATION))
        return XSEG_OK;
    xseg_status status = give(allocator, &giving);
    if (status != XSEG_OK)
        return status;
    status = xseg_device_history_annotate(device, giving.label);
    xseg_history_release_label(&allocator->history, giving.label);
    return status;
}
