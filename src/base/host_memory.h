/* SPDX-License-Identifier: MIT */
/*
 * Zeroed host memory of which little may ever be touched.
 *
 * Large pieces come from the kernel, page by page as they are touched.  calloc() promises that only until
 * the process has freed something large: from then on it takes such pieces from the heap, and clears them.
 *
 * Large pieces begin in different cache lines of their pages.  Otherwise what every arena has at the
 * same place would share one set of the L1 cache, for which eight streams in turn missed four lines a
 * call.
 *
 * Threads: any.
 */
#ifndef XSEG_BASE_HOST_MEMORY_H
#define XSEG_BASE_HOST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* From here on a piece comes from the kernel, and is aligned to a cache line. */
#define XSEG_DEMAND_ZERO_LARGE ((size_t)64 << 10)

/* Returns NULL without host memory. */
void *xseg_demand_zero_alloc(size_t bytes);

/* How many bytes of a piece have memory: the pages that were touched, if only to read them.  Of one that does not come from the
 * kernel, and where the kernel does not tell, all.  NULL is fine. */
size_t xseg_demand_zero_resident(const void *memory, size_t bytes);

/* bytes: as it was taken.  NULL is fine. */
void xseg_demand_zero_free(void *memory, size_t bytes);

/*
 * Noticing a fork without a system call: a page that the kernel wipes in the child.
 *
 * Where the kernel cannot (before Linux 4.14), the process number is compared instead.
 */

struct xseg_fork_guard {
    volatile const unsigned *marker; /* 1 in the parent, 0 in a child; NULL: ask for the pid */
    pid_t owner;
};

/*
 * Memory of zeros that is zeros again in a child: whole pages; NULL without host memory.
 *
 * is_wiped: whether the kernel can do that; if not, the child sees what the parent wrote
 */
void *xseg_wipe_on_fork_alloc(size_t bytes, bool *is_wiped);
void xseg_wipe_on_fork_free(void *memory, size_t bytes);

/* Returns false without host memory. */
bool xseg_fork_guard_init(struct xseg_fork_guard *guard);
void xseg_fork_guard_fini(struct xseg_fork_guard *guard);

bool xseg_fork_guard_compare_pid(const struct xseg_fork_guard *guard);

/* Whether the caller runs in a child of the process that made the guard. */
static inline bool xseg_fork_guard_is_child(const struct xseg_fork_guard *guard)
{
    return __builtin_expect(guard->marker != NULL, 1) ? __builtin_expect(*guard->marker == 0, 0)
                                                      : xseg_fork_guard_compare_pid(guard);
}

/*
 * A board: memory of this process that others can read under /proc/PID/fd, by its name.
 *
 * It is a memfd of a fixed size.  Where the kernel can (Linux 5.1), only the writer's own mapping can write to it.  It goes
 * with the process, however that ends.  A child that is forked has the descriptor but not the mapping; one that is
 * executed has neither.
 *
 * Locking: the owner's.
 */

struct xseg_shared_region {
    void *memory; /* zeros at first; NULL: there is no board */
    size_t bytes;
    int file;
};

/* Make a board.  Returns 0, or the errno of the system call that failed: then there is no board. */
int xseg_shared_region_init(struct xseg_shared_region *region, const char *name, size_t bytes);

/* Unmap and close a board; no effect on an empty one. */
void xseg_shared_region_fini(struct xseg_shared_region *region);

/*
 * Roots: memory from the kernel through which the heap's is reached.
 *
 * LeakSanitizer looks through the heap and the programme's own data alone, and has to be told of other
 * memory.  Else it reports what only that memory leads to, in a programme that ends with an open
 * allocator.
 */

#if defined(__SANITIZE_ADDRESS__)
#define XSEG_LSAN_ROOT_IS_NEEDED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define XSEG_LSAN_ROOT_IS_NEEDED 1
#endif
#endif

#ifdef XSEG_LSAN_ROOT_IS_NEEDED
#include <sanitizer/lsan_interface.h>
#endif

static inline void xseg_lsan_root_add(const void *memory, size_t bytes)
{
#ifdef XSEG_LSAN_ROOT_IS_NEEDED
    __lsan_register_root_region(memory, bytes);
#else
    (void)memory;
    (void)bytes;
#endif
}

static inline void xseg_lsan_root_remove(const void *memory, size_t bytes)
{
#ifdef XSEG_LSAN_ROOT_IS_NEEDED
    __lsan_unregister_root_region(memory, bytes);
#else
    (void)memory;
    (void)bytes;
#endif
}

#endif
