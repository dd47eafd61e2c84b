/* SPDX-License-Identifier: MIT */
#include "src/base/file_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/check.h"

/* --- The buffered writer. --- */

void xseg_file_writer_init(struct xseg_file_writer *writer, int file)
{
    const off_t origin = lseek(file, 0, SEEK_CUR);

    writer->file = file;
    writer->error = 0;
    writer->origin = origin < 0 ? 0 : (uint64_t)origin;
    writer->flushed = 0;
    writer->filled = 0;
}

static void write_bytes(struct xseg_file_writer *writer, const unsigned char *bytes, size_t count)
{
    while (count > 0 && writer->error == 0) {
        const ssize_t written = write(writer->file, bytes, count);

        if (written < 0 && errno != EINTR)
            writer->error = errno;
        if (written <= 0)
            continue;
        bytes += written;
        count -= (size_t)written;
    }
}

bool xseg_file_writer_flush(struct xseg_file_writer *writer)
{
    write_bytes(writer, writer->buffer, writer->filled);
    /* Discarded bytes count, too, so that offsets never decrease. */
    writer->flushed += writer->filled;
    writer->filled = 0;
    return writer->error == 0;
}

void xseg_file_writer_write(struct xseg_file_writer *writer, const void *bytes, size_t count)
{
    const unsigned char *source = bytes;

    XSEG_ASSERT(writer->filled <= XSEG_FILE_WRITER_BUFFER);
    while (count > 0) {
        const size_t available = XSEG_FILE_WRITER_BUFFER - writer->filled;
        const size_t chunk = count < available ? count : available;

        memcpy(writer->buffer + writer->filled, source, chunk);
        writer->filled += chunk;
        source += chunk;
        count -= chunk;
        if (writer->filled == XSEG_FILE_WRITER_BUFFER)
            (void)xseg_file_writer_flush(writer);
    }
}

bool xseg_file_writer_truncate(struct xseg_file_writer *writer, uint64_t offset)
{
    XSEG_ASSERT(offset <= xseg_file_writer_offset(writer));
    if (offset >= writer->flushed) {
        writer->filled = (size_t)(offset - writer->flushed);
        return true;
    }
    const off_t position = (off_t)(writer->origin + offset);
    if (lseek(writer->file, position, SEEK_SET) < 0)
        return false;
    if (ftruncate(writer->file, position) != 0) {
        (void)lseek(writer->file, 0, SEEK_END);
        return false;
    }
    writer->flushed = offset;
    writer->filled = 0;
    return true;
}

/* --- The atomic file. --- */

/* The descriptor of standard output or standard error, if it refers to the file; otherwise -1. */
static int find_standard_stream(const struct stat *status)
{
    struct stat stream_status;

    for (int descriptor = STDOUT_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        if (fstat(descriptor, &stream_status) == 0 && stream_status.st_dev == status->st_dev &&
            stream_status.st_ino == status->st_ino)
            return descriptor;
    return -1;
}

/* Open a file that is written directly.  Returns a descriptor, or -1 with errno. */
static int open_directly(const char *path, const struct stat *status)
{
    const int descriptor = find_standard_stream(status);

    return descriptor < 0 ? open(path, O_WRONLY | O_CLOEXEC)
                          : fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
}

static const char *target_path(const struct xseg_atomic_file *atomic)
{
    return atomic->target != NULL ? atomic->target : atomic->path;
}

/* Set the name of the temporary file.  Returns false if it is too long. */
static bool name_temporary(struct xseg_atomic_file *atomic)
{
    static atomic_uint files;
    const unsigned number = atomic_fetch_add(&files, 1);
    const int length = snprintf(atomic->temporary, sizeof(atomic->temporary), "%s.%ld.%u.part",
                                target_path(atomic), (long)getpid(), number);

    return length > 0 && (size_t)length < sizeof(atomic->temporary);
}

/* Open the temporary file, with the mode of the existing file (NULL: none).  Returns a descriptor, or -1 with errno. */
static int open_temporary(struct xseg_atomic_file *atomic, const struct stat *existing)
{
    atomic->target = existing != NULL ? realpath(atomic->path, NULL) : NULL;
    if (!name_temporary(atomic)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    /* An existing file is overwritten: a killed process with the same ID created it. */
    const int file =
        open(atomic->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file >= 0 && existing != NULL)
        (void)fchmod(file, existing->st_mode & 0777);
    return file;
}

int xseg_atomic_file_open(struct xseg_atomic_file *atomic, const char *path)
{
    struct stat status;
    const bool exists = stat(path, &status) == 0;

    atomic->path = path;
    atomic->target = NULL;
    atomic->has_temporary = !exists || S_ISDIR(status.st_mode) ||
                            (S_ISREG(status.st_mode) && find_standard_stream(&status) < 0);
    atomic->file = atomic->has_temporary ? open_temporary(atomic, exists ? &status : NULL)
                                         : open_directly(path, &status);
    if (atomic->file >= 0)
        return 0;
    const int error = errno;
    free(atomic->target);
    return error;
}

int xseg_atomic_file_close(struct xseg_atomic_file *atomic, bool is_complete)
{
    int error = 0;

    XSEG_ASSERT(atomic->file >= 0);
    if (close(atomic->file) != 0)
        error = errno;
    atomic->file = -1;
    if (!atomic->has_temporary)
        return error;
    if (is_complete && error == 0 && rename(atomic->temporary, target_path(atomic)) != 0)
        error = errno;
    if (!is_complete || error != 0)
        (void)unlink(atomic->temporary);
    free(atomic->target);
    return error;
}
