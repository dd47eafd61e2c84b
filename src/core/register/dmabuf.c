/* SPDX-License-Identifier: MIT */
/*
 * Dma-buf descriptors of mapped memory, and the pins of those with XSEG_DMABUF_PIN (register.h).
 *
 * A pin retains its pages, so the segment exists as long as the pin.
 *
 * Locking: the device memory lock while a descriptor is opened; the lock of the table for the pins.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/core/device/device.h"
#include "src/core/pool/share.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/register/register.h"

struct xseg_dmabuf_pin {
    struct xseg_device *device;
    struct xseg_segment *segment;
    uint64_t begin, end;                /* offsets in the segment */
    struct xseg_dmabuf_pin *next_stale; /* in a list of pins to release */
};

/* A call of xseg_dmabuf_open(). */
struct dmabuf_request {
    struct xseg_registrations *table;
    struct xseg_extent *extent;
    uint64_t begin, end; /* addresses */
    unsigned flags;
    struct xseg_dmabuf_pin *stale; /* pins of descriptors that the program closed by close() */
};

/* --- Checks. --- */

/* Find the first unmapped byte of the range; the end of the range if all bytes are mapped. */
static uint64_t find_unmapped(const struct dmabuf_request *request)
{
    const struct xseg_segment *segment = &request->extent->segment;
    uint64_t address = request->begin;

    if (!xseg_segment_is_expandable(segment))
        return request->end;
    while (address < request->end) {
        const uint64_t granule = (address - segment->base) / segment->granule_bytes;

        if (!xseg_segment_is_mapped(segment, (uint32_t)granule))
            return address;
        address = segment->base + (granule + 1) * segment->granule_bytes;
    }
    return request->end;
}

static xseg_status check_request(const struct dmabuf_request *request)
{
    const struct xseg_segment *segment = &request->extent->segment;
    const struct xseg_device *device = request->extent->arena->device;
    const xseg_status status = xseg_pool_check_running(request->extent->arena->pool);

    if (status != XSEG_OK)
        return status;
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (request->end > segment->base + segment->bytes)
        return xseg_mapping_fail_past_end(segment, request->begin, request->end - request->begin);
    if ((request->flags & XSEG_DMABUF_PIN) != 0 &&
        xseg_mapping_is_claimed(request->extent, request->begin, request->end))
        return xseg_mapping_fail_claimed(request->begin);
    if (find_unmapped(request) != request->end)
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED, "address is not mapped, %#" PRIx64,
                         find_unmapped(request));
    if (xseg_segment_is_expandable(segment) && !xseg_segment_has_property(segment, XSEG_PAGE_RDMA))
        return xseg_fail(XSEG_ERR_UNSUPPORTED, "page was created without rdma, %#" PRIx64 "; %s%s",
                         request->begin,
                         device->sharing->rdma.reason[0] != '\0'
                             ? "rdma does not work on this device, "
                             : "set rdma:True, or rdma of struct xseg_pool_options",
                         device->sharing->rdma.reason);
    return XSEG_OK;
}

/* --- Pins. --- */

/* Returns false on host allocation failure. */
static bool reserve_pin_entry(struct xseg_registrations *table, int fd)
{
    const size_t needed = (size_t)fd + 1;

    if (needed <= table->pin_capacity)
        return true;
    const size_t capacity = xseg_max(needed, 2 * table->pin_capacity);
    struct xseg_dmabuf_pin **pin = realloc(table->pin, capacity * sizeof(struct xseg_dmabuf_pin *));
    if (pin == NULL)
        return false;
    memset(pin + table->pin_capacity, 0,
           (capacity - table->pin_capacity) * sizeof(struct xseg_dmabuf_pin *));
    table->pin = pin;
    table->pin_capacity = capacity;
    return true;
}

/* Record a pin by its descriptor.  If the table already has a pin of the same descriptor value, the
 * program has closed the previous descriptor by close(), and its pin is stale. */
