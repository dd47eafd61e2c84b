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
#ifndef XSEG_BASE_SHARED_BUDGET_H
#define XSEG_BASE_SHARED_BUDGET_H

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

/*
 * A ledger: a file in which each of several processes has a slot of figures that the others read.
 *
 * Terms.  A *slot* is a place in the file for one process.  A *record* is what stands in a slot: the figures of the
 * process, by device.  A slot is *held* while a live process has a record in it that counts; *free* otherwise.
 *
 * The file (shared_budget_file.h) begins with a header: magic, version, bytes.  Behind it are XSEG_SHARED_BUDGET_SLOTS slots of one size.
 * All numbers are in the machine's own byte order.  Three kinds of locks order what processes do.  Each
 * lock is on one byte of the header's page:
 *
 *   header lock  held while a file is looked at that has no valid header, and while the header is written
 *   place lock   one for each slot: held by the process that may write to the slot
 *   record lock  one for each slot: held by the same process while its record counts
 *
 *   LEDGER-1  A file without a header is all zeros.  The header is written last, in one write, under the header lock, and
 *             does not change any more.
 *   LEDGER-2  Only the holder of a slot's place lock writes to the slot: a whole record at a time, with its checksum.
 *   LEDGER-3  A record counts while the record lock is held.  That is taken after the first record has been written, and
 *             given back before the record is cleared.
 *   LEDGER-4  No other process has the open file description: exec closes it, and so does a handler in a forked child.
 *             So both locks end with the process.
 *   LEDGER-5  Of a record nothing is used before its checksum and its numbers have been checked.
 *   LEDGER-6  Only a file that is a valid ledger at this moment is written to: each write of a slot follows a check of the
 *             path, kind, mode, links, size and header (xseg_shared_budget_file_check()).  The exception is a file of zeros,
 *             which is checked again before its header is written.
 *
 * A process may be killed at any point.  Before the header is there, it leaves zeros, and the next process begins anew
 * (LEDGER-1).  After that, all it leaves is a slot without locks, whose contents nobody reads; the next process that takes
 * the slot writes a record of its own before it counts (LEDGER-3).  The kernel takes the locks back, so nobody waits for a
 * dead process.  A process that is stopped keeps its slot, and its record counts as it is.
 *
 * Between the check and the write of LEDGER-6 there is no system call, yet another program may overwrite the file in these
 * microseconds.  The file then gets one record of this process, at most 5168 bytes, in addition to its new contents.  No
 * interface of Linux makes check and write one step: leases end when another process opens the file, and locks bind only
 * programs that use them.
 *
 * A reader that finds a record torn or wrong tries again some times.  Then it falls back on the last good copy that it has
 * seen in that slot since the slot was last free; without one the slot is unreadable, but never free.  Between two looks
 * the slot may have gone to another process, whose figures the copy then is not: the locks do not tell who holds them.
 *
 * Who may write to the file is trusted with figures, no further.  Files that every user may write to are refused.  The
 * name of a process and its pid are for people to read: a pid means nothing in another namespace.
 *
 * A child that a bare clone() made runs no handler: it keeps the locks of its parent alive until it ends.
 *
 * Locking: the caller serialises calls on one ledger; different ones are independent.  LEDGERS, inside any other lock,
 * while files are opened and closed: a fork waits for that.
 */

#define XSEG_SHARED_BUDGET_SLOTS   64u
#define XSEG_SHARED_BUDGET_DEVICES 64u
#define XSEG_SHARED_BUDGET_UUID    16u
#define XSEG_SHARED_BUDGET_NAME    64u /* longest name, without its terminator */

/* All numbers of bytes are below, `returned` aside. */
#define XSEG_SHARED_BUDGET_BYTES_BOUND (UINT64_C(1) << 50)

#define XSEG_SHARED_BUDGET_WHOLE_SHARE 1000000u

/*
 * What a process says of one device.  Bytes, unless a comment says otherwise.
 *
 * wanted_since: the clock is the same for all processes of a machine, but a time namespace moves it.  To a reader a time
 * ahead of its own clock means now; nothing but the order among those that wait goes by it.
 */
struct xseg_shared_budget_device {
    uint8_t uuid[XSEG_SHARED_BUDGET_UUID];
    uint64_t taken; /* of the device */
    uint64_t idle;  /* of that, what could be given back: idle <= taken */
    uint64_t wanted;
    uint64_t growing;      /* of that, bytes for which pages are being made: growing <= wanted */
    uint64_t wanted_since; /* ns of CLOCK_MONOTONIC */
    uint64_t share;        /* parts of XSEG_SHARED_BUDGET_WHOLE_SHARE */
    uint64_t floor;
    uint64_t returned; /* given back so far; counts up, and wraps */
};

/* The devices have different UUIDs.  Behind the last one are zeros. */
struct xseg_shared_budget_record {
    uint64_t sequence; /* of the writes of the process, from 1 on */
    int32_t pid;       /* as the process itself sees it */
    uint32_t device_count;
    char name[16]; /* of the programme; any bytes, terminated */
    struct xseg_shared_budget_device devices[XSEG_SHARED_BUDGET_DEVICES];
};

