/* SPDX-License-Identifier: MIT */
/*
 * What a device and its driver can do: what they say of themselves, and what a trial shows.
 *
 * Terms:
 *   answer   the value of an attribute; PROBE_UNKNOWN when the driver does not know the attribute
 *   trial    an error number, 0 when it went well; PROBE_UNTRIED when there was no reason to try
 */
#ifndef TOOLS_PROBE_DEVICE_H
#define TOOLS_PROBE_DEVICE_H

#include "src/tools/commands/probe/probe_driver.h"

#define PROBE_UNKNOWN (-1)
#define PROBE_UNTRIED (-1)

struct probe_device {
    char name[96];
    int ordinal, devices, version;
    uint64_t free_bytes, total_bytes;
    int major, minor;
    uint64_t granularity, best_granularity;      /* 0: not told */
    int has_vmm, has_file, has_fabric, has_rdma; /* answers */
    /* Trials: memory that can be shared by file descriptor or fabric, or reached by other hardware. */
    int file_trial, fabric_trial, rdma_trial;
    /* Trials: two pages, mapped, made accessible and unmapped in one call each, else one by one. */
    int vmm_trial, access_trial, unmap_trial;
    const char *vmm_call; /* that vmm_trial is the error of */
    bool is_partition;    /* a hint: a MIG instance, by its name */
    bool is_wsl;          /* a hint: Linux inside Windows, by its device file */
};

/* Fill in what there is to know.  Failed calls are noted, and leave their member at 0 or unknown. */
void probe_device_describe(struct probe_driver *driver, int ordinal, struct probe_device *device);

/* Whether xseg would use expandable segments on it. */
bool probe_device_is_expandable(const struct probe_device *device);

#endif
