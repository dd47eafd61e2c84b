/* SPDX-License-Identifier: MIT */
#include "src/base/shared_budget.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"

#define SLOT_BYTES 8192

/* Where the locks of slots begin. */
#define PLACE_LOCKS  64
#define RECORD_LOCKS 128

/* How often a record that does not hold is read. */
#define READ_TRIES 5u

_Static_assert(sizeof(struct xseg_shared_budget_device) == 80, "a device has no padding");
_Static_assert(sizeof(struct xseg_shared_budget_image) == 40 + XSEG_SHARED_BUDGET_DEVICES * 80,
               "a record has no padding");
_Static_assert(sizeof(struct xseg_shared_budget_image) <= SLOT_BYTES, "a record fits into a slot");
_Static_assert(XSEG_SHARED_BUDGET_FILE_HEADER + XSEG_SHARED_BUDGET_SLOTS * SLOT_BYTES ==
                   XSEG_SHARED_BUDGET_FILE_BYTES,
               "the file has room for all slots, and no more");
_Static_assert(PLACE_LOCKS + XSEG_SHARED_BUDGET_SLOTS <= RECORD_LOCKS,
               "each lock has a byte of its own");
_Static_assert(XSEG_SHARED_BUDGET_SLOTS <= 64, "a word has a bit for each slot");

xseg_status xseg_shared_budget_path(const char *name, char *path)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const size_t length = strlen(name);

    path[0] = '\0';
    if (length == 0)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "name of the shared budget file is empty; pass a name or a path");
    if (strchr(name, '/') != NULL) {
        if (length >= XSEG_SHARED_BUDGET_PATH)
            return xseg_fail(
                XSEG_ERR_ARGUMENT,
                "path of the shared budget file is too long, %zu bytes; use at most %u", length,
                XSEG_SHARED_BUDGET_PATH - 1);
        memcpy(path, name, length + 1);
        return XSEG_OK;
    }
    if (length > XSEG_SHARED_BUDGET_NAME || strspn(name, allowed) != length ||
        strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "name of the shared budget file is invalid, \"%s\"; use at most %u "
                         "letters, digits, '-', '_' and '.', or a path with '/'",
                         name, XSEG_SHARED_BUDGET_NAME);
    (void)snprintf(path, XSEG_SHARED_BUDGET_PATH, "/dev/shm/xseg-%u-%s", (unsigned)geteuid(), name);
    return XSEG_OK;
}

/* Bytes of a record up to its last device. */
static size_t used_bytes(const struct xseg_shared_budget_record *record)
{
    return offsetof(struct xseg_shared_budget_record, devices) +
           record->device_count * sizeof(record->devices[0]);
}

/* FNV-1a. */
static uint64_t sum_up(const struct xseg_shared_budget_record *record)
{
    const unsigned char *bytes = (const unsigned char *)record;
    uint64_t sum = 0xcbf29ce484222325u;

    for (size_t i = 0; i < used_bytes(record); i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3u;
    return sum;
}

static off_t offset_of(unsigned slot)
{
    return XSEG_SHARED_BUDGET_FILE_HEADER + (off_t)slot * SLOT_BYTES;
}

/* Write the beginning of the own slot, in one write, if the file is still a valid ledger (LEDGER-6). */
static xseg_status write_slot(const struct xseg_shared_budget *ledger,
                              const struct xseg_shared_budget_image *image, size_t bytes)
{
    const xseg_status checked = xseg_shared_budget_file_check(&ledger->file);

    if (checked != XSEG_OK)
        return checked;
    errno = ENOSPC;
    if (pwrite(ledger->file.descriptor, image, bytes, offset_of(ledger->slot)) == (ssize_t)bytes)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE,
                     "shared budget file cannot be written, \"%s\" (%s); use another path",
                     ledger->file.path, strerror(errno));
}

/* Write the own record. */
static xseg_status publish(struct xseg_shared_budget *ledger)
{
    struct xseg_shared_budget_image *own = &ledger->own;

    own->checksum = sum_up(&own->record);
    const xseg_status status = write_slot(
        ledger, own, offsetof(struct xseg_shared_budget_image, record) + used_bytes(&own->record));
    ledger->is_written = status == XSEG_OK;
    return status;
}

