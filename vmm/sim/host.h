/* SPDX-License-Identifier: MIT */
/*
 * Pinned host memory: what cuMemHostAlloc gives, and what cuMemHostRegister is told of.
 *
 * It is ordinary memory of the process, which the machine knows: an asynchronous copy from or to it
 * happens when its turn on the stream comes, and not before the call returns.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_HOST_H
#define XSEG_SIM_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/origin.h"

struct sim_host {
    struct sim_host *next;
    uint64_t base, bytes;
    bool is_registered; /* memory of the program's own, which it frees itself */
    struct sim_origin origin;
};

/** The bytes of a page of the host: 4 KiB on x86-64, and up to 64 KiB on aarch64. */
uint64_t sim_host_page(void);

/** Whether all of that is pinned, in one piece. */
bool sim_host_is_pinned(uint64_t address, uint64_t bytes);

/** The piece that an address lies in, or NULL. */
const struct sim_host *sim_host_at(uint64_t address);

/** How many pieces there are; an example in *example if there is one. */
size_t sim_host_count(const struct sim_host **example);

/** Give all of it back; for the end of the machine. */
void sim_host_end(void);

#endif
