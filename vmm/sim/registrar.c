/* SPDX-License-Identifier: MIT */
#include "vmm/sim/registrar.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"

/* Range to register. */
struct request {
    uint64_t address, bytes;
};

static uint64_t page_address(uint64_t address)
{
    return address - address % sim_host_page_size();
}

/* sim_machine.current_call is the operation in the messages of both entry points. */
static xseg_status reject_page(xseg_status status, const struct request *request,
                               const struct sim_conflict *conflict)
{
    return sim_error(status, "%s: %s, 0x%" PRIx64 " (range: %" PRIu64 " bytes at 0x%" PRIx64 ")",
                     sim_machine.current_call, conflict->reason, conflict->address, request->bytes,
                     request->address);
}

/* Check that the range is in one mapping or allocation. */
static xseg_status check_range_end(const struct request *request, uint64_t base, uint64_t bytes)
{
    const uint64_t covered = bytes - (request->address - base);

    if (request->bytes <= covered)
        return XSEG_OK;
    return sim_error(XSEG_ERR_ARGUMENT,
                     "%s: range exceeds its mapping or allocation, %" PRIu64 " bytes at 0x%" PRIx64
                     "; end the range at 0x%" PRIx64 " or before",
                     sim_machine.current_call, request->bytes, request->address, base + bytes);
}

/* Check that the pages of a range can have a dma-buf. */
static xseg_status check_pages(const struct request *request, uint64_t address, uint64_t bytes)
{
    const uint64_t first = page_address(address);
    const uint64_t whole = page_address(address + bytes - 1) + sim_host_page_size() - first;
    struct sim_conflict conflict;
    const CUresult result = sim_dmabuf_check(first, whole, &conflict);

    if (result == CUDA_SUCCESS)
        return XSEG_OK;
    return reject_page(result == CUDA_ERROR_NOT_SUPPORTED ? XSEG_ERR_UNSUPPORTED
                                                          : XSEG_ERR_ARGUMENT,
                       request, &conflict);
}

/* Get the mapping or allocation at an address, as cuMemGetAddressRange does. */
static xseg_status find_address_range(const struct request *request, uint64_t address,
                                      uint64_t *base, uint64_t *bytes)
{
    struct sim_conflict conflict = {page_address(address), "page is not mapped"};

    if (sim_address_range(address, base, bytes) == CUDA_SUCCESS)
        return XSEG_OK;
    if (sim_mapping_at(address) == NULL)
        return reject_page(XSEG_ERR_ARGUMENT, request, &conflict);
    conflict.reason = "page is not found by cuMemGetAddressRange";
    return reject_page(XSEG_ERR_UNSUPPORTED, request, &conflict);
}

/* The kernel module does not use cuMemGetAddressRange. */
static xseg_status check_peermem(const struct request *request)
{
    const xseg_status status = check_pages(request, request->address, 1);
    const struct sim_mapping *mapping = sim_mapping_at(request->address);
    const struct sim_range *range;

    if (status != XSEG_OK)
        return status;
    if (mapping != NULL)
        return check_range_end(request, mapping->address, mapping->bytes);
    range = sim_range_find(&sim_machine.addresses, request->address);
    return check_range_end(request, range->base, range->bytes);
}

static xseg_status check_dmabuf(const struct request *request)
{
    uint64_t base, bytes;
    xseg_status status;

    if (sim_machine.config.without_dma_buf)
        return sim_error(XSEG_ERR_UNSUPPORTED,
                         "%s: dma-bufs are not supported by the simulated machine; reset it with "
                         "dma-buf support",
                         sim_machine.current_call);
    status = find_address_range(request, request->address, &base, &bytes);
    if (status == XSEG_OK)
        status = check_range_end(request, base, bytes);
    return status == XSEG_OK ? check_pages(request, base, bytes) : status;
}

/* NCCL queries each mapping and requests one dma-buf of the range, or uses nvidia_peermem if dma-bufs are missing. */
static xseg_status check_nccl(const struct request *request)
{
    const uint64_t end = request->address + request->bytes;
    uint64_t base, bytes;

    for (uint64_t at = request->address; at < end; at = base + bytes) {
        const xseg_status status = find_address_range(request, at, &base, &bytes);

        if (status != XSEG_OK)
            return status;
        if (sim_machine.config.without_dma_buf)
            return check_peermem(request);
        if (sim_mapping_at(at) == NULL)
            break;
    }
    return check_pages(request, request->address, request->bytes);
}

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

static xseg_status add_registration(const struct request *request, const char *registrar,
                                    uint64_t *id)
{
    struct sim_registrations *registrations = &sim_machine.registrations;

    if (!reserve_registration(registrations))
        return sim_error(XSEG_ERR_HOST_MEMORY, "%s: out of host memory, registration",
                         sim_machine.current_call);
    registrations->registration[registrations->count++] = (struct sim_registration){
        .id = ++sim_machine.last_registration,
        .address = request->address,
        .bytes = request->bytes,
        .registrar = registrar,
        .origin = sim_origin_of_call(),
    };
    registrations->bytes += request->bytes;
    registrations->created++;
    *id = sim_machine.last_registration;
    return XSEG_OK;
}

