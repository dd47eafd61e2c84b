/* SPDX-License-Identifier: MIT */
/*
 * Metrics: what an allocator holds and does, for Prometheus and what reads its formats (docs/metrics.md has each metric).
 *
 * Reading changes nothing: it takes no lock that a hit takes, calls no driver, and any number of readers see the
 * same.  What changes while it is read may be told as of slightly different moments.  Devices that have not been opened
 * have no metrics; of the private pools of a device the 128 oldest have metrics of their own, and the others share theirs.
 *
 * Threads: any; readable while everything runs.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_METRICS_H
#define XSEG_METRICS_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How metrics are written. */
enum xseg_metrics_format {
    XSEG_METRICS_PROMETHEUS, /* Prometheus's text format 0.0.4 */
    XSEG_METRICS_OPENMETRICS /* OpenMetrics 1.0 */
};

/**
 * Write the metrics of an allocator as text.
 *
 * @param text    where it goes, always terminated; "" if there is not room for all of it; NULL when bytes is 0
 * @param needed  NULL, or the size in bytes that the whole text takes, terminator included.  Numbers grow: give the
 *                next call some more
 *
 * Returns: XSEG_OK, also when the text does not fit; XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED
 * Cost:    no driver call; a lock for moments, once something was registered (registration.h).  Some 300 bytes of host
 *          memory for each pool that is listed meanwhile, given back before it returns; the time of a few reads of each
 *          pool and stream
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_metrics(struct xseg_allocator *allocator,
                                                 enum xseg_metrics_format format, char *text,
                                                 size_t bytes, size_t *needed);

/**
 * The media type of a format, for the header Content-Type of an answer to a scrape.
 *
 * Returns: a string that lives as long as the library; "" for another number.
 */
XSEG_API const char *xseg_metrics_content_type(enum xseg_metrics_format format);

/**
 * Write the metrics into a file for node exporter's textfile collector, in Prometheus's text format 0.0.4: the collector
 * takes no other.
 *
 * @param path  of the file, whose name the collector wants to end in ".prom".  It is written beside it, under a name that
 *              ends in ".part", and takes its place when it is complete; a device, a pipe and standard output (such as
 *              /dev/stdout) are written into
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT; XSEG_ERR_HOST_MEMORY; XSEG_ERR_FILE: the sentence has the system's reason, and the
 *          file that was there before still is; XSEG_ERR_FORKED
 * Cost:    as xseg_metrics(), and the time of the file
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_metrics_write(struct xseg_allocator *allocator,
                                                       const char *path);

#ifdef __cplusplus
}
#endif

#endif
