/* SPDX-License-Identifier: MIT */
#include "xseg/register.h"

#include "src/core/register/register.h"
#include "src/entry.h"

xseg_status xseg_dmabuf_open(struct xseg_allocator *allocator, const void *address, size_t bytes,
                             unsigned flags, int *fd, uint64_t *offset)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(fd != NULL && offset != NULL, "%s is NULL", fd == NULL ? "fd" : "offset");
    XSEG_ENTRY_REQUIRE((flags & ~(unsigned)(XSEG_DMABUF_PIN | XSEG_DMABUF_PCIE)) == 0,
                       "unknown flags, %#x; use XSEG_DMABUF_PIN and XSEG_DMABUF_PCIE", flags);
    XSEG_ENTRY_MEMORY(address, bytes);
    return xseg_dmabuf_acquire(allocator->registrations, (uintptr_t)address, bytes, flags, fd,
                               offset);
}

xseg_status xseg_dmabuf_close(struct xseg_allocator *allocator, int fd)
{
    XSEG_ENTRY(allocator);
    return xseg_dmabuf_release(allocator->registrations, fd);
}

xseg_status xseg_register(struct xseg_allocator *allocator, const void *address, size_t bytes,
                          const struct xseg_registrar *registrar, uint64_t *id)
{
    struct xseg_registrar chosen = {sizeof(chosen)};

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(registrar != NULL && id != NULL, "%s is NULL",
                       registrar == NULL ? "registrar" : "id");
    XSEG_ENTRY_IN(registrar, struct xseg_registrar, pin);
    XSEG_ENTRY_REQUIRE(registrar->enter != NULL && registrar->leave != NULL,
                       "registrar->%s is NULL; set enter and leave",
                       registrar->enter == NULL ? "enter" : "leave");
    XSEG_ENTRY_MEMORY(address, bytes);
    XSEG_ENTRY_TAKE(&chosen, registrar);
    const xseg_status status =
        xseg_registrations_add(allocator->registrations, (uintptr_t)address, bytes, &chosen, id);
    xseg_housekeeping_end_call(allocator);
    return status;
}

xseg_status xseg_unregister(struct xseg_allocator *allocator, uint64_t id)
{
    XSEG_ENTRY(allocator);
    const xseg_status status = xseg_registrations_remove(allocator->registrations, id);
    xseg_housekeeping_end_call(allocator);
    return status;
}
