/* SPDX-License-Identifier: MIT */
/*
 * Real bytes: memory whose contents are kept, on request.
 *
 * Each device has one sparse memory file.  Reserved addresses are taken in the process too, at the
 * same place and out of reach.  A mapping shows the piece of the file that its memory owns, with
 * the access rights that any device has.  So what one mapping writes another one of the same memory
 * reads, a wrong mapping is a wrong byte, and an unmapped address is a fault.
 *
 * Without real bytes all of this does nothing and succeeds.
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
    bool is_own;
    uint64_t offset;
};

/** Take addresses of the process.  Returns: false when something else lies there */
bool sim_bytes_reserve(uint64_t base, uint64_t bytes);
void sim_bytes_unreserve(uint64_t base, uint64_t bytes);

/** Fresh contents, all zero.  Returns: false when the host refuses */
bool sim_bytes_take(unsigned device, uint64_t bytes, struct sim_store *store);
void sim_bytes_put(const struct sim_store *store, uint64_t bytes);

/** Show contents at reserved addresses, out of reach.  Returns: false when the host refuses */
bool sim_bytes_map(const struct sim_store *store, uint64_t address, uint64_t bytes);
void sim_bytes_unmap(uint64_t address, uint64_t bytes);
void sim_bytes_protect(uint64_t address, uint64_t bytes, bool readable, bool writable);

/** Close the devices' files. */
void sim_bytes_end(void);

#endif
