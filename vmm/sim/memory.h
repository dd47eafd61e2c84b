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

/** Free all allocations of a device. */
void sim_allocations_end(unsigned device);

#endif
