/* SPDX-License-Identifier: MIT */
/*
 * Free memory of a device.
 *
 * A device with its own memory reports its free memory by cuMemGetInfo.  An integrated device
 * (GB10, Jetson) uses the memory of the host, and its cuMemGetInfo counts the reclaimable page
 * cache of the host as used, which after some hours is most of the memory.  For such a device the
 * free memory is MemAvailable of /proc/meminfo, the kernel's estimate of the memory that can be
 * allocated without swapping, and cuMemGetInfo only if that file cannot be read.  The simulated
 * driver has a simulated host, whose statistics it writes in the same form.
 *
 * On an integrated device no allocation fails when memory is exhausted: the host swaps or stops
 * responding.  So some memory must remain free (xseg_device_free_min()).
 *
 * The query ignores swap space, because device memory cannot be swapped; pages of hugetlbfs; and
 * memory limits of control groups.
 */
#ifndef XSEG_VMM_FREE_MEMORY_H
#define XSEG_VMM_FREE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/driver.h"

/*
 * Query the free and the total memory of a device, in bytes.
 *
 * Returns: XSEG_OK; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 * Cost:    cuMemGetInfo; on an integrated device a read of /proc/meminfo instead
 */
xseg_status xseg_free_memory_query(struct xseg_context *context, uint64_t *free, uint64_t *total);

/* Find MemAvailable in the text of /proc/meminfo, in bytes.  Returns false if the text does not
 * contain it. */
bool xseg_free_memory_parse(const char *text, uint64_t *available);

#endif
