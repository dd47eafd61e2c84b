/* SPDX-License-Identifier: MIT */
/*
 * Metrics in Prometheus's text format 0.0.4, in a buffer or in a file.
 *
 * A metric family has a type and a help text, then one line for each row (pool, device, driver
 * entry point) that has a value; a family without a line is left out.  Values of pools and devices
 * are read by usage.h.  Names of pools are the only text of users: invalid UTF-8 and control
 * characters other than newline become question marks.
 *
 * https://prometheus.io/docs/instrumenting/exposition_formats
 *
 * Locking: as usage.h.
 */
#ifndef XSEG_CORE_METRICS_TEXT_H
#define XSEG_CORE_METRICS_TEXT_H

#include "src/core/device/allocator.h"

/*
 * Write the metrics of all open devices.
 *
 * text:   NULL if bytes is 0; always terminated, and "" if the metrics do not fit
 * needed: receives the size of the text, terminator included
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_metrics_text_write(struct xseg_allocator *allocator, char *text, size_t bytes,
                                    size_t *needed);

/*
 * Replace a file by the metrics (atomic_file.h).
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY; XSEG_ERR_FILE, and an earlier file is unchanged
 */
xseg_status xseg_metrics_file_write(struct xseg_allocator *allocator, const char *path);

#endif
