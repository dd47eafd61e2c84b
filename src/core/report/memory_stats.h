/* SPDX-License-Identifier: MIT */
/*
 * Memory statistics: the memory of each device and of its pools, read from the counters.
 *
 * Two formats have the same contents: metrics, and the shared statistics region that `xseg top`
 * reads from other processes (published.h).  This module reads the counters for both, so they
 * report the same values of a device or pool.  The counters are read one after the other without
 * arena locks and without driver calls; while other threads allocate, values can be of slightly
 * different moments.
 *
 * The number of rows of a device is bounded, independently of its number of pools.  The first rows
 * are the default pool and guarded blocks, if any.  The oldest private pools have a row each up to
 * a maximum number, in the order of their creation.  All other private pools share one row, and so
 * do retired pools that only have cached memory.
 *
 * A publisher (key publish) writes samples of all devices to the shared statistics region.
 * Publishing is deferred housekeeping.  The next slow-path call or the background thread publishes
 * a sample if memory was mapped, unmapped, registered or denied since the last sample.  Otherwise
 * it publishes a sample if the last one is older than 10 ms and older than 100 times the duration
 * of a measurement, so that publishing takes at most 1 % of the time.  No thread waits for another
 * one to publish: a thread that finds the publisher busy returns, and the publishing thread checks
 * for changes again before it returns.
 *
 * Locking: TABLE is locked for each pool, and REGISTRATIONS if memory was ever registered.
 * `is_busy` of a publisher is a spin lock of the region; only xseg_publisher_apply_config() and
 * xseg_publisher_fini() wait for it.
 */
#ifndef XSEG_CORE_MEMORY_STATS_H
#define XSEG_CORE_MEMORY_STATS_H

#include "src/base/host_memory.h"
#include "src/base/published.h"
#include "src/core/device/device.h"

/* Rows of a device that do not belong to one private pool. */
#define XSEG_MEMORY_STATS_COMMON_ROWS 4u

/* Maximum number of private pools with a row each. */
#define XSEG_MEMORY_STATS_PRIVATE_ROWS 128u

/*
 * Read the memory of a device and of its pools.
 *
 * rows:          output, [private_rows + XSEG_MEMORY_STATS_COMMON_ROWS]
 * private_rows:  maximum number of private pools with a row each
 * private_pools: output, the number of private pools; may be NULL
 * Returns:       the number of rows
 * Cost:          O(pools + arenas)
 */
uint32_t xseg_memory_stats_read(struct xseg_device *device, struct xseg_published_device *out,
                                struct xseg_published_pool *rows, uint32_t private_rows,
                                uint64_t *private_pools);

/* --- Publisher. --- */

struct xseg_publisher {
    atomic_bool is_busy, is_open;
    struct xseg_shared_region region; /* guarded by is_busy */
    atomic_uint_fast64_t due_ns;      /* CLOCK_MONOTONIC: when the last sample is too old */
    atomic_uint_fast64_t changes;     /* number of changes before the last sample */
};

void xseg_publisher_init(struct xseg_publisher *publisher);
void xseg_publisher_fini(struct xseg_publisher *publisher);

/* Create or destroy the region as the configuration requires.  Logs a failure.  The caller holds no
 * lock. */
void xseg_publisher_apply_config(struct xseg_allocator *allocator);

/* Read all devices into a sample, except its time.  O(pools + arenas). */
void xseg_publisher_sample(struct xseg_allocator *allocator, struct xseg_published_sample *sample);

/* Publish a sample if one is due.  The caller holds no lock. */
void xseg_publisher_run(struct xseg_allocator *allocator);

/* --- Metrics. --- */

/*
 * Metrics: memory statistics and counters in the text format of Prometheus, version 0.0.4, in a
 * buffer or in a file.
 *
 * All values are read first; then the text is formatted from them, once to measure it and once to
 * write it, so it is complete or absent.  A metric family has a help text and a type, then one line
 * for each row (pool, device or driver entry point) that has a value; a family without a line is
 * omitted.  The number of lines is bounded, because the rows of pools are.  Pool
 * names are the only strings of users: invalid UTF-8 and control characters other than newline
 * become question marks.
 *
 * https://prometheus.io/docs/instrumenting/exposition_formats
 *
 * Locking: as above.
 */

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
