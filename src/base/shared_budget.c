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

/* The bytes of the first slot lock and the first record lock. */
#define SLOT_LOCKS   64
#define RECORD_LOCKS 128

/* The number of attempts to read an invalid record. */
#define READ_TRIES 5u

_Static_assert(sizeof(struct xseg_shared_budget_device) == 80, "a device has no padding");
_Static_assert(sizeof(struct xseg_shared_budget_image) == 40 + XSEG_SHARED_BUDGET_DEVICES * 80,
               "a record has no padding");
_Static_assert(sizeof(struct xseg_shared_budget_image) <= SLOT_BYTES, "a record fits into a slot");
_Static_assert(XSEG_SHARED_BUDGET_FILE_HEADER + XSEG_SHARED_BUDGET_SLOTS * SLOT_BYTES ==
                   XSEG_SHARED_BUDGET_FILE_BYTES,
               "the file contains all slots, and nothing else");
_Static_assert(SLOT_LOCKS + XSEG_SHARED_BUDGET_SLOTS <= RECORD_LOCKS,
               "all locks have different bytes");
_Static_assert(XSEG_SHARED_BUDGET_SLOTS <= 64, "a uint64_t has a bit per slot");

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

/* The size of a record up to its last device. */
static size_t record_size(const struct xseg_shared_budget_record *record)
{
    return offsetof(struct xseg_shared_budget_record, devices) +
           record->device_count * sizeof(record->devices[0]);
}

/* FNV-1a. */
static uint64_t checksum_record(const struct xseg_shared_budget_record *record)
{
    const unsigned char *bytes = (const unsigned char *)record;
    uint64_t sum = 0xcbf29ce484222325u;

    for (size_t i = 0; i < record_size(record); i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3u;
    return sum;
}

static off_t slot_offset(unsigned slot)
{
    return XSEG_SHARED_BUDGET_FILE_HEADER + (off_t)slot * SLOT_BYTES;
}

/* Write the first bytes of the own slot, in one write, if the file is still valid (BUDGET-FILE-6). */
static xseg_status write_slot(const struct xseg_shared_budget *budget,
                              const struct xseg_shared_budget_image *image, size_t bytes)
{
    const xseg_status checked = xseg_shared_budget_file_check(&budget->file);

    if (checked != XSEG_OK)
        return checked;
    errno = ENOSPC;
    if (pwrite(budget->file.descriptor, image, bytes, slot_offset(budget->slot)) == (ssize_t)bytes)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_FILE,
                     "shared budget file cannot be written, \"%s\" (%s); use another path",
                     budget->file.path, strerror(errno));
}

/* Write the own record. */
static xseg_status publish_record(struct xseg_shared_budget *budget)
{
    struct xseg_shared_budget_image *own = &budget->own;

    own->checksum = checksum_record(&own->record);
    const xseg_status status = write_slot(
        budget, own, offsetof(struct xseg_shared_budget_image, record) + record_size(&own->record));
    budget->is_written = status == XSEG_OK;
    return status;
}

/* Lock the first free slot. */
static xseg_status lock_free_slot(struct xseg_shared_budget *budget)
{
    int error = EAGAIN;

    for (unsigned slot = 0; error == EAGAIN && slot < XSEG_SHARED_BUDGET_SLOTS; slot++) {
        budget->slot = slot;
        error = xseg_shared_budget_file_lock(&budget->file, SLOT_LOCKS + (off_t)slot);
    }
    if (error == EAGAIN)
        return xseg_fail(XSEG_ERR_BUSY,
                         "shared budget file is full, %u processes have \"%s\" open; use another "
                         "file for some of them",
                         XSEG_SHARED_BUDGET_SLOTS, budget->file.path);
    return error == 0 ? XSEG_OK : xseg_shared_budget_file_fail_to_lock(&budget->file, error);
}

