/* SPDX-License-Identifier: MIT */
#include "src/core/register/dmabuf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/pool/share.h"
#include "src/core/reclaim/mapping.h"

/* A descriptor that retains its pages, so that the segment exists as long as the descriptor. */
struct xseg_dmabuf_pin {
    struct xseg_device *device;
    struct xseg_segment *segment;
    uint64_t begin, end;           /* offsets in the segment */
    struct xseg_dmabuf_pin *stale; /* a pin to be released after this one */
};

/* What is asked for, once its extent is known. */
struct wanted {
    struct xseg_registrations *all;
    struct xseg_extent *extent;
    uint64_t begin, end; /* addresses */
    unsigned flags;
    struct xseg_dmabuf_pin *stale; /* pins of descriptors that were closed by close() */
};

/* --- Checking. --- */

/* The first byte of a range without memory; its end if there is none. */
static uint64_t first_unmapped(const struct wanted *wanted)
{
    const struct xseg_segment *segment = &wanted->extent->segment;
    uint64_t at = wanted->begin;

    if (!xseg_segment_is_expandable(segment))
        return wanted->end;
    while (at < wanted->end) {
        const uint64_t granule = (at - segment->base) / segment->granule_bytes;

        if (!xseg_segment_is_mapped(segment, (uint32_t)granule))
            return at;
        at = segment->base + (granule + 1) * segment->granule_bytes;
    }
    return wanted->end;
}

static xseg_status check(const struct wanted *wanted)
{
    const struct xseg_segment *segment = &wanted->extent->segment;
    const struct xseg_device *device = wanted->extent->arena->device;
    const xseg_status status = xseg_pool_check_running(wanted->extent->arena->pool);

    if (status != XSEG_OK)
        return status;
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (wanted->end > segment->base + segment->bytes)
        return xseg_mapping_fail_end(segment, wanted->begin, wanted->end - wanted->begin);
    if ((wanted->flags & XSEG_DMABUF_PIN) != 0 &&
        xseg_mapping_is_claimed(wanted->extent, wanted->begin, wanted->end))
        return xseg_mapping_fail_claimed(wanted->begin);
    if (first_unmapped(wanted) != wanted->end)
        return xseg_fail(XSEG_ERR_NOT_ALLOCATED, "address is not mapped, %#" PRIx64,
                         first_unmapped(wanted));
    if (xseg_segment_is_expandable(segment) && !xseg_segment_has(segment, XSEG_PAGE_RDMA))
        return xseg_fail(XSEG_ERR_UNSUPPORTED, "page was created without rdma, %#" PRIx64 "; %s%s",
                         wanted->begin,
                         device->sharing->rdma.why[0] != '\0'
                             ? "rdma does not work on this device, "
                             : "set rdma:True, or rdma of struct xseg_pool_options",
                         device->sharing->rdma.why);
    return XSEG_OK;
}

/* --- One descriptor. --- */

/* Make room for the pin of a descriptor; false without host memory. */
static bool has_room(struct xseg_registrations *all, int fd)
{
    const size_t wanted = (size_t)fd + 1;

    if (wanted <= all->pin_capacity)
        return true;
    const size_t capacity = xseg_max(wanted, 2 * all->pin_capacity);
    struct xseg_dmabuf_pin **pin = realloc(all->pin, capacity * sizeof(struct xseg_dmabuf_pin *));
    if (pin == NULL)
        return false;
    memset(pin + all->pin_capacity, 0,
           (capacity - all->pin_capacity) * sizeof(struct xseg_dmabuf_pin *));
    all->pin = pin;
    all->pin_capacity = capacity;
    return true;
}

/* Record a pin by its descriptor.  If the table has a pin of the same number, that descriptor was closed by close(): its
 * pin is to be released. */
static bool record(struct wanted *wanted, struct xseg_dmabuf_pin *pin, int fd)
{
    struct xseg_registrations *all = wanted->all;

    xseg_mutex_lock(&all->desk.lock);
    const bool done = has_room(all, fd);
    if (done && all->pin[fd] != NULL) {
        all->pin[fd]->stale = wanted->stale;
        wanted->stale = all->pin[fd];
    }
    if (done)
        all->pin[fd] = pin;
    xseg_mutex_unlock(&all->desk.lock);
    return done;
}

