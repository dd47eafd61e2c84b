/* SPDX-License-Identifier: MIT */
/*
 * The budget of an allocator: shares of devices that several processes use, coordinated through a
 * shared budget file (src/base/shared_budget.h, key budget_file).
 *
 * Each process has a slot in the file and publishes statistics of each device there: physical
 * bytes, idle bytes, and the bytes for which its requests wait, its *demand*.  There is no
 * coordinator: each process computes from the published statistics of all *members* how much memory
 * it must release (xseg_budget_split()).  A process writes only its own slot, so a crash cannot
 * leave a partial update.
 *
 * The background thread runs a *round* about eight times per budget_wait_ms, and every millisecond
 * for budget_wait_ms after another process had a demand, because demands rarely come alone.  A
 * round writes the statistics of this process, reads those of the others, and releases idle memory
 * if others demand it.  A request that the device cannot serve publishes its demand immediately and
 * retries until budget_wait_ms has passed.
 *
 * Split.  Each process has a *share* of the device; memory above the share can be released for
 * others.  A demand up to the share is entitled, demand beyond the share is excess.  Demands,
 * without the bytes for which pages are being created, are first served from free memory.  The
 * missing bytes are requested from idle memory of other members, each in proportion to the bytes
 * that it could release:
 *
 *   1. memory above shares, for entitled demands
 *   2. all memory above the minimum of each member, for all other demand; a member with a demand
 *      releases nothing in this step
 *
 * Because of old statistics, a member can release too little or too much for one round.  Free
 * memory that entitled demands of others need is reserved for them: the *allowance* of a process is
 * its physical memory plus the free memory that is not reserved for others.
 *
 * A demand that is older than TIMEOUT_WAITS times budget_wait_ms is ignored, so that a process that
 * stops while it waits does not block others.  The age is measured with the clock of the reader,
 * since the demand was first read.
 *
 * If the file cannot be opened, or is lost, the allocator continues without a budget, logs one
 * warning, and retries once a second.  A device is a member after the driver has reported its UUID,
 * if the record has space: at most XSEG_SHARED_BUDGET_DEVICES devices per process.  The log names
 * each other device once.
 *
 * Invariants:
 *   - A budget never releases memory in use, and nothing during a capture.  It does not wait for
 *     the device.
 *   - A member that crashes, stops, or publishes invalid statistics delays others for at most the
 *     timeout of a request.
 *
 * Locking: BUDGET guards the file.  It is held across system calls and locked while no other lock
 * is held; the device memory lock is locked inside, to query free memory.  Statistics of a device
 * are read without a lock.
 */
#ifndef XSEG_CORE_BUDGET_H
#define XSEG_CORE_BUDGET_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base/mutex.h"
#include "src/base/shared_budget.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"

/* The times of a demand of another process. */
struct xseg_budget_demand_time {
    uint64_t since;      /* start of the demand by the clock of the other process; 0: no demand */
    uint64_t first_read; /* by the clock of this process */
};

/* An open shared budget file. */
struct xseg_budget_file {
    struct xseg_shared_budget shared;
    struct xseg_budget_demand_time demands[XSEG_SHARED_BUDGET_SLOTS][XSEG_SHARED_BUDGET_DEVICES];
};

struct xseg_budget {
    struct xseg_mutex lock;             /* BUDGET */
    struct xseg_budget_file *file;      /* NULL: no file is open */
    atomic_bool is_open;                /* whether `file` is set; may be read without the lock */
    char path[XSEG_SHARED_BUDGET_PATH]; /* of the file that is open, or could not be opened */
    uint64_t retry_at;                  /* time of the next attempt to open the file */
    uint64_t fast_until;                /* end of fast rounds; background thread only */
    atomic_uint members;                /* devices that are members */
    bool has_logged_failure;            /* the log has the current failure; guarded by BUDGET */
    bool
        has_logged_excess; /* the log states that the shares exceed the device; guarded by BUDGET */
};

/* An unknown number, such as the number of other members before the first round. */
#define XSEG_BUDGET_UNKNOWN UINT_MAX

/* The budget of a device. */
struct xseg_budget_device {
    uint8_t uuid[XSEG_SHARED_BUDGET_UUID];
    atomic_bool is_member;            /* `uuid` is set and the record has space; set once */
    atomic_bool has_logged_exclusion; /* the log names the reason why the device is not a member */
    atomic_uint_fast64_t demand;      /* bytes of the current demand */
    atomic_uint_fast64_t growing;     /* of these, bytes for which requests are creating pages */
    atomic_uint_fast64_t since;       /* time at which the newest request began to wait */
    atomic_uint_fast64_t share;       /* bytes; UINT64_MAX: no budget */
    atomic_uint_fast64_t released;    /* bytes released because of demands of others */
    /* Bytes that are counted as idle but could not be released, such as bytes of pools with
     * holders; valid until unreleasable_until. */
    atomic_uint_fast64_t unreleasable, unreleasable_until;
    atomic_uint_fast64_t requests;    /* requests that published a demand */
    atomic_uint_fast64_t served;      /* of these, requests that succeeded after waiting */
    atomic_uint other_members;        /* number on the device, or XSEG_BUDGET_UNKNOWN */
    atomic_uint_fast64_t others_idle; /* bytes that other processes could release */
};

void xseg_budget_init(struct xseg_budget *budget);
void xseg_budget_fini(struct xseg_budget *budget);

void xseg_budget_device_init(struct xseg_budget_device *device);

/* Open or close the file as the configuration specifies.  The caller holds no lock. */
void xseg_budget_apply_config(struct xseg_allocator *allocator);