/* Acquire a slot, write a record, and make it valid (BUDGET-FILE-3). */
static xseg_status acquire_slot(struct xseg_shared_budget *budget)
{
    const xseg_status acquired = lock_free_slot(budget);

    if (acquired != XSEG_OK)
        return acquired;
    struct xseg_shared_budget_record *own = &budget->own.record;
    own->sequence = 1;
    own->pid = (int32_t)getpid();
    (void)snprintf(own->name, sizeof(own->name), "%s", program_invocation_short_name);
    const xseg_status published = publish_record(budget);
    if (published != XSEG_OK)
        return published;
    const int error =
        xseg_shared_budget_file_lock(&budget->file, RECORD_LOCKS + (off_t)budget->slot);
    return error == 0 ? XSEG_OK : xseg_shared_budget_file_fail_to_lock(&budget->file, error);
}

xseg_status xseg_shared_budget_open(struct xseg_shared_budget *budget, const char *path)
{
    memset(budget, 0, sizeof(*budget));
    const xseg_status opened = xseg_shared_budget_file_open(&budget->file, path);
    if (opened != XSEG_OK)
        return opened;
    const xseg_status acquired = acquire_slot(budget);
    if (acquired != XSEG_OK)
        xseg_shared_budget_file_close(&budget->file);
    return acquired;
}

static bool is_valid_device(const struct xseg_shared_budget_device *device)
{
    return device->physical < XSEG_SHARED_BUDGET_BYTES_BOUND && device->idle <= device->physical &&
           device->demand < XSEG_SHARED_BUDGET_BYTES_BOUND &&
           device->min_bytes < XSEG_SHARED_BUDGET_BYTES_BOUND &&
           device->growing <= device->demand && device->share <= XSEG_SHARED_BUDGET_FULL_SHARE;
}

/* Whether the devices of a record are valid; the caller has checked their number. */
static bool is_valid_record(const struct xseg_shared_budget_record *record)
{
    for (unsigned i = 0; i < record->device_count; i++) {
        if (!is_valid_device(&record->devices[i]))
            return false;
        for (unsigned j = 0; j < i; j++)
            if (memcmp(record->devices[i].uuid, record->devices[j].uuid, XSEG_SHARED_BUDGET_UUID) ==
                0)
                return false;
    }
    return true;
}

xseg_status xseg_shared_budget_write(struct xseg_shared_budget *budget,
                                     const struct xseg_shared_budget_device *devices,
                                     unsigned device_count)
{
    struct xseg_shared_budget_record *own = &budget->own.record;
    const size_t bytes = device_count * sizeof(*devices);

    XSEG_ASSERT(device_count <= XSEG_SHARED_BUDGET_DEVICES);
    const bool is_same = device_count == own->device_count &&
                         (bytes == 0 || memcmp(own->devices, devices, bytes) == 0);
    if (budget->file.is_own && budget->is_written && is_same)
        return XSEG_OK;
    memset(own->devices, 0, sizeof(own->devices));
    if (bytes > 0)
        memcpy(own->devices, devices, bytes);
    own->device_count = device_count;
    own->sequence++;
    XSEG_ASSERT(is_valid_record(own));
    return publish_record(budget);
}

/* Read the record of a slot.  Returns false, without effect on `out`, if the record is not valid. */
static bool fetch_record(struct xseg_shared_budget *budget, unsigned slot,
                         struct xseg_shared_budget_record *out)
{
    struct xseg_shared_budget_image *image = &budget->fetched;
    struct xseg_shared_budget_record *record = &image->record;

    if (pread(budget->file.descriptor, image, sizeof(*image), slot_offset(slot)) !=
            (ssize_t)sizeof(*image) ||
        record->device_count > XSEG_SHARED_BUDGET_DEVICES ||
        image->checksum != checksum_record(record) || !is_valid_record(record))
        return false;
    memset((char *)record + record_size(record), 0, sizeof(*record) - record_size(record));
    record->name[sizeof(record->name) - 1] = '\0';
    *out = *record;
    return true;
}