static bool record_pin(struct dmabuf_request *request, struct xseg_dmabuf_pin *pin, int fd)
{
    struct xseg_registrations *table = request->table;

    xseg_mutex_lock(&table->lock);
    const bool reserved = reserve_pin_entry(table, fd);
    if (reserved && table->pin[fd] != NULL) {
        table->pin[fd]->next_stale = request->stale;
        request->stale = table->pin[fd];
    }
    if (reserved)
        table->pin[fd] = pin;
    xseg_mutex_unlock(&table->lock);
    return reserved;
}

/* Retain the pages of a descriptor. */
static xseg_status pin_descriptor(struct dmabuf_request *request, int fd)
{
    struct xseg_segment *segment = &request->extent->segment;
    struct xseg_dmabuf_pin *pin = malloc(sizeof(*pin));

    if (pin == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, pin record");
    *pin = (struct xseg_dmabuf_pin){.device = request->extent->arena->device,
                                    .segment = segment,
                                    .begin = request->begin - segment->base,
                                    .end = request->end - segment->base};
    xseg_status status =
        xseg_segment_retain(segment, XSEG_RETAIN_REGISTRATION, pin->begin, pin->end);
    if (status == XSEG_OK && !record_pin(request, pin, fd)) {
        (void)xseg_segment_release(segment, XSEG_RETAIN_REGISTRATION, pin->begin, pin->end);
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of pins");
    }
    if (status != XSEG_OK)
        free(pin);
    return status;
}

/* Release a pin that is not in the table, and the pins after it in the list.  No lock is held. */
static void release_pins(struct xseg_dmabuf_pin *pin)
{
    struct xseg_dmabuf_pin *next;

    for (; pin != NULL; pin = next) {
        next = pin->next_stale;
        xseg_mutex_lock(&pin->device->memory_lock);
        const bool released =
            xseg_segment_release(pin->segment, XSEG_RETAIN_REGISTRATION, pin->begin, pin->end);
        XSEG_ASSERT(released || xseg_context_is_lost(&pin->device->context));
        xseg_mutex_unlock(&pin->device->memory_lock);
        (void)released;
        free(pin);
    }
}

/* --- Open and close. --- */

/* Open a descriptor of the range, extended to whole host pages. */
static xseg_status open_descriptor(struct dmabuf_request *request, int *out, uint64_t *offset)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t begin = xseg_round_down(request->begin, page_bytes),
                   end = xseg_round_up(request->end, page_bytes);
    int fd = -1;
    xseg_status status =
        xseg_driver_dmabuf(&request->extent->arena->device->context, begin, end - begin,
                           (request->flags & XSEG_DMABUF_PCIE) != 0, &fd);

    if (status == XSEG_OK && (request->flags & XSEG_DMABUF_PIN) != 0) {
        status = pin_descriptor(request, fd);
        if (status != XSEG_OK)
            (void)close(fd);
    }
    if (status != XSEG_OK)
        return status;
    *out = fd;
    *offset = request->begin - begin;
    return XSEG_OK;
}

xseg_status xseg_dmabuf_acquire(struct xseg_registrations *table, uint64_t address, uint64_t bytes,
                                unsigned flags, int *fd, uint64_t *offset) XSEG_UNCHECKED
{
    struct dmabuf_request request = {
        .table = table, .begin = address, .end = address + bytes, .flags = flags};

    request.extent = xseg_mapping_lock_extent(table->allocator, address);
    if (request.extent == NULL)
        return xseg_allocator_fail_foreign(address);
    xseg_status status = check_request(&request);
    if (status == XSEG_OK)
        status = open_descriptor(&request, fd, offset);
    xseg_mutex_unlock(&request.extent->arena->device->memory_lock);
    release_pins(request.stale);
    return status;
}

xseg_status xseg_dmabuf_release(struct xseg_registrations *table, int fd)
{
    struct xseg_dmabuf_pin *found = NULL;

    xseg_mutex_lock(&table->lock);
    if (fd >= 0 && (size_t)fd < table->pin_capacity) {
        found = table->pin[fd];
        table->pin[fd] = NULL;
    }
    xseg_mutex_unlock(&table->lock);
    if (found == NULL)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "fd is not a pinned descriptor of xseg_dmabuf_open(), %d; close other "
                         "descriptors with close()",
                         fd);
    found->next_stale = NULL;
    (void)close(fd);
    release_pins(found);
    return XSEG_OK;
}
