/* SPDX-License-Identifier: MIT */
/*
 * Shared statistics region: memory usage that a process publishes (key publish) and `xseg top` reads.
 *
 * Each allocator with the key has one memfd of fixed size, named XSEG_PUBLISHED_NAME, that contains one struct
 * xseg_published.  Readers find the memfd as /proc/PID/fd/N, a link to "/memfd:xseg-top (deleted)".  Numbers are in the
 * byte order of the host.
 *
 * Two samples are written alternately, without a lock.  The sample `sequence % 2` is complete and unchanged while
 * `sequence` does not change, so a reader reads `sequence`, that sample, and `sequence` again, and starts over if it
 * has changed.  An acquire fence follows each of the first two reads.
 *
 * Open devices with the XSEG_PUBLISHED_DEVICES lowest ordinals are published.  The rows of the pools of a device are in
 * this order: the default pool, guarded blocks (if any), private pools from the oldest to the youngest, one row for
 * other private pools, memory of retired pools.  A device has at most XSEG_PUBLISHED_POOLS / device_count rows; four of
 * them are reserved for the kinds with one row.  The youngest private pools without a row share one, so the rows add up
 * to the memory of the device.  Metrics (xseg/stats.h) have the same rows.
 *
 * A reader must not trust the contents: any process can have a file of that name, and a forked child has the file of its
 * parent.  The publisher is identified by `pid`, its process ID in its innermost PID namespace, and `start_ticks`, field
 * 22 of its /proc/PID/stat.
 */
#ifndef XSEG_PUBLISHED_H
#define XSEG_PUBLISHED_H

#include <stdint.h>

#define XSEG_PUBLISHED_NAME    "xseg-top"
#define XSEG_PUBLISHED_MAGIC   "xseg-top" /* without its terminator */
#define XSEG_PUBLISHED_VERSION 3u         /* another version has another layout */
#define XSEG_PUBLISHED_DEVICES 32u
#define XSEG_PUBLISHED_POOLS   128u
#define XSEG_PUBLISHED_LABEL   72u

/* A device; in bytes unless stated otherwise. */
struct xseg_published_device {
    int32_t ordinal;
    uint32_t reserved_1;
    uint64_t allocated, pending, cached; /* in allocated, pending and cached blocks */
    uint64_t reserved;                   /* mapped pages and classic segments */
    uint64_t allocated_peak, reserved_peak;
    uint64_t page_cache; /* unmapped pages in the page cache */
    uint64_t unreleased; /* pages that the driver did not release */
    uint64_t paused;     /* in blocks and cached memory of paused pools */
    uint64_t limit;      /* maximum of physical memory; UINT64_MAX: unlimited */
    uint64_t total;      /* memory of the device */
    uint64_t ooms;       /* failed requests */
    uint64_t rejections; /* rejections by throw_on_cudamalloc_oom; not in `ooms` */
    uint64_t retries;    /* requests that were retried after cached memory was released */
    uint64_t registered; /* in registrations, counted for each one */
};

enum xseg_published_kind {
    XSEG_PUBLISHED_DEFAULT, /* the default pool */
    XSEG_PUBLISHED_PRIVATE, /* a private pool */
    XSEG_PUBLISHED_GUARDED, /* blocks with a segment each (unmap_on_free, guard_page) */
    XSEG_PUBLISHED_RETIRED, /* cached memory of retired pools without blocks */
    XSEG_PUBLISHED_OTHERS   /* `count` private pools that have no row of their own */
};

/* A pool of a device.  A block in memory of a fallback pool (use_on_oom) counts in that pool. */
struct xseg_published_pool {
    int32_t ordinal; /* of the device */
    uint32_t kind;   /* enum xseg_published_kind */
    uint32_t count;  /* OTHERS: number of pools; otherwise 1 */
    uint32_t id;     /* of a private pool, from 1 in the order of creation */
    uint64_t allocated, pending, cached, reserved; /* as those of a device */
    uint64_t reserved_peak;                        /* OTHERS and RETIRED: current value */
    uint64_t registered;                           /* as that of a device */
    uint64_t limit;                                /* UINT64_MAX: unlimited */
    char label[XSEG_PUBLISHED_LABEL];              /* name in quotes, or ID; terminated */
};

struct xseg_published_sample {
    uint64_t time_ns; /* CLOCK_MONOTONIC when the sample was taken */
    uint32_t device_count, pool_count;
    struct xseg_published_device devices[XSEG_PUBLISHED_DEVICES];
    struct xseg_published_pool pools[XSEG_PUBLISHED_POOLS]; /* the pools of a device are adjacent */
};

struct xseg_published {
    char magic[8];
    uint32_t version;
    int32_t pid;          /* process ID in its own namespace */
    uint64_t start_ticks; /* start time of the process: clock ticks since boot */
    uint64_t bytes;       /* sizeof(struct xseg_published) */
    uint64_t sequence;
    struct xseg_published_sample samples[2];
};

#endif