/* A slot that cannot be read belongs to a live process all the same. */
enum xseg_shared_budget_state {
    XSEG_SHARED_BUDGET_FREE,
    XSEG_SHARED_BUDGET_FRESH,     /* the record is what the slot has now */
    XSEG_SHARED_BUDGET_KEPT,      /* it cannot be read; the record is the last good copy */
    XSEG_SHARED_BUDGET_UNREADABLE /* it cannot be read, and there is no copy */
};

struct xseg_shared_budget_entry {
    enum xseg_shared_budget_state state;
    struct xseg_shared_budget_record record; /* of FRESH and KEPT */
};

/* The contents of a slot: of the record, the devices that it has. */
struct xseg_shared_budget_image {
    uint64_t checksum; /* of the record, up to its last device */
    struct xseg_shared_budget_record record;
};

/* A ledger as one process has it open.  One of zeros is closed. */
struct xseg_shared_budget {
    struct xseg_shared_budget_file file;
    unsigned slot;
    bool is_written; /* `own` is in the file, as far as is known */
    struct xseg_shared_budget_image own;
    struct xseg_shared_budget_image fetched; /* for reads of slots */
    struct xseg_shared_budget_entry
        seen[XSEG_SHARED_BUDGET_SLOTS]; /* by the last read that succeeded */
};

/*
 * Where the ledger of a name is: a name with '/' is the path itself; another is a file of the user's in /dev/shm.  Such
 * a name has letters, digits, '-', '_' and '.', at most XSEG_SHARED_BUDGET_NAME, and is neither "." nor "..".  In another user
 * namespace the user may have another number: processes that share across namespaces name a path.
 *
 * path: XSEG_SHARED_BUDGET_PATH bytes; empty on failure
 *
 * Returns: ERR_ARGUMENT for a name that cannot be one.
 * Cost:    one system call.
 */
xseg_status xseg_shared_budget_path(const char *name, char *path);

/*
 * Open the ledger at a path, made if there is none, and take a slot.  A file that is made, or has been left unfinished,
 * gets mode 0660 whatever the umask; where there is no room for it, it stays empty.  The slot counts from then on, with a
 * record without devices.
 *
 * ledger: closed, or not initialised
 *
 * Returns: ERR_FILE when the file cannot be had, or is none of ours; ERR_BUSY when all slots are taken, or when another
 *          process, stopped perhaps, has not finished the header for two seconds; ERR_ARGUMENT for a path that is empty or
 *          too long; ERR_HOST_MEMORY.  Then the ledger is closed, and the sentence names the path and what to do.
 * Cost:    twelve system calls and one for each slot that is taken before; some 30 when the file is made.
 */
xseg_status xseg_shared_budget_open(struct xseg_shared_budget *ledger, const char *path);

/* Whether the ledger is open and this process's own: false in a forked child. */
static inline bool xseg_shared_budget_is_own(const struct xseg_shared_budget *ledger)
{
    return ledger->file.is_own;
}

/*
 * Say what this process has of each device.
 *
 * Returns: ERR_FILE when the file is no longer a valid ledger (removed, moved, replaced, overwritten, truncated, extended,
 *          writable by every user, hard-linked), the program has closed its descriptor, or the system call fails.  The
 *          file is then not written.  A later call writes again if the file is valid by then; other processes may have
 *          another file by then, so close the ledger and open it again.
 *          ERR_FORKED in a forked child, and of a closed ledger.
 * Cost:    none when nothing has changed; else four system calls.
 */
xseg_status xseg_shared_budget_write(struct xseg_shared_budget *ledger,
                                     const struct xseg_shared_budget_device *devices,
                                     unsigned device_count);

/*
 * Look at all slots: `seen` has what live processes say, the own record among them (seen[slot]).
 *
 * Returns: as xseg_shared_budget_write(); on failure `seen` stays as it was.
 * Cost:    five system calls, and at most three for each slot that is held; more for records that cannot be read.
 */
xseg_status xseg_shared_budget_read(struct xseg_shared_budget *ledger);

/*
 * Look at the ledger at a path without a slot in it: `seen` has what live processes say.  Nothing is made, locked or
 * written.
 *
 * ledger: closed, or not initialised; closed afterwards.  `seen` has no state but FREE, FRESH and UNREADABLE
 *
 * Returns: ERR_FILE when there is no file, it cannot be read, or is none of ours; ERR_BUSY when no process has finished the
 *          header yet; ERR_ARGUMENT, ERR_HOST_MEMORY as xseg_shared_budget_open().
 * Cost:    twelve system calls, and at most three for each slot that is held; more for records that cannot be read.
 */
xseg_status xseg_shared_budget_scan(struct xseg_shared_budget *ledger, const char *path);

/*
 * Release the slot and close the file, which stays: another process may be opening it.  The record is cleared only in a
 * file that is still a valid ledger.  No effect on a closed ledger and in a forked child.
 *
 * Cost: eight system calls.
 */
void xseg_shared_budget_close(struct xseg_shared_budget *ledger);

#endif
