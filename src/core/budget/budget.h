/* SPDX-License-Identifier: MIT */
/*
 * The budget of an allocator: devices that it shares with other processes by a ledger (src/base/shared_budget.h, key
 * budget_file).
 *
 * The background thread makes a *turn* from time to time: some eight in budget_wait_ms, and one a millisecond for so long
 * after others wanted memory, since a request that asks is seldom the only one.  In a turn the process writes its figures
 * into its slot of the ledger: what is taken, idle and wanted of each device.  Then it reads what the others say, and gives
 * idle memory back if they want some (budget_split.h).  A request that the device cannot serve *asks*: what it wants is
 * written at once, and it tries again until the time is over (budget_wait.h).
 *
 * Nobody is told to do anything: each process finds its own part from the figures of all.  A process writes into its own
 * slot only, a record at a time, so no step has two halves that a death could part.
 *
 * While others wait for what is their own, a process that has its share takes no memory that they need: its *allowance* is
 * what it has and what they leave of the free memory.  A want that is older than PATIENCE times budget_wait_ms counts no
 * more, so that one who stopped in the midst of asking holds nobody up.  How old it is goes by the reader's own clock, from
 * when the want was first seen.
 *
 * Where the ledger cannot be had, or is lost, the allocator goes on without, and says so once; it tries again once a
 * second.  A device is a *member* of the budget once the driver has reported its UUID, if the record has space for it: the
 * first XSEG_SHARED_BUDGET_DEVICES devices of the process.  The log names each other device once.  Requests of a device without
 * statistics in the ledger do not wait.
 *
 * Locking: BUDGET guards the ledger.  It is held across system calls on its file, and taken with no other lock.  Below it
 * the device memory lock is taken, to ask the driver what is free.
 */
#ifndef XSEG_CORE_BUDGET_H
#define XSEG_CORE_BUDGET_H

#include <limits.h>

#include "src/base/mutex.h"
#include "src/base/shared_budget.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"

/* What stands in the ledger of a want that was seen, and when that was first so. */
struct xseg_budget_seen {
    uint64_t since; /* as the other process says; 0: nothing */
    uint64_t first; /* by the own clock */
};

/* An open ledger. */
struct xseg_budget_file_entry {
    struct xseg_shared_budget ledger;
    struct xseg_budget_seen seen[XSEG_SHARED_BUDGET_SLOTS][XSEG_SHARED_BUDGET_DEVICES];
};

struct xseg_budget {
    struct xseg_mutex lock;              /* BUDGET */
    struct xseg_budget_file_entry *book; /* NULL: none is open */
    atomic_bool is_open;                 /* whether there is one; may be read without the lock */
    char path[XSEG_SHARED_BUDGET_PATH];  /* of the ledger that is open, or was refused */
    uint64_t again;                      /* clock of the next try to open it */
    uint64_t hurries;    /* clock up to which turns are quick; the background thread's */
    atomic_uint members; /* devices that are members */
    bool has_said;       /* the log was told that it cannot be had */
    bool has_said_share; /* and that the shares exceed the whole; guarded by BUDGET */
};

/* In place of a number that is not known, such as that of the other processes before the first turn. */
#define XSEG_BUDGET_UNKNOWN UINT_MAX

/* The budget of a device.  Figures may be read without a lock. */
struct xseg_budget_device {
    uint8_t uuid[XSEG_SHARED_BUDGET_UUID];
    atomic_bool is_member;         /* `uuid` is set, and the record has space; set once */
    atomic_bool has_said;          /* the log names the reason why the device is not a member */
    atomic_uint_fast64_t wanted;   /* bytes for which requests wait */
    atomic_uint_fast64_t growing;  /* of these, bytes for which requests make pages now */
    atomic_uint_fast64_t since;    /* clock at which the last of them began */
    atomic_uint_fast64_t share;    /* bytes; UINT64_MAX: there is no budget */
    atomic_uint_fast64_t returned; /* bytes given back since others wanted some */
    /* Bytes that look idle and could not be given, such as those of pools that are held; and the clock up to which that is
     * taken for true. */
    atomic_uint_fast64_t kept, kept_until;
    atomic_uint_fast64_t asks;        /* requests that have asked */
    atomic_uint_fast64_t served;      /* of these, how many got memory while they waited */
    atomic_uint others;               /* other processes on the device; or XSEG_BUDGET_UNKNOWN */
    atomic_uint_fast64_t others_idle; /* bytes that they could give */
};

void xseg_budget_init(struct xseg_budget *budget);
void xseg_budget_fini(struct xseg_budget *budget);

void xseg_budget_device_init(struct xseg_budget_device *device);

/* Open the ledger, or leave it, as the configuration in force says.  No lock is held. */
void xseg_budget_follow(struct xseg_allocator *allocator);

/* Let a device that has just been opened take part.  No lock is held.  Cost: a write of the ledger, if there is one */
void xseg_budget_add(struct xseg_device *device);

/* How long the background thread, which alone may ask, may sleep between two turns, in nanoseconds; UINT64_MAX without a
 * budget. */
uint64_t xseg_budget_interval(struct xseg_allocator *allocator);

/*
 * Make a turn.  By the background thread alone; no lock is held.
 *
 * Cost: a write and some reads of the ledger; where others want memory, one question about the device's memory, and
 *       unmaps and releases of what goes
 */
void xseg_budget_round(struct xseg_allocator *allocator);

/* Whether there is a ledger, so that a request of the device may find others to ask. */
bool xseg_budget_is_open(const struct xseg_device *device);

/* Whether the device takes part in a budget now. */
static inline bool xseg_budget_has_part(const struct xseg_device *device)
{
    return xseg_budget_is_open(device) && atomic_load(&device->budget->is_member);
}

/*
 * Want memory of a device, or no more.  No lock is held.  What is wanted has to be wanted no more, whatever was returned.
 *
 * Returns: whether there are others, by what the ledger says now; false if it has no statistics of the device
 * Cost:    a write of the ledger; to want, a read of it as well
 */
bool xseg_budget_request(struct xseg_device *device, uint64_t bytes);
void xseg_budget_request_end(struct xseg_device *device, uint64_t bytes);

/*
 * Say that a request for wanted bytes makes pages now, or waits again.  The pages that it makes are no longer free, so
 * others would give as much once more.  No lock is held.  Cost: a write of the ledger
 */
void xseg_budget_grow(struct xseg_device *device, uint64_t bytes);
void xseg_budget_grow_end(struct xseg_device *device, uint64_t bytes);

/* Bytes of a device that are taken above the share; 0 without a budget. */
uint64_t xseg_budget_above_share(const struct xseg_device *device);

#endif
