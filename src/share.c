/* SPDX-License-Identifier: MIT */
#include "xseg/share.h"

#include <stdio.h>
#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/shared_budget.h"
#include "src/core/instance/instance.h"
#include "src/core/pool/share.h"
#include "src/core/register/register.h"
#include "src/entry.h"
#include "xseg/budget.h"
#include "xseg/register.h"

/* --- Export, import, peers. --- */

/* Return an address to the caller. */
static void return_address(void **out, uint64_t address)
{
    *out = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

xseg_status xseg_export(struct xseg_allocator *allocator, void *ptr,
                        struct xseg_export_token *token, uint64_t *offset)
{
    uint64_t ignored;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(ptr != NULL && token != NULL, "%s is NULL", ptr == NULL ? "ptr" : "token");
    return xseg_share_export(allocator, (uintptr_t)ptr, token, offset != NULL ? offset : &ignored);
}

xseg_status xseg_export_segment(struct xseg_allocator *allocator, const void *address,
                                struct xseg_export_token *token)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(address != NULL && token != NULL, "%s is NULL",
                       address == NULL ? "address" : "token");
    return xseg_share_export_segment(allocator, (uintptr_t)address, token);
}

static xseg_status check_handle_type(enum xseg_handle_type type)
{
    XSEG_ENTRY_REQUIRE(type == XSEG_HANDLE_FD || type == XSEG_HANDLE_FABRIC,
                       "unknown value of enum xseg_handle_type, %d", (int)type);
    return XSEG_OK;
}

xseg_status xseg_export_handles(struct xseg_allocator *allocator, void *ptr,
                                enum xseg_handle_type type, struct xseg_page_handle *handles,
                                size_t capacity, size_t *count, uint64_t *offset)
{
    struct xseg_share_pages pages = {.type = type, .handle = handles, .capacity = capacity};

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(ptr != NULL && count != NULL, "%s is NULL", ptr == NULL ? "ptr" : "count");
    XSEG_ENTRY_REQUIRE(handles != NULL || capacity == 0, "handles is NULL, capacity %zu", capacity);
    xseg_status status = check_handle_type(type);
    if (status != XSEG_OK)
        return status;
    status = xseg_share_export_handles(allocator, (uintptr_t)ptr, &pages);
    if (pages.count != 0)
        *count = pages.count;
    if (status == XSEG_OK && offset != NULL)
        *offset = pages.block_offset;
    return status;
}

xseg_status xseg_export_close(struct xseg_allocator *allocator, void *ptr)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(ptr != NULL, "ptr is NULL");
    return xseg_share_close_export(allocator, (uintptr_t)ptr);
}

xseg_status xseg_import(struct xseg_allocator *allocator, int device,
                        const struct xseg_export_token *token, void **base)
{
    struct xseg_device *found = NULL;
    uint64_t address = 0;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(token != NULL && base != NULL, "%s is NULL",
                       token == NULL ? "token" : "base");
    xseg_status status = xseg_allocator_device(allocator, device, &found);
    if (status == XSEG_OK)
        status = xseg_share_import_token(found, token, &address);
    if (status == XSEG_OK)
        return_address(base, address);
    return status;
}

xseg_status xseg_import_handles(struct xseg_allocator *allocator, int device,
                                enum xseg_handle_type type, const struct xseg_page_handle *handles,
                                size_t count, void **base)
{
    struct xseg_device *found = NULL;
    uint64_t address = 0;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(handles != NULL && base != NULL, "%s is NULL",
                       handles == NULL ? "handles" : "base");
    xseg_status status = check_handle_type(type);
    if (status == XSEG_OK)
        status = xseg_allocator_device(allocator, device, &found);
    if (status == XSEG_OK)
        status = xseg_share_import_handles(found, type, handles, count, &address);
    if (status == XSEG_OK)
        return_address(base, address);
    return status;
}

xseg_status xseg_import_close(struct xseg_allocator *allocator, void *base)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(base != NULL, "base is NULL");
    return xseg_share_close_import(allocator, (uintptr_t)base);
}

