/* SPDX-License-Identifier: MIT */
/*
 * Handles: numbers that stand for objects and are never reused, unless the settings want handles of
 * streams and events to come again.
 *
 * A handle is a kind, a slot and that slot's generation; it is never followed as a pointer.  So a
 * handle of a destroyed object, of another kind, of an earlier machine, or plain rubbish finds
 * nothing.  What a call destroyed is remembered, so that a report can say which.  A slot whose generations are used up is retired.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_HANDLE_H
#define XSEG_SIM_HANDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm/sim/origin.h"

enum sim_kind {
    SIM_KIND_CONTEXT = 1,
    SIM_KIND_STREAM,
    SIM_KIND_EVENT,
    SIM_KIND_GRAPH,
    SIM_KIND_NODE,
    SIM_KIND_PHYSICAL,
    SIM_KIND_EXECUTABLE,
    SIM_KIND_OBJECT
};

/* The lowest bits are 0, as in a real driver's handles, which are addresses: programs keep marks there. */
enum { SIM_ZERO_BITS = 4, SIM_INDEX_BITS = 24, SIM_GENERATION_BITS = 32 };

/* A cache line: one shift from slot to slot. */
struct sim_slot {
    void *object;    /* NULL: free */
    uint64_t handle; /* that finds it; 0: free */
    uint32_t generation;
    uint32_t next_free;
    uint32_t lost;            /* the last generation that ended without being destroyed */
    struct sim_origin ending; /* what destroyed the generation before this one */
};

/** The handles of one kind. */
struct sim_handles {
    enum sim_kind kind;
    struct sim_slot *slot;
    uint32_t count, capacity;
    uint32_t first_free; /* 0: none; else its index + 1 */
    uint32_t live;
};

uint64_t sim_handle_make(enum sim_kind kind, uint32_t index, uint32_t generation);

/** Take a handle apart.  Returns: whether it is of that kind. */
static inline int sim_handle_parts(uint64_t handle, enum sim_kind kind, uint32_t *index,
                                   uint32_t *generation)
{
    *index = (uint32_t)(handle >> SIM_ZERO_BITS & ((1u << SIM_INDEX_BITS) - 1));
    *generation = (uint32_t)(handle >> (SIM_ZERO_BITS + SIM_INDEX_BITS));
    return handle >> (SIM_ZERO_BITS + SIM_INDEX_BITS + SIM_GENERATION_BITS) == (uint64_t)kind &&
           handle % (1u << SIM_ZERO_BITS) == 0;
}

/** A new handle for an object; 0 when there is no host memory. */
uint64_t sim_handles_add(struct sim_handles *handles, void *object);

/** The object behind a handle, or NULL. */
static inline void *sim_handles_find(const struct sim_handles *handles, uint64_t handle)
{
    const uint32_t index = (uint32_t)(handle >> SIM_ZERO_BITS & ((1u << SIM_INDEX_BITS) - 1));

    return index < handles->count && handles->slot[index].handle == handle
               ? handles->slot[index].object
               : NULL;
}

/**
 * The handle finds nothing from here on.
 *
 * @param is_destroyed  by the call under way; else it ends with what it belonged to
 */
void sim_handles_remove(struct sim_handles *handles, uint64_t handle, bool is_destroyed);

/** In strict mode, end the process with a report if a call uses a handle after its destruction. */
void sim_handles_check(const struct sim_handles *handles, uint64_t handle, const char *kind);

/** The live object at or after a slot, or NULL; *index is moved behind it. */
void *sim_handles_next(const struct sim_handles *handles, uint32_t *index);

#endif
