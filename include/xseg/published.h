/* SPDX-License-Identifier: MIT */
/*
 * Published memory usage of a process (key publish), for `xseg top` and similar programs.
 *
 * Each allocator with the key has one memfd of fixed size, named XSEG_PUBLISHED_NAME, with one struct xseg_published.
 * Readers find it as /proc/PID/fd/N, a link to "/memfd:xseg-top (deleted)".  All numbers are in the
 * machine's own byte order.
 *
 * Two frames are written in turn: the frame of number `sequence % 2` is complete, and stays as it is until `sequence`
 * changes.  So a reader reads `sequence`, that frame, and `sequence` again; if it has changed, the reader starts over.
 * Behind each of the first two reads it has an acquire fence: a processor may read later words earlier.
 *
 * Of the open devices, the XSEG_PUBLISHED_DEVICES with the lowest ordinals are published; further ones are left out.
 *
 * The rows of a device's pools are in this order: the default pool; guarded blocks, if there were any; private pools,
 * the oldest first; the others; memory of released pools.  A device has XSEG_PUBLISHED_POOLS / device_count rows at
 * most, of which four are kept for the kinds that have one row each.  Private pools beyond the rest, which are the
 * youngest, share the row of the others.  So no pool is missing from the sums, and metrics (xseg/metrics.h) say the
 * same of each.
 *
 * A reader takes nothing for granted: any process may have a file of that name, and a child that was forked has that of
 * its parent.  The process that publishes is known by two members.  `pid` is its number in its own innermost namespace;
 * `start_ticks` is field 22 of its /proc/PID/stat.
 */
#ifndef XSEG_PUBLISHED_H
#define XSEG_PUBLISHED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define XSEG_PUBLISHED_NAME    "xseg-top"
#define XSEG_PUBLISHED_MAGIC   "xseg-top" /* without its terminator */
#define XSEG_PUBLISHED_VERSION 3u         /* another version has another layout */
#define XSEG_PUBLISHED_DEVICES 32u
#define XSEG_PUBLISHED_POOLS   128u
#define XSEG_PUBLISHED_LABEL   72u

/** A device.  Bytes, unless a name says otherwise. */
struct xseg_published_device {
    int32_t ordinal;
    uint32_t reserved_1;
    uint64_t live, pending, cached; /* in live, pending and cached blocks */
    uint64_t reserved;              /* mapped pages and classic segments */
    uint64_t live_peak, reserved_peak;
    uint64_t page_cache; /* pages that are mapped nowhere, kept for reuse */
    uint64_t stuck;      /* pages that the driver would not take back */
    uint64_t paused;     /* in blocks of paused pools, whose memory is away */
    uint64_t limit;      /* what may be taken; UINT64_MAX: no limit */
    uint64_t total;      /* memory of the device */
    uint64_t ooms;       /* requests refused for want of memory */
    uint64_t rejections; /* requests refused at once (throw_on_cudamalloc_oom), not in `ooms` */
    uint64_t retries;    /* requests tried again after the cache was given back */
    uint64_t registered; /* as xseg/stats.h has it: what is registered twice counts twice */
};

enum xseg_published_kind {
    XSEG_PUBLISHED_DEFAULT, /* the default pool */
    XSEG_PUBLISHED_PRIVATE, /* a private pool */
    XSEG_PUBLISHED_GUARDED, /* blocks with a segment each (unmap_on_free, guard_page) */
    XSEG_PUBLISHED_ENDED,   /* cached memory of released pools without blocks */
    XSEG_PUBLISHED_OTHERS   /* `count` private pools that have no row of their own */
};

/** A pool of a device.  Blocks that a pool lends (use_on_oom) count in the pool whose memory they are. */
struct xseg_published_pool {
    int32_t ordinal; /* of the device */
    uint32_t kind;   /* enum xseg_published_kind */
    uint32_t count;  /* of OTHERS: how many pools; else 1 */
    uint32_t number; /* of private pools, from 1 on, in the order in which they were made */
    uint64_t live, pending, cached, reserved; /* as those of a device */
    uint64_t reserved_peak;                   /* of OTHERS and ENDED what they have now */
    uint64_t registered;                      /* as that of a device */
    uint64_t limit;                           /* UINT64_MAX: no limit */
    char label[XSEG_PUBLISHED_LABEL];         /* name in quotes, or number; terminated */
};

struct xseg_published_frame {
    uint64_t time_ns; /* of CLOCK_MONOTONIC, when the frame was filled */
    uint32_t device_count, pool_count;
    struct xseg_published_device devices[XSEG_PUBLISHED_DEVICES];
    struct xseg_published_pool pools[XSEG_PUBLISHED_POOLS]; /* each device's in one run */
};

struct xseg_published {
    char magic[8];
    uint32_t version;
    int32_t pid;          /* as the process itself sees it */
    uint64_t start_ticks; /* when the process started: clock ticks since the machine did */
    uint64_t bytes;       /* sizeof(struct xseg_published) */
    uint64_t sequence;
    struct xseg_published_frame frames[2];
};

#ifdef __cplusplus
}
#endif

#endif
