/* SPDX-License-Identifier: MIT */
/*
 * A file that is written front to back through a buffer, and whose end may be taken back and written again.
 *
 * The first error is kept, and nothing is written after it, so that a caller may look at the error once, at
 * the end.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef XSEG_BASE_FILE_WRITER_H
#define XSEG_BASE_FILE_WRITER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define XSEG_FILE_WRITER_BUFFER ((size_t)64 << 10)

struct xseg_file_writer {
    int file;        /* descriptor; the caller's */
    int error;       /* errno of what failed first; 0: nothing did */
    uint64_t origin; /* of the file when the output began */
    uint64_t sent;   /* bytes that are in the file, or were dropped behind an error */
    size_t filled;   /* bytes in the buffer */
    unsigned char buffer[XSEG_FILE_WRITER_BUFFER];
};

/* Begin at the file's place; of a file that has no places at 0. */
void xseg_file_writer_init(struct xseg_file_writer *output, int file);

/* Bytes that were written so far. */
static inline uint64_t xseg_file_writer_offset(const struct xseg_file_writer *output)
{
    return output->sent + output->filled;
}

void xseg_file_writer_write(struct xseg_file_writer *output, const void *bytes, size_t count);

static inline void xseg_file_writer_write_byte(struct xseg_file_writer *output, unsigned char byte)
{
    if (__builtin_expect(output->filled == XSEG_FILE_WRITER_BUFFER, 0))
        xseg_file_writer_write(output, &byte, 1);
    else
        output->buffer[output->filled++] = byte;
}

/* Send what is in the buffer.  Returns false if anything failed so far. */
bool xseg_file_writer_flush(struct xseg_file_writer *output);

/* Take back everything behind a place.  Returns false, and the file is as it was, if it has no places. */
bool xseg_file_writer_truncate(struct xseg_file_writer *output, uint64_t place);

/*
 * A file that is written beside its place, and takes its place when it is complete: nobody reads half of it, and the
 * file that was there before stays until then.  Where the path is a symbolic link, the file that it leads to is replaced.
 * A device or a pipe is written into, and so is the file of standard output or standard error (/dev/stdout).
 *
 * A process that is killed meanwhile leaves the file beside, PATH.PID.N.part.
 *
 * Locking: none; it belongs to one thread.
 */

struct xseg_atomic_file {
    const char *path; /* the caller's */
    char *place;      /* where it leads to; NULL: the path itself */
    int file;         /* descriptor */
    bool is_beside;   /* else `path` itself is written into */
    char beside[PATH_MAX + 64];
};

/* Open a file for a path, which stays as it is until the end.  Returns 0, or the errno of what failed. */
int xseg_atomic_file_open(struct xseg_atomic_file *replacement, const char *path);

/*
 * Close the file and put it into its place; if it is not complete, or that fails, remove it.
 *
 * Returns: 0, or the errno of what failed
 */
int xseg_atomic_file_close(struct xseg_atomic_file *replacement, bool is_complete);

#endif
