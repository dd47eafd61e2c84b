/* SPDX-License-Identifier: MIT */
#include "src/core/snapshot/oom.h"

#include <errno.h>
#include <unistd.h>

#include "src/core/snapshot/automatic.h"
#include "src/core/snapshot/rank.h"

void xseg_oom_snapshots_init(struct xseg_oom_snapshots *snapshots)
{
    atomic_init(&snapshots->is_writing, false);
    atomic_init(&snapshots->written, 0);
}

/* The first name from a number on that no file has: another allocator may write into the folder, and a process of the
 * same number may have.  Returns false if names are too long. */
static bool choose_name(char *path, size_t bytes, const char *folder, unsigned number)
{
    do {
        if (xseg_snapshot_rank_name(path, bytes, folder, "oom", number++) >= bytes)
            return false;
    } while (access(path, F_OK) == 0);
    return true;
}

static void write_into(struct xseg_allocator *allocator, const char *folder, unsigned number)
{
    static const struct xseg_automatic_occasion refused = {"a request was refused",
                                                           "of the refused request"};
    char path[XSEG_AUTOMATIC_PATH_BYTES];

    if (choose_name(path, sizeof(path), folder, number))
        xseg_automatic_write(allocator, path, &refused);
    else
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING,
                      "no snapshot of the refused request: the folder's name is too long: %s",
                      path);
}

void xseg_oom_snapshots_report(struct xseg_allocator *allocator)
{
    struct xseg_oom_snapshots *snapshots = allocator->oom_snapshots;
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const char *folder = xseg_automatic_folder(config);
    const int error = errno;

    XSEG_ASSERT(!xseg_lock_is_any_held());
    if (folder == NULL || atomic_exchange(&snapshots->is_writing, true))
        return;
    if (atomic_load(&snapshots->written) < config->oom_snapshots)
        write_into(allocator, folder, atomic_fetch_add(&snapshots->written, 1) + 1);
    atomic_store(&snapshots->is_writing, false);
    errno = error;
}
