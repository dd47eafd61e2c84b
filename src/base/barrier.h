/* SPDX-License-Identifier: MIT */
/*
 * A memory barrier that all threads of the process pass, at the cost of the one that asks for it: the
 * others need only keep the order of their instructions.  What it is for: biased_lock.h.
 *
 * membarrier() does it.  A kernel that registers a process may refuse a later call, for want of memory or
 * because a sandbox has closed in meanwhile; there are other ways then, so a pass cannot fail.
 *
 * Locking: none; any thread at any time.
 */
#ifndef XSEG_BASE_BARRIER_H
#define XSEG_BASE_BARRIER_H

#include <stdbool.h>

/* Before the first pass; may be repeated.  Returns: whether the kernel has the call */
bool xseg_barrier_register(void);

/*
 * On return every other thread has passed a full barrier since the call began.  Some microseconds; some
 * milliseconds where membarrier() is refused.
 */
void xseg_barrier_pass(void);

#endif
