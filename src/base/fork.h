/* SPDX-License-Identifier: MIT */
/*
 * Noticing a fork without a system call: a page that the kernel wipes in the child.
 *
 * Where the kernel cannot (before Linux 4.14), the process number is compared instead.
 */
#ifndef XSEG_BASE_FORK_H
#define XSEG_BASE_FORK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct xseg_fork {
    volatile const unsigned *marker; /* 1 in the parent, 0 in a child; NULL: ask for the pid */
    pid_t owner;
};

/*
 * Memory of zeros that is zeros again in a child: whole pages; NULL without host memory.
 *
 * is_wiped: whether the kernel can do that; if not, the child sees what the parent wrote
 */
void *xseg_fork_wiped(size_t bytes, bool *is_wiped);
void xseg_fork_unmap(void *memory, size_t bytes);

/* Returns false without host memory. */
bool xseg_fork_init(struct xseg_fork *guard);
void xseg_fork_fini(struct xseg_fork *guard);

bool xseg_fork_compare_pid(const struct xseg_fork *guard);

/* Whether the caller runs in a child of the process that made the guard. */
static inline bool xseg_fork_is_child(const struct xseg_fork *guard)
{
    return __builtin_expect(guard->marker != NULL, 1) ? __builtin_expect(*guard->marker == 0, 0)
                                                      : xseg_fork_compare_pid(guard);
}

#endif
