/* SPDX-License-Identifier: MIT */
#include "vmm/sim/object.h"

#include <stdlib.h>

#include "vmm/sim/entry.h"
#include "vmm/sim/graph.h"
#include "vmm/sim/machine.h"

struct sim_object {
    uint64_t handle, references;
    CUhostFn destroy;
    void *pointer;
    struct sim_object *next; /* put aside */
};

static struct sim_object *gone; /* nothing refers to these */

static void user_object_release(struct sim_object *object, uint64_t count)
{
    object->references -= count;
    if (object->references != 0)
        return;
    sim_handles_remove(&sim_machine.objects, object->handle, true);
    object->next = gone;
    gone = object;
}

bool sim_objects_hold(struct sim_held **list, const struct sim_held *from)
{
    for (; from != NULL; from = from->next) {
        struct sim_held *held = malloc(sizeof(*held));

        if (held == NULL)
            return false;
        *held = (struct sim_held){*list, from->object, 1};
        held->object->references++;
        *list = held;
    }
    return true;
}

void sim_objects_let_go(struct sim_held **list)
{
    while (*list != NULL) {
        struct sim_held *held = *list;

        *list = held->next;
        user_object_release(held->object, held->references);
        free(held);
    }
}

void sim_objects_settle(void)
{
    while (gone != NULL) {
        struct sim_object *object = gone;

        gone = object->next;
        sim_unlock_for(object->destroy, object->pointer);
        free(object);
    }
}

void sim_objects_end(void)
{
    struct sim_object *object;
    uint32_t at = 0;

    while ((object = sim_handles_next(&sim_machine.objects, &at)) != NULL) {
        sim_handles_remove(&sim_machine.objects, object->handle, false);
        free(object);
    }
    while (gone != NULL) {
        object = gone;
        gone = object->next;
        free(object);
    }
}

static struct sim_object *find_user_object(CUuserObject handle)
{
    return sim_handles_find(&sim_machine.objects, (uint64_t)(uintptr_t)handle);
}

static CUresult create_user_object(CUuserObject *out, void *pointer, CUhostFn destroy,
                                   unsigned references, unsigned flags)
{
    struct sim_object *object;

    if (out == NULL || destroy == NULL || references == 0 || references > INT32_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    object = calloc(1, sizeof(*object));
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->references = references;
    object->destroy = destroy;
    object->pointer = pointer;
    object->handle = sim_handles_add(&sim_machine.objects, object);
    if (object->handle == 0) {
        free(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUuserObject)(uintptr_t)object->handle;
    return CUDA_SUCCESS;
}

static CUresult retain_user_object(CUuserObject handle, unsigned count)
{
    struct sim_object *object = find_user_object(handle);

    if (object == NULL || count == 0 || count > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    object->references += count;
    return CUDA_SUCCESS;
}

/* More than there are is undefined on a real driver. */
static CUresult release_user_object(CUuserObject handle, unsigned count)
{
    struct sim_object *object = find_user_object(handle);

    if (object == NULL || count == 0 || count > object->references)
        return CUDA_ERROR_INVALID_VALUE;
    user_object_release(object, count);
    sim_objects_settle();
    return CUDA_SUCCESS;
}

static CUresult graph_retain_user_object(CUgraph graph_handle, CUuserObject handle, unsigned count,
                                         unsigned flags)
{
    struct sim_graph *graph = sim_graph_find(graph_handle);
    struct sim_object *object = find_user_object(handle);
    struct sim_held *held;

    if (graph == NULL || object == NULL || count == 0 || count > INT32_MAX ||
        (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags != 0 && count > object->references)
        return CUDA_ERROR_INVALID_VALUE;
    held = malloc(sizeof(*held));
    if (held == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *held = (struct sim_held){graph->held, object, count};
    graph->held = held;
    if (flags == 0)
        object->references += count;
    return CUDA_SUCCESS;
}

SIM_ENTRY(USER_OBJECT_CREATE, cuUserObjectCreate,
          (CUuserObject *object_out, void *ptr, CUhostFn destroy, unsigned int initialRefcount,
           unsigned int flags),
          create_user_object(object_out, ptr, destroy, initialRefcount, flags));
SIM_ENTRY(USER_OBJECT_RETAIN, cuUserObjectRetain, (CUuserObject object, unsigned int count),
          retain_user_object(object, count));
SIM_ENTRY(USER_OBJECT_RELEASE, cuUserObjectRelease, (CUuserObject object, unsigned int count),
          release_user_object(object, count));
SIM_ENTRY(GRAPH_RETAIN_OBJECT, cuGraphRetainUserObject,
          (CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags),
          graph_retain_user_object(graph, object, count, flags));