/* Take the first slot that is free. */
static xseg_status take_place(struct xseg_shared_budget *ledger)
{
    int error = EAGAIN;

    for (unsigned slot = 0; error == EAGAIN && slot < XSEG_SHARED_BUDGET_SLOTS; slot++) {
        ledger->slot = slot;
        error = xseg_shared_budget_file_lock(&ledger->file, PLACE_LOCKS + (off_t)slot);
    }
    if (error == EAGAIN)
        return xseg_fail(XSEG_ERR_BUSY,
                         "shared budget file is full, %u processes have \"%s\" open; use another "
                         "file for some of them",
                         XSEG_SHARED_BUDGET_SLOTS, ledger->file.path);
    return error == 0 ? XSEG_OK : xseg_shared_budget_file_fail_to_lock(&ledger->file, error);
}

/* Take a slot, and let its record count once it is this process's. */
static xseg_status take_slot(struct xseg_shared_budget *ledger)
{
    const xseg_status taken = take_place(ledger);

    if (taken != XSEG_OK)
        return taken;
    struct xseg_shared_budget_record *own = &ledger->own.record;
    own->sequence = 1;
    own->pid = (int32_t)getpid();
    (void)snprintf(own->name, sizeof(own->name), "%s", program_invocation_short_name);
    const xseg_status published = publish(ledger);
    if (published != XSEG_OK)
        return published;
    const int error =
        xseg_shared_budget_file_lock(&ledger->file, RECORD_LOCKS + (off_t)ledger->slot);
    return error == 0 ? XSEG_OK : xseg_shared_budget_file_fail_to_lock(&ledger->file, error);
}

xseg_status xseg_shared_budget_open(struct xseg_shared_budget *ledger, const char *path)
{
    memset(ledger, 0, sizeof(*ledger));
    const xseg_status opened = xseg_shared_budget_file_open(&ledger->file, path);
    if (opened != XSEG_OK)
        return opened;
    const xseg_status taken = take_slot(ledger);
    if (taken != XSEG_OK)
        xseg_shared_budget_file_close(&ledger->file);
    return taken;
}

/* Whether the numbers of a device are ones that a process can have. */
static bool device_holds(const struct xseg_shared_budget_device *device)
{
    return device->taken < XSEG_SHARED_BUDGET_BYTES_BOUND && device->idle <= device->taken &&
           device->wanted < XSEG_SHARED_BUDGET_BYTES_BOUND &&
           device->floor < XSEG_SHARED_BUDGET_BYTES_BOUND && device->growing <= device->wanted &&
           device->share <= XSEG_SHARED_BUDGET_WHOLE_SHARE;
}

/* Whether the devices of a record hold, whose number does. */
static bool record_holds(const struct xseg_shared_budget_record *record)
{
    for (unsigned i = 0; i < record->device_count; i++) {
        if (!device_holds(&record->devices[i]))
            return false;
        for (unsigned j = 0; j < i; j++)
            if (memcmp(record->devices[i].uuid, record->devices[j].uuid, XSEG_SHARED_BUDGET_UUID) ==
                0)
                return false;
    }
    return true;
}

xseg_status xseg_shared_budget_write(struct xseg_shared_budget *ledger,
                                     const struct xseg_shared_budget_device *devices,
                                     unsigned device_count)
{
    struct xseg_shared_budget_record *own = &ledger->own.record;
    const size_t bytes = device_count * sizeof(*devices);

    XSEG_ASSERT(device_count <= XSEG_SHARED_BUDGET_DEVICES);
    const bool is_same = device_count == own->device_count &&
                         (bytes == 0 || memcmp(own->devices, devices, bytes) == 0);
    if (ledger->file.is_own && ledger->is_written && is_same)
        return XSEG_OK;
    memset(own->devices, 0, sizeof(own->devices));
    if (bytes > 0)
        memcpy(own->devices, devices, bytes);
    own->device_count = device_count;
    own->sequence++;
    XSEG_ASSERT(record_holds(own));
    return publish(ledger);
}

/* Read the record of a slot.  Returns whether there is one that holds; it is untouched otherwise. */
static bool fetch(struct xseg_shared_budget *ledger, unsigned slot,
                  struct xseg_shared_budget_record *record)
{
    struct xseg_shared_budget_image *image = &ledger->fetched;
    struct xseg_shared_budget_record *found = &image->record;

