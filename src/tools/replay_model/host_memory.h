/* SPDX-License-Identifier: MIT */
/*
 * A summary of the pinned host memory of a recording.  PyTorch records host memory separately from the devices, if
 * record_pinned_host_memory=True, and no allocator of xseg allocates it.
 *
 * Locking: none.
 */
#ifndef TOOLS_HOST_MEMORY_H
#define TOOLS_HOST_MEMORY_H

#include "src/tools/replay_model/replay_model.h"

struct host_memory {
    bool is_recorded; /* false: all other members are 0 */
    size_t entries;
    uint64_t reserved, allocated;           /* bytes at the end */
    uint64_t peak_reserved, peak_allocated; /* highest bytes, not necessarily at one time */
};

struct host_memory_text {
    char text[256];
};

/*
 * Find the numbers.
 *
 * Returns: false if out of host memory
 * Cost:    one pass over the entries of host memory
 */
bool host_memory_init(struct host_memory *out, const struct recording *recording);

/* Describe: "pinned host memory at the end: reserved 12.00 MiB, allocated 4.00 MiB; highest: ..." */
struct host_memory_text host_memory_describe(const struct host_memory *memory);

#endif
