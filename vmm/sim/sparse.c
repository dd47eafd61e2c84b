/* SPDX-License-Identifier: MIT */
#include "vmm/sim/sparse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "vmm/sim/host.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"

/* Below this, looking for holes costs more than copying them. */
#define WORTH_LOOKING ((uint64_t)64 << 10)

/* Entries of the page table that are read at once. */
#define ENTRIES 512u

/* Bits of /proc/self/pagemap: the page has memory, or is swapped out. */
#define HAS_CONTENTS (UINT64_C(3) << 62)

static void *pointer_to(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* --- What kind of memory it is. --- */

/* A piece of device memory in its file; pages of file and addresses are aligned alike. */
struct piece {
    int file;
    uint64_t offset, bytes;
};

/* The piece of device memory that an address begins, of at most `bytes`; false if it is none. */
static bool find_extent(uint64_t address, uint64_t bytes, struct piece *piece)
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
    *piece = (struct piece){.file = store->file,
                            .offset = store->offset + (address - base),
                            .bytes = min_u64(bytes, length - (address - base))};
    return true;
}

/* --- Holes. --- */

static uint64_t seek_extent(const struct piece *piece, int whence)
{
    const uint64_t end = piece->offset + piece->bytes;
    const off_t found = lseek(piece->file, (off_t)piece->offset, whence);

    if (found < 0)
        return errno == ENXIO && whence == SEEK_DATA ? piece->bytes : 0;
    return min_u64((uint64_t)found, end) - piece->offset;
}

/* How much at the start of pinned memory has no contents, or how much has. */
static uint64_t measure_pinned_run(int table, uint64_t address, uint64_t bytes, bool *is_hole)
{
    const uint64_t page = sim_host_page();
    const uint64_t first = address / page, last = (address + bytes - 1) / page;
    uint64_t entry[ENTRIES], measured = 0;

    *is_hole = false;
    for (uint64_t at = first; at <= last; at += ENTRIES) {
        const uint64_t count = min_u64(ENTRIES, last - at + 1);

        if (pread(table, entry, count * sizeof(*entry), (off_t)(at * sizeof(*entry))) !=
            (ssize_t)(count * sizeof(*entry)))
            return bytes; /* not to be known: all of it counts as contents */
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

/* As measure_pinned_run(), by looking at the bytes, where the system keeps its page table to itself. */
static uint64_t measure_zero_run(uint64_t address, uint64_t bytes, bool *is_hole)
{
    const uint64_t page = sim_host_page();
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

/* How many bytes from an address on are alike: a hole or not. */
static uint64_t measure_run(int table, uint64_t address, uint64_t bytes, bool *is_hole)
{
    struct piece piece;

    *is_hole = false;
    if (find_extent(address, bytes, &piece)) {
        const uint64_t hole = seek_extent(&piece, SEEK_DATA);

        *is_hole = hole != 0;
        return *is_hole ? hole : seek_extent(&piece, SEEK_HOLE);
    }
    if (!sim_host_is_pinned(address, bytes))
        return bytes;
    return table >= 0 ? measure_pinned_run(table, address, bytes, is_hole)
                      : measure_zero_run(address, bytes, is_hole);
}

/* --- Zeros. --- */

/* Whole pages, as holes where the memory can have some. */
static void clear_pages(uint64_t to, uint64_t bytes)
{
    const bool is_pinned = sim_host_is_pinned(to, bytes);
    struct piece piece;

    for (uint64_t end = to + bytes; to < end; to += bytes) {
        bytes = end - to;
        if (is_pinned && madvise(pointer_to(to), bytes, MADV_DONTNEED) == 0)
            continue;
        if (find_extent(to, bytes, &piece)) {
            bytes = piece.bytes;
            if (fallocate(piece.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                          (off_t)piece.offset, (off_t)piece.bytes) == 0)
                continue;
        }
        memset(pointer_to(to), 0, bytes);
    }
}

void sim_sparse_clear(uint64_t to, uint64_t bytes)
{
    const uint64_t page = sim_host_page();
    const uint64_t first = (to + page - 1) / page * page, end = (to + bytes) / page * page;

    if (bytes < WORTH_LOOKING || first >= end) {
        memset(pointer_to(to), 0, bytes);
        return;
    }
    memset(pointer_to(to), 0, first - to);
    clear_pages(first, end - first);
    memset(pointer_to(end), 0, to + bytes - end);
}

/* --- Copies. --- */

static bool do_ranges_overlap(uint64_t a, uint64_t b, uint64_t bytes)
{
    return a < b ? b - a < bytes : a - b < bytes;
}

void sim_sparse_copy(uint64_t to, uint64_t from, uint64_t bytes)
{
    int table;

    if (bytes < WORTH_LOOKING || do_ranges_overlap(to, from, bytes)) {
        memmove(pointer_to(to), pointer_to(from), bytes);
        return;
    }
    table = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    for (uint64_t done = 0, length; done < bytes; done += length) {
        bool is_hole = false;

        length = measure_run(table, from + done, bytes - done, &is_hole);
        length = length == 0 ? bytes - done : length;
        if (is_hole)
            sim_sparse_clear(to + done, length);
        else
            memcpy(pointer_to(to + done), pointer_to(from + done), length);
    }
    if (table >= 0)
        (void)close(table);
}
