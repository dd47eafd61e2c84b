/* SPDX-License-Identifier: MIT */
/*
 * Handle tables: handles of driver objects, which do not point to them.
 *
 * A handle contains a kind, the index of a slot and the generation of the slot.  A lookup compares the whole handle
 * with the one in the slot.  So handles of destroyed objects, of other kinds and of earlier machines do not resolve, and
 * arbitrary values are never dereferenced.
 *
 *     63       60 59            28 27       4 3    0
 *     [  kind   ][   generation   ][  index  ][ 0000 ]
 *
 * The low bits are zero because real handles are aligned addresses, and programs store tags in these bits.
 *
 * The slot of a removed handle gets the next generation and goes to a free list.  Each slot records the call that
 * destroyed its last object, which a report of strict mode prints.  A slot whose generations are exhausted is not used
 * again.  With the setting reuse_handles the generation of streams and events does not change, as handles of a real
 * driver are reused.
 *
 * Invariants: slot->handle is 0 exactly for free slots; `live` is the number of other slots.
 *
 * Locking: the machine lock.
 */
#ifndef XSEG_SIM_HANDLE_H
#define XSEG_SIM_HANDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/report.h"

enum sim_kind {
    SIM_KIND_CONTEXT = 1,
    SIM_KIND_STREAM,
    SIM_KIND_EVENT,
    SIM_KIND_GRAPH,
    SIM_KIND_NODE,
    SIM_KIND_PHYSICAL,
    SIM_KIND_GRAPH_EXEC,
    SIM_KIND_USER_OBJECT
};

enum { SIM_ZERO_BITS = 4, SIM_INDEX_BITS = 24, SIM_GENERATION_BITS = 32 };

/* The size is a power of two, so that the lookup shifts instead of multiplying. */
struct sim_slot {
    void *object;    /* NULL: free */
    uint64_t handle; /* 0: free */
    uint32_t generation;
    uint32_t next_free;
    uint32_t last_invalidated;   /* last generation whose object no call destroyed */
    struct sim_origin destroyer; /* the call that destroyed the object of the previous generation */
};

/** Handles of one kind. */
struct sim_handles {
    enum sim_kind kind;
    struct sim_slot *slot;
    uint32_t count, capacity;
    uint32_t first_free; /* index + 1; 0: none */
    uint32_t live;
};

/** Compose a handle. */
uint64_t sim_handle_make(enum sim_kind kind, uint32_t index, uint32_t generation);

/** Decompose a handle.  Returns whether it has this kind. */
static inline bool sim_handle_parts(uint64_t handle, enum sim_kind kind, uint32_t *index,
                                    uint32_t *generation)
{
    *index = (uint32_t)(handle >> SIM_ZERO_BITS & ((1u << SIM_INDEX_BITS) - 1));
    *generation = (uint32_t)(handle >> (SIM_ZERO_BITS + SIM_INDEX_BITS));
    return handle >> (SIM_ZERO_BITS + SIM_INDEX_BITS + SIM_GENERATION_BITS) == (uint64_t)kind &&
           handle % (1u << SIM_ZERO_BITS) == 0;
}

/** Create a handle for an object.  Returns 0 on host allocation failure. */
uint64_t sim_handles_add(struct sim_handles *handles, void *object);

/** Get the object of a handle, or NULL. */
static inline void *sim_handles_find(const struct sim_handles *handles, uint64_t handle)
{
    const uint32_t index = (uint32_t)(handle >> SIM_ZERO_BITS & ((1u << SIM_INDEX_BITS) - 1));

    return index < handles->count && handles->slot[index].handle == handle
               ? handles->slot[index].object
               : NULL;
}

/**
 * Remove a handle.
 *
 * @param is_destroyed  the call in progress destroys the object; otherwise its context or the machine ends.
 */
void sim_handles_remove(struct sim_handles *handles, uint64_t handle, bool is_destroyed);

/** End the process with a report if a call uses a handle after its destruction, in strict mode. */
void sim_handles_check(const struct sim_handles *handles, uint64_t handle, const char *kind);

/** Get the next live object from slot *index on, or NULL, and advance *index. */
void *sim_handles_next(const struct sim_handles *handles, uint32_t *index);

#endif
