/* SPDX-License-Identifier: MIT */
/*
 * Memory by cuMemAlloc.
 *
 * Every allocation, however small, takes whole granules of 2 MiB: of addresses and of memory.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_MEMORY_H
#define XSEG_SIM_MEMORY_H

#include <cuda.h>
#include <stdint.h>

struct sim_range;
struct sim_store;

/** Free all allocations of a device. */
void sim_allocations_end(unsigned device);

/**
 * Addresses for memory of a device, with its contents shown there.  The store is taken over, also on
 * failure; the memory is not counted.
 *
 * Returns: NULL when addresses or host memory have run out
 */
struct sim_range *sim_allocation_make(unsigned device, uint64_t bytes,
                                      const struct sim_store *store);

/**
 * Free an allocation, or close one of another process, once all timed work of its device has ended.
 *
 * Returns: CUDA_ERROR_INVALID_VALUE when a host function that was waited for has freed it
 */
CUresult sim_allocation_free(struct sim_range *range);

#endif
