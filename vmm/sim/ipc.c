/* SPDX-License-Identifier: MIT */
/*
 * Allocations and events that other processes open by handle.
 *
 * A handle of memory names a process and a place in a file of it.  Who opens it gets addresses of its
 * own, which show the same contents where memory has any, and takes no memory of the device.  Opened
 * again it is the same address, until it has been closed as often.
 *
 * Time is each process's own, so an event of another process has always ended.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/event.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/memory.h"
#include "vmm/sim/stream.h"

static const char memory_magic[8] = "xsegmem", event_magic[8] = "xsegevt";

/* What is in a handle's 64 bytes. */
struct label {
    char magic[8];
    int32_t process, file; /* file -1: memory has no contents */
    uint32_t device;
    uint32_t number_high; /* of the allocation in its process, in two halves */
    uint32_t number_low;
    uint32_t unused;
    uint64_t offset, bytes;
};

_Static_assert(sizeof(struct label) <= CU_IPC_HANDLE_SIZE, "a label fits into a handle");

static CUresult get_ipc_memory(CUipcMemHandle *out, uint64_t address)
{
    const struct sim_range *range = sim_range_find(&sim_machine.addresses, address);
    struct label label;

    if (out == NULL || range == NULL || range->granule != NULL || range->is_foreign)
        return CUDA_ERROR_INVALID_VALUE;
    label = (struct label){
        .process = getpid(),
        .file = range->store.file,
        .device = range->device,
        .number_high = (uint32_t)(range->origin.number >> 32),
        .number_low = (uint32_t)range->origin.number,
        .offset = range->store.offset,
        .bytes = range->bytes,
    };
    memcpy(label.magic, memory_magic, sizeof(memory_magic));
    memset(out, 0, sizeof(*out));
    memcpy(out, &label, sizeof(label));
    return CUDA_SUCCESS;
}

/* Whether a handle is of that kind, and from another process that is alive. */
static CUresult check_ipc_label(const struct label *label, const char *magic)
{
    if (memcmp(label->magic, magic, sizeof(label->magic)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (label->process == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    return kill(label->process, 0) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static uint64_t allocation_id(const struct label *label)
{
    return (uint64_t)label->number_high << 32 | label->number_low;
}

/* The range that was opened by such a handle already, or NULL. */
static struct sim_range *find_opened_range(const struct label *label)
{
    for (size_t i = 0; i < sim_machine.addresses.count; i++) {
        struct sim_range *range = sim_machine.addresses.range[i];

        if (range != NULL && range->is_foreign && range->process == label->process &&
            range->number == allocation_id(label))
            return range;
    }
    return NULL;
}

static bool open_ipc_store(const struct label *label, struct sim_store *store)
{
    struct sim_opened *opened;

    *store = (struct sim_store){.file = -1};
    if (label->file < 0 || !sim_machine.real_bytes)
        return true;
    opened = sim_opened_retain(label->process, label->file);
    if (opened == NULL)
        return false;
    *store = (struct sim_store){.file = opened->file, .offset = label->offset, .opened = opened};
    return true;
}

static CUresult open_ipc_memory(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
    struct sim_range *range;
    struct sim_store store;
    struct label label;
    CUresult result;

    memcpy(&label, &handle, sizeof(label));
    if (out == NULL || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_ipc_label(&label, memory_magic);
    if (result != CUDA_SUCCESS)
        return result;
    if (label.device >= sim_machine.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    range = find_opened_range(&label);
    if (range == NULL) {
        if (!open_ipc_store(&label, &store))
            return CUDA_ERROR_MAP_FAILED;
        range = sim_allocation_make(label.device, label.bytes, &store);
        if (range == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        range->is_foreign = true;
        range->process = label.process;
        range->number = allocation_id(&label);
    }
    range->opened++;
    *out = range->base;
    return CUDA_SUCCESS;
}

static struct sim_range *find_ipc_range(uint64_t address)
{
    struct sim_range *range = sim_range_find(&sim_machine.addresses, address);

    return range != NULL && range->is_foreign && range->base == address ? range : NULL;
}

static CUresult close_ipc_memory(uint64_t address)
{
    struct sim_range *range = find_ipc_range(address);

    if (range == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->opened > 1) {
        range->opened--;
        return CUDA_SUCCESS;
    }
    return sim_allocation_free(range);
}

static CUresult get_ipc_event(CUipcEventHandle *out, CUevent event)
{
    struct label label = {.process = getpid()};
    CUresult result;

    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_event_check_interprocess(event);
    if (result != CUDA_SUCCESS)
        return result;
    memcpy(label.magic, event_magic, sizeof(event_magic));
    memset(out, 0, sizeof(*out));
    memcpy(out, &label, sizeof(label));
    return CUDA_SUCCESS;
}

static CUresult open_ipc_event(CUevent *out, CUipcEventHandle handle)
{
    struct label label;
    CUresult result;

    memcpy(&label, &handle, sizeof(label));
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = check_ipc_label(&label, event_magic);
    return result == CUDA_SUCCESS
               ? sim_event_create(out, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)
               : result;
}

SIM_ENTRY_AT(IPC_GET_MEM, cuIpcGetMemHandle, (CUipcMemHandle *pHandle, CUdeviceptr dptr), dptr, 0,
             get_ipc_memory(pHandle, dptr));
SIM_ENTRY(IPC_OPEN_MEM, cuIpcOpenMemHandle_v2,
          (CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags),
          open_ipc_memory(pdptr, handle, Flags));
SIM_ENTRY_AT(IPC_CLOSE_MEM, cuIpcCloseMemHandle, (CUdeviceptr dptr), dptr, 0, close_ipc_memory(dptr));
SIM_ENTRY(IPC_GET_EVENT, cuIpcGetEventHandle, (CUipcEventHandle *pHandle, CUevent event),
          get_ipc_event(pHandle, event));
SIM_ENTRY(IPC_OPEN_EVENT, cuIpcOpenEventHandle, (CUevent *phEvent, CUipcEventHandle handle),
          open_ipc_event(phEvent, handle));
