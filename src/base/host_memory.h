/* SPDX-License-Identifier: MIT */
/*
 * Host memory that is mapped directly from the kernel, in three kinds.
 *
 * *Demand-zero memory* is zeroed and usually touched only in part, such as the tables of a segment.  The kernel allocates a
 * page when it is first touched.  calloc() behaves like that only until the process frees a large chunk; afterwards it
 * carves such chunks from the heap and clears them, which costs 8 MB of stores for one segment of a large device.  Allocations
 * start at different cache lines of their first page.  If they all started at the page boundary, the same members of all
 * arenas would map to one set of the L1 cache: eight streams in turn missed four lines per call.
 *
 * *Wipe-on-fork memory* (MADV_WIPEONFORK) is zeroed by the kernel in a forked child.  A *fork guard* is one such page: it
 * detects that the process is a child of the process that created the guard, without a system call.
 *
 * A *shared region* is a memfd of fixed size that other processes of the user can read as /proc/PID/fd/N.
 *
 * In builds with AddressSanitizer, demand-zero and wipe-on-fork memory is registered as a root region of LeakSanitizer,
 * because it contains pointers to the heap.
 *
 * Locking: demand-zero and wipe-on-fork memory needs none; the owner's lock covers a shared region.
 */
#ifndef XSEG_BASE_HOST_MEMORY_H
#define XSEG_BASE_HOST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* --- Demand-zero memory. --- */

/* Allocations of at least this size are mapped from the kernel, aligned to a cache line; smaller ones are on the heap. */
#define XSEG_DEMAND_ZERO_LARGE ((size_t)32 << 10)

/* Returns NULL if out of host memory. */
void *xseg_demand_zero_alloc(size_t bytes);

/* Free an allocation of the given size; NULL is valid. */
void xseg_demand_zero_free(void *memory, size_t bytes);

/* The resident bytes of an allocation: pages that were read or written.  The full size for allocations on the heap, and if the
 * kernel does not report residency; 0 for NULL. */
size_t xseg_demand_zero_resident(const void *memory, size_t bytes);

/* --- Wipe-on-fork memory. --- */

/*
 * Map zeroed memory, in whole pages.  Returns NULL if out of host memory.
 *
 * is_wiped: set to whether the kernel supports MADV_WIPEONFORK (Linux 4.14).  If not, a child sees the parent's contents.
 */
void *xseg_wipe_on_fork_alloc(size_t bytes, bool *is_wiped);
void xseg_wipe_on_fork_free(void *memory, size_t bytes);

struct xseg_fork_guard {
    volatile const unsigned
        *marker; /* 1 in the parent, 0 in a child; NULL: compare the process ID */
    pid_t owner;
};

/* Returns false if out of host memory. */
bool xseg_fork_guard_init(struct xseg_fork_guard *guard);
void xseg_fork_guard_fini(struct xseg_fork_guard *guard);

bool xseg_fork_guard_compare_pid(const struct xseg_fork_guard *guard);

/* Whether the calling process is a child of the process that initialized the guard. */
static inline bool xseg_fork_guard_is_child(const struct xseg_fork_guard *guard)
{
    return __builtin_expect(guard->marker != NULL, 1) ? __builtin_expect(*guard->marker == 0, 0)
                                                      : xseg_fork_guard_compare_pid(guard);
}

/* --- Shared regions. --- */

/*
 * The file cannot be resized, and only the owner's mapping can write to it if the kernel supports F_SEAL_FUTURE_WRITE
 * (Linux 5.1).  It exists as long as the process.  A forked child inherits the descriptor but not the mapping; an executed
 * program inherits neither.
 */
struct xseg_shared_region {
    void *memory; /* zeroed at first; NULL: none */
    size_t bytes;
    int file;
};

/* Create a region.  Returns 0, or the errno of the system call that failed; the region is empty then. */
int xseg_shared_region_init(struct xseg_shared_region *region, const char *name, size_t bytes);

/* Unmap and close a region; no effect on an empty one. */
void xseg_shared_region_fini(struct xseg_shared_region *region);

#endif
