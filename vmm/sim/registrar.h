/* SPDX-License-Identifier: MIT */
/*
 * Registrars: libraries and kernel modules that register memory for their devices, such as network libraries.
 *
 * A registration is an address range that a device accesses until xseg_sim_unregister().  The requirements on the memory
 * depend on the registrar (enum xseg_sim_registrar).
 *
 *   PEERMEM   the range is in one mapping or allocation, and the first page can have a dma-buf.
 *   DMABUF    the mapping or allocation that cuMemGetAddressRange returns contains the range and can have a dma-buf.
 *   NCCL      cuMemGetAddressRange returns every mapping of the range, and the range can have one dma-buf.
 *
 * sim_dmabuf_check() checks the pages: mapped, accessible to their device, created with gpuDirectRDMACapable, and with
 * the properties of the first page.  The error message names the first page that does not meet the requirements.
 *
 * In strict mode the unmap or free of registered memory ends the process with a report.
 *
 * Invariants: registrations->bytes is the sum of the sizes of all registrations; IDs are unique in the process.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_REGISTRAR_H
#define XSEG_SIM_REGISTRAR_H

#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/report.h"

struct sim_mapping;
struct sim_range;

struct sim_registration {
    uint64_t id;
    uint64_t address, bytes;
    const char *registrar; /* name in messages, such as "NCCL" */
    struct sim_origin origin;
};

struct sim_registrations {
    struct sim_registration *registration;
    size_t count, capacity;
    uint64_t bytes;
    uint64_t created; /* number of registrations since the reset */
};

/** End the process with a report if a part of a mapping or allocation is registered. */
void sim_registrations_check_mapping(const struct sim_mapping *mapping);
void sim_registrations_check_allocation(const struct sim_range *range);

/** Remove all registrations. */
void sim_registrations_destroy(void);

#endif
