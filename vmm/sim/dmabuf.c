/* SPDX-License-Identifier: MIT */
#include "vmm/sim/sharing.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"

/* CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, since CUDA 12.8. */
#define MAPPING_TYPE_PCIE 1u

static CUresult set_conflict(struct sim_conflict *conflict, CUresult error, uint64_t address,
                             const char *reason)
{
    *conflict = (struct sim_conflict){address, reason};
    return error;
}

static uint64_t max_address(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Compare by member, because padding is not initialized. */
static bool have_same_properties(const CUmemAllocationProp *a, const CUmemAllocationProp *b)
{
    return a->type == b->type && a->requestedHandleTypes == b->requestedHandleTypes &&
           a->allocFlags.compressionType == b->allocFlags.compressionType &&
           a->allocFlags.gpuDirectRDMACapable == b->allocFlags.gpuDirectRDMACapable &&
           a->allocFlags.usage == b->allocFlags.usage;
}

/* Check a mapping of a range whose first page has the memory `first`. */
static CUresult check_mapping(const struct sim_mapping *mapping, const struct sim_physical *first,
                              uint64_t address, struct sim_conflict *conflict)
{
    const struct sim_physical *physical = mapping->physical;

    if (physical->device != first->device)
        return set_conflict(conflict, CUDA_ERROR_INVALID_VALUE, address,
                            "page is on another device than the first page");
    if (!physical->prop.allocFlags.gpuDirectRDMACapable)
        return set_conflict(conflict, CUDA_ERROR_NOT_SUPPORTED, address,
                            "page was created without gpuDirectRDMACapable");
    if (!have_same_properties(&physical->prop, &first->prop))
        return set_conflict(conflict, CUDA_ERROR_INVALID_VALUE, address,
                            "page has other properties than the first page");
    if ((mapping->accessible & (uint64_t)1 << physical->device) == 0)
        return set_conflict(conflict, CUDA_ERROR_INVALID_VALUE, address,
                            "page is not accessible to its device");
    return CUDA_SUCCESS;
}

static CUresult check_mappings(uint64_t address, uint64_t bytes, struct sim_conflict *conflict)
{
    const struct sim_mapping *first = sim_mapping_at(address), *mapping;
    const uint64_t end = address + bytes;

    for (uint64_t at = address; at < end; at = mapping->address + mapping->bytes) {
        CUresult result;

        mapping = sim_mapping_at(at);
        if (mapping == NULL)
            return set_conflict(conflict, CUDA_ERROR_INVALID_VALUE, at, "page is not mapped");
        result = check_mapping(mapping, first->physical, at, conflict);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

CUresult sim_dmabuf_check(uint64_t address, uint64_t bytes, struct sim_conflict *conflict)
{
    const struct sim_range *range = sim_range_find(&sim_machine.addresses, address);
    const uint64_t page = sim_host_page_size();
    uint64_t available;

    if (range == NULL)
        return set_conflict(conflict, CUDA_ERROR_INVALID_VALUE, address, "page is not mapped");
    /* Bytes to the end of the range, rounded up to host pages. */
    available = range->base + (range->bytes + page - 1) / page * page - address;
    if (range->granule != NULL) {
        const CUresult result =
            check_mappings(address, bytes < available ? bytes : available, conflict);

        if (result != CUDA_SUCCESS)
            return result;
    }
    if (bytes > available)
        return set_conflict(conflict, CUDA_ERROR_INVALID_VALUE, address + available,
                            "page is past the end of the reservation or allocation");
    return CUDA_SUCCESS;
}

static size_t count_mappings(uint64_t address, uint64_t bytes)
{
    const struct sim_mapping *mapping;
    size_t count = 0;

    for (uint64_t at = address; at < address + bytes; count++) {
        mapping = sim_mapping_at(at);
        if (mapping == NULL)
            break;
        at = mapping->address + mapping->bytes;
    }
    return count;
}

/* Create the file of a dma-buf.  Returns false if a system call fails. */
static bool create_dmabuf_file(struct sim_dmabuf *dmabuf, unsigned device, uint64_t memory_id)
{
    struct stat status;
    char name[128];

    (void)snprintf(name, sizeof(name),
                   "xseg-sim-dmabuf address 0x%" PRIx64 " bytes %" PRIu64
                   " device %u memory %" PRIu64,
                   dmabuf->address, dmabuf->bytes, device, memory_id);
    dmabuf->file = memfd_create(name, MFD_CLOEXEC);
    if (dmabuf->file < 0)
        return false;
    if (ftruncate(dmabuf->file, (off_t)dmabuf->bytes) == 0 && fstat(dmabuf->file, &status) == 0) {
        dmabuf->inode = status.st_ino;
        return true;
    }
    (void)close(dmabuf->file);
    return false;
}

/* Create the dma-buf of a checked range.  Returns NULL if a system call or host allocation fails. */
static struct sim_dmabuf *dmabuf_create(uint64_t address, uint64_t bytes)
{
    const struct sim_range *range = sim_range_find(&sim_machine.addresses, address);
    const struct sim_mapping *first = sim_mapping_at(address);
    const size_t count = count_mappings(address, bytes);
    struct sim_dmabuf *dmabuf = calloc(1, sizeof(*dmabuf) + count * sizeof(dmabuf->part[0]));

    if (dmabuf == NULL)
        return NULL;
    dmabuf->address = address;
    dmabuf->bytes = bytes;
    dmabuf->allocation_id = first == NULL ? range->origin.number : 0;
    if (!create_dmabuf_file(dmabuf, first == NULL ? range->device : first->physical->device,
                            first == NULL ? range->origin.number
                                          : first->physical->origin.number)) {
        free(dmabuf);
        return NULL;
    }
    for (uint64_t at = address; dmabuf->count < count; dmabuf->count++) {
        const struct sim_mapping *mapping = sim_mapping_at(at);

        dmabuf->part[dmabuf->count] =
            (struct sim_dmabuf_part){mapping->physical, mapping->address, mapping->bytes};
        mapping->physical->dmabufs++;
        at = mapping->address + mapping->bytes;
    }
    dmabuf->next = sim_machine.dmabufs;
    sim_machine.dmabufs = dmabuf;
    return dmabuf;
}

static void dmabuf_close(struct sim_dmabuf *dmabuf)
{
    (void)close(dmabuf->file);
    free(dmabuf);
}

/* Unlike in a real driver, a dma-buf does not keep an allocation.  A free while the allocation is registered is reported. */
static void dmabuf_destroy(struct sim_dmabuf *dmabuf)
{
    for (size_t i = 0; i < dmabuf->count; i++) {
        dmabuf->part[i].physical->dmabufs--;
        sim_physical_free_if_unused(dmabuf->part[i].physical);
    }
    dmabuf_close(dmabuf);
}

void sim_dmabufs_free_unused(void)
{
    struct sim_dmabuf **at = &sim_machine.dmabufs;

    while (*at != NULL) {
        struct sim_dmabuf *dmabuf = *at;

        if (sim_file_is_locked(dmabuf->file, 0, 1)) {
            at = &dmabuf->next;
            continue;
        }
        *at = dmabuf->next;
        dmabuf_destroy(dmabuf);
    }
}

void sim_dmabufs_destroy(void)
{
    while (sim_machine.dmabufs != NULL) {
        struct sim_dmabuf *dmabuf = sim_machine.dmabufs;

        sim_machine.dmabufs = dmabuf->next;
        dmabuf_close(dmabuf);
    }
}

const struct sim_dmabuf *sim_dmabuf_find(int file)
{
    const struct sim_dmabuf *dmabuf = sim_machine.dmabufs;
    struct stat own, other;

    if (fstat(file, &other) != 0)
        return NULL;
    while (dmabuf != NULL && (dmabuf->inode != other.st_ino || fstat(dmabuf->file, &own) != 0 ||
                              own.st_dev != other.st_dev))
        dmabuf = dmabuf->next;
    return dmabuf;
}

bool sim_dmabuf_is_current(const struct sim_dmabuf *dmabuf, uint64_t offset, uint64_t bytes,
                           struct sim_conflict *conflict)
{
    const uint64_t address = dmabuf->address + offset;
    const struct sim_range *range = sim_range_find(&sim_machine.addresses, address);

    *conflict =
        (struct sim_conflict){address, "page was remapped after the descriptor was created"};
    if (dmabuf->allocation_id != 0)
        return range != NULL && range->granule == NULL &&
               range->origin.number == dmabuf->allocation_id;
    for (size_t i = 0; i < dmabuf->count; i++) {
        const struct sim_dmabuf_part *part = &dmabuf->part[i];
        const struct sim_mapping *mapping;

        if (part->address >= address + bytes || part->address + part->bytes <= address)
            continue;
        mapping = sim_mapping_at(part->address);
        conflict->address = max_address(part->address, address);
        if (mapping == NULL || mapping->physical != part->physical ||
            mapping->address != part->address || mapping->bytes != part->bytes)
            return false;
    }
    return true;
}

/* The descriptor is close-on-exec, as that of NVIDIA's kernel module. */
static CUresult get_range_handle(void *out, uint64_t address, uint64_t bytes, int type,
                                 unsigned long long flags)
{
    struct sim_dmabuf *dmabuf;
    struct sim_conflict conflict;
    CUresult result;
    int file;

    if (out == NULL || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || bytes == 0 ||
        address % sim_host_page_size() != 0 || bytes % sim_host_page_size() != 0 ||
        (flags & ~(unsigned long long)MAPPING_TYPE_PCIE) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    /* The devices have one mapping type. */
    if (sim_machine.config.without_dma_buf || flags != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = sim_dmabuf_check(address, bytes, &conflict);
    if (result != CUDA_SUCCESS)
        return result;
    sim_dmabufs_free_unused();
    dmabuf = dmabuf_create(address, bytes);
    file = dmabuf == NULL ? -1 : sim_file_open_locked(dmabuf->file, 0);
    if (file < 0) {
        result = dmabuf == NULL || errno == EMFILE || errno == ENFILE ? CUDA_ERROR_OUT_OF_MEMORY
                                                                      : CUDA_ERROR_OPERATING_SYSTEM;
        /* Destroy the new dma-buf, which has no open descriptor. */
        sim_dmabufs_free_unused();
        return result;
    }
    memcpy(out, &file, sizeof(file));
    return CUDA_SUCCESS;
}

SIM_ENTRY_AT(MEM_GET_RANGE_HANDLE, cuMemGetHandleForAddressRange,
             (void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType handleType,
              unsigned long long flags),
             dptr, 0, get_range_handle(handle, dptr, size, (int)handleType, flags));
