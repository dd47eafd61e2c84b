/* SPDX-License-Identifier: MIT */
/*
 * Shared machine: processes with the same machine name share the memory of its devices.
 *
 * The processes map one POSIX shared memory object.  It contains the number and the memory of the devices and the memory
 * of the host of an integrated machine (unified.h), which the first process sets.  A slot per process contains the used
 * memory of each device.
 *
 * A process holds an exclusive file lock on the byte of its slot.  The lock ends with the process, which frees the memory
 * of a killed process.  The last process to leave removes the object.  The first process that finds no locked slot
 * sets up the object again, because killed processes cannot remove it.
 *
 * Addresses, streams, clock, counters and faults are private to each process.
 *
 * Invariants: a process writes only the slot that it has locked.  The memory of an unlocked slot is ignored.
 *
 * Locking: the machine lock.  Between processes, a lock of the file (flock) is acquired when a call reads the memory of
 * other processes, and released with the machine lock.  So a query and the following allocation are atomic.
 */
#ifndef XSEG_SIM_SHARED_MACHINE_H
#define XSEG_SIM_SHARED_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

struct sim_shared_region;
struct sim_config;
struct sim_host;

struct sim_shared_machine {
    struct sim_shared_region *region; /* NULL: not shared */
    int file;
    unsigned slot;
    bool is_locked;
};

/**
 * Join the machine of a name.  Copies its number of devices, their memory, and whether they are integrated to the
 * configuration.
 *
 * Returns false if the name is invalid, all slots are used, or a system call fails.
 */
bool sim_shared_join(const char *name, struct sim_config *config);

/** Leave the machine. */
void sim_shared_leave(struct sim_shared_machine *shared);

/** Get the memory of a device that other processes use.  Locks the machine for this process. */
uint64_t sim_shared_used_by_others(struct sim_shared_machine *shared, unsigned device);

/** Get the host of the machine, or NULL if the machine is not shared.  Locks the machine for this process. */
struct sim_host *sim_shared_host(struct sim_shared_machine *shared);

/** Publish the memory of a device that this process uses. */
void sim_shared_publish(const struct sim_shared_machine *shared, unsigned device, uint64_t used);

/** Release the lock between processes if this process holds it. */
void sim_shared_unlock(struct sim_shared_machine *shared);

#endif
