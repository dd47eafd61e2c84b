/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/call.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "tests/stress/exercise/failure.h"

#define STATUSES 16

static atomic_uint_fast64_t results[CALL_COUNT][STATUSES];

static const char *const names[CALL_COUNT] = {
#define CALL_NAME(name) #name,
#include "tests/exercise_calls.inc"
#undef CALL_NAME
};

/* Sets of statuses. */
#define IS(status)    (1u << -XSEG_##status)
#define ARGUMENT      (IS(OK) | IS(ERR_ARGUMENT))
#define HOST_MEMORY   (ARGUMENT | IS(ERR_HOST_MEMORY))
#define DRIVER        (HOST_MEMORY | IS(ERR_DRIVER))
#define DEVICE        (DRIVER | IS(ERR_DEVICE_LOST))
#define MEMORY        (DEVICE | IS(ERR_NO_MEMORY) | IS(ERR_LIMIT))
#define ALLOCATION    (MEMORY | IS(ERR_NO_ADDRESSES) | IS(ERR_UNSUPPORTED) | IS(ERR_PAUSED))
#define NOT_ALLOCATED (IS(ERR_NOT_ALLOCATED))
#define BUSY          (IS(ERR_BUSY))
#define UNSUPPORTED   (IS(ERR_UNSUPPORTED))
#define PAUSED        (IS(ERR_PAUSED))
#define FILE_ERROR    (IS(ERR_FILE))

/* The documented statuses. 0: the function returns no status. */
static const unsigned documented[CALL_COUNT] = {
    [CALL_xseg_open] = DRIVER | IS(ERR_CONFIG) | IS(ERR_NO_DRIVER),
    [CALL_xseg_close] = IS(OK) | BUSY | IS(ERR_DRIVER) | IS(ERR_HOST_MEMORY),
    [CALL_xseg_config_set] = HOST_MEMORY | IS(ERR_CONFIG),
    [CALL_xseg_config_get] = ARGUMENT,
    [CALL_xseg_config_keys] = IS(OK) | IS(ERR_CONFIG),
    [CALL_xseg_alloc] = ALLOCATION,
    [CALL_xseg_alloc_with] = ALLOCATION,
    [CALL_xseg_alloc_at] = DEVICE | BUSY | PAUSED,
    [CALL_xseg_prewarm] = ALLOCATION,
    [CALL_xseg_free] = DRIVER | NOT_ALLOCATED,
    [CALL_xseg_free_after] = DRIVER | NOT_ALLOCATED | BUSY,
    [CALL_xseg_block_query] = ARGUMENT | NOT_ALLOCATED,
    [CALL_xseg_record_stream] = DRIVER | NOT_ALLOCATED,
    [CALL_xseg_stream_synchronized] = ARGUMENT,
    [CALL_xseg_stream_retire] = DRIVER | BUSY,
    [CALL_xseg_pool_create] = DEVICE | UNSUPPORTED,
    [CALL_xseg_pool_retain] = ARGUMENT,
    [CALL_xseg_pool_set] = ARGUMENT,
    [CALL_xseg_pool_release] = ARGUMENT,
    [CALL_xseg_route_begin] = HOST_MEMORY | BUSY,
    [CALL_xseg_route_end] = ARGUMENT,
    [CALL_xseg_pool_checkpoint] = HOST_MEMORY | BUSY,
    [CALL_xseg_pool_restore] = HOST_MEMORY | BUSY | PAUSED,
    [CALL_xseg_pool_check_live] = HOST_MEMORY,
    [CALL_xseg_pool_pause] = DEVICE | BUSY | PAUSED | UNSUPPORTED | FILE_ERROR,
    [CALL_xseg_pool_resume] = MEMORY | BUSY | FILE_ERROR | UNSUPPORTED,
    [CALL_xseg_capture_begin] = DEVICE | BUSY | PAUSED,
    [CALL_xseg_capture_end] = ARGUMENT,
    [CALL_xseg_capture_mark] = DEVICE,
    [CALL_xseg_capture_unmark] = ARGUMENT,
    [CALL_xseg_for_each_block] = DRIVER,
    [CALL_xseg_explain] = DRIVER,
    [CALL_xseg_for_each_mapping] = DRIVER,
    [CALL_xseg_for_each_event] = HOST_MEMORY,
    [CALL_xseg_history_clear] = ARGUMENT,
    [CALL_xseg_history_stack] = ARGUMENT,
    [CALL_xseg_history_set_hook] = HOST_MEMORY,
    [CALL_xseg_history_annotate] = DEVICE | HOST_MEMORY,
    [CALL_xseg_history_label] = HOST_MEMORY,
    [CALL_xseg_snapshot] = HOST_MEMORY | FILE_ERROR,
    [CALL_xseg_budget_members] = HOST_MEMORY | FILE_ERROR | BUSY,
    [CALL_xseg_metrics] = HOST_MEMORY,
    [CALL_xseg_metrics_write] = HOST_MEMORY | FILE_ERROR,
    [CALL_xseg_pin] = HOST_MEMORY | NOT_ALLOCATED | PAUSED | BUSY,
    [CALL_xseg_unpin] = ARGUMENT | NOT_ALLOCATED,
    [CALL_xseg_range_reserve] = DEVICE | UNSUPPORTED | IS(ERR_NO_ADDRESSES),
    [CALL_xseg_range_release] = ARGUMENT | BUSY | PAUSED | IS(ERR_DRIVER) | IS(ERR_DEVICE_LOST),
    [CALL_xseg_range_commit] = MEMORY | BUSY | PAUSED,
    [CALL_xseg_range_decommit] = DEVICE | BUSY | PAUSED,
    [CALL_xseg_range_prepare] = MEMORY,
    [CALL_xseg_range_set_quota] =
        ARGUMENT | IS(ERR_LIMIT) | IS(ERR_NO_MEMORY) | IS(ERR_DEVICE_LOST),
    [CALL_xseg_range_hold] = ARGUMENT | BUSY,
    [CALL_xseg_range_unhold] = DEVICE | BUSY,
    [CALL_xseg_range_alias] = DEVICE | BUSY | PAUSED | IS(ERR_NO_MEMORY),
    [CALL_xseg_range_query] = ARGUMENT,
    [CALL_xseg_dmabuf_open] = DEVICE | NOT_ALLOCATED | UNSUPPORTED | PAUSED | BUSY,
    [CALL_xseg_dmabuf_close] = ARGUMENT,
    [CALL_xseg_register] = HOST_MEMORY | NOT_ALLOCATED | UNSUPPORTED | PAUSED | BUSY,
    [CALL_xseg_unregister] = ARGUMENT | BUSY,
    [CALL_xseg_observer_add] = HOST_MEMORY,
    [CALL_xseg_observer_remove] = ARGUMENT | BUSY,
    [CALL_xseg_export] = DEVICE | NOT_ALLOCATED | UNSUPPORTED | PAUSED | BUSY | FILE_ERROR,
    [CALL_xseg_export_handles] = DEVICE | NOT_ALLOCATED | UNSUPPORTED | PAUSED | BUSY,
    [CALL_xseg_export_segment] = DEVICE | NOT_ALLOCATED | UNSUPPORTED | PAUSED | BUSY | FILE_ERROR,
    [CALL_xseg_export_close] = ARGUMENT | NOT_ALLOCATED,
    [CALL_xseg_import] =
        DEVICE | UNSUPPORTED | IS(ERR_NO_ADDRESSES) | IS(ERR_NO_MEMORY) | FILE_ERROR,
    [CALL_xseg_import_handles] = DEVICE | UNSUPPORTED | IS(ERR_NO_ADDRESSES) | IS(ERR_NO_MEMORY),
    [CALL_xseg_import_close] = ARGUMENT | NOT_ALLOCATED | BUSY,
    [CALL_xseg_peer_allow] = DEVICE | UNSUPPORTED | BUSY,
    [CALL_xseg_stats_get] = DEVICE | UNSUPPORTED,
    [CALL_xseg_stats_reset] = DEVICE | UNSUPPORTED,
    [CALL_xseg_driver_calls] = ARGUMENT,
    [CALL_xseg_device_stats_get] = ARGUMENT,
    [CALL_xseg_trim] = DEVICE,
    [CALL_xseg_limits_get] = DRIVER | UNSUPPORTED,
    [CALL_xseg_limits_set] = DRIVER | UNSUPPORTED,
};

