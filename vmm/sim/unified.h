/* SPDX-License-Identifier: MIT */
/*
 * Unified memory: the memory that the devices of an integrated machine share with the host.
 *
 * With the setting `integrated` the memory of a device is the memory of the host, as on GB10 and Jetson:
 *
 *     memory_bytes = device memory of all processes + host memory + page cache + free memory
 *
 * Host memory is the memory of host programs (xseg_sim_set_host_memory()) and the pinned memory of this process.  The
 * page cache holds contents of files and is reclaimable: an allocation that exceeds the free memory shrinks it.  So
 * MemAvailable of the host is free memory + page cache, but cuMemGetInfo reports the free memory only.
 *
 * If device memory and host memory exceed memory_bytes, a real host swaps or stops responding, and no call fails.  In
 * strict mode the process then ends with a report; otherwise the allocation runs out of memory.
 *
 * A shared machine has one host, whose memory each process can set.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_UNIFIED_H
#define XSEG_SIM_UNIFIED_H

#include <stdbool.h>
#include <stdint.h>

/** Memory of the host of an integrated machine. */
struct sim_host {
    uint64_t bytes;            /* of host programs, without pinned memory of this process */
    uint64_t page_cache_bytes; /* reclaimable */
};

/** Get the memory of host programs and of pinned memory; 0 unless the machine is integrated. */
uint64_t sim_host_used(void);

/** Get the free memory of a device as the driver reports it. */
uint64_t sim_memory_reported_free(unsigned device);

/**
 * Get whether a device has memory for an allocation.
 *
 * On an integrated machine in strict mode, missing memory ends the process with a report.
 */
bool sim_memory_suffices(unsigned device, uint64_t bytes);

/** Shrink the page cache to the memory that devices and host programs do not use. */
void sim_host_reclaim(void);

#endif