static xseg_status check_request(const struct request *request, const uint64_t *id)
{
    if (id == NULL)
        return sim_error(XSEG_ERR_ARGUMENT,
                         "%s: id is NULL; pass the address of a variable for the ID",
                         sim_machine.current_call);
    if (request->bytes == 0 ||
        request->bytes > UINT64_MAX - sim_host_page_size() - request->address)
        return sim_error(XSEG_ERR_ARGUMENT,
                         "%s: range is empty or wraps around, %" PRIu64 " bytes at 0x%" PRIx64
                         "; pass a range of mapped memory",
                         sim_machine.current_call, request->bytes, request->address);
    if (sim_machine.config.rdma == XSEG_SIM_RDMA_ABSENT)
        return sim_error(XSEG_ERR_UNSUPPORTED,
                         "%s: RDMA is not supported by the simulated machine; reset it with "
                         "another value of rdma",
                         sim_machine.current_call);
    return XSEG_OK;
}

static const struct {
    const char *name;
    xseg_status (*check)(const struct request *request);
} registrars[] = {
    [XSEG_SIM_PEERMEM] = {"nvidia_peermem", check_peermem},
    [XSEG_SIM_DMABUF] = {"dma-buf user", check_dmabuf},
    [XSEG_SIM_NCCL] = {"NCCL", check_nccl},
};

static xseg_status register_range(const struct request *request, enum xseg_sim_registrar kind,
                                  uint64_t *id)
{
    const unsigned number = (unsigned)kind;
    xseg_status status = check_request(request, id);

    if (status != XSEG_OK)
        return status;
    if (number >= sizeof(registrars) / sizeof(registrars[0]))
        return sim_error(XSEG_ERR_ARGUMENT,
                         "%s: unknown kind, %u; pass a value of enum xseg_sim_registrar",
                         sim_machine.current_call, number);
    status = registrars[number].check(request);
    return status == XSEG_OK ? add_registration(request, registrars[number].name, id) : status;
}

static xseg_status register_descriptor(int file, uint64_t offset, uint64_t bytes, uint64_t *id)
{
    const struct sim_dmabuf *dmabuf;
    struct request request = {.bytes = bytes};
    struct sim_conflict conflict;
    xseg_status status;

    sim_dmabufs_free_unused();
    dmabuf = sim_dmabuf_find(file);
    if (dmabuf == NULL)
        return sim_error(XSEG_ERR_ARGUMENT,
                         "%s: descriptor is not a dma-buf of this process, %d; pass a descriptor "
                         "of cuMemGetHandleForAddressRange",
                         sim_machine.current_call, file);
    if (offset > dmabuf->bytes || bytes > dmabuf->bytes - offset)
        return sim_error(XSEG_ERR_ARGUMENT,
                         "%s: range exceeds the dma-buf of %" PRIu64 " bytes, %" PRIu64
                         " bytes at offset %" PRIu64 "; end the range at offset %" PRIu64
                         " or before",
                         sim_machine.current_call, dmabuf->bytes, bytes, offset, dmabuf->bytes);
    request.address = dmabuf->address + offset;
    status = check_request(&request, id);
    if (status != XSEG_OK)
        return status;
    if (!sim_dmabuf_is_current(dmabuf, offset, bytes, &conflict))
        return reject_page(XSEG_ERR_ARGUMENT, &request, &conflict);
    return add_registration(&request, "descriptor user", id);
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
    return sim_error(XSEG_ERR_ARGUMENT,
                     "xseg_sim_unregister: unknown registration, ID %" PRIu64
                     "; pass the ID of a registration that has not ended",
                     id);
}

/* Find a registration that overlaps a range, or NULL. */
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

static void report_registration(const struct sim_registration *found)
{
    sim_report_line("registration:", &found->origin,
                    "ID %" PRIu64 ", %" PRIu64 " bytes at 0x%" PRIx64 " for %s, created", found->id,
                    found->bytes, found->address, found->registrar);
    sim_report_end();
}

void sim_registrations_check_mapping(const struct sim_mapping *mapping)
{
    const struct sim_registration *found = find_registration(mapping->address, mapping->bytes);

    if (found == NULL)
        return;
    sim_report_begin("memory is registered; call xseg_sim_unregister() first");
    sim_report_mapping(mapping);
    report_registration(found);
}

void sim_registrations_check_allocation(const struct sim_range *range)
{
    const struct sim_registration *found = find_registration(range->base, range->bytes);

    if (found == NULL)
        return;
    sim_report_begin("memory is registered; call xseg_sim_unregister() first");
    sim_report_allocation(range);
    report_registration(found);
}

void sim_registrations_destroy(void)
{
    free(sim_machine.registrations.registration);
    sim_machine.registrations = (struct sim_registrations){.count = 0};
}

xseg_status xseg_sim_register(uint64_t address, uint64_t bytes, enum xseg_sim_registrar kind,
                              uint64_t *id)
{
    const struct request request = {address, bytes};
    xseg_status status;

    sim_lock();
    sim_machine.current_call = "xseg_sim_register";
    status = register_range(&request, kind, id);
    sim_machine.current_call = NULL;
    sim_unlock();
    return status;
}

xseg_status xseg_sim_register_descriptor(int file, uint64_t offset, uint64_t bytes, uint64_t *id)
{
    xseg_status status;

    sim_lock();
    sim_machine.current_call = "xseg_sim_register_descriptor";
    status = register_descriptor(file, offset, bytes, id);
    sim_machine.current_call = NULL;
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
    uint64_t created;

    sim_lock();
    created = sim_machine.registrations.created;
    sim_unlock();
    return created;
}
