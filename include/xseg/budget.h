/* SPDX-License-Identifier: MIT */
/*
 * Processes that share devices by a ledger (key share_budget), as anybody sees them who may read its file.
 *
 * A ledger has slots for 64 processes with 64 devices each.  A process that finds no slot takes no part; it tries again once
 * a second.  Its log and the metric xseg_budget_member report that.
 *
 * Looking takes no part: no slot is taken, and the file is neither made nor changed.  An allocator is not needed.
 *
 * Threads: any.  Fork: works in a forked child as well.  Errors: as in allocator.h.
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
 * What a process says of a device.  Bytes, unless a comment says otherwise.  Figures are checked to be possible; whether
 * they are true only the process knows.
 */
struct xseg_budget_entry {
    size_t struct_bytes; /* sizeof(struct xseg_budget_entry), as the library knows it */
    unsigned slot;       /* of the process in the ledger */
    int pid;             /* as the process itself sees it, in its own namespace: information only */
    const char *program; /* its name; any bytes: information only */
    /* Whether its figures could be read.  If not, it lives all the same; all further members are 0 or NULL, and so are pid
     * and program. */
    bool is_readable;
    const char *
        uuid; /* of the device: "5d0ba3ff-...", without a prefix such as GPU-; NULL: it has none yet */
    uint64_t taken;    /* of the device */
    uint64_t idle;     /* of that, what could be given back */
    uint64_t wanted;   /* for which its requests wait */
    uint64_t share;    /* budget_share in parts of a million; 0: none is named */
    uint64_t floor;    /* budget_min_mb */
    uint64_t returned; /* given back so far, since others wanted it */
};

/**
 * Look at a ledger: visit each device of each process that has it open.  A process without a device yet is visited once.
 *
 * @param name   as of share_budget: a name, for /dev/shm/xseg-UID-NAME of the calling user, or a path
 * @param visit  called for each, by slot, which is valid during the call; false ends the visits
 *
 * Returns: XSEG_OK, also when visit ended it
 *          XSEG_ERR_ARGUMENT     a name that cannot be one, or no function
 *          XSEG_ERR_FILE         there is no such file, it may not be read, is no ledger, of another version or cut;
 *                                everybody may write to it, it has several names, or its file system has no locks
 *                                of open file descriptions
 *          XSEG_ERR_BUSY         an empty file, which a process is making a ledger, or never will: try again
 *          XSEG_ERR_HOST_MEMORY
 * Cost:    no driver call.  Some ten system calls, and three a process; 350 KiB of host memory meanwhile
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_budget_look(
    const char *name, bool (*visit)(void *context, const struct xseg_budget_entry *entry),
    void *context);

#ifdef __cplusplus
}
#endif

#endif
