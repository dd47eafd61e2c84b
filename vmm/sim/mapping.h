/* SPDX-License-Identifier: MIT */
/*
 * Virtual address space: reservations, mappings and access rights.
 *
 * An address range is a reservation (cuMemAddressReserve) or an allocation (cuMemAlloc).  It is aligned to 2 MiB at
 * least and occupies whole granules of 2 MiB.  A mapping shows a prefix of physical memory in a reservation, with one
 * access bit per device; a new mapping has none.  A reservation has a table with the mapping of each granule:
 *
 *     reservation   base                                             base + bytes
 *     granule[]     [ A ][ A ][ NULL ][ B ][ NULL ][ NULL ][ C ][ C ]
 *
 * cuMemUnmap and cuMemSetAccess process a run of whole mappings without gaps.  A fault can stop them after some
 * mappings, as a real driver may do.
 *
 * Order of addresses.  In rising order each range is placed above all earlier ones, so that a stale address does not
 * become valid again; falling order mirrors this.  When the addresses of 128 TiB are exhausted, the next gap after the
 * previous range is used, and the search wraps around.  In shuffled order, ranges are placed in the first gap from a
 * pseudo-random address on.  Addresses where the process has a mapping are skipped if memory has contents.
 *
 * The array of ranges is sorted by base.  A lookup is a binary search, O(log n) in the number of ranges.  A destroyed
 * range leaves a NULL entry, and the array is compacted when half of its entries are NULL.
 *
 * Invariants: ranges do not overlap and are sorted.  reserved_bytes does not exceed limit_bytes.  No address is 2^47 or
 * more.  A mapping belongs to one reservation, whose table refers to it in exactly the granules that it covers.  Once
 * is_exhausted is set, the array contains no NULL entries.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_MAPPING_H
#define XSEG_SIM_MAPPING_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/memory.h"
#include "vmm/sim/report.h"
#include "xseg/sim.h"

struct sim_mapping {
    struct sim_physical *physical;
    uint64_t address, bytes;
    uint64_t accessible; /* bit mask of devices with read and write access */
    struct sim_origin origin;
};

struct sim_range {
    uint64_t base, bytes; /* as requested */
    unsigned device;      /* of an allocation */
    /* Reservation: mapping of each granule, or NULL.  Allocation: NULL. */
    struct sim_mapping **granule;
    uint64_t mapped_granules;
    struct sim_origin origin;
    struct sim_store store; /* of an allocation */
    bool sync_memops;       /* of an allocation: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS */
    /* Allocation of another process (cuIpcOpenMemHandle): the process, the ID of the allocation there, and the number of
     * opens. */
    bool is_ipc;
    int process;
    uint64_t exporter_id, open_count;
};

struct sim_address_space {
    struct sim_range **range; /* NULL: destroyed */
    uint64_t *base;           /* base of each entry, also of destroyed ones */
    size_t count, capacity, freed;
    size_t reservations, allocations; /* numbers of live ranges */
    uint64_t next;                    /* address where the search for a gap starts */
    uint64_t reserved_bytes, limit_bytes;
    uint64_t external_bytes; /* xseg_sim_set_external_addresses() */
    bool is_exhausted;       /* addresses are reused */
    enum xseg_sim_address_order order;
    uint64_t random_state; /* shuffled order */
};

void sim_address_space_init(struct sim_address_space *addresses, uint64_t limit_bytes,
                            enum xseg_sim_address_order order);
void sim_address_space_destroy(struct sim_address_space *addresses);

/**
 * Create an address range.
 *
 * @param alignment  power of two.
 *
 * Returns NULL if addresses or host memory are exhausted.
 */
struct sim_range *sim_range_create(struct sim_address_space *addresses, uint64_t bytes,
                                   uint64_t alignment, bool is_reservation);

/** Destroy an address range.  A reservation must not have mappings. */
void sim_range_destroy(struct sim_address_space *addresses, struct sim_range *range);

/** Get the range that contains an address, or NULL. */
struct sim_range *sim_range_find(const struct sim_address_space *addresses, uint64_t address);

/** Get the mapping that contains an address, or NULL. */
struct sim_mapping *sim_mapping_at(uint64_t address);

/** Destroy all mappings of a reservation. */
void sim_mappings_destroy(struct sim_range *range);

/** Get the mapping or allocation that contains an address, as cuMemGetAddressRange does. */
CUresult sim_address_range(uint64_t address, uint64_t *base, uint64_t *bytes);

#endif
