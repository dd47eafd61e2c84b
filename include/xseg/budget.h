/* SPDX-License-Identifier: MIT */
/*
 * Shared budget: the processes that share devices by a budget file (key budget_file).
 *
 *     static bool print_member(void *context, const struct xseg_budget_entry *entry)
 *     {
 *         (void)context;
 *         printf("%d: %llu bytes\n", entry->pid, (unsigned long long)entry->physical_bytes);
 *         return true; // Continues with the next device or process.
 *     }
 *     xseg_budget_members("team", print_member, NULL);
 *
 * A budget file has slots for 64 processes with 64 devices each.  A process that finds no free slot is not a member and
 * retries once per second; its log and the metric xseg_budget_member report that.
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
 * Statistics of one device as one process publishes them, in bytes unless stated otherwise.  The values are checked for
 * plausibility only.
 */
struct xseg_budget_entry {
    size_t struct_size;  /* sizeof(struct xseg_budget_entry) of the library */
    unsigned slot;       /* slot of the process */
    int pid;             /* process ID in the namespace of the process; for information */
    const char *program; /* program name, arbitrary bytes; for information */
    bool is_readable; /* false: the data of a live process could not be read; only `slot` is set */
    const char *uuid; /* UUID of the device without a prefix such as GPU-; NULL: no device */
    uint64_t physical_bytes;   /* physical memory of the process */
    uint64_t idle_bytes;       /* part of physical_bytes that can be released */
    uint64_t demand_bytes;     /* demand of waiting requests */
    uint64_t share_millionths; /* budget_share in millionths; 0: not set */
    uint64_t min_bytes;        /* budget_min_mb */
    uint64_t released_bytes;   /* released so far on the demand of others */
};

/**
 * Visit each device of each member of a shared budget file, by slot.  A member without a device is visited once.
 *
 * @param name     value of budget_file: a name, for /dev/shm/xseg-UID-NAME of the calling user, or a path.
 * @param visit    called for each entry, which is valid during the call; returns false to end the visits.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK        also if visit ended the visits.
 *         XSEG_ERR_FILE  the file does not exist, cannot be read, or is not a budget file of this version.  Or it is
 *                        world-writable, has several links, or its file system lacks locks of open file descriptions.
 *         XSEG_ERR_BUSY  the file is not initialized.  Retry a few times: its creator may have ended.
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