/* Find which of `count` slots, starting with `slot`, other processes hold. */
static int find_held_slots(const struct xseg_shared_budget *budget, unsigned slot, unsigned count,
                           uint64_t *held)
{
    return xseg_shared_budget_file_find_held(&budget->file, RECORD_LOCKS + (off_t)slot, count,
                                             held);
}

/* Read a slot that another process holds, or held just before. */
static void read_slot(struct xseg_shared_budget *budget, unsigned slot,
                      struct xseg_shared_budget_entry *entry)
{
    for (unsigned tries = 0; tries < READ_TRIES; tries++) {
        uint64_t held = 0;

        if (fetch_record(budget, slot, &entry->record)) {
            entry->state = XSEG_SHARED_BUDGET_FRESH;
            return;
        }
        /* The process may have cleared its record and closed the file. */
        if (find_held_slots(budget, slot, 1, &held) == 0 && held == 0) {
            entry->state = XSEG_SHARED_BUDGET_FREE;
            return;
        }
        (void)sched_yield();
    }
    entry->state =
        entry->state == XSEG_SHARED_BUDGET_FRESH || entry->state == XSEG_SHARED_BUDGET_STALE
            ? XSEG_SHARED_BUDGET_STALE
            : XSEG_SHARED_BUDGET_UNREADABLE;
}

/* Read the own slot, only to detect that another program has overwritten the slot; then the next write restores it. */
static void read_own_slot(struct xseg_shared_budget *budget)
{
    struct xseg_shared_budget_entry *entry = &budget->entries[budget->slot];
    const struct xseg_shared_budget_record *own = &budget->own.record;

    if (!fetch_record(budget, budget->slot, &entry->record) ||
        memcmp(&entry->record, own, sizeof(*own)) != 0)
        budget->is_written = false;
    entry->state = XSEG_SHARED_BUDGET_FRESH;
    entry->record = *own;
}

xseg_status xseg_shared_budget_read(struct xseg_shared_budget *budget)
{
    const xseg_status checked = xseg_shared_budget_file_check(&budget->file);
    uint64_t held = 0;

    if (checked != XSEG_OK) {
        budget->is_written = false;
        return checked;
    }
    const int error = find_held_slots(budget, 0, XSEG_SHARED_BUDGET_SLOTS, &held);
    if (error != 0)
        return xseg_shared_budget_file_fail_to_lock(&budget->file, error);
    for (unsigned slot = 0; slot < XSEG_SHARED_BUDGET_SLOTS; slot++) {
        if (slot == budget->slot)
            read_own_slot(budget);
        else if ((held >> slot & 1) != 0)
            read_slot(budget, slot, &budget->entries[slot]);
        else
            budget->entries[slot].state = XSEG_SHARED_BUDGET_FREE;
    }
    return XSEG_OK;
}

xseg_status xseg_shared_budget_scan(struct xseg_shared_budget *budget, const char *path)
{
    memset(budget, 0, sizeof(*budget));
    budget->slot = XSEG_SHARED_BUDGET_SLOTS; /* none */
    const xseg_status opened = xseg_shared_budget_file_open_to_read(&budget->file, path);
    if (opened != XSEG_OK)
        return opened;
    const xseg_status status = xseg_shared_budget_read(budget);
    xseg_shared_budget_file_close(&budget->file);
    return status;
}

void xseg_shared_budget_close(struct xseg_shared_budget *budget)
{
    struct xseg_fail_saved saved;

    if (xseg_shared_budget_file_is_intact(&budget->file)) {
        xseg_fail_save(&saved);
        (void)xseg_shared_budget_file_unlock(&budget->file, RECORD_LOCKS + (off_t)budget->slot);
        memset(&budget->own, 0, sizeof(budget->own));
        (void)write_slot(budget, &budget->own, sizeof(budget->own));
        xseg_fail_restore(&saved);
    }
    xseg_shared_budget_file_close(&budget->file);
}
