/* SPDX-License-Identifier: MIT */
/*
 * Memory: physical memory (cuMemCreate), allocations (cuMemAlloc), and pinned host memory.
 *
 * Physical memory belongs to a device and has a size, properties and a reference count.  Its references are the
 * creation, each cuMemRetainAllocationHandle, each mapping, and each dma-buf.  The memory is freed when none is left,
 * and other processes do not use it (sharing.h).  Until then it is charged to the device.
 *
 * An allocation is an address range (mapping.h) with memory.  It occupies whole granules of 2 MiB, however small it is.
 * Freeing it waits for all work of the device that has an end, as the real call does; work without an end continues,
 * because only an explicit wait may complete it.
 *
 * Pinned host memory is memory of the process that cuMemHostAlloc allocated or cuMemHostRegister registered.  An
 * asynchronous copy accesses pinned memory when the copy is executed, and pageable memory before the call returns.
 *
 * contents.h has the contents of all of them.
 *
 * Invariants: physical->mappings and physical->dmabufs count the mappings and dma-buf parts that refer to the memory;
 * the used memory of a device is the sum of its physical memory that is not imported and of its allocations, in granules.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_MEMORY_H
#define XSEG_SIM_MEMORY_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/contents.h"
#include "vmm/sim/report.h"

struct sim_range;

/** Memory of cuMemCreate. */
struct sim_physical {
    uint64_t handle;
    uint64_t bytes;
    unsigned device;
    uint64_t references, mappings, dmabufs;
    CUmemAllocationProp prop;
    struct sim_store store;
    struct sim_origin origin;
    bool is_imported;      /* charged to the exporter */
    bool is_exported;      /* the label has been written */
    bool is_export_in_use; /* only importers and open descriptors use it */
};

/** Pinned host memory. */
struct sim_pinned {
    struct sim_pinned *next;
    uint64_t base, bytes;
    bool is_registered; /* by cuMemHostRegister; the application owns the memory */
    struct sim_origin origin;
};

/** Get the physical memory of a handle to which the application has a reference, or NULL. */
struct sim_physical *sim_physical_find(CUmemGenericAllocationHandle handle);

/**
 * Create physical memory with one reference.  Does not charge the device.
 *
 * @param store  contents; ownership passes to the memory, also on failure.
 *
 * Returns NULL on host allocation failure.
 */
struct sim_physical *sim_physical_create(const CUmemAllocationProp *prop, uint64_t bytes,
                                         const struct sim_store *store);

/** Free physical memory if it has no reference. */
void sim_physical_free_if_unused(struct sim_physical *physical);

/** Free exported memory and dma-bufs that others have stopped using. */
void sim_physical_free_unused_exports(void);

/** Destroy all physical memory. */
void sim_physical_destroy_all(void);

/**
 * Create the address range of an allocation and map its contents.  Does not charge the device.
 *
 * @param store  contents; ownership passes to the range, also on failure.
 *
 * Returns NULL if addresses or host memory are exhausted.
 */
struct sim_range *sim_allocation_create(unsigned device, uint64_t bytes,
                                        const struct sim_store *store);

/**
 * Free an allocation, or close an allocation of another process, after waiting for the work of its device.
 *
 * Returns CUDA_ERROR_INVALID_VALUE if a host function has freed the allocation during the wait.
 */
CUresult sim_allocation_free(struct sim_range *range);

/** Free all allocations of a device. */
void sim_allocations_destroy(unsigned device);

/** Get the pinned memory that contains an address, or NULL. */
const struct sim_pinned *sim_pinned_find(uint64_t address);

/** Get whether one piece of pinned memory contains a range. */
bool sim_pinned_contains(uint64_t address, uint64_t bytes);

/** Get the number of pieces of pinned memory, and one of them in *example. */
size_t sim_pinned_count(const struct sim_pinned **example);

/** Release all pinned memory. */
void sim_pinned_destroy_all(void);

#endif
