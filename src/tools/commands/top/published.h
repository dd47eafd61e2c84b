/* SPDX-License-Identifier: MIT */
/*
 * What a process has published of its memory (xseg/published.h), as a reader that trusts nothing takes it.
 *
 * Any process may have a file of that name with any content, which may change at any time.  So a file is read into memory of
 * the reader's own, and looked at there.
 *
 * Locking: none.
 */
#ifndef TOOLS_PUBLISHED_H
#define TOOLS_PUBLISHED_H

#include <stdbool.h>
#include <stddef.h>

#include "src/base/published.h"

/*
 * Take the current frame out of the bytes of a file.
 *
 * Counts of the frame are within bounds, kinds are known, each pool is one of a device that is there, and texts are
 * printable and terminated.
 *
 * head: gets what stands before the frames
 * why:  gets a sentence, where nothing is taken
 */
bool published_take(const void *bytes, size_t count, struct xseg_published *head,
                    struct xseg_published_sample *frame, const char **why);

/* Read the current frame of an open file, of any kind; waits for nobody.  The rest as published_take(). */
bool published_read(int file, struct xseg_published *head, struct xseg_published_sample *frame,
                    const char **why);

#endif