xseg_status call_returned(enum call_function function, xseg_status status)
{
    if (status > 0 || status <= -STATUSES || !(documented[function] >> -status & 1u))
        failure("%s returned %d, which its header does not document", names[function], status);
    if (status != XSEG_OK && xseg_error_message(NULL, 0) == 0)
        failure("%s returned %d without an error message", names[function], status);
    atomic_fetch_add_explicit(&results[function][-status], 1, memory_order_relaxed);
    return status;
}

void call_counted(enum call_function function)
{
    atomic_fetch_add_explicit(&results[function][0], 1, memory_order_relaxed);
}

uint64_t call_total(void)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < CALL_COUNT; i++)
        for (unsigned k = 0; k < STATUSES; k++)
            sum += results[i][k];
    return sum;
}

void call_print(void)
{
    for (unsigned i = 0; i < CALL_COUNT; i++) {
        (void)printf("# %-24s", names[i]);
        for (unsigned k = 0; k < STATUSES; k++)
            if (results[i][k] != 0)
                (void)printf("  %s %" PRIu64, k == 0 ? "ok" : xseg_status_name(-(int)k),
                             (uint64_t)results[i][k]);
        (void)printf("\n");
    }
}

/* The number of calls of a function, with any result. */
static uint64_t calls_of(unsigned function)
{
    uint64_t calls = 0;

    for (size_t i = 0; i < STATUSES; i++)
        calls += results[function][i];
    return calls;
}

const char *call_missing(bool with_success)
{
    for (unsigned i = 0; i < CALL_COUNT; i++)
        if ((with_success ? results[i][0] : calls_of(i)) == 0)
            return names[i];
    return NULL;
}
