/* SPDX-License-Identifier: MIT */
/*
 * Contents of simulated memory: memory files, and their mappings in the process.
 *
 * Memory has contents with the setting real_bytes only; otherwise the functions sim_contents_*() succeed without effect.
 * Each device has one sparse memory file.  The addresses of each range are reserved in the process too, without access.
 * A mapping maps the part of the file that belongs to its physical memory at its address, and host access rights follow
 * the access rights of the devices.  So two mappings of the same memory have the same contents, an access to an unmapped
 * address faults, and an incorrect mapping shows as an incorrect byte.  Pages that were never written use no host
 * memory; copies and fills of zeros preserve that.
 *
 *     memory file   [ label | contents ][ contents ][ label | contents ] ...      exportable memory has a label
 *                             ^ store.offset
 *
 * Exportable memory has a part of the file even without real_bytes.  The part begins with a host page for the label that
 * sharing.c writes and locks.  So the number of open descriptors does not depend on the number of allocations.  Space in
 * a file is not reused; freed memory is deallocated in the file.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_CONTENTS_H
#define XSEG_SIM_CONTENTS_H

#include <stdbool.h>
#include <stdint.h>

struct sim_memory_file;

/** Location of contents in a memory file. */
struct sim_store {
    int file; /* -1: no contents */
    uint64_t offset;
    uint64_t label_bytes; /* size of the label before the contents; 0: not exportable */
    /* The file, if it belongs to another process or an import; NULL: the file of the device. */
    struct sim_memory_file *memory_file;
};

/** Get the page size of the host, in bytes. */
uint64_t sim_host_page_size(void);

/** Reserve addresses of the process.  Returns false if the process has a mapping there. */
bool sim_contents_reserve(uint64_t base, uint64_t bytes);
void sim_contents_unreserve(uint64_t base, uint64_t bytes);

/** Allocate zeroed contents.  Returns false if a system call fails. */
bool sim_contents_allocate(unsigned device, uint64_t bytes, bool is_exportable,
                           struct sim_store *store);
void sim_contents_free(const struct sim_store *store, uint64_t bytes);

/** Map contents at reserved addresses, without access rights.  Returns false if a system call fails. */
bool sim_contents_map(const struct sim_store *store, uint64_t address, uint64_t bytes);
void sim_contents_unmap(uint64_t address, uint64_t bytes);

/** Set the access rights of the host. */
void sim_contents_protect(uint64_t address, uint64_t bytes, bool is_accessible);

/** Copy contents.  The ranges are accessible and may overlap. */
void sim_contents_copy(uint64_t to, uint64_t from, uint64_t bytes);

/** Fill contents with zeros. */
void sim_contents_zero(uint64_t to, uint64_t bytes);

/** Close all memory files. */
void sim_contents_close(void);

#endif