    if (pread(ledger->file.descriptor, image, sizeof(*image), offset_of(slot)) !=
            (ssize_t)sizeof(*image) ||
        found->device_count > XSEG_SHARED_BUDGET_DEVICES || image->checksum != sum_up(found) ||
        !record_holds(found))
        return false;
    memset((char *)found + used_bytes(found), 0, sizeof(*found) - used_bytes(found));
    found->name[sizeof(found->name) - 1] = '\0';
    *record = *found;
    return true;
}

/* Find which of `count` slots from one on other processes hold. */
static int find_held(const struct xseg_shared_budget *ledger, unsigned slot, unsigned count,
                     uint64_t *held)
{
    return xseg_shared_budget_file_find_held(&ledger->file, RECORD_LOCKS + (off_t)slot, count,
                                             held);
}

/* Look at a slot that another process holds, or has held a moment ago. */
static void look_at(struct xseg_shared_budget *ledger, unsigned slot,
                    struct xseg_shared_budget_entry *entry)
{
    for (unsigned tries = 0; tries < READ_TRIES; tries++) {
        uint64_t held = 0;

        if (fetch(ledger, slot, &entry->record)) {
            entry->state = XSEG_SHARED_BUDGET_FRESH;
            return;
        }
        /* The process may have cleared its record and gone. */
        if (find_held(ledger, slot, 1, &held) == 0 && held == 0) {
            entry->state = XSEG_SHARED_BUDGET_FREE;
            return;
        }
        (void)sched_yield();
    }
    entry->state =
        entry->state == XSEG_SHARED_BUDGET_FRESH || entry->state == XSEG_SHARED_BUDGET_KEPT
            ? XSEG_SHARED_BUDGET_KEPT
            : XSEG_SHARED_BUDGET_UNREADABLE;
}

/* The own record needs no reading; but if somebody has overwritten it, it has to be written again. */
static void look_at_own(struct xseg_shared_budget *ledger)
{
    struct xseg_shared_budget_entry *entry = &ledger->seen[ledger->slot];
    const struct xseg_shared_budget_record *own = &ledger->own.record;

    if (!fetch(ledger, ledger->slot, &entry->record) ||
        memcmp(&entry->record, own, sizeof(*own)) != 0)
        ledger->is_written = false;
    entry->state = XSEG_SHARED_BUDGET_FRESH;
    entry->record = *own;
}

xseg_status xseg_shared_budget_read(struct xseg_shared_budget *ledger)
{
    const xseg_status checked = xseg_shared_budget_file_check(&ledger->file);
    uint64_t held = 0;

    if (checked != XSEG_OK) {
        ledger->is_written = false;
        return checked;
    }
    const int error = find_held(ledger, 0, XSEG_SHARED_BUDGET_SLOTS, &held);
    if (error != 0)
        return xseg_shared_budget_file_fail_to_lock(&ledger->file, error);
    for (unsigned slot = 0; slot < XSEG_SHARED_BUDGET_SLOTS; slot++) {
        if (slot == ledger->slot)
            look_at_own(ledger);
        else if ((held >> slot & 1) != 0)
            look_at(ledger, slot, &ledger->seen[slot]);
        else
            ledger->seen[slot].state = XSEG_SHARED_BUDGET_FREE;
    }
    return XSEG_OK;
}

xseg_status xseg_shared_budget_scan(struct xseg_shared_budget *ledger, const char *path)
{
    memset(ledger, 0, sizeof(*ledger));
    ledger->slot = XSEG_SHARED_BUDGET_SLOTS; /* none of them */
    const xseg_status opened = xseg_shared_budget_file_open_to_read(&ledger->file, path);
    if (opened != XSEG_OK)
        return opened;
    const xseg_status status = xseg_shared_budget_read(ledger);
    xseg_shared_budget_file_close(&ledger->file);
    return status;
}

void xseg_shared_budget_close(struct xseg_shared_budget *ledger)
{
    struct xseg_fail_saved kept;

    if (xseg_shared_budget_file_is_intact(&ledger->file)) {
        xseg_fail_save(&kept);
        (void)xseg_shared_budget_file_unlock(&ledger->file, RECORD_LOCKS + (off_t)ledger->slot);
        memset(&ledger->own, 0, sizeof(ledger->own));
        (void)write_slot(ledger, &ledger->own, sizeof(ledger->own));
        xseg_fail_restore(&kept);
    }
    xseg_shared_budget_file_close(&ledger->file);
}
