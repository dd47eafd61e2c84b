/* SPDX-License-Identifier: MIT */
/*
 * Metrics: memory statistics and counters in the text format of Prometheus, version 0.0.4, in a
 * buffer or in a file.
 *
 * All values are read first; then the text is formatted from them, once to measure it and once to
 * write it, so it is complete or absent.  A metric family has a help text and a type, then one line
 * for each row (pool, device or driver entry point) that has a value; a family without a line is
 * omitted.  The number of lines is bounded, because the rows of pools are (memory_stats.h).  Pool
 * names are the only strings of users: invalid UTF-8 and control characters other than newline
 * become question marks.
 *
 * https://prometheus.io/docs/instrumenting/exposition_formats
 *
 * Locking: as memory_stats.h.
 */
#ifndef XSEG_CORE_METRICS_H
#define XSEG_CORE_METRICS_H

#include "src/core/device/allocator.h"

/*
 * Write the metrics of all open devices into a buffer.
 *
 * text:    NULL if bytes is 0; always terminated, and "" if the metrics do not fit
 * needed:  receives the size of the text, terminator included
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_metrics_write_text(struct xseg_allocator *allocator, char *text, size_t bytes,
                                    size_t *needed);

/*
 * Replace a file by the metrics (file_writer.h).
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY; XSEG_ERR_FILE, and an earlier file is unchanged
 */
xseg_status xseg_metrics_write_file(struct xseg_allocator *allocator, const char *path);

#endif
