/* SPDX-License-Identifier: MIT */
#include "src/core/report/oom.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/string_util.h"
#include "src/core/grow/oom.h"
#include "src/core/report/snapshot.h"

void xseg_oom_snapshots_init(struct xseg_oom_snapshots *snapshots)
{
    atomic_init(&snapshots->is_writing, false);
    atomic_init(&snapshots->written, 0);
}

/* The rank that a launcher gave this process, or NULL.  torchrun sets RANK and Slurm SLURM_PROCID; LOCAL_RANK distinguishes
 * the processes of one host. */
static const char *get_rank(void)
{
    static const char *const variables[] = {"RANK", "SLURM_PROCID", "LOCAL_RANK"};

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        const char *value = secure_getenv(variables[i]);

        if (value != NULL && value[0] != '\0' && strlen(value) <= 10 &&
            strspn(value, "0123456789") == strlen(value))
            return value;
    }
    return NULL;
}

size_t xseg_oom_snapshots_path(char *path, size_t bytes, const char *folder, unsigned number)
{
    const char *rank = get_rank();
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, path, bytes);
    xseg_strbuf_printf(&text, "%s/oom-", folder);
    if (rank != NULL)
        xseg_strbuf_printf(&text, "rank%s-", rank);
    xseg_strbuf_printf(&text, "pid%ld-%u.pickle", (long)getpid(), number);
    return text.length;
}

/* The first path from a number on that does not exist: another allocator may write into the folder, and an earlier process may
 * have had the same process ID.  Returns false if the path is too long. */
static bool choose_path(char *path, size_t bytes, const char *folder, unsigned number)
{
    do {
        if (xseg_oom_snapshots_path(path, bytes, folder, number++) >= bytes)
            return false;
    } while (access(path, F_OK) == 0);
    return true;
}

static void write_into(struct xseg_allocator *allocator, const char *folder, unsigned number)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const struct xseg_snapshot_plan plan = {
        .has_history = true,
        .asks = false,
        .host_bytes = 0,
        .max_bytes = config->oom_snapshot_bytes,
        .deadline_ns = xseg_snapshot_deadline(config->oom_snapshot_ms),
    };
    char path[XSEG_CONFIG_PATH_BYTES + 64];
    struct xseg_fail_saved kept;

    xseg_fail_save(&kept);
    if (!choose_path(path, sizeof(path), folder, number))
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING,
                      "out of memory: no snapshot written, path is too long, %s", path);
    else if (xseg_snapshot_file_write(allocator, &plan, path) == XSEG_OK)
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING,
                      "out of memory: wrote memory snapshot to %s", path);
    else
        xseg_log_line(&allocator->log, XSEG_LOG_WARNING, "out of memory: no snapshot written, %s",
                      xseg_fail_detail());
    xseg_fail_restore(&kept);
}

/* Write a snapshot if a folder is configured and fewer than XSEG_OOM_SNAPSHOTS have been written, and log its path or why there
 * is none.  The error text of the calling thread and errno are preserved. */
static void write_snapshot(struct xseg_allocator *allocator)
{
    struct xseg_oom_snapshots *snapshots = allocator->oom_snapshots;
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const char *folder =
        config->oom_snapshot[0] != '\0' ? config->oom_snapshot : secure_getenv("XSEG_OOM_SNAPSHOT");
    const int error = errno;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    if (folder == NULL || folder[0] == '\0' || strcmp(folder, "none") == 0 ||
        atomic_exchange(&snapshots->is_writing, true))
        return;
    if (atomic_load(&snapshots->written) < XSEG_OOM_SNAPSHOTS)
        write_into(allocator, folder, atomic_fetch_add(&snapshots->written, 1) + 1);
    atomic_store(&snapshots->is_writing, false);
    errno = error;
}

void xseg_oom_report(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                     xseg_status status, bool rejected)
{
    if (!rejected)
        write_snapshot(arena->device->allocator);
    (void)xseg_oom_notify(arena, params, status,
                          rejected ? XSEG_OBSERVERS_REJECTED : XSEG_OBSERVERS_OOM, 0);
}
