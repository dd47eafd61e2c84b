/* SPDX-License-Identifier: MIT */
/*
 * A file that is written beside its place, and takes its place when it is complete: nobody reads half of it, and the
 * file that was there before stays until then.  Where the path is a symbolic link, the file that it leads to is replaced.
 * A device or a pipe is written into, and so is the file of standard output or standard error (/dev/stdout).
 *
 * A process that is killed meanwhile leaves the file beside, PATH.PID.N.part.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef XSEG_BASE_REPLACEMENT_H
#define XSEG_BASE_REPLACEMENT_H

#include <limits.h>
#include <stdbool.h>

struct xseg_replacement {
    const char *path; /* the caller's */
    char *place;      /* where it leads to; NULL: the path itself */
    int file;         /* descriptor */
    bool is_beside;   /* else `path` itself is written into */
    char beside[PATH_MAX + 64];
};

/* Open a file for a path, which stays as it is until the end.  Returns 0, or the errno of what failed. */
int xseg_replacement_begin(struct xseg_replacement *replacement, const char *path);

/*
 * Close the file and put it into its place; if it is not complete, or that fails, remove it.
 *
 * Returns: 0, or the errno of what failed
 */
int xseg_replacement_end(struct xseg_replacement *replacement, bool is_complete);

#endif
