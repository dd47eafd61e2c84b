/* SPDX-License-Identifier: MIT */
/*
 * Metrics in a file for node exporter's textfile collector, which reads Prometheus's text format 0.0.4.
 *
 * Locking: as figures.h.
 */
#ifndef XSEG_CORE_METRICS_FILE_H
#define XSEG_CORE_METRICS_FILE_H

#include "src/core/device/allocator.h"

/*
 * Write the metrics to a path (replacement.h).
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY; XSEG_ERR_FILE, and there is no new file
 */
xseg_status xseg_metrics_file_write(struct xseg_allocator *allocator, const char *path);

#endif
