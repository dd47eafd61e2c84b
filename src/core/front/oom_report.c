/* SPDX-License-Identifier: MIT */
#include "src/core/front/oom_report.h"

#include "src/core/grow/shortage.h"
#include "src/core/snapshot/oom.h"

void xseg_oom_report(struct xseg_arena *arena, const struct xseg_need *need, xseg_status status,
                     bool rejected)
{
    if (!rejected)
        xseg_oom_snapshots_report(arena->device->allocator);
    (void)xseg_shortage_tell(arena, need, status,
                             rejected ? XSEG_OBSERVERS_REJECTED : XSEG_OBSERVERS_OOM, 0);
}