/* Make a device that was just opened a member.  The caller holds no lock.  Cost: one write of the
 * file, if it is open */
void xseg_budget_add(struct xseg_device *device);

/* The time between two rounds of the background thread, in nanoseconds; UINT64_MAX without a
 * budget.  Called by the background thread only. */
uint64_t xseg_budget_interval(struct xseg_allocator *allocator);

/*
 * Run a round.  Called by the background thread only; the caller holds no lock.
 *
 * Cost: one write and some reads of the file; if others have demands, one query of free memory, and
 *       unmaps of the released memory
 */
void xseg_budget_round(struct xseg_allocator *allocator);

/* Whether the file is open, so that a request of the device may find other members. */
bool xseg_budget_is_open(const struct xseg_device *device);

/* Whether the device is a member of a budget now. */
static inline bool xseg_budget_is_member(const struct xseg_device *device)
{
    return xseg_budget_is_open(device) && atomic_load(&device->budget->is_member);
}

/*
 * Add bytes to the demand of a device, and subtract them again.  The caller must end each request,
 * independent of the result.  The caller holds no lock.
 *
 * Returns: whether the file lists other processes; false if it has no statistics of the device
 * Cost:    one write of the file, and for a request one read
 */
bool xseg_budget_request(struct xseg_device *device, uint64_t bytes);
void xseg_budget_request_end(struct xseg_device *device, uint64_t bytes);

/*
 * Publish that a waiting request creates pages, or that it waits again.  Created pages are no
 * longer free, so without this state other processes would release the same bytes again.  The
 * caller holds no lock.  Cost: one write of the file
 */
void xseg_budget_grow(struct xseg_device *device, uint64_t bytes);
void xseg_budget_grow_end(struct xseg_device *device, uint64_t bytes);

/* Physical bytes of a device above its share; 0 without a budget. */
uint64_t xseg_budget_above_share(const struct xseg_device *device);

/* --- Split of a device among members: arithmetic without side effects. --- */

/* A member, in bytes of one device. */
struct xseg_budget_member {
    uint64_t physical, idle;   /* bytes; idle <= physical */
    uint64_t demand, growing;  /* growing <= demand: pages are being created */
    uint64_t configured_share; /* in millionths; 0: not configured */
    uint64_t min_bytes;        /* idle memory is released only above this many physical bytes */
};

/* The result for one member. */
struct xseg_budget_split {
    uint64_t share;       /* bytes */
    uint64_t above_share; /* physical bytes above the share */
    uint64_t release;     /* idle bytes to release now */
    uint64_t others_idle; /* bytes that other members could release */
    /* Free bytes beyond the entitled demands of others; UINT64_MAX: others have no such demand. */
    uint64_t spare;
    bool exceeds; /* the sum of configured shares exceeds 1 */
};

/*
 * Split a device: O(members).
 *
 * own:   index of this process in `member`
 * total: bytes of the device
 * free:  free bytes that the driver reports
 */
struct xseg_budget_split xseg_budget_split(const struct xseg_budget_member *member, unsigned count,
                                           unsigned own, uint64_t total, uint64_t free);

/* --- Waiting for other processes. --- */

/*
 * A request that the device cannot serve publishes its demand in the shared budget file.  The request is retried until other
 * processes have released enough idle memory or the time has elapsed.
 *
 *     struct xseg_budget_wait budget_wait;
 *
 *     if (xseg_budget_wait_begin(&budget_wait, arena, bytes, config))
 *         while (the request fails with memory pressure && xseg_budget_wait_retry(&budget_wait))
 *             retry the request, with new pages only if budget_wait.grows
 *     xseg_budget_wait_end(&budget_wait, whether the request was served);
 *
 * Other processes release memory to the driver, and any process can allocate that memory first, so one retry may not suffice.
 * A growth that fails creates pages and releases them; meanwhile other processes find less free memory.  So a retry grows only
 * if the free memory is sufficient, or if it exceeds the free memory at the last growth and no longer increases.
 *
 * Locking: the caller holds the device memory lock.  Each function releases the lock temporarily, so other threads can grow,
 * and all state of the device can change.
 */

struct xseg_budget_wait {
    struct xseg_device *device; /* NULL: no demand is published */
    uint64_t bytes;             /* bytes that the request needs, plus device_free_min_mb */
    uint64_t response_deadline; /* time by which other processes have published idle memory */
    uint64_t deadline;          /* end of the wait */
    uint64_t free_at_growth;    /* free memory at the last growth */
    uint64_t free_at_query;     /* free memory at the last query */
    bool is_limit_denial;       /* a limit denied that growth, without creating pages */
    bool grows;                 /* whether a growth may succeed */
};

/*
 * Publish the demand of a request, if memory of other processes can serve it: there are other processes, the device or the
 * budget denies the request, the device has that much memory, and no capture is active.
 *
 * arena: an arena of the request; the event is recorded in its history
 * bytes: number of bytes that the request needs
 */
bool xseg_budget_wait_begin(struct xseg_budget_wait *budget_wait, struct xseg_arena *arena,
                            uint64_t bytes, const struct xseg_config *config);

/*
 * Wait a millisecond.  Returns false if the time has elapsed, no process has idle memory, or a capture has begun.
 *
 * Cost: one memory query
 */
bool xseg_budget_wait_retry(struct xseg_budget_wait *budget_wait);

/* Withdraw the demand.  served: whether the request was served */
void xseg_budget_wait_end(struct xseg_budget_wait *budget_wait, bool served);

#endif
