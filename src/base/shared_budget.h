/* SPDX-License-Identifier: MIT */
/*
 * The shared budget file: a file in which each of several processes publishes its memory, and reads the records of the others.
 *
 * The file has a header and XSEG_SHARED_BUDGET_SLOTS slots.  A process owns one slot, and writes one *record* to it: its
 * memory by device.  A slot is *held* while a running process has a valid record in it, and free otherwise.  Numbers are in
 * the byte order of the host.  The file is read and written with system calls and never mapped, so a truncated file is an
 * error instead of a SIGBUS.
 *
 * Locks are bytes of the header's page.  They belong to the open file description (F_OFD_SETLK), so they work across PID and
 * user namespaces, and the kernel releases them when the process ends:
 *
 *   header lock  Held while a process checks a file without a valid header, and writes the header.
 *   slot lock    One per slot: held by the process that may write to the slot.
 *   record lock  One per slot: held by the same process while its record is valid.
 *
 * Invariants:
 *   BUDGET-FILE-1  A file without a header is all zeros.  The header is written last, in one write, under the header lock, and
 *                  never changes.
 *   BUDGET-FILE-2  Only the holder of the slot lock writes to a slot: a complete record at a time, with its checksum.
 *   BUDGET-FILE-3  A record is valid while the record lock is held.  The lock is acquired after the first record was written,
 *                  and released before the record is cleared.
 *   BUDGET-FILE-4  No other process has the open file description: exec() closes it, and so does a fork handler in the child.
 *                  So all locks end with the process.
 *   BUDGET-FILE-5  A record is used only after its checksum and its numbers have been verified.
 *   BUDGET-FILE-6  Each write of a slot follows a check of path, kind, mode, links, size and header
 *                  (xseg_shared_budget_file_check()).  A file of zeros is checked again before its header is written.
 *
 * A process may be killed at any point.  If the header is not written yet, the file contains zeros, and the next process
 * starts over (BUDGET-FILE-1).  Later, the slot of a killed process has no locks, and its contents are not read; the next owner
 * of the slot writes a record before the record is valid (BUDGET-FILE-3).  Since the kernel releases the locks, no process
 * waits for a dead process.  A stopped process keeps its slot and its record.
 *
 * Between the check and the write of BUDGET-FILE-6, another program can overwrite the file, within microseconds.  The file
 * then gets one record of this process, at most 5168 bytes, in addition to its new contents.  Linux has no interface for an
 * atomic check and write: leases break when another process opens the file, and locks bind only programs that use them.
 *
 * A reader that finds a torn or invalid record retries a few times.  Then it uses the last valid copy that it has read from
 * the slot since the slot was last free; without a copy, the slot is unreadable, but not free.  Between two reads the slot
 * may have got another owner, to which the copy does not belong: locks do not identify their holder.
 *
 * Processes that can write the file are trusted to publish correct numbers, and nothing else.  Files that every user can
 * write are rejected.  Name and process ID are for display: a process ID has no meaning in another namespace.  A child that
 * was created by a bare clone() runs no fork handler, and keeps the locks of its parent until it ends.
 *
 * Locking: the caller serializes calls on one file; different files are independent.  BUDGET_FILES, a leaf, is locked while
 * a file is opened or closed, and during fork().
 */
#ifndef XSEG_BASE_SHARED_BUDGET_H
#define XSEG_BASE_SHARED_BUDGET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "src/base/list.h"
#include "xseg/status.h"

/* --- The file and its locks; shared_budget_file.c. --- */

#define XSEG_SHARED_BUDGET_PATH        1024u /* longest path, with its terminator */
#define XSEG_SHARED_BUDGET_FILE_HEADER 4096
#define XSEG_SHARED_BUDGET_FILE_BYTES \
    (XSEG_SHARED_BUDGET_FILE_HEADER + 64 * 8192) /* with the slots */

/* Zeroed: closed. */
struct xseg_shared_budget_file {
    struct xseg_list node; /* in the list of open files; guarded by BUDGET_FILES */
    int descriptor;
    bool is_own; /* open, and not the copy in a forked child */
    dev_t device;
    ino_t inode; /* of the file: the program may close the descriptor and reuse its number */
    char path[XSEG_SHARED_BUDGET_PATH];
};

/*
 * Open the file at a path, and create it if it does not exist.
 *
 * Returns: ERR_ARGUMENT, ERR_FILE, ERR_BUSY or ERR_HOST_MEMORY, as xseg_shared_budget_open(); the file is closed then.
 */
