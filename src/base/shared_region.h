/* SPDX-License-Identifier: MIT */
/*
 * A board: memory of this process that others can read under /proc/PID/fd, by its name.
 *
 * It is a memfd of a fixed size.  Where the kernel can (Linux 5.1), only the writer's own mapping can write to it.  It goes
 * with the process, however that ends.  A child that is forked has the descriptor but not the mapping; one that is
 * executed has neither.
 *
 * Locking: the owner's.
 */
#ifndef XSEG_BASE_SHARED_REGION_H
#define XSEG_BASE_SHARED_REGION_H

#include <stddef.h>

struct xseg_shared_region {
    void *memory; /* zeros at first; NULL: there is no board */
    size_t bytes;
    int file;
};

/* Make a board.  Returns 0, or the errno of the system call that failed: then there is no board. */
int xseg_shared_region_init(struct xseg_shared_region *region, const char *name, size_t bytes);

/* Unmap and close a board; no effect on an empty one. */
void xseg_shared_region_fini(struct xseg_shared_region *region);

#endif
