/* SPDX-License-Identifier: MIT */
#include "vmm/sim/registrar.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/sim/dmabuf.h"
#include "vmm/sim/host.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/pointer.h"
#include "vmm/sim/refusal.h"
#include "vmm/sim/touch.h"

/* What somebody wants registered. */
struct wish {
    uint64_t address, bytes;
};

static uint64_t page_address(uint64_t address)
{
    return address - address % sim_host_page();
}

/* The operation in the messages of both entry points is sim_machine.current. */
static xseg_status reject_page(xseg_status status, const struct wish *wish,
                               const struct sim_gap *gap)
{
    return sim_refuse(status, "%s: %s, 0x%" PRIx64 " (range: %" PRIu64 " bytes at 0x%" PRIx64 ")",
                      sim_machine.current, gap->why, gap->address, wish->bytes, wish->address);
}

/* All of it must lie in one allocation, which is told whole. */
static xseg_status check_range_end(const struct wish *wish, uint64_t base, uint64_t bytes)
{
    const uint64_t covered = bytes - (wish->address - base);

    if (wish->bytes <= covered)
        return XSEG_OK;
    return sim_refuse(XSEG_ERR_ARGUMENT,
                      "%s: range exceeds its mapping or allocation, %" PRIu64 " bytes at 0x%" PRIx64
                      "; end the range at 0x%" PRIx64 " or before",
                      sim_machine.current, wish->bytes, wish->address, base + bytes);
}

/* The pages of a range have to be such as a dma-buf wants. */
static xseg_status check_pages(const struct wish *wish, uint64_t address, uint64_t bytes)
{
    const uint64_t first = page_address(address);
    const uint64_t whole = page_address(address + bytes - 1) + sim_host_page() - first;
    struct sim_gap gap;
    const CUresult result = sim_dmabuf_check(first, whole, &gap);

    if (result == CUDA_SUCCESS)
        return XSEG_OK;
    return reject_page(
        result == CUDA_ERROR_NOT_SUPPORTED ? XSEG_ERR_UNSUPPORTED : XSEG_ERR_ARGUMENT, wish, &gap);
}

/* The allocation at an address, as cuMemGetAddressRange tells it. */
static xseg_status find_address_range(const struct wish *wish, uint64_t address, uint64_t *base,
                                      uint64_t *bytes)
{
    struct sim_gap gap = {page_address(address), "page is not mapped"};

    if (sim_pointer_range(address, base, bytes) == CUDA_SUCCESS)
        return XSEG_OK;
    if (sim_mapping_at(address) == NULL)
        return reject_page(XSEG_ERR_ARGUMENT, wish, &gap);
    gap.why = "page is not found by cuMemGetAddressRange";
    return reject_page(XSEG_ERR_UNSUPPORTED, wish, &gap);
}

/* Needs no answer of cuMemGetAddressRange: the kernel's module looks at the memory itself. */
static xseg_status check_peermem(const struct wish *wish)
{
    const xseg_status status = check_pages(wish, wish->address, 1);
    const struct sim_mapping *mapping = sim_mapping_at(wish->address);
    const struct sim_range *range;

    if (status != XSEG_OK)
        return status;
    if (mapping != NULL)
        return check_range_end(wish, mapping->address, mapping->bytes);
    range = sim_range_find(&sim_machine.addresses, wish->address);
    return check_range_end(wish, range->base, range->bytes);
}

static xseg_status check_dmabuf(const struct wish *wish)
{
    uint64_t base, bytes;
    xseg_status status;

    if (sim_machine.without_dma_buf)
        return sim_refuse(XSEG_ERR_UNSUPPORTED,
                          "%s: dma-bufs are not supported by the simulated machine",
                          sim_machine.current);
    status = find_address_range(wish, wish->address, &base, &bytes);
    if (status == XSEG_OK)
        status = check_range_end(wish, base, bytes);
    return status == XSEG_OK ? check_pages(wish, base, bytes) : status;
}