xseg_status xseg_shared_budget_file_open(struct xseg_shared_budget_file *file, const char *path);

/*
 * Open the file at a path for reading.  The file is neither created nor written.
 *
 * Returns: ERR_ARGUMENT, ERR_FILE, ERR_BUSY or ERR_HOST_MEMORY, as xseg_shared_budget_scan(); the file is closed then.
 */
xseg_status xseg_shared_budget_file_open_to_read(struct xseg_shared_budget_file *file,
                                                 const char *path);

/* Close the file, which releases its locks.  No effect on a closed file and in a forked child. */
void xseg_shared_budget_file_close(struct xseg_shared_budget_file *file);

/* Whether the descriptor belongs to this process and still refers to the file. */
bool xseg_shared_budget_file_is_intact(const struct xseg_shared_budget_file *file);

/*
 * Verify that the descriptor still refers to the file, the path leads to it, and kind, mode, links, size and header are those
 * of a shared budget file.
 *
 * Returns: ERR_FORKED or ERR_FILE if not.
 * Cost:    three system calls.  The last one reads the header, so that a write can follow immediately.
 */
xseg_status xseg_shared_budget_file_check(const struct xseg_shared_budget_file *file);

/* Lock or unlock a byte without waiting.  Returns 0, EAGAIN if another process holds the lock, or another errno. */
int xseg_shared_budget_file_lock(const struct xseg_shared_budget_file *file, off_t byte);
int xseg_shared_budget_file_unlock(const struct xseg_shared_budget_file *file, off_t byte);

/* Set the error message for a lock that failed. */
xseg_status xseg_shared_budget_file_fail_to_lock(const struct xseg_shared_budget_file *file,
                                                 int error);

/*
 * Find which of `count` locks, at most 64, other processes hold: bit i of `held` is for byte + i.
 *
 * Returns: 0 or an errno.
 * Cost:    at most 2 n + 1 system calls for n locks held by other processes.
 */
int xseg_shared_budget_file_find_held(const struct xseg_shared_budget_file *file, off_t byte,
                                      unsigned count, uint64_t *held);

/* --- Records; shared_budget.c. --- */

#define XSEG_SHARED_BUDGET_SLOTS   64u
#define XSEG_SHARED_BUDGET_DEVICES 64u
#define XSEG_SHARED_BUDGET_UUID    16u
#define XSEG_SHARED_BUDGET_NAME    64u /* longest name, without its terminator */

/* Upper bound of all sizes, except `released`. */
#define XSEG_SHARED_BUDGET_BYTES_BOUND (UINT64_C(1) << 50)

#define XSEG_SHARED_BUDGET_FULL_SHARE 1000000u

/*
 * The memory of a process on one device, in bytes unless stated otherwise.
 *
 * demand_since: the clock is the same for all processes of a host, but a time namespace shifts it.  Readers treat a time in the
 * future as the current time, and use times only to order the waiting processes.
 */
struct xseg_shared_budget_device {
    uint8_t uuid[XSEG_SHARED_BUDGET_UUID];
    uint64_t physical; /* physical memory in use */
    uint64_t idle;     /* part of it that could be released: idle <= physical */
    uint64_t demand;   /* requested, but not yet granted */
    uint64_t growing;  /* part of the demand for which pages are being created: growing <= demand */
    uint64_t demand_since; /* ns of CLOCK_MONOTONIC */
    uint64_t share;        /* in units of 1 / XSEG_SHARED_BUDGET_FULL_SHARE */
    uint64_t min_bytes;    /* idle memory is retained up to this many physical bytes */
    uint64_t released;     /* cumulative; wraps */
};

/* The devices have different UUIDs.  Unused elements are zeroed. */
struct xseg_shared_budget_record {
    uint64_t sequence; /* number of the process's writes, from 1 */
    int32_t pid;       /* in the process's own namespace */
    uint32_t device_count;
    char name[16]; /* of the program; any bytes, terminated */
    struct xseg_shared_budget_device devices[XSEG_SHARED_BUDGET_DEVICES];
};

enum xseg_shared_budget_state {
    XSEG_SHARED_BUDGET_FREE,
    XSEG_SHARED_BUDGET_FRESH,     /* the record is the current one */
    XSEG_SHARED_BUDGET_STALE,     /* the slot is unreadable; the record is the last valid copy */
    XSEG_SHARED_BUDGET_UNREADABLE /* the slot is held, but there is no valid copy */
};

