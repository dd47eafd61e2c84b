/* SPDX-License-Identifier: MIT */
#include "src/base/replacement.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/check.h"

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

static const char *place_of(const struct xseg_replacement *replacement)
{
    return replacement->place != NULL ? replacement->place : replacement->path;
}

/* Choose the name beside the place.  Returns whether it is short enough. */
static bool name_beside(struct xseg_replacement *replacement)
{
    static atomic_uint begun;
    const unsigned number = atomic_fetch_add(&begun, 1);
    const int length = snprintf(replacement->beside, sizeof(replacement->beside), "%s.%ld.%u.part",
                                place_of(replacement), (long)getpid(), number);

    return length > 0 && (size_t)length < sizeof(replacement->beside);
}

/* Open the file beside the place, with the mode of the one that is there.  Returns a descriptor, or -1 with errno. */
static int open_beside(struct xseg_replacement *replacement, const struct stat *found)
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

int xseg_replacement_begin(struct xseg_replacement *replacement, const char *path)
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

int xseg_replacement_end(struct xseg_replacement *replacement, bool is_complete)
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
