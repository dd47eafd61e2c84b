/* SPDX-License-Identifier: MIT */
#include "vmm/sim/operation.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/sim/action.h"
#include "vmm/sim/event.h"
#include "vmm/sim/host.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/stream.h"

/* An address that lies in no range is one that the driver does not know. */
static CUresult resolve_side(enum sim_side *side, uint64_t address)
{
    const bool is_known = sim_range_find(&sim_machine.addresses, address) != NULL;

    if (*side == SIM_EITHER)
        *side = is_known ? SIM_DEVICE : SIM_HOST;
    return (*side == SIM_DEVICE && !is_known) || address == 0 ? CUDA_ERROR_INVALID_VALUE
                                                              : CUDA_SUCCESS;
}

static unsigned owning_device(uint64_t address)
{
    const struct sim_mapping *mapping = sim_mapping_at(address);

    return mapping != NULL ? mapping->physical->device
                           : sim_range_find(&sim_machine.addresses, address)->device;
}

/* The driver copies allocations by whichever device can, and between peers each device does its side.  Else mapped
 * memory needs a right of the stream's device, and a fill is a kernel of that device. */
static CUresult check_transfer_side(unsigned device, const struct sim_transfer *transfer,
                                    uint64_t address)
{
    if (transfer->is_peer ||
        (transfer->width == 0 && sim_range_find(&sim_machine.addresses, address)->granule == NULL))
        device = owning_device(address);
    return sim_check_reach(device, address, transfer->bytes) ? CUDA_SUCCESS
                                                             : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_transfer_check(unsigned device, struct sim_transfer *transfer)
{
    CUresult result = resolve_side(&transfer->to_side, transfer->to);

    if (result == CUDA_SUCCESS && transfer->width == 0)
        result = resolve_side(&transfer->from_side, transfer->from);
    if (result == CUDA_SUCCESS && transfer->to_side == SIM_DEVICE)
        result = check_transfer_side(device, transfer, transfer->to);
    if (result == CUDA_SUCCESS && transfer->width == 0 && transfer->from_side == SIM_DEVICE)
        result = check_transfer_side(device, transfer, transfer->from);
    return result;
}

bool sim_transfer_is_to_pageable(const struct sim_transfer *transfer)
{
    return transfer->width == 0 && transfer->to_side == SIM_HOST &&
           !sim_host_is_pinned(transfer->to, transfer->bytes);
}

CUresult sim_operation_check(struct sim_operation *operation)
{
    if (operation->transfer.bytes != 0)
        return sim_transfer_check(operation->device, &operation->transfer);
    for (size_t i = 0; i < operation->touches && sim_machine.strict; i++)
        (void)sim_check_reach(operation->device, operation->touch[i].address,
                              operation->touch[i].bytes);
    return CUDA_SUCCESS;
}

/* A copy from pageable memory has read all of it when it is queued. */
static struct sim_action *create_transfer_completion(const struct sim_transfer *transfer)
{
    struct sim_action *action = calloc(1, sizeof(*action));

    if (action == NULL)
        return NULL;
    action->to = transfer->to;
    action->from = transfer->from;
    action->bytes = transfer->bytes;
    action->pattern = transfer->pattern;
    action->width = transfer->width;
    if (transfer->width != 0 || transfer->from_side != SIM_HOST ||
        sim_host_is_pinned(transfer->from, transfer->bytes))
        return action;
    action->staged = malloc(transfer->bytes);
    if (action->staged == NULL) {
        free(action);
        return NULL;
    }
    memcpy(action->staged, (const void *)(uintptr_t)transfer->from, transfer->bytes);
    return action;
}

static bool queue_transfer(struct sim_stream *stream, const struct sim_transfer *transfer)
{
    bool is_queued;

    if (sim_machine.real_bytes) {
        struct sim_action *action = create_transfer_completion(transfer);

        is_queued = action != NULL && sim_action_queue(stream, action);
    } else {
        is_queued = sim_stream_queue(stream, 0, NULL);
    }
    if (is_queued && transfer->to_side == SIM_DEVICE)
        is_queued = sim_touches_add(stream, transfer->to, transfer->bytes);
    if (is_queued && transfer->width == 0 && transfer->from_side == SIM_DEVICE)
        is_queued = sim_touches_add(stream, transfer->from, transfer->bytes);
    return is_queued;
}

static bool queue_host_function(struct sim_stream *stream, const struct sim_operation *operation)
{
    struct sim_action *action = calloc(1, sizeof(*action));

    if (action == NULL)
        return false;
    action->function = operation->function;
    action->argument = operation->argument;
    return sim_action_queue(stream, action);
}

static bool queue_kernel(struct sim_stream *stream, const struct sim_operation *operation)
{
    if (!sim_stream_queue(stream, operation->duration, NULL))
        return false;
    for (size_t i = 0; i < operation->touches; i++) {
        const struct xseg_sim_access *touch = &operation->touch[i];

        if (touch->bytes != 0 && !sim_touches_add(stream, touch->address, touch->bytes))
            return false;
    }
    return operation->touches != 0 || sim_touches_add(stream, 0, 0);
}

CUresult sim_operation_queue(struct sim_stream *stream, const struct sim_operation *operation)
{
    bool is_queued = true;

    switch (operation->type) {
    case SIM_NODE_COPY:
    case SIM_NODE_FILL:
    case SIM_NODE_MEMORY:
        is_queued = queue_transfer(stream, &operation->transfer);
        break;
    case SIM_NODE_HOST:
        is_queued = queue_host_function(stream, operation);
        break;
    case SIM_NODE_KERNEL:
        is_queued = queue_kernel(stream, operation);
        break;
    case SIM_NODE_RECORD:
        return sim_event_record(operation->event, stream);
    case SIM_NODE_WAIT:
        return sim_event_let_wait(operation->event, stream);
    case SIM_NODE_EMPTY:
    case SIM_NODE_CONDITIONAL:
        break;
    }
    return is_queued ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool sim_operation_copy(struct sim_operation *to, const struct sim_operation *from)
{
    struct xseg_sim_access *touch = NULL;

    if (from->touches != 0) {
        touch = calloc(from->touches, sizeof(*touch));
        if (touch == NULL)
            return false;
        memcpy(touch, from->touch, from->touches * sizeof(*touch));
    }
    *to = *from;
    to->touch = touch;
    return true;
}

void sim_operation_end(struct sim_operation *operation)
{
    free((void *)(uintptr_t)operation->touch);
}
