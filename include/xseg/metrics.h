/* SPDX-License-Identifier: MIT */
/*
 * Metrics: counters and gauges of an allocator in Prometheus's text format 0.0.4 (docs/metrics.md lists every metric).
 *
 * Reading metrics changes nothing: it takes no lock of the fast path and makes no driver call.  Concurrent changes may
 * be reported as of slightly different moments.  Devices that have not been opened have no metrics.  The 128 oldest
 * private pools of a device have metrics of their own; the others share one row.
 *
 * Threads: any, concurrently with every other call.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_METRICS_H
#define XSEG_METRICS_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The Content-Type of an HTTP response that contains the text of xseg_metrics(). */
#define XSEG_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/**
 * Write the metrics of an allocator as text.
 *
 * @param text    the buffer, which is always terminated; "" if the whole text does not fit.  NULL if `bytes` is 0
 * @param bytes   size of the buffer
 * @param needed  NULL, or receives the size of the whole text in bytes, terminator included.  Values grow between two
 *                calls: allocate some more than this
 *
 * Returns: XSEG_OK, also if the text does not fit; XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED
 * Cost:    no driver call; O(pools + arenas).  Allocates about 300 bytes of host memory for each listed pool during the
 *          call.  Locks the registrations briefly once memory was registered (registration.h)
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_metrics(struct xseg_allocator *allocator, char *text,
                                                 size_t bytes, size_t *needed);

/**
 * Write the metrics of an allocator to a file, for the textfile collector of Prometheus's node exporter.
 *
 * The text is written to a temporary file in the same folder, whose name ends in ".part", which then replaces the file
 * atomically, so the collector never reads a partial file.  Devices, pipes and standard output are written directly.
 *
 * @param path  the file; the collector reads files whose names end in ".prom"
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT; XSEG_ERR_HOST_MEMORY; XSEG_ERR_FILE: the error message contains the reason of the
 *          system, and an earlier file is unchanged; XSEG_ERR_FORKED
 * Cost:    as xseg_metrics(), plus writing the file
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_metrics_write(struct xseg_allocator *allocator,
                                                       const char *path);

#ifdef __cplusplus
}
#endif

#endif
