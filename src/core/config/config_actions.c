/* SPDX-License-Identifier: MIT */
#include "src/core/config/config_actions.h"

const char *const xseg_config_actions[XSEG_HISTORY_ACTIONS] = {
    [XSEG_HISTORY_ALLOC] = "alloc",
    [XSEG_HISTORY_FREE_REQUESTED] = "free_requested",
    [XSEG_HISTORY_FREE_COMPLETED] = "free_completed",
    [XSEG_HISTORY_SEGMENT_ALLOC] = "segment_alloc",
    [XSEG_HISTORY_SEGMENT_FREE] = "segment_free",
    [XSEG_HISTORY_SEGMENT_MAP] = "segment_map",
    [XSEG_HISTORY_SEGMENT_UNMAP] = "segment_unmap",
    [XSEG_HISTORY_OOM] = "oom",
    [XSEG_HISTORY_STEAL] = "steal",
    [XSEG_HISTORY_DECAY] = "decay",
    [XSEG_HISTORY_TRIM] = "trim",
    [XSEG_HISTORY_PAUSE] = "pause",
    [XSEG_HISTORY_RESUME] = "resume",
    [XSEG_HISTORY_ANNOTATION] = "annotation",
    [XSEG_HISTORY_ASK] = "ask",
    [XSEG_HISTORY_GIVE] = "give",
};
