/* SPDX-License-Identifier: MIT */
/*
 * What the driver knows about an address.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_POINTER_H
#define XSEG_SIM_POINTER_H

#include <cuda.h>
#include <stdint.h>

/** The allocation or mapping at an address, as cuMemGetAddressRange answers. */
CUresult sim_pointer_range(uint64_t address, uint64_t *base, uint64_t *bytes);

#endif
