/* SPDX-License-Identifier: MIT */
#include "vmm/sim/graph.h"

#include <stdlib.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/stream.h"

struct sim_user_object {
    uint64_t handle, references;
    CUhostFn destroy;
    void *pointer;
    struct sim_user_object *next; /* in the list `unreferenced` */
};

static struct sim_user_object *unreferenced; /* destructors to call */

static void user_object_release(struct sim_user_object *object, uint64_t count)
{
    object->references -= count;
    if (object->references != 0)
        return;
    sim_handles_remove(&sim_machine.user_objects, object->handle, true);
    object->next = unreferenced;
    unreferenced = object;
}

/* Retain each user object of a list once, in another list.  Returns false on host allocation failure. */
static bool retain_user_objects(struct sim_user_object_ref **list,
                                const struct sim_user_object_ref *from)
{
    for (; from != NULL; from = from->next) {
        struct sim_user_object_ref *ref = malloc(sizeof(*ref));

        if (ref == NULL)
            return false;
        *ref = (struct sim_user_object_ref){*list, from->object, 1};
        ref->object->references++;
        *list = ref;
    }
    return true;
}

void sim_user_objects_release(struct sim_user_object_ref **list)
{
    while (*list != NULL) {
        struct sim_user_object_ref *ref = *list;

        *list = ref->next;
        user_object_release(ref->object, ref->references);
        free(ref);
    }
}

void sim_user_objects_run_destructors(void)
{
    while (unreferenced != NULL) {
        struct sim_user_object *object = unreferenced;

        unreferenced = object->next;
        sim_call_unlocked(object->destroy, object->pointer);
        free(object);
    }
}

void sim_user_objects_destroy(void)
{
    struct sim_user_object *object;
    uint32_t at = 0;

    while ((object = sim_handles_next(&sim_machine.user_objects, &at)) != NULL) {
        sim_handles_remove(&sim_machine.user_objects, object->handle, false);
        free(object);
    }
    while (unreferenced != NULL) {
        object = unreferenced;
        unreferenced = object->next;
        free(object);
    }
}

static struct sim_user_object *find_user_object(CUuserObject handle)
{
    return sim_handles_find(&sim_machine.user_objects, (uint64_t)(uintptr_t)handle);
}

