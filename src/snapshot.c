/* SPDX-License-Identifier: MIT */
#include "xseg/snapshot.h"

#include "src/core/snapshot/snapshot.h"
#include "src/entry.h"

/* The options that a caller gave; members that its header does not have keep their defaults. */
static struct xseg_snapshot_options options_of(const struct xseg_snapshot_options *given)
{
    struct xseg_snapshot_options options = XSEG_SNAPSHOT_OPTIONS_INIT;

    if (given != NULL)
        XSEG_ENTRY_TAKE(&options, given);
    return options;
}

xseg_status xseg_snapshot(struct xseg_allocator *allocator, const char *path,
                          const struct xseg_snapshot_options *options)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(path != NULL && path[0] != '\0', "path is NULL or empty");
    XSEG_ENTRY_IN(options, struct xseg_snapshot_options, max_ms);
    const struct xseg_snapshot_options chosen = options_of(options);
    const struct xseg_snapshot_plan plan = {
        .has_history = !chosen.without_events,
        .asks = true,
        .host_bytes = chosen.host_bytes,
        .most_bytes = UINT64_MAX,
        .deadline_ns = xseg_snapshot_deadline(chosen.max_ms),
    };
    return xseg_snapshot_file_write(allocator, &plan, path);
}