xseg_status xseg_peer_allow(struct xseg_allocator *allocator, int owner, int peer)
{
    struct xseg_device *owner_device = NULL, *peer_device = NULL;

    XSEG_ENTRY(allocator);
    xseg_status status = xseg_allocator_device(allocator, owner, &owner_device);
    if (status == XSEG_OK)
        status = xseg_allocator_device(allocator, peer, &peer_device);
    if (status != XSEG_OK)
        return status;
    XSEG_ENTRY_REQUIRE(owner_device != peer_device,
                       "owner and peer are the same device, %d; pass two devices", owner);
    return xseg_peers_allow(owner_device, peer_device);
}

/* --- dma-buf descriptors and registrations. --- */

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
    XSEG_ENTRY_COPY_IN(&chosen, registrar);
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

/* --- Members of a budget. --- */

/* Bytes of a UUID as a string, "5d0ba3ff-1234-5678-9abc-def012345678", with the terminator. */
#define UUID_STRING_SIZE 37

static void format_uuid(const uint8_t *uuid, char text[UUID_STRING_SIZE])
{
    size_t length = 0;

    for (unsigned i = 0; i < XSEG_SHARED_BUDGET_UUID; i++) {
        const bool has_dash = i == 4 || i == 6 || i == 8 || i == 10;

        length += (size_t)snprintf(text + length, UUID_STRING_SIZE - length, "%s%02x",
                                   has_dash ? "-" : "", uuid[i]);
    }
}

/* Visit the devices of a member.  Returns false if the visitor ended the iteration. */
static bool visit_process(const struct xseg_shared_budget_record *record,
                          struct xseg_budget_entry *entry,
                          bool (*visit)(void *context, const struct xseg_budget_entry *entry),
                          void *context)
{
    char uuid[UUID_STRING_SIZE];
    bool continues = true;

    entry->is_readable = true;
    entry->pid = record->pid;
    entry->program = record->name;
    if (record->device_count == 0)
        return visit(context, entry);
    for (unsigned i = 0; continues && i < record->device_count; i++) {
        const struct xseg_shared_budget_device *device = &record->devices[i];

        format_uuid(device->uuid, uuid);
        entry->uuid = uuid;
        entry->physical_bytes = device->physical;
        entry->idle_bytes = device->idle;
        entry->demand_bytes = device->demand;
        entry->share_millionths = device->share;
        entry->min_bytes = device->min_bytes;
        entry->released_bytes = device->released;
        continues = visit(context, entry);
    }
    return continues;
}

static void visit_members(const struct xseg_shared_budget *shared,
                          bool (*visit)(void *context, const struct xseg_budget_entry *entry),
                          void *context)
{
    bool continues = true;

    for (unsigned slot = 0; continues && slot < XSEG_SHARED_BUDGET_SLOTS; slot++) {
        const struct xseg_shared_budget_entry *member = &shared->entries[slot];
        struct xseg_budget_entry entry = {.struct_size = sizeof(entry), .slot = slot};

        if (member->state == XSEG_SHARED_BUDGET_FRESH)
            continues = visit_process(&member->record, &entry, visit, context);
        else if (member->state != XSEG_SHARED_BUDGET_FREE)
            continues = visit(context, &entry);
    }
}

xseg_status xseg_budget_members(const char *name,
                                bool (*visit)(void *context, const struct xseg_budget_entry *entry),
                                void *context)
{
    char path[XSEG_SHARED_BUDGET_PATH];

    XSEG_OPERATION(__func__);
    XSEG_ENTRY_REQUIRE(name != NULL, "name is NULL");
    XSEG_ENTRY_REQUIRE(visit != NULL, "visit is NULL");
    xseg_status status = xseg_shared_budget_path(name, path);
    if (status != XSEG_OK)
        return status;
    struct xseg_shared_budget *shared = malloc(sizeof(*shared));
    if (shared == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, copy of the budget file");
    status = xseg_shared_budget_scan(shared, path);
    if (status == XSEG_OK)
        visit_members(shared, visit, context);
    free(shared);
    return status;
}
