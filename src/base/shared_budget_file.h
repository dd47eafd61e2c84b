/* SPDX-License-Identifier: MIT */
/*
 * The file of a ledger (shared_budget.h): how processes that open it at once meet in one file with a header, and its locks.
 *
 * It is read and written with system calls, never mapped: a file that somebody cuts short is an error, not a SIGBUS.  A
 * lock is a byte of the header's page.  It belongs to the open file description (F_OFD_SETLK), so it works across pid and
 * user namespaces, and ends with the process (LEDGER-4).  Byte 0 is the header lock; the others are the owner's.
 *
 * Locking: the caller serialises calls on one file.  LEDGERS, inside any other lock, while a file is opened or closed; a
 * fork waits for that.
 */
#ifndef XSEG_BASE_SHARED_BUDGET_FILE_H
#define XSEG_BASE_SHARED_BUDGET_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "src/base/list.h"
#include "xseg/status.h"

#define XSEG_SHARED_BUDGET_PATH        1024u /* longest path, with its terminator */
#define XSEG_SHARED_BUDGET_FILE_HEADER 4096
#define XSEG_SHARED_BUDGET_FILE_BYTES \
    (XSEG_SHARED_BUDGET_FILE_HEADER + 64 * 8192) /* with the slots */

/* Zeros: closed. */
struct xseg_shared_budget_file {
    struct xseg_list node; /* of the process's open files; guarded by LEDGERS */
    int descriptor;
    bool is_own; /* open, and not a copy in a forked child */
    dev_t device;
    ino_t inode; /* of the file, since the program may close a descriptor that is not its own */
    char path[XSEG_SHARED_BUDGET_PATH];
};

/*
 * Open the file at a path, made if there is none.
 *
 * Returns: ERR_ARGUMENT, ERR_FILE, ERR_BUSY or ERR_HOST_MEMORY, as xseg_shared_budget_open(); then it is closed.
 */
xseg_status xseg_shared_budget_file_open(struct xseg_shared_budget_file *file, const char *path);

/*
 * Open the file at a path to read it; it is not made, and nothing is written to it.
 *
 * Returns: ERR_ARGUMENT, ERR_FILE, ERR_BUSY or ERR_HOST_MEMORY, as xseg_shared_budget_scan(); then it is closed.
 */
xseg_status xseg_shared_budget_file_open_to_read(struct xseg_shared_budget_file *file,
                                                 const char *path);

/* Close the file, and with it all its locks.  No effect on a closed one and in a forked child. */
void xseg_shared_budget_file_close(struct xseg_shared_budget_file *file);

/* Whether the descriptor is this process's, and still the file's. */
bool xseg_shared_budget_file_is_intact(const struct xseg_shared_budget_file *file);

/*
 * Check that the file is still a valid ledger: the descriptor is this process's and still open on the file, the path leads
 * to it, and kind, mode, links, size and header are those of a ledger.
 *
 * Returns: ERR_FORKED or ERR_FILE if not.
 * Cost:    three system calls.  The last one reads the header, so that a write can follow immediately.
 */
xseg_status xseg_shared_budget_file_check(const struct xseg_shared_budget_file *file);

/* Take a lock, or give it back, without waiting.  Returns 0, EAGAIN when another has the lock, or another errno. */
int xseg_shared_budget_file_lock(const struct xseg_shared_budget_file *file, off_t byte);
int xseg_shared_budget_file_unlock(const struct xseg_shared_budget_file *file, off_t byte);

/* Note the failure of a lock. */
xseg_status xseg_shared_budget_file_fail_to_lock(const struct xseg_shared_budget_file *file,
                                                 int error);

/*
 * Find which of `count` locks from a byte on, at most 64, others have: bit i of `held` is for the i-th.
 *
 * Returns: 0 or an errno.
 * Cost:    at most one system call more than two for each lock that others have.
 */
int xseg_shared_budget_file_find_held(const struct xseg_shared_budget_file *file, off_t byte,
                                      unsigned count, uint64_t *held);

#endif
