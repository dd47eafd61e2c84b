/* SPDX-License-Identifier: MIT */
/*
 * Metrics: counters and gauges in Prometheus's text format 0.0.4 (docs/metrics.md lists every metric).
 *
 *     size_t bytes = 0;
 *     xseg_metrics(allocator, NULL, 0, &bytes);
 *     bytes += 4096; // Values grow between the two calls.
 *     char *text = malloc(bytes);
 *     if (text != NULL && xseg_metrics(allocator, text, bytes, NULL) == XSEG_OK && text[0] != '\0')
 *         send_response(XSEG_METRICS_CONTENT_TYPE, text); // Serves the request of a Prometheus server.
 *     free(text);
 *
 * Metrics are read without locks of the fast path and without driver calls.  Concurrent changes may be reported as of
 * slightly different moments.  Only open devices have metrics.  The 128 oldest private pools of a device have their own
 * metrics; the others share one row.
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
 * @param text    receives the text, terminated; "" if the whole text does not fit.  May be NULL if bytes is 0.
 * @param bytes   size of text.
 * @param needed  receives the size of the whole text in bytes, including the terminator; may be NULL.
 *
 * @return XSEG_OK  also if the text does not fit.
 * Cost: no driver call; O(pools x streams).  Locks the registrations briefly once memory was registered.  Host memory
 *       of about 300 bytes per listed pool during the call.
 */
XSEG_API xseg_status xseg_metrics(struct xseg_allocator *allocator, char *text, size_t bytes,
                                  size_t *needed);

/**
 * Write the metrics of an allocator to a file, for the textfile collector of Prometheus's node exporter.
 *
 * The text is written to a temporary file in the same directory, whose name ends in ".part" and which then replaces the
 * file atomically.  Devices, pipes and /dev/stdout are written directly.
 *
 * @param path  path of the file; the collector reads files whose names end in ".prom".
 *
 * @return XSEG_ERR_FILE  the file could not be written; an earlier file is unchanged.
 * Cost: as xseg_metrics(), plus writing the file.
 */
XSEG_API xseg_status xseg_metrics_write(struct xseg_allocator *allocator, const char *path);

#ifdef __cplusplus
}
#endif

#endif
