/* SPDX-License-Identifier: MIT */
#include "vmm/sim/shared_machine.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/sim/machine.h"

enum { SLOTS = 64, NAME_MAX_BYTES = 64 };

struct sim_shared_region {
    uint64_t devices; /* 0: not set up */
    uint64_t memory_bytes;
    uint64_t is_integrated;
    struct sim_host host; /* of an integrated machine */
    char name[NAME_MAX_BYTES + 16];
    uint64_t used[SLOTS][SIM_DEVICES_MAX];
};

static bool is_valid_name(const char *name)
{
    const size_t length = strlen(name);

    return length > 0 && length <= NAME_MAX_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") ==
               length;
}

/* The lock of a slot is on the byte of the file with its index. */
static struct flock slot_lock(unsigned slot)
{
    struct flock lock;

    memset(&lock, 0, sizeof(lock));
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = (off_t)slot;
    lock.l_len = 1;
    return lock;
}

static bool is_slot_held(const struct sim_shared_machine *shared, unsigned slot)
{
    struct flock lock = slot_lock(slot);

    return fcntl(shared->file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Get whether no process holds a slot other than `excluded`; SLOTS: no slot at all. */
static bool has_no_process(const struct sim_shared_machine *shared, unsigned excluded)
{
    for (unsigned slot = 0; slot < SLOTS; slot++)
        if (slot != excluded && is_slot_held(shared, slot))
            return false;
    return true;
}

/* Open and lock the shared memory object of a path.  Returns -1 on failure. */
static int open_locked_region(const char *path)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        const int file = shm_open(path, O_RDWR | O_CREAT, 0600);
        struct stat status;

        if (file < 0)
            return -1;
        if (flock(file, LOCK_EX) == 0 && fstat(file, &status) == 0 && status.st_nlink != 0)
            return file;
        /* The last process unlinked the object before the lock was acquired. */
        (void)close(file);
    }
    return -1;
}

static bool acquire_slot(struct sim_shared_machine *shared)
{
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        struct flock lock = slot_lock(slot);

        if (fcntl(shared->file, F_OFD_SETLK, &lock) != 0)
            continue;
        shared->slot = slot;
        memset(shared->region->used[slot], 0, sizeof(shared->region->used[slot]));
        return true;
    }
    return false;
}

static bool map_region(struct sim_shared_machine *shared, const char *path,
                       struct sim_config *config)
{
    struct sim_shared_region *region;

    if (ftruncate(shared->file, (off_t)sizeof(*region)) != 0)
        return false;
    region = mmap(NULL, sizeof(*region), PROT_READ | PROT_WRITE, MAP_SHARED, shared->file, 0);
    if (region == MAP_FAILED)
        return false;
    shared->region = region;
    /* All processes of the machine were killed. */
    if (has_no_process(shared, SLOTS))
        region->devices = 0;
    if (!acquire_slot(shared)) {
        (void)munmap(region, sizeof(*region));
        return false;
    }
    if (region->devices == 0) {
        region->memory_bytes = config->memory_bytes;
        region->is_integrated = config->integrated;
        region->host = config->host;
        (void)snprintf(region->name, sizeof(region->name), "%s", path);
        region->devices = config->devices;
    }
    config->devices = (unsigned)region->devices;
    config->memory_bytes = region->memory_bytes;
    config->integrated = region->is_integrated != 0;
    return true;
}

bool sim_shared_join(const char *name, struct sim_config *config)
{
    struct sim_shared_machine shared = {.region = NULL};
    char path[NAME_MAX_BYTES + 16];

    if (!is_valid_name(name))
        return false;
    (void)snprintf(path, sizeof(path), "/xseg-sim-%s", name);
    shared.file = open_locked_region(path);
    if (shared.file < 0)
        return false;
    if (!map_region(&shared, path, config)) {
        (void)close(shared.file);
        return false;
    }
    (void)flock(shared.file, LOCK_UN);
    config->shared = shared;
    return true;
}

static void lock_region(struct sim_shared_machine *shared)
{
    if (!shared->is_locked)
        shared->is_locked = flock(shared->file, LOCK_EX) == 0;
}

void sim_shared_leave(struct sim_shared_machine *shared)
{
    if (shared->region == NULL)
        return;
    /* The slot belongs to the parent process after a fork. */
    if (!sim_machine.forked) {
        lock_region(shared);
        memset(shared->region->used[shared->slot], 0, sizeof(shared->region->used[0]));
        if (has_no_process(shared, shared->slot))
            (void)shm_unlink(shared->region->name);
        sim_shared_unlock(shared);
    }
    (void)munmap(shared->region, sizeof(*shared->region));
    (void)close(shared->file);
    *shared = (struct sim_shared_machine){.region = NULL};
}

uint64_t sim_shared_used_by_others(struct sim_shared_machine *shared, unsigned device)
{
    uint64_t used = 0;

    if (shared->region == NULL)
        return 0;
    lock_region(shared);
    for (unsigned slot = 0; slot < SLOTS; slot++)
        if (slot != shared->slot && shared->region->used[slot][device] != 0 &&
            is_slot_held(shared, slot))
            used += shared->region->used[slot][device];
    return used;
}

struct sim_host *sim_shared_host(struct sim_shared_machine *shared)
{
    if (shared->region == NULL)
        return NULL;
    lock_region(shared);
    return &shared->region->host;
}

void sim_shared_publish(const struct sim_shared_machine *shared, unsigned device, uint64_t used)
{
    if (shared->region != NULL && !sim_machine.forked)
        shared->region->used[shared->slot][device] = used;
}

void sim_shared_unlock(struct sim_shared_machine *shared)
{
    if (!shared->is_locked)
        return;
    (void)flock(shared->file, LOCK_UN);
    shared->is_locked = false;
}

/* The last process removes the object. */
static void __attribute__((destructor)) leave_at_exit(void)
{
    sim_shared_leave(&sim_machine.shared);
}
