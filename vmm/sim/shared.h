/* SPDX-License-Identifier: MIT */
/*
 * A shared machine: processes that name the same one have the same memory to share.
 *
 * They share a region of memory with a slot for each process, in which it says how much of each
 * device it uses.  A slot belongs to the process that has it locked, so what a process used is free
 * again when it has died.  All else (addresses, streams, the clock) is each process's own.
 *
 * Locking: the machine's lock; between processes the region's, which is taken when memory is first
 * looked at in a call and given back with the machine's lock.
 */
#ifndef XSEG_SIM_SHARED_H
#define XSEG_SIM_SHARED_H

#include <stdbool.h>
#include <stdint.h>

struct sim_region;
struct sim_scene;

struct sim_shared {
    struct sim_region *region; /* NULL: not shared */
    int file;
    unsigned slot;
    bool is_locked;
};

/**
 * Join the shared machine of that name.  Whoever is first decides its devices and their memory;
 * the others take them over into their scene.
 *
 * Returns: false when the name or the host will not have it
 */
bool sim_shared_join(const char *name, struct sim_scene *scene);

/** Leave it; the last one removes it. */
void sim_shared_leave(struct sim_shared *shared);

/** What the other processes use of a device; takes the region's lock. */
uint64_t sim_shared_others(struct sim_shared *shared, unsigned device);

/** Say what this process uses of a device. */
void sim_shared_say(const struct sim_shared *shared, unsigned device, uint64_t used);

/** Give the region's lock back, if it is taken. */
void sim_shared_unlock(struct sim_shared *shared);

#endif
