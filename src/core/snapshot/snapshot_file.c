/* SPDX-License-Identifier: MIT */
#include "src/core/snapshot/snapshot_file.h"

#include <string.h>

#include "src/base/error.h"
#include "src/base/replacement.h"

static xseg_status fail(const char *path, int error)
{
    return xseg_fail(XSEG_ERR_FILE, "the snapshot %s cannot be written: %s", path, strerror(error));
}

xseg_status xseg_snapshot_file_write(struct xseg_allocator *allocator,
                                     const struct xseg_snapshot_plan *plan, const char *path)
{
    struct xseg_replacement place;
    int error = xseg_replacement_begin(&place, path);

    if (error != 0)
        return fail(path, error);
    const xseg_status status = xseg_snapshot_write(allocator, plan, place.file, &error);
    const int ended = xseg_replacement_end(&place, status == XSEG_OK);
    if (status == XSEG_ERR_FILE)
        return fail(path, error);
    return status == XSEG_OK && ended != 0 ? fail(path, ended) : status;
}
