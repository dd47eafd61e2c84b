/* SPDX-License-Identifier: MIT */
/*
 * Writing files: a buffered writer that can truncate what it has written, and a file that is replaced atomically.
 *
 * The *buffered writer* writes a file descriptor front to back.  The first error is recorded, and all later bytes are
 * discarded, so a caller checks the error once, after the last write.
 *
 * An *atomic file* is written to a temporary file, PATH.PID.N.part, and renamed to its path when it is complete.  Readers see
 * either the previous file or the complete new one.  If the path is a symbolic link, its target is replaced.  A device, a
 * pipe, and the file of standard output or standard error (such as /dev/stdout) are written directly.  The temporary
 * file of a killed process remains.
 *
 * Locking: none; one thread uses a writer or a file.
 */
#ifndef XSEG_BASE_FILE_WRITER_H
#define XSEG_BASE_FILE_WRITER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- The buffered writer. --- */

#define XSEG_FILE_WRITER_BUFFER ((size_t)64 << 10)

struct xseg_file_writer {
    int file;         /* descriptor; the caller's */
    int error;        /* errno of the first failure; 0: none */
    uint64_t origin;  /* position of the file at the start */
    uint64_t flushed; /* bytes written to the file, or discarded after an error */
    size_t filled;    /* bytes in the buffer */
    unsigned char buffer[XSEG_FILE_WRITER_BUFFER];
};

/* Start at the current position of the file, or at 0 if the file is not seekable. */
void xseg_file_writer_init(struct xseg_file_writer *writer, int file);

/* The number of bytes written so far. */
static inline uint64_t xseg_file_writer_offset(const struct xseg_file_writer *writer)
{
    return writer->flushed + writer->filled;
}

void xseg_file_writer_write(struct xseg_file_writer *writer, const void *bytes, size_t count);

static inline void xseg_file_writer_write_byte(struct xseg_file_writer *writer, unsigned char byte)
{
    if (__builtin_expect(writer->filled == XSEG_FILE_WRITER_BUFFER, 0))
        xseg_file_writer_write(writer, &byte, 1);
    else
        writer->buffer[writer->filled++] = byte;
}

/* Write the buffer to the file.  Returns false if any write has failed. */
bool xseg_file_writer_flush(struct xseg_file_writer *writer);

/* Discard all bytes from an offset on.  Returns false, without effect, if they are in the file and it is not seekable. */
bool xseg_file_writer_truncate(struct xseg_file_writer *writer, uint64_t offset);

/* --- The atomic file. --- */

struct xseg_atomic_file {
    const char *path;   /* the caller's */
    char *target;       /* the resolved path; NULL: `path` */
    int file;           /* descriptor */
    bool has_temporary; /* false: `path` is written directly */
    char temporary[PATH_MAX + 64];
};

/* Open a file for writing.  Returns 0 or an errno. */
int xseg_atomic_file_open(struct xseg_atomic_file *atomic, const char *path);

/*
 * Close the file, and rename it to its path.  If it is not complete, or renaming fails, remove it.
 *
 * Returns: 0 or an errno
 */
int xseg_atomic_file_close(struct xseg_atomic_file *atomic, bool is_complete);

#endif