/* NCCL walks over mapped memory and asks for one dma-buf of all of it.  Without dma-bufs it has nvidia_peermem. */
static xseg_status check_nccl(const struct wish *wish)
{
    const uint64_t end = wish->address + wish->bytes;
    uint64_t base, bytes;

    for (uint64_t at = wish->address; at < end; at = base + bytes) {
        const xseg_status status = find_address_range(wish, at, &base, &bytes);

        if (status != XSEG_OK)
            return status;
        if (sim_machine.without_dma_buf)
            return check_peermem(wish);
        if (sim_mapping_at(at) == NULL)
            break;
    }
    return check_pages(wish, wish->address, wish->bytes);
}

/* Returns: false when there is no host memory */
static bool reserve_registration(struct sim_registrations *registrations)
{
    const size_t capacity = registrations->capacity == 0 ? 16 : registrations->capacity * 2;
    struct sim_registration *registration;

    if (registrations->count < registrations->capacity)
        return true;
    registration = realloc(registrations->registration, capacity * sizeof(*registration));
    if (registration == NULL)
        return false;
    registrations->registration = registration;
    registrations->capacity = capacity;
    return true;
}

static xseg_status add_registration(const struct wish *wish, const char *registrar, uint64_t *id)
{
    struct sim_registrations *registrations = &sim_machine.registrations;

    if (!reserve_registration(registrations))
        return sim_refuse(XSEG_ERR_HOST_MEMORY, "%s: out of host memory, registration",
                          sim_machine.current);
    registrations->registration[registrations->count++] = (struct sim_registration){
        .id = ++sim_machine.last_registration,
        .address = wish->address,
        .bytes = wish->bytes,
        .registrar = registrar,
        .origin = sim_origin_here(),
    };
    registrations->bytes += wish->bytes;
    registrations->made++;
    *id = sim_machine.last_registration;
    return XSEG_OK;
}

static xseg_status check_request(const struct wish *wish, const uint64_t *id)
{
    if (id == NULL)
        return sim_refuse(XSEG_ERR_ARGUMENT,
                          "%s: id is NULL; pass the address of a variable for the ID",
                          sim_machine.current);
    if (wish->bytes == 0 || wish->bytes > UINT64_MAX - sim_host_page() - wish->address)
        return sim_refuse(XSEG_ERR_ARGUMENT,
                          "%s: range is empty or wraps around, %" PRIu64 " bytes at 0x%" PRIx64,
                          sim_machine.current, wish->bytes, wish->address);
    if (sim_machine.rdma == XSEG_SIM_RDMA_ABSENT)
        return sim_refuse(XSEG_ERR_UNSUPPORTED,
                          "%s: RDMA is not supported by the simulated machine",
                          sim_machine.current);
    return XSEG_OK;
}

static const struct {
    const char *name;
    xseg_status (*check)(const struct wish *wish);
} registrars[] = {
    [XSEG_SIM_PEERMEM] = {"nvidia_peermem", check_peermem},
    [XSEG_SIM_DMABUF] = {"dma-buf user", check_dmabuf},
    [XSEG_SIM_NCCL] = {"NCCL", check_nccl},
};

static xseg_status register_range(const struct wish *wish, enum xseg_sim_registrar kind,
                                  uint64_t *id)
{
    const unsigned number = (unsigned)kind;
    xseg_status status = check_request(wish, id);

    if (status != XSEG_OK)
        return status;
    if (number >= sizeof(registrars) / sizeof(registrars[0]))
        return sim_refuse(XSEG_ERR_ARGUMENT,
                          "%s: unknown kind, %u; pass a value of enum xseg_sim_registrar",
                          sim_machine.current, number);
    status = registrars[number].check(wish);
    return status == XSEG_OK ? add_registration(wish, registrars[number].name, id) : status;
}

static xseg_status register_descriptor(int file, uint64_t offset, uint64_t bytes, uint64_t *id)
{
    const struct sim_dmabuf *dmabuf;
    struct wish wish = {.bytes = bytes};
    struct sim_gap gap;
    xseg_status status;

    sim_dmabufs_settle();
    dmabuf = sim_dmabuf_find(file);
    if (dmabuf == NULL)
        return sim_refuse(XSEG_ERR_ARGUMENT,
                          "%s: descriptor is not a dma-buf of this process, %d; pass a descriptor "
                          "of cuMemGetHandleForAddressRange",
                          sim_machine.current, file);
    if (offset > dmabuf->bytes || bytes > dmabuf->bytes - offset)
        return sim_refuse(XSEG_ERR_ARGUMENT,
                          "%s: range exceeds the dma-buf of %" PRIu64 " bytes, %" PRIu64
                          " bytes at offset %" PRIu64,
                          sim_machine.current, dmabuf->bytes, bytes, offset);
    wish.address = dmabuf->address + offset;
    status = check_request(&wish, id);
    if (status != XSEG_OK)
        return status;
    if (!sim_dmabuf_is_current(dmabuf, offset, bytes, &gap))
        return reject_page(XSEG_ERR_ARGUMENT, &wish, &gap);
    return add_registration(&wish, "descriptor user", id);
}

