/* SPDX-License-Identifier: MIT */
#include "vmm/sim/mapping.h"

#include <stdlib.h>
#include <string.h>

#include "vmm/sim/contents.h"
#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"

#define ADDRESS_MIN ((uint64_t)0x200000000) /* small integers are not addresses */
#define ADDRESS_END ((uint64_t)1 << 47)
/* End of falling and shuffled addresses.  Code, heap and stacks of the process are above. */
#define ADDRESS_MIDDLE ((uint64_t)1 << 45)
/* Step of the search past mappings of the process. */
#define SEARCH_STEP ((uint64_t)1 << 38)

static uint64_t granule_count(uint64_t bytes)
{
    return bytes / SIM_GRANULE + (bytes % SIM_GRANULE != 0);
}

void sim_address_space_init(struct sim_address_space *addresses, uint64_t limit_bytes,
                            enum xseg_sim_address_order order)
{
    *addresses = (struct sim_address_space){
        .next = order == XSEG_SIM_ADDRESSES_FALLING ? ADDRESS_MIDDLE : ADDRESS_MIN,
        .limit_bytes = limit_bytes,
        .is_exhausted = order == XSEG_SIM_ADDRESSES_SHUFFLED,
        .order = order,
    };
}

void sim_address_space_destroy(struct sim_address_space *addresses)
{
    for (size_t i = 0; i < addresses->count; i++) {
        struct sim_range *range = addresses->range[i];

        if (range == NULL)
            continue;
        if (range->granule != NULL)
            sim_mappings_destroy(range);
        sim_contents_unreserve(range->base, granule_count(range->bytes) * SIM_GRANULE);
        free(range->granule);
        free(range);
    }
    free(addresses->range);
    free(addresses->base);
    memset(addresses, 0, sizeof(*addresses));
}

/* Remove the entries of destroyed ranges. */
static void compact_ranges(struct sim_address_space *addresses)
{
    size_t kept = 0;

    for (size_t i = 0; i < addresses->count; i++) {
        if (addresses->range[i] == NULL)
            continue;
        addresses->range[kept] = addresses->range[i];
        addresses->base[kept++] = addresses->base[i];
    }
    addresses->count = kept;
    addresses->freed = 0;
}

static bool reserve_entry(struct sim_address_space *addresses)
{
    const size_t capacity = addresses->capacity == 0 ? 64 : addresses->capacity * 2;
    struct sim_range **range;
    uint64_t *base;

    if (addresses->count < addresses->capacity)
        return true;
    range = realloc(addresses->range, capacity * sizeof(struct sim_range *));
    if (range != NULL)
        addresses->range = range;
    base = realloc(addresses->base, capacity * sizeof(*base));
    if (base != NULL)
        addresses->base = base;
    if (range == NULL || base == NULL)
        return false;
    addresses->capacity = capacity;
    return true;
}