static CUresult create_user_object(CUuserObject *out, void *pointer, CUhostFn destroy,
                                   unsigned references, unsigned flags)
{
    struct sim_user_object *object;

    if (out == NULL || destroy == NULL || references == 0 || references > INT32_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    object = calloc(1, sizeof(*object));
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    object->references = references;
    object->destroy = destroy;
    object->pointer = pointer;
    object->handle = sim_handles_add(&sim_machine.user_objects, object);
    if (object->handle == 0) {
        free(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUuserObject)(uintptr_t)object->handle;
    return CUDA_SUCCESS;
}

static CUresult retain_user_object(CUuserObject handle, unsigned count)
{
    struct sim_user_object *object = find_user_object(handle);

    if (object == NULL || count == 0 || count > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    object->references += count;
    return CUDA_SUCCESS;
}

/* In a real driver, a release of more references than the object has is undefined behavior. */
static CUresult release_user_object(CUuserObject handle, unsigned count)
{
    struct sim_user_object *object = find_user_object(handle);

    if (object == NULL || count == 0 || count > object->references)
        return CUDA_ERROR_INVALID_VALUE;
    user_object_release(object, count);
    sim_user_objects_run_destructors();
    return CUDA_SUCCESS;
}

static CUresult graph_retain_user_object(CUgraph graph_handle, CUuserObject handle, unsigned count,
                                         unsigned flags)
{
    struct sim_graph *graph = sim_graph_find(graph_handle);
    struct sim_user_object *object = find_user_object(handle);
    struct sim_user_object_ref *ref;

    if (graph == NULL || object == NULL || count == 0 || count > INT32_MAX ||
        (flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags != 0 && count > object->references)
        return CUDA_ERROR_INVALID_VALUE;
    ref = malloc(sizeof(*ref));
    if (ref == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ref = (struct sim_user_object_ref){graph->user_objects, object, count};
    graph->user_objects = ref;
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

struct graph_exec {
    uint64_t handle;
    struct sim_operation *operation;
    size_t count, capacity;
    struct sim_work *last; /* last work of the last launch, or NULL */
    struct sim_user_object_ref *user_objects;
};

static void graph_exec_destroy(struct graph_exec *graph_exec)
{
    for (size_t i = 0; i < graph_exec->count; i++)
        sim_operation_destroy(&graph_exec->operation[i]);
    if (graph_exec->last != NULL)
        sim_work_release(graph_exec->last);
    sim_user_objects_release(&graph_exec->user_objects);
    if (graph_exec->handle != 0)
        sim_handles_remove(&sim_machine.graph_execs, graph_exec->handle, true);
    free(graph_exec->operation);
    free(graph_exec);
}

void sim_graph_execs_destroy(void)
{
    struct graph_exec *graph_exec;
    uint32_t at = 0;

    while ((graph_exec = sim_handles_next(&sim_machine.graph_execs, &at)) != NULL)
        graph_exec_destroy(graph_exec);
}

static bool append_operation(struct graph_exec *graph_exec, const struct sim_operation *operation)
{
    if (graph_exec->count == graph_exec->capacity) {
        const size_t capacity = graph_exec->capacity == 0 ? 16 : graph_exec->capacity * 2;
        struct sim_operation *grown =
            realloc(graph_exec->operation, capacity * sizeof(*graph_exec->operation));

        if (grown == NULL)
            return false;
        graph_exec->operation = grown;
        graph_exec->capacity = capacity;
    }
    if (!sim_operation_copy(&graph_exec->operation[graph_exec->count], operation))
        return false;
    graph_exec->count++;
    return true;
}

/* Retain the user objects of all bodies of a node, because on a GPU any of them may run. */
static bool retain_body_objects(struct graph_exec *graph_exec, const struct sim_node *node)
{
    for (unsigned i = 0; i < node->body_count; i++) {
        const struct sim_graph *body = sim_graph_find(node->body[i]);

        if (!retain_user_objects(&graph_exec->user_objects, body->user_objects))
            return false;
        for (uint64_t inner = 0; inner < body->node_count; inner++)
            if (!retain_body_objects(graph_exec, body->node[inner]))
                return false;
    }
    return true;
}

/* Append the operations of a graph in topological order. */
static bool append_graph(struct graph_exec *graph_exec, const struct sim_graph *graph)
{
    for (uint64_t i = 0; i < graph->node_count; i++) {
        const struct sim_node *node = graph->node[i];

        if (!append_operation(graph_exec, &node->operation) ||
            (node->chosen != NULL && !append_graph(graph_exec, node->chosen)))
            return false;
    }
    return true;
}

static bool retain_graph_objects(struct graph_exec *graph_exec, const struct sim_graph *graph)
{
    for (uint64_t i = 0; i < graph->node_count; i++)
        if (!retain_body_objects(graph_exec, graph->node[i]))
            return false;
    return retain_user_objects(&graph_exec->user_objects, graph->user_objects);
}

/* Get whether a graph or one of its bodies is the target of a capture. */
static bool is_graph_capture_target(const struct sim_graph *graph)
{
    bool is_target = graph->is_capture_target;

    for (uint64_t i = 0; i < graph->node_count && !is_target; i++)
        for (unsigned body = 0; body < graph->node[i]->body_count && !is_target; body++)
            is_target = is_graph_capture_target(sim_graph_find(graph->node[i]->body[body]));
    return is_target;
}

static CUresult instantiate_graph(CUgraphExec *out, CUgraph handle, unsigned long long flags)
{
    const unsigned long long known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                     CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                     CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    const struct sim_graph *graph = sim_graph_find(handle);
    struct graph_exec *graph_exec;

    if (out == NULL || graph == NULL || is_graph_capture_target(graph) || (flags & ~known) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    graph_exec = calloc(1, sizeof(*graph_exec));
    if (graph_exec == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (append_graph(graph_exec, graph) && retain_graph_objects(graph_exec, graph))
        graph_exec->handle = sim_handles_add(&sim_machine.graph_execs, graph_exec);
    if (graph_exec->handle == 0) {
        graph_exec_destroy(graph_exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUgraphExec)(uintptr_t)graph_exec->handle;
    return CUDA_SUCCESS;
}

static struct graph_exec *find_graph_exec(CUgraphExec handle)
{
    return sim_handles_find(&sim_machine.graph_execs, (uint64_t)(uintptr_t)handle);
}

/* Check all operations before the first is queued. */
static CUresult check_operations(const struct graph_exec *graph_exec)
{
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < graph_exec->count && result == CUDA_SUCCESS; i++) {
        struct sim_operation operation = graph_exec->operation[i];

        result = sim_operation_check(&operation);
    }
    return result;
}

static CUresult queue_operations(struct graph_exec *graph_exec, struct sim_stream *stream)
{
    CUresult result = check_operations(graph_exec);

    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_stream_queue(stream, 0,
                          sim_work_completed(graph_exec->last) ? NULL : graph_exec->last))
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < graph_exec->count && result == CUDA_SUCCESS; i++) {
        /* Sides and pinned memory are resolved at each launch. */
        struct sim_operation operation = graph_exec->operation[i];

        result = sim_operation_check(&operation);
        if (result == CUDA_SUCCESS)
            result = sim_operation_queue(stream, &operation);
    }
    if (graph_exec->last != NULL)
        sim_work_release(graph_exec->last);
    graph_exec->last = sim_work_retain(stream->queue.last);
    return result;
}

static CUresult launch_graph(CUgraphExec handle, CUstream stream_handle)
{
    struct graph_exec *graph_exec = find_graph_exec(handle);
    struct sim_stream *stream;
    CUresult result = sim_stream_find(stream_handle, true, &stream);

    if (result == CUDA_SUCCESS && graph_exec == NULL)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = sim_capture_check_stream_query(stream);
    return result == CUDA_SUCCESS ? queue_operations(graph_exec, stream) : result;
}

static CUresult destroy_graph_exec(CUgraphExec handle)
{
    struct graph_exec *graph_exec = find_graph_exec(handle);

    if (graph_exec == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    graph_exec_destroy(graph_exec);
    sim_user_objects_run_destructors();
    return CUDA_SUCCESS;
}

SIM_ENTRY(GRAPH_INSTANTIATE, cuGraphInstantiateWithFlags,
          (CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags),
          instantiate_graph(phGraphExec, hGraph, flags));
SIM_ENTRY(GRAPH_LAUNCH, cuGraphLaunch, (CUgraphExec hGraphExec, CUstream hStream),
          launch_graph(hGraphExec, hStream));
SIM_ENTRY(GRAPH_EXEC_DESTROY, cuGraphExecDestroy, (CUgraphExec hGraphExec),
          destroy_graph_exec(hGraphExec));