/* Retain the pages of a descriptor. */
static xseg_status pin(struct wanted *wanted, int fd)
{
    struct xseg_segment *segment = &wanted->extent->segment;
    struct xseg_dmabuf_pin *pin = malloc(sizeof(*pin));

    if (pin == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, pin record");
    *pin = (struct xseg_dmabuf_pin){.device = wanted->extent->arena->device,
                                    .segment = segment,
                                    .begin = wanted->begin - segment->base,
                                    .end = wanted->end - segment->base};
    xseg_status status =
        xseg_segment_retain(segment, XSEG_RETAIN_REGISTRATION, pin->begin, pin->end);
    if (status == XSEG_OK && !record(wanted, pin, fd)) {
        (void)xseg_segment_release(segment, XSEG_RETAIN_REGISTRATION, pin->begin, pin->end);
        status = xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of pins");
    }
    if (status != XSEG_OK)
        free(pin);
    return status;
}

/* Release a pin that is in no table any more, and those after it.  No lock is held. */
static void unpin(struct xseg_dmabuf_pin *pin)
{
    struct xseg_dmabuf_pin *next;

    for (; pin != NULL; pin = next) {
        next = pin->stale;
        xseg_mutex_lock(&pin->device->growth_lock);
        const bool done =
            xseg_segment_release(pin->segment, XSEG_RETAIN_REGISTRATION, pin->begin, pin->end);
        XSEG_ASSERT(done || xseg_context_is_lost(&pin->device->context));
        xseg_mutex_unlock(&pin->device->growth_lock);
        (void)done;
        free(pin);
    }
}

/* Get a descriptor for the range, which is widened to whole pages of the host. */
static xseg_status get(struct wanted *wanted, int *out, uint64_t *offset)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t from = xseg_round_down(wanted->begin, page),
                   to = xseg_round_up(wanted->end, page);
    int fd = -1;
    xseg_status status =
        xseg_driver_dmabuf(&wanted->extent->arena->device->context, from, to - from,
                           (wanted->flags & XSEG_DMABUF_PCIE) != 0, &fd);

    if (status == XSEG_OK && (wanted->flags & XSEG_DMABUF_PIN) != 0) {
        status = pin(wanted, fd);
        if (status != XSEG_OK)
            (void)close(fd);
    }
    if (status != XSEG_OK)
        return status;
    *out = fd;
    *offset = wanted->begin - from;
    return XSEG_OK;
}

xseg_status xseg_dmabuf_acquire(struct xseg_registrations *all, uint64_t address, uint64_t bytes,
                                unsigned flags, int *fd, uint64_t *offset) XSEG_UNCHECKED
{
    struct wanted wanted = {.all = all, .begin = address, .end = address + bytes, .flags = flags};

    wanted.extent = xseg_mapping_hold(all->allocator, address);
    if (wanted.extent == NULL)
        return xseg_allocator_fail_foreign(address);
    xseg_status status = check(&wanted);
    if (status == XSEG_OK)
        status = get(&wanted, fd, offset);
    xseg_mutex_unlock(&wanted.extent->arena->device->growth_lock);
    unpin(wanted.stale);
    return status;
}

/* --- Closing. --- */

xseg_status xseg_dmabuf_release(struct xseg_registrations *all, int fd)
{
    struct xseg_dmabuf_pin *found = NULL;

    xseg_mutex_lock(&all->desk.lock);
    if (fd >= 0 && (size_t)fd < all->pin_capacity) {
        found = all->pin[fd];
        all->pin[fd] = NULL;
    }
    xseg_mutex_unlock(&all->desk.lock);
    if (found == NULL)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "fd is not a pinned descriptor of xseg_dmabuf_open(), %d; close other "
                         "descriptors with close()",
                         fd);
    found->stale = NULL;
    (void)close(fd);
    unpin(found);
    return XSEG_OK;
}
