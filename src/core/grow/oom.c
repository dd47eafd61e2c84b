/* SPDX-License-Identifier: MIT */
#include "src/core/grow/oom.h"

#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/oom_advice.h"
#include "src/core/grow/oom_cause.h"
#include "src/core/pending/pending.h"

/* Add the driver call that failed, where no limit of the library refused first. */
static void add_drivers_word(struct xseg_strbuf *text, const struct xseg_arena *arena,
                             xseg_status status)
{
    const char *call =
        atomic_load_explicit(&arena->device->context.last_oom_call, memory_order_relaxed);

    if (status == XSEG_ERR_NO_ADDRESSES) {
        xseg_strbuf_printf(text, "; cuMemAddressReserve failed, ");
        xseg_strbuf_add_mib(text,
                            atomic_load_explicit(&arena->device->addresses, memory_order_relaxed));
        xseg_strbuf_printf(text, " of virtual addresses reserved by this allocator");
    }
    if (status == XSEG_ERR_NO_MEMORY && arena->device->refuser == XSEG_OOM_CAUSE_DRIVER &&
        call != NULL && !xseg_pool_has_own_memory(arena->pool))
        xseg_strbuf_printf(text, "; %s failed, CUDA_ERROR_OUT_OF_MEMORY", call);
}

xseg_status xseg_oom_fail(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                          xseg_status status, bool rejected, uint64_t *free_bytes)
{
    struct xseg_oom_account account;
    char buffer[1024];
    struct xseg_strbuf text;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                xseg_oom_cause_is_memory_pressure(status));
    xseg_oom_account_collect(&account, arena, params);
    *free_bytes = account.free;
    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_oom_cause_add(&text, arena->pool, status, params->requested);
    xseg_oom_account_add(&text, &account);
    add_drivers_word(&text, arena, status);
    if (status != XSEG_ERR_NO_ADDRESSES)
        xseg_oom_advice_add(&text, arena, params, &account, rejected);
    return xseg_fail(status, "%s", buffer);
}

bool xseg_oom_notify(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                     xseg_status status, enum xseg_observers_subject subject, unsigned attempt)
{
    struct xseg_device *device = arena->device;
    struct xseg_observers *observers = &device->allocator->observers;
    uint64_t free = 0, total = 0;
    struct xseg_fail_saved kept;
    char buffer[XSEG_FAIL_BYTES];
    struct xseg_strbuf message;

    XSEG_ASSERT(xseg_oom_cause_is_memory_pressure(status) && subject <= XSEG_OBSERVERS_REJECTED);
    if (!xseg_observers_are_registered(observers, subject))
        return false;
    /* Observers can call functions that fail. */
    xseg_fail_save(&kept);
    xseg_strbuf_init(&message, buffer, sizeof(buffer));
    xseg_fail_print(&message);
    (void)xseg_device_memory(device, &free, &total);
    const struct xseg_oom_info shortage = {
        .struct_size = sizeof(shortage),
        .device = device->context.ordinal,
        .stream = xseg_arena_stream(arena)->handle,
        .pool = xseg_pool_shown(arena->pool),
        .bytes = params->requested,
        .status = status,
        .attempt = attempt,
        .is_capturing = xseg_pending_captures(device->pending),
        .allowed_bytes = xseg_min(xseg_device_limit(device), device->context.total_bytes),
        .free_bytes = free,
        .message = buffer,
        .block_bytes = params->bytes,
        .segment_bytes = params->segment_bytes,
    };
    const bool answer = xseg_observers_notify(observers, subject, &shortage);
    xseg_fail_restore(&kept);
    return answer;
}
