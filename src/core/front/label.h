/* SPDX-License-Identifier: MIT */
/*
 * Giving labels to threads and texts to histories; labels that nothing names any more make room for others
 * (label_sweep.h).
 *
 * Locking: what the sweep takes is taken inside; no lock may be held.
 */
#ifndef XSEG_CORE_LABEL_H
#define XSEG_CORE_LABEL_H

#include "src/core/device/allocator.h"

/*
 * Give the calling thread a label; NULL: none.
 *
 * last: NULL, or set to the text of the label that the thread had, which is kept for the thread to put it back
 *
 * Returns: XSEG_OK; XSEG_ERR_LIMIT: too many bytes of texts are in use; XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_label_set(struct xseg_allocator *allocator, const char *text, const char **last);

/* Write a text into the history of a device.  Returns: as xseg_label_set(); XSEG_OK also while no texts are noted */
xseg_status xseg_label_annotate(struct xseg_allocator *allocator, struct xseg_device *device,
                                const char *text);

#endif