static xseg_status remove_registration(uint64_t id)
{
    struct sim_registrations *registrations = &sim_machine.registrations;
    struct sim_registration *registration = registrations->registration;

    for (size_t i = 0; i < registrations->count; i++) {
        if (registration[i].id != id)
            continue;
        registrations->bytes -= registration[i].bytes;
        registrations->count--;
        memmove(&registration[i], &registration[i + 1],
                (registrations->count - i) * sizeof(registration[0]));
        return XSEG_OK;
    }
    return sim_refuse(XSEG_ERR_ARGUMENT,
                      "xseg_sim_unregister: unknown registration, ID %" PRIu64
                      "; pass the ID of a registration that has not ended",
                      id);
}

/* The first registration that has some of that, or NULL. */
static const struct sim_registration *find_registration(uint64_t address, uint64_t bytes)
{
    const struct sim_registrations *registrations = &sim_machine.registrations;

    for (size_t i = 0; i < registrations->count; i++) {
        const struct sim_registration *registration = &registrations->registration[i];

        if (registration->address < address + bytes &&
            address < registration->address + registration->bytes)
            return registration;
    }
    return NULL;
}

static void report_registration(const struct sim_registration *holder)
{
    sim_report_line("registration:", &holder->origin,
                    "ID %" PRIu64 ", %" PRIu64 " bytes at 0x%" PRIx64 " for %s, created",
                    holder->id, holder->bytes, holder->address, holder->registrar);
    sim_report_end();
}

void sim_registrar_check_mapping(const struct sim_mapping *mapping)
{
    const struct sim_registration *holder = find_registration(mapping->address, mapping->bytes);

    if (holder == NULL)
        return;
    sim_report_begin("memory is registered; call xseg_sim_unregister() first");
    sim_report_mapping(mapping);
    report_registration(holder);
}

void sim_registrar_check_allocation(const struct sim_range *range)
{
    const struct sim_registration *holder = find_registration(range->base, range->bytes);

    if (holder == NULL)
        return;
    sim_report_begin("memory is registered; call xseg_sim_unregister() first");
    sim_report_allocation(range);
    report_registration(holder);
}

void sim_registrations_end(void)
{
    free(sim_machine.registrations.registration);
    sim_machine.registrations = (struct sim_registrations){.count = 0};
}

xseg_status xseg_sim_register(uint64_t address, uint64_t bytes, enum xseg_sim_registrar kind,
                              uint64_t *id)
{
    const struct wish wish = {address, bytes};
    xseg_status status;

    sim_lock();
    sim_machine.current = "xseg_sim_register";
    status = register_range(&wish, kind, id);
    sim_machine.current = NULL;
    sim_unlock();
    return status;
}

xseg_status xseg_sim_register_descriptor(int file, uint64_t offset, uint64_t bytes, uint64_t *id)
{
    xseg_status status;

    sim_lock();
    sim_machine.current = "xseg_sim_register_descriptor";
    status = register_descriptor(file, offset, bytes, id);
    sim_machine.current = NULL;
    sim_unlock();
    return status;
}

xseg_status xseg_sim_unregister(uint64_t id)
{
    xseg_status status;

    sim_lock();
    status = remove_registration(id);
    sim_unlock();
    return status;
}

uint64_t xseg_sim_registered(void)
{
    uint64_t bytes;

    sim_lock();
    bytes = sim_machine.registrations.bytes;
    sim_unlock();
    return bytes;
}

uint64_t xseg_sim_registrations(void)
{
    uint64_t made;

    sim_lock();
    made = sim_machine.registrations.made;
    sim_unlock();
    return made;
}