/* Get the index of the first entry whose base is greater than an address. */
static size_t first_entry_above(const struct sim_address_space *addresses, uint64_t address)
{
    size_t low = 0, high = addresses->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (addresses->base[middle] <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Get the index of the last entry whose base is not greater than an address; count if there is none. */
static size_t last_entry_not_above(const struct sim_address_space *addresses, uint64_t address)
{
    const size_t above = first_entry_above(addresses, address);

    return above == 0 ? addresses->count : above - 1;
}

static uint64_t range_end(const struct sim_range *range)
{
    return range->base + granule_count(range->bytes) * SIM_GRANULE;
}

/* Get the base of the lowest gap from an address on, or 0. */
static uint64_t lowest_gap_from(const struct sim_address_space *addresses, uint64_t from,
                                uint64_t bytes, uint64_t mask)
{
    const size_t below = last_entry_not_above(addresses, from);
    uint64_t base = (from + mask) & ~mask;

    for (size_t i = below == addresses->count ? 0 : below; i < addresses->count; i++) {
        const struct sim_range *range = addresses->range[i];

        if (range == NULL || range_end(range) <= base)
            continue;
        if (base <= ADDRESS_END - bytes && base + bytes <= range->base)
            return base;
        base = (range_end(range) + mask) & ~mask;
    }
    return base <= ADDRESS_END - bytes ? base : 0;
}

/* Get the highest aligned base of a range that ends at or below an address, or 0. */
static uint64_t highest_base_below(uint64_t end, uint64_t bytes, uint64_t mask)
{
    const uint64_t base = end < bytes ? 0 : (end - bytes) & ~mask;

    return base < ADDRESS_MIN ? 0 : base;
}

/* Get the base of the highest gap below an address, or 0. */
static uint64_t highest_gap_below(const struct sim_address_space *addresses, uint64_t end,
                                  uint64_t bytes, uint64_t mask)
{
    uint64_t base = highest_base_below(end, bytes, mask);

    for (size_t i = first_entry_above(addresses, end - 1); base != 0 && i-- > 0;) {
        const struct sim_range *range = addresses->range[i];

        if (range == NULL)
            continue;
        if (range_end(range) <= base)
            break;
        base = highest_base_below(range->base, bytes, mask);
    }
    return base;
}

/* Draw a pseudo-random address with SplitMix64. */
static uint64_t draw_address(struct sim_address_space *addresses)
{
    uint64_t number = addresses->random_state += UINT64_C(0x9E3779B97F4A7C15);

    number = (number ^ number >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    number = (number ^ number >> 27) * UINT64_C(0x94D049BB133111EB);
    return ADDRESS_MIN + (number ^ number >> 31) % (ADDRESS_MIDDLE - ADDRESS_MIN);
}

/* Get the base of the next gap in the order of addresses, or 0.  A retry searches the whole address space. */
static uint64_t find_gap(struct sim_address_space *addresses, bool is_retry, uint64_t bytes,
                         uint64_t mask)
{
    switch (addresses->order) {
    case XSEG_SIM_ADDRESSES_FALLING:
        return highest_gap_below(addresses, is_retry ? ADDRESS_END : addresses->next, bytes, mask);
    case XSEG_SIM_ADDRESSES_SHUFFLED:
        return lowest_gap_from(addresses, is_retry ? ADDRESS_MIN : draw_address(addresses), bytes,
                               mask);
    default:
        return lowest_gap_from(addresses, is_retry ? ADDRESS_MIN : addresses->next, bytes, mask);
    }
}

/* Get a base for a range, or 0 if the limit or the addresses are exhausted. */
static uint64_t find_base(struct sim_address_space *addresses, uint64_t bytes, uint64_t alignment)
{
    const uint64_t mask = (alignment < SIM_GRANULE ? SIM_GRANULE : alignment) - 1;
    const uint64_t available = addresses->limit_bytes - addresses->reserved_bytes;

    if (addresses->external_bytes > available || bytes > available - addresses->external_bytes ||
        mask >= ADDRESS_END)
        return 0;
    const uint64_t base = find_gap(addresses, false, bytes, mask);
    if (base != 0)
        return base;
    if (!addresses->is_exhausted)
        compact_ranges(addresses);
    addresses->is_exhausted = true;
    return find_gap(addresses, true, bytes, mask);
}

/* As find_base(), and reserve the addresses in the process. */
static uint64_t find_free_base(struct sim_address_space *addresses, uint64_t bytes,
                               uint64_t alignment)
{
    /* Two passes over the address space. */
    for (uint64_t attempt = 0; attempt < 2 * (ADDRESS_END / SEARCH_STEP); attempt++) {
        const uint64_t base = find_base(addresses, bytes, alignment);

        if (base == 0 || sim_contents_reserve(base, bytes))
            return base;
        addresses->next =
            (base / SEARCH_STEP + (addresses->order != XSEG_SIM_ADDRESSES_FALLING)) * SEARCH_STEP;
    }
    return 0;
}

static void insert_range(struct sim_address_space *addresses, struct sim_range *range)
{
    const size_t at = first_entry_above(addresses, range->base), following = addresses->count - at;

    memmove(&addresses->range[at + 1], &addresses->range[at],
            following * sizeof(struct sim_range *));
    memmove(&addresses->base[at + 1], &addresses->base[at], following * sizeof(uint64_t));
    addresses->range[at] = range;
    addresses->base[at] = range->base;
    addresses->count++;
    addresses->next =
        addresses->order == XSEG_SIM_ADDRESSES_FALLING ? range->base : range_end(range);
}

/* Allocate a range, with a table of granules for a reservation. */
static struct sim_range *range_allocate(uint64_t granules)
{
    struct sim_range *range = calloc(1, sizeof(*range));

    if (range == NULL || granules == 0)
        return range;
    range->granule = calloc(granules, sizeof(struct sim_mapping *));
    if (range->granule != NULL)
        return range;
    free(range);
    return NULL;
}

struct sim_range *sim_range_create(struct sim_address_space *addresses, uint64_t bytes,
                                   uint64_t alignment, bool is_reservation)
{
    const uint64_t granules = granule_count(bytes), whole = granules * SIM_GRANULE;
    const uint64_t base = bytes > ADDRESS_END || !reserve_entry(addresses)
                              ? 0
                              : find_free_base(addresses, whole, alignment);
    struct sim_range *range;

    if (base == 0)
        return NULL;
    range = range_allocate(is_reservation ? granules : 0);
    if (range == NULL) {
        sim_contents_unreserve(base, whole);
        return NULL;
    }
    range->base = base;
    range->origin = sim_origin_of_call();
    range->bytes = bytes;
    insert_range(addresses, range);
    addresses->reserved_bytes += whole;
    if (is_reservation)
        addresses->reservations++;
    else
        addresses->allocations++;
    return range;
}

struct sim_range *sim_range_find(const struct sim_address_space *addresses, uint64_t address)
{
    const size_t at = last_entry_not_above(addresses, address);
    struct sim_range *range;

    if (at == addresses->count)
        return NULL;
    range = addresses->range[at];
    return range != NULL && address - range->base < range->bytes ? range : NULL;
}

void sim_range_destroy(struct sim_address_space *addresses, struct sim_range *range)
{
    addresses->range[last_entry_not_above(addresses, range->base)] = NULL;
    addresses->freed++;
    addresses->reserved_bytes -= granule_count(range->bytes) * SIM_GRANULE;
    sim_contents_unreserve(range->base, granule_count(range->bytes) * SIM_GRANULE);
    if (range->granule != NULL)
        addresses->reservations--;
    else
        addresses->allocations--;
    free(range->granule);
    free(range);
    /* A reused address must not have the entry of a destroyed range. */
    if (addresses->is_exhausted ||
        (addresses->freed >= 64 && addresses->freed * 2 >= addresses->count))
        compact_ranges(addresses);
}

static CUresult reserve_addresses(CUdeviceptr *out, size_t bytes, size_t alignment,
                                  CUdeviceptr hint, unsigned long long flags)
{
    const struct sim_range *range;

    if (out == NULL || bytes == 0 || bytes % sim_host_page_size() != 0 ||
        hint % sim_host_page_size() != 0 || (alignment & (alignment - 1)) != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_clock_charge(sim_machine.config.costs.reserve);
    range = sim_range_create(&sim_machine.addresses, bytes, alignment, true);
    if (range == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = range->base;
    return CUDA_SUCCESS;
}

static CUresult free_addresses(CUdeviceptr address, size_t bytes)
{
    struct sim_range *range = sim_range_find(&sim_machine.addresses, address);

    if (range == NULL || range->granule == NULL || range->base != address ||
        range->bytes != bytes || range->mapped_granules != 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_clock_charge(sim_machine.config.costs.address_free);
    sim_range_destroy(&sim_machine.addresses, range);
    return CUDA_SUCCESS;
}

/* The address hint is ignored. */
SIM_ENTRY(MEM_ADDRESS_RESERVE, cuMemAddressReserve,
          (CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
           unsigned long long flags),
          reserve_addresses(ptr, size, alignment, addr, flags));
SIM_ENTRY_AT(MEM_ADDRESS_FREE, cuMemAddressFree, (CUdeviceptr ptr, size_t size), ptr, 0,
             free_addresses(ptr, size));

void xseg_sim_set_external_addresses(uint64_t bytes)
{
    sim_lock();
    sim_machine.addresses.external_bytes = bytes;
    sim_unlock();
}
