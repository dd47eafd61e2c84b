/* SPDX-License-Identifier: MIT */
#include "vmm/sim/contents.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/memory.h"
#include "vmm/sim/sharing.h"

uint64_t sim_host_page_size(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static void *pointer_to(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

bool sim_contents_reserve(uint64_t base, uint64_t bytes)
{
    void *base_found;

    if (!sim_machine.config.real_bytes)
        return true;
    base_found = mmap(pointer_to(base), bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (base_found == MAP_FAILED)
        return false;
    if (base_found == pointer_to(base))
        return true;
    /* Before Linux 4.17 the address is a hint. */
    (void)munmap(base_found, bytes);
    return false;
}

void sim_contents_unreserve(uint64_t base, uint64_t bytes)
{
    if (sim_machine.config.real_bytes)
        (void)munmap(pointer_to(base), bytes);
}

bool sim_contents_allocate(unsigned device, uint64_t bytes, bool is_exportable,
                           struct sim_store *store)
{
    struct sim_device *at = &sim_machine.device[device];
    const uint64_t label = is_exportable ? sim_host_page_size() : 0;
    const uint64_t size = label + bytes;

    *store = (struct sim_store){.file = -1};
    if (!sim_machine.config.real_bytes && !is_exportable)
        return true;
    if (!at->has_file) {
        at->file = memfd_create("xseg-sim", MFD_CLOEXEC);
        if (at->file < 0)
            return false;
        at->has_file = true;
        at->file_bytes = 0;
    }
    if (ftruncate(at->file, (off_t)(at->file_bytes + size)) != 0)
        return false;
    *store = (struct sim_store){
        .file = at->file, .offset = at->file_bytes + label, .label_bytes = label};
    at->file_bytes += size;
    return true;
}

void sim_contents_free(const struct sim_store *store, uint64_t bytes)
{
    if (store->file < 0)
        return;
    if (store->memory_file != NULL)
        sim_memory_file_close(store->memory_file);
    else if (!sim_machine.forked) /* a forked child shares the file with its parent */
        (void)fallocate(store->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)(store->offset - store->label_bytes),
                        (off_t)(store->label_bytes + bytes));
}

bool sim_contents_map(const struct sim_store *store, uint64_t address, uint64_t bytes)
{
    if (!sim_machine.config.real_bytes || store->file < 0)
        return true;
    if (mmap(pointer_to(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, store->file,
             (off_t)store->offset) == MAP_FAILED)
        return false;
    /* Huge pages would make the file dense. */
    (void)madvise(pointer_to(address), bytes, MADV_NOHUGEPAGE);
    return true;
}

void sim_contents_unmap(uint64_t address, uint64_t bytes)
{
    if (sim_machine.config.real_bytes)
        (void)mmap(pointer_to(address), bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void sim_contents_protect(uint64_t address, uint64_t bytes, bool is_accessible)
{
    if (sim_machine.config.real_bytes)
        (void)mprotect(pointer_to(address), bytes,
                       is_accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void sim_contents_close(void)
{
    while (sim_machine.memory_files != NULL) {
        sim_machine.memory_files->references = 1;
        sim_memory_file_close(sim_machine.memory_files);
    }
    for (unsigned i = 0; i < SIM_DEVICES_MAX; i++)
        if (sim_machine.device[i].has_file)
            (void)close(sim_machine.device[i].file);
}

/* Below this size, searching for unwritten pages costs more than copying them. */
#define SPARSE_MIN ((uint64_t)64 << 10)

#define ENTRIES 512u /* pagemap entries per read */

/* Bits of a /proc/self/pagemap entry: present or swapped. */
#define HAS_CONTENTS (UINT64_C(3) << 62)

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Part of a memory file.  Offsets and addresses have the same page alignment. */
struct extent {
    int file;
    uint64_t offset, bytes;
};

/* Find the file extent of at most `bytes` bytes of device memory at an address.  Returns false if there is none. */
static bool find_extent(uint64_t address, uint64_t bytes, struct extent *extent)
{
    const struct sim_mapping *mapping = sim_mapping_at(address);
    const struct sim_range *range = NULL;
    const struct sim_store *store;
    uint64_t base, length;

    if (mapping != NULL) {
        store = &mapping->physical->store;
        base = mapping->address;
        length = mapping->bytes;
    } else {
        range = sim_range_find(&sim_machine.addresses, address);
        if (range == NULL || range->granule != NULL)
            return false;
        store = &range->store;
        base = range->base;
        length = range->bytes;
    }
    if (store->file < 0)
        return false;
    *extent = (struct extent){.file = store->file,
                              .offset = store->offset + (address - base),
                              .bytes = min_u64(bytes, length - (address - base))};
    return true;
}

/* Get the distance to the next written (SEEK_DATA) or unwritten (SEEK_HOLE) page. */
static uint64_t seek_extent(const struct extent *extent, int whence)
{
    const uint64_t end = extent->offset + extent->bytes;
    const off_t found = lseek(extent->file, (off_t)extent->offset, whence);

    if (found < 0)
        return errno == ENXIO && whence == SEEK_DATA ? extent->bytes : 0;
    return min_u64((uint64_t)found, end) - extent->offset;
}

/* Get the length of the initial run of pinned memory whose pages are all written, or all unwritten. */
static uint64_t measure_pinned_run(int pagemap, uint64_t address, uint64_t bytes, bool *is_hole)
{
    const uint64_t page = sim_host_page_size();
    const uint64_t first = address / page, last = (address + bytes - 1) / page;
    uint64_t entry[ENTRIES], measured = 0;

    *is_hole = false;
    for (uint64_t at = first; at <= last; at += ENTRIES) {
        const uint64_t count = min_u64(ENTRIES, last - at + 1);

        if (pread(pagemap, entry, count * sizeof(*entry), (off_t)(at * sizeof(*entry))) !=
            (ssize_t)(count * sizeof(*entry)))
            return bytes;
        if (at == first)
            *is_hole = (entry[0] & HAS_CONTENTS) == 0;
        for (uint64_t i = 0; i < count; i++) {
            if (((entry[i] & HAS_CONTENTS) == 0) != *is_hole)
                return measured - address % page;
            measured += page;
        }
    }
    return bytes;
}

/* As measure_pinned_run(), by comparing bytes with 0, if the pagemap is not readable. */
static uint64_t measure_zero_run(uint64_t address, uint64_t bytes, bool *is_hole)
{
    const uint64_t page = sim_host_page_size();
    uint64_t measured = 0;

    while (measured < bytes) {
        const uint64_t at = address + measured;
        const uint64_t length = min_u64(page - at % page, bytes - measured);
        const unsigned char *byte = pointer_to(at);
        const bool is_zero =
            byte[0] == 0 && (length == 1 || memcmp(byte, byte + 1, length - 1) == 0);

        if (measured == 0)
            *is_hole = is_zero;
        if (is_zero != *is_hole)
            break;
        measured += length;
    }
    return measured;
}

/* Get the length of the initial run of bytes that are all in unwritten pages, or all not. */
static uint64_t measure_run(int pagemap, uint64_t address, uint64_t bytes, bool *is_hole)
{
    struct extent extent;

    *is_hole = false;
    if (find_extent(address, bytes, &extent)) {
        const uint64_t hole = seek_extent(&extent, SEEK_DATA);

        *is_hole = hole != 0;
        return *is_hole ? hole : seek_extent(&extent, SEEK_HOLE);
    }
    if (!sim_pinned_contains(address, bytes))
        return bytes;
    return pagemap >= 0 ? measure_pinned_run(pagemap, address, bytes, is_hole)
                        : measure_zero_run(address, bytes, is_hole);
}

/* Zero whole pages, by releasing them if possible. */
static void clear_pages(uint64_t to, uint64_t bytes)
{
    const bool is_pinned = sim_pinned_contains(to, bytes);
    struct extent extent;

    for (uint64_t end = to + bytes; to < end; to += bytes) {
        bytes = end - to;
        if (is_pinned && madvise(pointer_to(to), bytes, MADV_DONTNEED) == 0)
            continue;
        if (find_extent(to, bytes, &extent)) {
            bytes = extent.bytes;
            if (fallocate(extent.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          (off_t)extent.offset, (off_t)extent.bytes) == 0)
                continue;
        }
        memset(pointer_to(to), 0, bytes);
    }
}

void sim_contents_zero(uint64_t to, uint64_t bytes)
{
    const uint64_t page = sim_host_page_size();
    const uint64_t first = (to + page - 1) / page * page, end = (to + bytes) / page * page;

    if (bytes < SPARSE_MIN || first >= end) {
        memset(pointer_to(to), 0, bytes);
        return;
    }
    memset(pointer_to(to), 0, first - to);
    clear_pages(first, end - first);
    memset(pointer_to(end), 0, to + bytes - end);
}

static bool ranges_overlap(uint64_t a, uint64_t b, uint64_t bytes)
{
    return a < b ? b - a < bytes : a - b < bytes;
}

void sim_contents_copy(uint64_t to, uint64_t from, uint64_t bytes)
{
    int pagemap;

    if (bytes < SPARSE_MIN || ranges_overlap(to, from, bytes)) {
        memmove(pointer_to(to), pointer_to(from), bytes);
        return;
    }
    pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    for (uint64_t done = 0, length; done < bytes; done += length) {
        bool is_hole = false;

        length = measure_run(pagemap, from + done, bytes - done, &is_hole);
        length = length == 0 ? bytes - done : length;
        if (is_hole)
            sim_contents_zero(to + done, length);
        else
            memcpy(pointer_to(to + done), pointer_to(from + done), length);
    }
    if (pagemap >= 0)
        (void)close(pagemap);
}
