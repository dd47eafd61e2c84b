/* SPDX-License-Identifier: MIT */
/*
 * Shared budget: statistics of the processes that divide the memory of devices among them by a budget file
 * (docs/sharing.md).
 *
 *     static bool print_member(void *context, const struct xseg_budget_entry *entry)
 *     {
 *         (void)context;
 *         printf("%d: %llu bytes\n", entry->pid, (unsigned long long)entry->physical_bytes);
 *         return true; // Continues with the next device or process.
 *     }
 *     xseg_budget_members("team", print_member, NULL);
 *
 * A process becomes a member of a budget file by the key budget_file.  A budget file has slots for 64 processes with 64
 * devices each.  A process that finds no free slot is not a member and retries once per second; its log and the metric
 * xseg_budget_member report this state.
 *
 * Reading needs no allocator, takes no slot, does not change the file, and works in a forked child.
 */
#ifndef XSEG_BUDGET_H
#define XSEG_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xseg/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Statistics of one device as one process publishes them.
 *
 * The library checks that the values are plausible, but it cannot verify them.
 */
struct xseg_budget_entry {
    size_t struct_size;        /* sizeof(struct xseg_budget_entry) of the library */
    unsigned slot;             /* slot of the process, from 0 */
    int pid;                   /* process ID in the namespace of the process; for display */
    const char *program;       /* program name, arbitrary bytes; for display */
    bool is_readable;          /* false: the slot could not be read, and only `slot` is set */
    const char *uuid;          /* UUID of the device, without GPU-; NULL: no device */
    uint64_t physical_bytes;   /* physical memory of the process */
    uint64_t idle_bytes;       /* part of physical_bytes that can be released */
    uint64_t demand_bytes;     /* demand of waiting requests */
    uint64_t share_millionths; /* budget_share in millionths of the device; 0: not set */
    uint64_t min_bytes;        /* budget_min_mb, in bytes */
    uint64_t released_bytes;   /* total released because other processes demanded memory */
};

/**
 * Visit each device of each member of a shared budget file, in the order of slots.
 *
 * A member without a device is visited once, with uuid NULL.
 *
 * @param name     value of budget_file: a name for /dev/shm/xseg-UID-NAME of the calling user, or a path with a /.
 * @param visit    called for each entry, which is valid during the callback; returns false to end the visits.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK        also if `visit` ended the visits.
 *         XSEG_ERR_FILE  the file does not exist, cannot be read, or is not a budget file of this version.  Also: the
 *                        file is world-writable, has several links, or its file system has no locks of open file
 *                        descriptions.
 *         XSEG_ERR_BUSY  another process is creating the file; retry.  The status persists if that process ended
 *                        before the file was complete, until another member opens the file.
 * Cost: no driver call.  About ten system calls, and three per process; 350 KiB of host memory during the call.
 */
XSEG_API xseg_status xseg_budget_members(const char *name,
                                         bool (*visit)(void *context,
                                                       const struct xseg_budget_entry *entry),
                                         void *context);

#ifdef __cplusplus
}
#endif

#endif
