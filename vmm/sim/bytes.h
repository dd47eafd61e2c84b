/* SPDX-License-Identifier: MIT */
/*
 * Real bytes: memory whose contents are kept, on request.
 *
 * Each device has one sparse memory file.  Reserved addresses are taken in the process too, at the
 * same place and out of reach.  A mapping shows the piece of the file that its memory owns, with
 * the access rights that any device has.  So what one mapping writes another one of the same memory
 * reads, a wrong mapping is a wrong byte, and an unmapped address is a fault.
 *
 * Exportable memory has a piece of the file without real bytes as well.  The piece begins with a host page for the
 * label that export.c writes, and export.c locks the bytes of the piece.  So the number of open descriptors does not
 * depend on the number of allocations.  The file of another process is opened once, and its descriptor is reference
 * counted.
 *
 * All else does nothing without real bytes, and succeeds.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_BYTES_H
#define XSEG_SIM_BYTES_H

#include <stdbool.h>
#include <stdint.h>

/** Where the contents of some memory are. */
struct sim_store {
    int file; /* -1: nowhere */
    uint64_t offset;
    uint64_t label_bytes;      /* in the file, before the contents; 0: not exportable */
    struct sim_opened *opened; /* the file; NULL: it is the device's own */
};

/** A file of another process, or of an import. */
struct sim_opened {
    struct sim_opened *next;
    int file;
    uint64_t references, device, inode;
    /* For each granule of the file: the number of handles that import the memory whose label is in the granule. */
    uint32_t *imports;
    uint64_t import_capacity;
};

/** Take addresses of the process.  Returns: false when something else lies there */
bool sim_bytes_reserve(uint64_t base, uint64_t bytes);
void sim_bytes_unreserve(uint64_t base, uint64_t bytes);

/** Fresh contents, all zero.  Returns: false when the host refuses */
bool sim_bytes_take(unsigned device, uint64_t bytes, bool is_exportable, struct sim_store *store);
void sim_bytes_put(const struct sim_store *store, uint64_t bytes);

/** Open a file of a process, or retain it if it is open.  Returns: NULL with errno when the host refuses */
struct sim_opened *sim_opened_retain(int64_t process, int file);
void sim_opened_release(struct sim_opened *opened);

/** Show contents at reserved addresses, out of reach.  Returns: false when the host refuses */
bool sim_bytes_map(const struct sim_store *store, uint64_t address, uint64_t bytes);
void sim_bytes_unmap(uint64_t address, uint64_t bytes);
void sim_bytes_protect(uint64_t address, uint64_t bytes, bool is_accessible);

/** Close all files. */
void sim_bytes_end(void);

#endif
