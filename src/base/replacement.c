/* SPDX-License-Identifier: MIT */
#include "src/base/replacement.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/check.h"

/* Devices and pipes stay what they are. */
static bool is_special(const char *path)
{
    struct stat found;

    return stat(path, &found) == 0 && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode);
}

/* Choose the name beside the path.  Returns whether it is short enough. */
static bool name_beside(struct xseg_replacement *replacement)
{
    static atomic_uint begun;
    const unsigned number = atomic_fetch_add(&begun, 1);
    const int length = snprintf(replacement->beside, sizeof(replacement->beside), "%s.%ld.%u.part",
                                replacement->path, (long)getpid(), number);

    return length > 0 && (size_t)length < sizeof(replacement->beside);
}

int xseg_replacement_begin(struct xseg_replacement *replacement, const char *path)
{
    replacement->path = path;
    replacement->is_beside = !is_special(path);
    if (!replacement->is_beside)
        replacement->file = open(path, O_WRONLY | O_CLOEXEC);
    else if (!name_beside(replacement))
        return ENAMETOOLONG;
    else
        /* What a process of this number has left behind is overwritten. */
        replacement->file =
            open(replacement->beside, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    return replacement->file < 0 ? errno : 0;
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
    if (is_complete && error == 0 && rename(replacement->beside, replacement->path) != 0)
        error = errno;
    if (!is_complete || error != 0)
        (void)unlink(replacement->beside);
    return error;
}