struct xseg_shared_budget_entry {
    enum xseg_shared_budget_state state;
    struct xseg_shared_budget_record record; /* if FRESH or STALE */
};

/* The contents of a slot; the record ends after its last device. */
struct xseg_shared_budget_image {
    uint64_t checksum; /* of the record */
    struct xseg_shared_budget_record record;
};

/* A shared budget file that one process has open.  Zeroed: closed. */
struct xseg_shared_budget {
    struct xseg_shared_budget_file file;
    unsigned slot;
    bool is_written; /* the file contains `own`, as far as is known */
    struct xseg_shared_budget_image own;
    struct xseg_shared_budget_image fetched; /* buffer for reads of slots */
    struct xseg_shared_budget_entry
        entries[XSEG_SHARED_BUDGET_SLOTS]; /* results of the last successful read */
};

/*
 * Determine the path of the shared budget file with a name.  A name with '/' is a path; another name is a file of the user in
 * /dev/shm.  Such a name has at most XSEG_SHARED_BUDGET_NAME letters, digits, '-', '_' and '.', and is neither "." nor "..".
 * In another user namespace the user may have another ID, so processes that share across namespaces pass a path.
 *
 * path: XSEG_SHARED_BUDGET_PATH bytes; empty on failure
 *
 * Returns: ERR_ARGUMENT for an invalid name.
 * Cost:    one system call.
 */
xseg_status xseg_shared_budget_path(const char *name, char *path);

/*
 * Open the shared budget file at a path, and acquire a slot.  The record has no devices at first.  A file that is created, or
 * is incomplete, gets the mode 0660 regardless of the umask; if the file system is full, the file remains empty.
 *
 * budget: closed, or uninitialized
 *
 * Returns: ERR_FILE if the file cannot be opened or is not a shared budget file.  ERR_BUSY if all slots are held, or if another
 *          process, which may be stopped, has not completed the header within two seconds.  ERR_ARGUMENT for a path that is
 *          empty or too long.  ERR_HOST_MEMORY.  On failure the file is closed.
 * Cost:    twelve system calls and one for each held slot before the acquired one; about 30 if the file is created.
 */
xseg_status xseg_shared_budget_open(struct xseg_shared_budget *budget, const char *path);

/* Whether the file is open, and not the copy in a forked child. */
static inline bool xseg_shared_budget_is_own(const struct xseg_shared_budget *budget)
{
    return budget->file.is_own;
}

/*
 * Publish the memory of this process by device.
 *
 * Returns: ERR_FILE if the file is no longer a valid shared budget file (removed, renamed, replaced, overwritten, truncated,
 *          extended, writable by every user, hard-linked), the program has closed its descriptor, or a system call fails.
 *          The file is not written then.  A later call succeeds if the file is valid again; since other processes may use
 *          another file then, close the file and open it again.
 *          ERR_FORKED in a forked child, and for a closed file.
 * Cost:    none if nothing has changed; otherwise four system calls.
 */
xseg_status xseg_shared_budget_write(struct xseg_shared_budget *budget,
                                     const struct xseg_shared_budget_device *devices,
                                     unsigned device_count);

/*
 * Read all slots into `entries`, including the own slot, entries[slot].
 *
 * Returns: as xseg_shared_budget_write(); `entries` is unchanged on failure.
 * Cost:    five system calls, and at most three for each held slot; more for unreadable records.
 */
xseg_status xseg_shared_budget_read(struct xseg_shared_budget *budget);

/*
 * Read all slots of the file at a path into `entries`, without a slot.  Nothing is created, locked or written.
 *
 * budget: closed, or uninitialized; closed afterwards.  The states are FREE, FRESH and UNREADABLE.
 *
 * Returns: ERR_FILE if the file does not exist, cannot be read, or is not a shared budget file; ERR_BUSY if its header is not
 *          complete; ERR_ARGUMENT and ERR_HOST_MEMORY as xseg_shared_budget_open().
 * Cost:    twelve system calls, and at most three for each held slot; more for unreadable records.
 */
xseg_status xseg_shared_budget_scan(struct xseg_shared_budget *budget, const char *path);

/*
 * Release the slot and close the file.  The file is not removed, because another process may be opening it.  The record is
 * cleared only if the file is still a valid shared budget file.  No effect on a closed file and in a forked child.
 *
 * Cost: eight system calls.
 */
void xseg_shared_budget_close(struct xseg_shared_budget *budget);

#endif
