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

void xseg_file_writer_init(struct xseg_file_writer *output, int file)
{
    const off_t origin = lseek(file, 0, SEEK_CUR);

    output->file = file;
    output->error = 0;
    output->origin = origin < 0 ? 0 : (uint64_t)origin;
    output->sent = 0;
    output->filled = 0;
}

static void send(struct xseg_file_writer *output, const unsigned char *bytes, size_t count)
{
    while (count > 0 && output->error == 0) {
        const ssize_t sent = write(output->file, bytes, count);

        if (sent < 0 && errno != EINTR)
            output->error = errno;
        if (sent <= 0)
            continue;
        bytes += sent;
        count -= (size_t)sent;
        output->sent += (uint64_t)sent;
    }
}

bool xseg_file_writer_flush(struct xseg_file_writer *output)
{
    const uint64_t place = xseg_file_writer_offset(output);

    send(output, output->buffer, output->filled);
    output->filled = 0;
    /* What is dropped behind an error counts, so that places do not go back. */
    output->sent = place;
    return output->error == 0;
}

void xseg_file_writer_write(struct xseg_file_writer *output, const void *bytes, size_t count)
{
    const unsigned char *from = bytes;

    XSEG_ASSERT(output->filled <= XSEG_FILE_WRITER_BUFFER);
    while (count > 0) {
        const size_t room = XSEG_FILE_WRITER_BUFFER - output->filled;
        const size_t some = count < room ? count : room;

        memcpy(output->buffer + output->filled, from, some);
        output->filled += some;
        from += some;
        count -= some;
        if (output->filled == XSEG_FILE_WRITER_BUFFER)
            (void)xseg_file_writer_flush(output);
    }
}

bool xseg_file_writer_truncate(struct xseg_file_writer *output, uint64_t place)
{
    XSEG_ASSERT(place <= xseg_file_writer_offset(output));
    if (place >= output->sent) {
        output->filled = (size_t)(place - output->sent);
        return true;
    }
    const off_t at = (off_t)(output->origin + place);
    if (lseek(output->file, at, SEEK_SET) < 0)
        return false;
    if (ftruncate(output->file, at) != 0) {
        (void)lseek(output->file, 0, SEEK_END);
        return false;
    }
    output->sent = place;
    output->filled = 0;
    return true;
}

/* The descriptor of standard output or standard error, if that is its file; else -1. */
static int find_stream(const struct stat *found)
{
    struct stat stream;

    for (int number = STDOUT_FILENO; number <= STDERR_FILENO; number++)
        if (fstat(number, &stream) == 0 && stream.st_dev == found->st_dev &&
            stream.st_ino == found->st_ino)
            return number;
    return -1;
}

/* Devices and pipes stay what they are.  Returns a descriptor, or -1 with errno; found: of the path. */
static int open_special(const char *path, const struct stat *found)
{
    const int stream = find_stream(found);

    return stream < 0 ? open(path, O_WRONLY | O_CLOEXEC) : fcntl(stream, F_DUPFD_CLOEXEC, 0);
}

static const char *place_of(const struct xseg_atomic_file *replacement)
{
    return replacement->place != NULL ? replacement->place : replacement->path;
}

/* Choose the name beside the place.  Returns whether it is short enough. */
static bool name_beside(struct xseg_atomic_file *replacement)
{
    static atomic_uint begun;
    const unsigned number = atomic_fetch_add(&begun, 1);
    const int length = snprintf(replacement->beside, sizeof(replacement->beside), "%s.%ld.%u.part",
                                place_of(replacement), (long)getpid(), number);

    return length > 0 && (size_t)length < sizeof(replacement->beside);
}

/* Open the file beside the place, with the mode of the one that is there.  Returns a descriptor, or -1 with errno. */
static int open_beside(struct xseg_atomic_file *replacement, const struct stat *found)
{
    replacement->place = found != NULL ? realpath(replacement->path, NULL) : NULL;
    if (!name_beside(replacement)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    /* What a process of this number has left behind is overwritten. */
    const int file =
        open(replacement->beside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file >= 0 && found != NULL)
        (void)fchmod(file, found->st_mode & 0777);
    return file;
}

int xseg_atomic_file_open(struct xseg_atomic_file *replacement, const char *path)
{
    struct stat found;
    const bool is_there = stat(path, &found) == 0;

    replacement->path = path;
    replacement->place = NULL;
    replacement->is_beside =
        !is_there || S_ISDIR(found.st_mode) || (S_ISREG(found.st_mode) && find_stream(&found) < 0);
    replacement->file = replacement->is_beside ? open_beside(replacement, is_there ? &found : NULL)
                                               : open_special(path, &found);
    if (replacement->file >= 0)
        return 0;
    const int error = errno;
    free(replacement->place);
    return error;
}

int xseg_atomic_file_close(struct xseg_atomic_file *replacement, bool is_complete)
{
    int error = 0;

    XSEG_ASSERT(replacement->file >= 0);
    if (close(replacement->file) != 0)
        error = errno;
    replacement->file = -1;
    if (!replacement->is_beside)
        return error;
    if (is_complete && error == 0 && rename(replacement->beside, place_of(replacement)) != 0)
        error = errno;
    if (!is_complete || error != 0)
        (void)unlink(replacement->beside);
    free(replacement->place);
    return error;
}
