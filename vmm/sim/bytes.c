/* SPDX-License-Identifier: MIT */
#include "vmm/sim/bytes.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vmm/sim/host.h"
#include "vmm/sim/machine.h"

static void *pointer_to(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

bool sim_bytes_reserve(uint64_t base, uint64_t bytes)
{
    void *got;

    if (!sim_machine.real_bytes)
        return true;
    got = mmap(pointer_to(base), bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == MAP_FAILED)
        return false;
    if (got == pointer_to(base))
        return true;
    /* Kernels that do not know the flag take the address for a hint. */
    (void)munmap(got, bytes);
    return false;
}

void sim_bytes_unreserve(uint64_t base, uint64_t bytes)
{
    if (sim_machine.real_bytes)
        (void)munmap(pointer_to(base), bytes);
}

bool sim_bytes_take(unsigned device, uint64_t bytes, bool is_exportable, struct sim_store *store)
{
    struct sim_device *at = &sim_machine.device[device];
    const uint64_t label = is_exportable ? sim_host_page() : 0;
    const uint64_t piece = label + bytes;

    *store = (struct sim_store){.file = -1};
    if (!sim_machine.real_bytes && !is_exportable)
        return true;
    if (!at->has_file) {
        at->file = memfd_create("xseg-sim", MFD_CLOEXEC);
        if (at->file < 0)
            return false;
        at->has_file = true;
        at->file_bytes = 0;
    }
    /* Places in the file are not used again: it is sparse, and holes cost nothing. */
    if (ftruncate(at->file, (off_t)(at->file_bytes + piece)) != 0)
        return false;
    *store = (struct sim_store){
        .file = at->file, .offset = at->file_bytes + label, .label_bytes = label};
    at->file_bytes += piece;
    return true;
}

void sim_bytes_put(const struct sim_store *store, uint64_t bytes)
{
    if (store->file < 0)
        return;
    if (store->opened != NULL)
        sim_opened_release(store->opened);
    else if (!sim_machine.forked) /* a child must not empty its parent's memory */
        (void)fallocate(store->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)(store->offset - store->label_bytes),
                        (off_t)(store->label_bytes + bytes));
}

struct sim_opened *sim_opened_retain(int64_t process, int file)
{
    struct sim_opened *opened = sim_machine.opened;
    struct stat status;
    char path[64];

    (void)snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long)process, file);
    if (stat(path, &status) != 0)
        return NULL;
    while (opened != NULL && (opened->device != status.st_dev || opened->inode != status.st_ino))
        opened = opened->next;
    if (opened != NULL) {
        opened->references++;
        return opened;
    }
    file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NULL;
    opened = malloc(sizeof(*opened));
    if (opened == NULL || fstat(file, &status) != 0) {
        (void)close(file);
        free(opened);
        return NULL;
    }
    *opened = (struct sim_opened){.next = sim_machine.opened,
                                  .file = file,
                                  .references = 1,
                                  .device = status.st_dev,
                                  .inode = status.st_ino};
    return sim_machine.opened = opened;
}

void sim_opened_release(struct sim_opened *opened)
{
    struct sim_opened **at = &sim_machine.opened;

    if (--opened->references != 0)
        return;
    while (*at != opened)
        at = &(*at)->next;
    *at = opened->next;
    (void)close(opened->file);
    free(opened->imports);
    free(opened);
}

bool sim_bytes_map(const struct sim_store *store, uint64_t address, uint64_t bytes)
{
    if (!sim_machine.real_bytes || store->file < 0)
        return true;
    if (mmap(pointer_to(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, store->file,
             (off_t)store->offset) == MAP_FAILED)
        return false;
    /* A system may make huge pages of files in memory, too, and then nothing is sparse. */
    (void)madvise(pointer_to(address), bytes, MADV_NOHUGEPAGE);
    return true;
}

void sim_bytes_unmap(uint64_t address, uint64_t bytes)
{
    if (sim_machine.real_bytes)
        (void)mmap(pointer_to(address), bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void sim_bytes_protect(uint64_t address, uint64_t bytes, bool is_accessible)
{
    if (sim_machine.real_bytes)
        (void)mprotect(pointer_to(address), bytes,
                       is_accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void sim_bytes_end(void)
{
    while (sim_machine.opened != NULL) {
        sim_machine.opened->references = 1;
        sim_opened_release(sim_machine.opened);
    }
    for (unsigned i = 0; i < SIM_DEVICES_MAX; i++)
        if (sim_machine.device[i].has_file)
            (void)close(sim_machine.device[i].file);
}
