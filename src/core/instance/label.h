/* SPDX-License-Identifier: MIT */
/*
 * Sets labels of threads and adds annotations to histories.  When the table of labels is full, labels that are not in use
 * are dropped (history_sweep.h); while all are in use, a new one becomes XSEG_HISTORY_LABELS_OTHER.
 *
 * Locking: none may be held, because a sweep takes the device memory lock, HISTORY and LABELS.
 */
#ifndef XSEG_CORE_LABEL_H
#define XSEG_CORE_LABEL_H

#include "src/core/device/allocator.h"

/*
 * Set the label of the calling thread; NULL: none.
 *
 * last: NULL, or set to the string of the label that the thread had, which is kept until the thread restores it
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_label_set(struct xseg_allocator *allocator, const char *text, const char **last);

/* Write a text into the history of a device.  Returns: as xseg_label_set(); XSEG_OK also while no texts are noted */
xseg_status xseg_label_annotate(struct xseg_allocator *allocator, struct xseg_device *device,
                                const char *text);

#endif
