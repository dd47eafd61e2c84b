/* SPDX-License-Identifier: MIT */
#include "src/core/snapshot/automatic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/snapshot/snapshot_file.h"

const char *xseg_automatic_folder(const struct xseg_config *config)
{
    const char *folder =
        config->oom_snapshot[0] != '\0' ? config->oom_snapshot : secure_getenv("XSEG_OOM_SNAPSHOT");

    return folder == NULL || folder[0] == '\0' || strcmp(folder, "none") == 0 ? NULL : folder;
}

void xseg_automatic_write(struct xseg_allocator *allocator, const char *path,
                          const struct xseg_automatic_occasion *occasion)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const struct xseg_snapshot_plan plan = {
        .has_history = true,
        .asks = false,
        .host_bytes = 0,
        .most_bytes = config->oom_snapshot_bytes,
        .deadline_ns = xseg_snapshot_deadline(config->oom_snapshot_ms),
    };
    const int error = errno;
    struct xseg_fail_kept kept;

    XSEG_ASSERT(!xseg_lock_is_any_held());
    xseg_fail_keep(&kept);
    if (xseg_snapshot_file_write(allocator, &plan, path) == XSEG_OK)
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING, "%s: where the memory is says %s",
                      occasion->reason, path);
    else
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING, "no snapshot %s: %s", occasion->what_for,
                      xseg_fail_text()->buffer);
    xseg_fail_restore(&kept);
    errno = error;
}
