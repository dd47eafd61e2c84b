/* SPDX-License-Identifier: MIT */
#include "vmm/sim/handle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "vmm/sim/machine.h"

uint64_t sim_handle_make(enum sim_kind kind, uint32_t index, uint32_t generation)
{
    return (uint64_t)kind << (SIM_ZERO_BITS + SIM_INDEX_BITS + SIM_GENERATION_BITS) |
           (uint64_t)generation << (SIM_ZERO_BITS + SIM_INDEX_BITS) |
           (uint64_t)index << SIM_ZERO_BITS;
}

static bool grow_slots(struct sim_handles *handles)
{
    const uint32_t capacity = handles->capacity == 0 ? 64 : handles->capacity * 2;
    struct sim_slot *slot;

    if (capacity > 1u << SIM_INDEX_BITS)
        return false;
    slot = realloc(handles->slot, capacity * sizeof(*slot));
    if (slot == NULL)
        return false;
    handles->slot = slot;
    handles->capacity = capacity;
    return true;
}

uint64_t sim_handles_add(struct sim_handles *handles, void *object)
{
    struct sim_slot *slot;
    uint32_t index;

    if (handles->first_free != 0) {
        index = handles->first_free - 1;
        slot = &handles->slot[index];
        handles->first_free = slot->next_free;
    } else {
        if (handles->count == handles->capacity && !grow_slots(handles))
            return 0;
        index = handles->count++;
        slot = &handles->slot[index];
        memset(slot, 0, sizeof(*slot));
        slot->generation = 1;
    }
    slot->object = object;
    slot->next_free = 0;
    handles->live++;
    return slot->handle = sim_handle_make(handles->kind, index, slot->generation);
}

void sim_handles_remove(struct sim_handles *handles, uint64_t handle, bool is_destroyed)
{
    struct sim_slot *slot;
    uint32_t index, generation;

    if (sim_handles_find(handles, handle) == NULL)
        return;
    (void)sim_handle_parts(handle, handles->kind, &index, &generation);
    slot = &handles->slot[index];
    slot->object = NULL;
    slot->handle = 0;
    if (is_destroyed)
        slot->destroyer = sim_origin_of_call();
    else
        slot->last_invalidated = slot->generation;
    handles->live--;
    if (sim_machine.config.reuse_handles &&
        (handles->kind == SIM_KIND_STREAM || handles->kind == SIM_KIND_EVENT))
        slot->generation--;
    if (++slot->generation != 0) {
        slot->next_free = handles->first_free;
        handles->first_free = index + 1;
    }
}

void sim_handles_check(const struct sim_handles *handles, uint64_t handle, const char *kind)
{
    const struct sim_slot *slot;
    uint32_t index, generation;

    if (!sim_machine.config.strict || sim_machine.current_call == NULL ||
        !sim_handle_parts(handle, handles->kind, &index, &generation) || index >= handles->count)
        return;
    slot = &handles->slot[index];
    if (generation >= slot->generation || generation <= slot->last_invalidated)
        return;
    sim_report_begin("use of a destroyed stream or event");
    sim_report_line(kind, generation + 1 == slot->generation ? &slot->destroyer : NULL,
                    "0x%" PRIx64 ", destroyed", handle);
    sim_report_end();
}

void *sim_handles_next(const struct sim_handles *handles, uint32_t *index)
{
    while (*index < handles->count) {
        void *object = handles->slot[(*index)++].object;

        if (object != NULL)
            return object;
    }
    return NULL;
}
