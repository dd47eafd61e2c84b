/* SPDX-License-Identifier: MIT */
/*
 * Physical memory and its mappings.
 *
 * Physical memory is what cuMemCreate made.  It is freed when nothing refers to it any more: no
 * reference of the program (one from the creation, one from each cuMemRetainAllocationHandle), no
 * mapping and no dma-buf (dmabuf.h).  A mapping shows the first bytes of it at an address, with access rights for each
 * device; a fresh mapping has none.
 *
 * Invariants: a mapping lies in one reservation and is named by exactly the granules it covers;
 * physical->mappings counts the mappings of it.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_MAPPING_H
#define XSEG_SIM_MAPPING_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/sim/bytes.h"
#include "vmm/sim/origin.h"

struct sim_range;

struct sim_physical {
    uint64_t handle;
    uint64_t bytes;
    unsigned device;
    uint64_t references, mappings;
    uint64_t dmabufs; /* pieces of dma-bufs that keep it */
    CUmemAllocationProp prop;
    struct sim_store store;
    struct sim_origin origin;
    bool is_imported; /* from a file; another handle accounts for it */
    bool is_exported; /* not imported, and its file has the label that importers read */
    bool is_pinned;   /* nothing here refers to it, but others hold it */
};

struct sim_mapping {
    struct sim_physical *physical;
    uint64_t address, bytes;
    uint64_t accessible; /* a bit for each device */
    struct sim_origin origin;
};

/** The memory of a handle that the program still has a reference to, or NULL. */
struct sim_physical *sim_physical_find(CUmemGenericAllocationHandle handle);

/** Free it if nothing refers to it any more. */
void sim_physical_settle(struct sim_physical *physical);

/** Free what was kept because others held it, where they do so no longer. */
void sim_physical_settle_pinned(void);

/**
 * An object for memory, with one reference.
 *
 * @param store  its contents; taken over, also on failure
 *
 * Returns: NULL when there is no host memory
 */
struct sim_physical *sim_physical_make(const CUmemAllocationProp *prop, uint64_t bytes,
                                       const struct sim_store *store);

/** Whether a descriptor of an export is open, or an importer has the memory. */
bool sim_export_is_held(const struct sim_physical *physical);

/** Release the lock by which the exporter sees imported memory, unless another handle imports it. */
void sim_export_unlock(const struct sim_physical *physical);

/**
 * Open a file of this process anew, and lock a byte of it until all descriptors that come of that are closed.
 *
 * Returns: the descriptor, whose position is the byte; -1 with errno
 */
int sim_file_open_locked(int file, uint64_t byte);

/** Whether another open file has locked one of `count` bytes. */
bool sim_file_is_locked(int file, uint64_t byte, uint64_t count);

/** End all mappings in a reservation; for the end of the machine. */
void sim_mappings_end(struct sim_range *range);

/** End all physical memory; for the end of the machine. */
void sim_physical_end(void);

/** The mapping at an address, or NULL. */
struct sim_mapping *sim_mapping_at(uint64_t address);

#endif
