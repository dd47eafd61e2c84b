/* SPDX-License-Identifier: MIT */
/* Instantiation and launch of graphs, conditional nodes, captures into a graph, user objects. */
#include "tests/unit/sim_setup.h"

/* Entry points of the driver that other versions of the header declare differently or map to other names. */
#undef cuStreamUpdateCaptureDependencies

CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes,
                                                   size_t count, unsigned flags);
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                           cuuint64_t *id, CUgraph *graph,
                                           const CUgraphNode **nodes, size_t *count);

static void begin_capture(CUstream stream)
{
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static CUgraph new_graph(void)
{
    CUgraph graph = NULL;

    ASSERT_OK(cuGraphCreate(&graph, 0));
    return graph;
}

static CUgraphExec instantiate(CUgraph graph)
{
    CUgraphExec executable = NULL;

    ASSERT_OK(cuGraphInstantiate(&executable, graph, 0));
    return executable;
}

static size_t count_nodes(CUgraph graph)
{
    size_t count = 0;

    ASSERT_OK(cuGraphGetNodes(graph, NULL, &count));
    return count;
}

static void count_call(void *argument)
{
    ++*(int *)argument;
}

/* Captured work runs at each launch, not before; the graph may be destroyed. */
SIM_TEST_BYTES(launch_runs_the_captured_work)
{
    const CUdeviceptr base = usable(GRANULE);
    const CUstream stream = new_stream();
    int calls = 0;

    begin_capture(stream);
    ASSERT_OK(cuMemsetD8Async(base, 5, 64, stream));
    ASSERT_OK(cuMemcpyDtoDAsync(base + 64, base, 32, stream));
    ASSERT_OK(cuStreamWriteValue32(stream, base + 128, 9, 0));
    ASSERT_OK(cuLaunchHostFunc(stream, count_call, &calls));
    launch(stream, 1000);
    CUgraph graph = end_capture(stream);
    assert_int_equal(count_nodes(graph), 5);
    CUgraphExec executable = instantiate(graph);
    ASSERT_OK(cuGraphDestroy(graph));
    ASSERT_OK(cuStreamSynchronize(stream));
    assert_int_equal(bytes_at(base)[0], 0);
    for (int i = 1; i <= 2; i++) {
        ASSERT_OK(cuMemsetD8(base, 0, 256));
        ASSERT_OK(cuGraphLaunch(executable, stream));
        ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
        ASSERT_OK(cuStreamSynchronize(stream));
        assert_int_equal(bytes_at(base + 63)[0], 5);
        assert_int_equal(bytes_at(base + 95)[0], 5);
        assert_int_equal(bytes_at(base + 96)[0], 0);
        assert_int_equal(bytes_at(base + 128)[0], 9);
        assert_int_equal(calls, i);
    }
    ASSERT_OK(cuGraphExecDestroy(executable));
    ASSERT_INVALID(cuGraphExecDestroy(executable));
    ASSERT_INVALID(cuGraphLaunch(executable, stream));
}

SIM_TEST(invalid_arguments_are_rejected)
{
    const CUstream stream = new_stream();
    CUgraphExec executable = NULL;
    CUgraph graph = NULL;

    ASSERT_INVALID(cuGraphCreate(NULL, 0));
    ASSERT_INVALID(cuGraphCreate(&graph, 1));
    graph = new_graph();
    ASSERT_INVALID(cuGraphInstantiate(NULL, graph, 0));
    ASSERT_INVALID(cuGraphInstantiate(&executable, NULL, 0));
    ASSERT_INVALID(cuGraphInstantiate(&executable, graph, 1 << 20));
    executable = instantiate(graph); /* with no nodes */
    ASSERT_OK(cuGraphLaunch(executable, stream));
    ASSERT_OK(cuStreamSynchronize(stream));
    begin_capture(stream);
    ASSERT_CU(cuGraphLaunch(executable, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ASSERT_CU(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ASSERT_OK(cuGraphExecDestroy(executable));
}

SIM_TEST(launches_of_one_graph_follow_each_other)
{
    const CUstream first = new_stream(), second = new_stream();

    begin_capture(first);
    launch(first, 1000);
    CUgraph graph = end_capture(first);
    CUgraphExec executable = instantiate(graph);
    launch(first, UINT64_MAX);
    ASSERT_OK(cuGraphLaunch(executable, first));
    ASSERT_OK(cuGraphLaunch(executable, second));
    xseg_sim_advance(1000000);
    ASSERT_CU(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuStreamSynchronize(second));
    ASSERT_OK(cuStreamQuery(first));
    ASSERT_OK(cuGraphExecDestroy(executable));
    ASSERT_OK(cuGraphDestroy(graph));
}

/* The launch of the graph records and waits for these events; its capture does not. */
SIM_TEST(launches_record_and_await_external_events)
{
    const CUstream stream = new_stream(), second = new_stream();
    const CUevent before = new_event(), after = new_event();

    ASSERT_INVALID(cuEventRecordWithFlags(after, stream, CU_EVENT_RECORD_EXTERNAL));
    begin_capture(stream);
    ASSERT_INVALID(cuEventRecordWithFlags(after, stream, 2));
    ASSERT_OK(cuStreamWaitEvent(stream, before, CU_EVENT_WAIT_EXTERNAL));
    launch(stream, 1000);
    ASSERT_OK(cuEventRecordWithFlags(after, stream, CU_EVENT_RECORD_EXTERNAL));
    CUgraphExec executable = instantiate(end_capture(stream));
    ASSERT_OK(cuEventQuery(after));
    launch(second, UINT64_MAX);
    ASSERT_OK(cuEventRecord(before, second));
    ASSERT_OK(cuGraphLaunch(executable, stream));
    xseg_sim_advance(1000000);
    ASSERT_CU(cuEventQuery(after), CUDA_ERROR_NOT_READY);
    finish(second);
    xseg_sim_advance(1000000);
    ASSERT_OK(cuEventQuery(after));
    ASSERT_OK(cuGraphExecDestroy(executable));
}

static void launch_on_unmapped_memory(void)
{
    CUdeviceptr base = usable(GRANULE);
    CUstream stream = new_stream();
    begin_capture(stream);
    (void)xseg_sim_launch_on(stream, 1000, base, GRANULE);
    CUgraphExec executable = instantiate(end_capture(stream));
    (void)cuGraphLaunch(executable, stream);
    (void)cuStreamSynchronize(stream);
    (void)cuMemUnmap(base, GRANULE);
    (void)cuGraphLaunch(executable, stream);
}

static void unmap_under_a_launch(void)
{
    CUdeviceptr base = usable(GRANULE);
    CUstream stream = new_stream();
    begin_capture(stream);
    (void)xseg_sim_launch_on(stream, 1000, base, GRANULE);
    (void)cuGraphLaunch(instantiate(end_capture(stream)), stream);
    (void)cuMemUnmap(base, GRANULE);
}

SIM_TEST(launch_requires_mapped_memory)
{
    EXPECT_REPORT(launch_on_unmapped_memory, "cuGraphLaunch");
    EXPECT_REPORT(unmap_under_a_launch, "cuMemUnmap");
}

SIM_TEST(capture_extends_an_existing_graph)
{
    const CUstream stream = new_stream();
    CUgraphNode first = NULL, roots[2];
    size_t count = 1;

    begin_capture(stream);
    launch(stream, 0);
    CUgraph graph = end_capture(stream);
    ASSERT_OK(cuGraphGetNodes(graph, &first, &count));
    CUgraph second = new_graph();
    ASSERT_INVALID(cuStreamBeginCaptureToGraph(stream, NULL, NULL, NULL, 0, 0));
    ASSERT_INVALID(cuStreamBeginCaptureToGraph(stream, second, &first, NULL, 1, 0));
    ASSERT_OK(cuStreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, 0));
    ASSERT_CU(cuStreamBeginCaptureToGraph(stream, second, NULL, NULL, 0, 0),
              CUDA_ERROR_ILLEGAL_STATE);
    ASSERT_INVALID(cuGraphDestroy(graph));
    launch(stream, 0);
    CUgraph extended = end_capture(stream);
    assert_ptr_equal(extended, graph);
    assert_int_equal(count_nodes(graph), 2);
    count = 2;
    ASSERT_OK(cuGraphGetRootNodes(graph, roots, &count));
    assert_int_equal(count, 1);
    assert_ptr_equal(roots[0], first);
    /* A capture into a graph does not change its owner, the program. */
    ASSERT_OK(cuStreamBeginCaptureToGraph(stream, second, NULL, NULL, 0, 0));
    ASSERT_OK(cuStreamEndCapture(stream, NULL));
    /* A failed capture does not destroy the graph. */
    ASSERT_OK(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, 0));
    ASSERT_CU(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ASSERT_CU(cuStreamEndCapture(stream, &extended), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(count_nodes(graph), 2);
    ASSERT_OK(cuGraphDestroy(graph));
    ASSERT_OK(cuGraphDestroy(second));
}

#if CUDA_VERSION >= 12040

static CUgraphConditionalHandle condition(CUgraph graph, unsigned value)
{
    CUgraphConditionalHandle handle = 0;

    ASSERT_OK(
        cuGraphConditionalHandleCreate(&handle, graph, NULL, value, CU_GRAPH_COND_ASSIGN_DEFAULT));
    return handle;
}

static CUgraphNodeParams conditional(CUgraphConditionalHandle handle, int type, unsigned size)
{
    CUgraphNodeParams parameters;

    memset(&parameters, 0, sizeof(parameters));
    parameters.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
    parameters.conditional.handle = handle;
    parameters.conditional.type = (CUgraphConditionalNodeType)type;
    parameters.conditional.size = size;
    return parameters;
}

/* Add a conditional node to a graph.  The result has its bodies. */
static CUgraphNodeParams add_conditional(CUgraph graph, unsigned value, int type, unsigned size)
{
    CUgraphNodeParams parameters = conditional(condition(graph, value), type, size);
    CUgraphNode node = NULL;

    ASSERT_OK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &parameters));
    return parameters;
}

/* Capture a write of one byte into a body. */
static void capture_write(CUgraph body, CUstream stream, CUdeviceptr address)
{
    ASSERT_OK(
        cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_OK(cuMemsetD8Async(address, 1, 1, stream));
    (void)end_capture(stream);
}

/* The bodies of a conditional node that a launch runs, one bit for each. */
static unsigned run_bodies(int type, unsigned size, unsigned value)
{
    const CUdeviceptr base = usable(GRANULE);
    const CUstream stream = new_stream();
    unsigned bits = 0;
    CUgraph graph = new_graph();
    CUgraphNodeParams parameters = add_conditional(graph, value, type, size);

    for (unsigned i = 0; i < size; i++)
        capture_write(parameters.conditional.phGraph_out[i], stream, base + i);
    ASSERT_INVALID(cuGraphDestroy(parameters.conditional.phGraph_out[0]));
    CUgraphExec executable = instantiate(graph);
    ASSERT_OK(cuGraphLaunch(executable, stream));
    ASSERT_OK(cuStreamSynchronize(stream));
    for (unsigned i = 0; i < size; i++)
        bits |= (unsigned)bytes_at(base + i)[0] << i;
    ASSERT_OK(cuGraphExecDestroy(executable));
    ASSERT_OK(cuGraphDestroy(graph));
    return bits;
}

SIM_TEST_BYTES(condition_value_selects_the_body)
{
    assert_int_equal(run_bodies(CU_GRAPH_COND_TYPE_IF, 1, 1), 1);
    assert_int_equal(run_bodies(CU_GRAPH_COND_TYPE_IF, 1, 0), 0);
    assert_int_equal(run_bodies(CU_GRAPH_COND_TYPE_IF, 2, 7), 1);
    assert_int_equal(run_bodies(CU_GRAPH_COND_TYPE_IF, 2, 0), 2);
    assert_int_equal(run_bodies(CU_GRAPH_COND_TYPE_WHILE, 1, 1), 1);
    assert_int_equal(run_bodies(CU_GRAPH_COND_TYPE_WHILE, 1, 0), 0);
    /* 2: CU_GRAPH_COND_TYPE_SWITCH, which is not in older headers */
    assert_int_equal(run_bodies(2, 3, 2), 4);
    assert_int_equal(run_bodies(2, 3, 3), 0);
}

SIM_TEST(invalid_conditions_are_rejected)
{
    CUgraphConditionalHandle handle;
    CUgraphNode node = NULL;
    CUgraph graph = new_graph(), second = new_graph();

    ASSERT_INVALID(cuGraphConditionalHandleCreate(&handle, NULL, NULL, 0, 0));
    ASSERT_INVALID(cuGraphConditionalHandleCreate(&handle, graph, NULL, 0, 2));
    handle = condition(graph, 1);
    CUgraphNodeParams parameters = conditional(handle, CU_GRAPH_COND_TYPE_WHILE, 2);
    ASSERT_INVALID(cuGraphAddNode(&node, graph, NULL, NULL, 0, &parameters));
    parameters = conditional(handle, CU_GRAPH_COND_TYPE_IF, 1);
    ASSERT_INVALID(cuGraphAddNode(&node, second, NULL, NULL, 0, &parameters));
    ASSERT_INVALID(cuGraphAddNode(&node, graph, NULL, NULL, 1, &parameters));
    parameters.type = CU_GRAPH_NODE_TYPE_KERNEL;
    ASSERT_CU(cuGraphAddNode(&node, graph, NULL, NULL, 0, &parameters), CUDA_ERROR_NOT_SUPPORTED);
    parameters.type = CU_GRAPH_NODE_TYPE_EMPTY;
    ASSERT_OK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &parameters));
    assert_int_equal(count_nodes(graph), 1);
    ASSERT_OK(cuGraphDestroy(graph));
    ASSERT_OK(cuGraphDestroy(second));
}

/* The graph is destroyed during the capture of a body, which is invalidated and can still be ended. */
SIM_TEST(graph_can_be_destroyed_during_the_capture_of_its_body)
{
    const CUstream stream = new_stream();
    CUgraph graph = new_graph();
    CUgraphNodeParams parameters = add_conditional(graph, 1, CU_GRAPH_COND_TYPE_IF, 1);
    CUgraph body = parameters.conditional.phGraph_out[0];

    ASSERT_OK(cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, 0));
    ASSERT_OK(cuGraphDestroy(graph));
    ASSERT_CU(cuStreamEndCapture(stream, &body), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_null(body);
}

/* A graph cannot be instantiated while one of its bodies is being captured, at any depth. */
SIM_TEST(graph_is_complete_at_instantiation)
{
    const CUstream stream = new_stream();
    CUgraphExec executable = NULL;
    CUgraph graph = new_graph();
    CUgraphNodeParams parameters = add_conditional(graph, 1, CU_GRAPH_COND_TYPE_IF, 2);
    CUgraph body = parameters.conditional.phGraph_out[1];

    parameters = add_conditional(body, 1, CU_GRAPH_COND_TYPE_WHILE, 1);
    body = parameters.conditional.phGraph_out[0];
    ASSERT_OK(cuStreamBeginCaptureToGraph(stream, body, NULL, NULL, 0, 0));
    ASSERT_INVALID(cuGraphInstantiate(&executable, graph, 0));
    assert_null(executable);
    launch(stream, 0);
    ASSERT_OK(cuStreamEndCapture(stream, NULL));
    executable = instantiate(graph);
    ASSERT_OK(cuGraphExecDestroy(executable));
    ASSERT_OK(cuGraphDestroy(graph));
}

SIM_TEST(executable_retains_objects_of_its_bodies)
{
    CUuserObject object = NULL;
    int destroyed = 0;
    CUgraph graph = new_graph();
    CUgraphNodeParams parameters = add_conditional(graph, 1, CU_GRAPH_COND_TYPE_IF, 2);

    ASSERT_OK(cuUserObjectCreate(&object, &destroyed, count_call, 1, 1));
    ASSERT_OK(cuGraphRetainUserObject(parameters.conditional.phGraph_out[1], object, 1,
                                      CU_GRAPH_USER_OBJECT_MOVE));
    CUgraphExec executable = instantiate(graph);
    ASSERT_OK(cuGraphDestroy(graph));
    assert_int_equal(destroyed, 0);
    ASSERT_OK(cuGraphExecDestroy(executable));
    assert_int_equal(destroyed, 1);
}

#endif

SIM_TEST_BYTES(failed_launch_has_no_effect)
{
    const CUdeviceptr base = usable(GRANULE), unmapped = usable(GRANULE);
    const CUstream stream = new_stream();

    begin_capture(stream);
    ASSERT_OK(cuMemsetD8Async(base, 5, 64, stream));
    ASSERT_OK(cuMemsetD8Async(unmapped, 5, 64, stream));
    CUgraphExec executable = instantiate(end_capture(stream));
    ASSERT_OK(cuMemUnmap(unmapped, GRANULE));
    ASSERT_OK(cuMemAddressFree(unmapped, GRANULE));
    ASSERT_INVALID(cuGraphLaunch(executable, stream));
    ASSERT_OK(cuStreamQuery(stream));
    assert_int_equal(bytes_at(base)[0], 0);
    ASSERT_OK(cuGraphExecDestroy(executable));
}

/* Begin a capture whose graph owns an object.  *destroyed counts the destructions of the object. */
static void begin_with_object(CUstream stream, int *destroyed)
{
    CUstreamCaptureStatus status;
    CUuserObject object = NULL;
    CUgraph graph = NULL;

    begin_capture(stream);
    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL));
    ASSERT_OK(cuUserObjectCreate(&object, destroyed, count_call, 1, 1));
    ASSERT_OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
}

/* The graph of a failed capture is destroyed with it, and its objects are notified before the call returns; likewise if
 * the context is destroyed during the capture. */
SIM_TEST(objects_are_released_with_a_failed_capture)
{
    const CUstream stream = new_stream();
    CUgraph graph = NULL;
    int destroyed = 0;

    begin_with_object(stream, &destroyed);
    ASSERT_CU(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(destroyed, 0);
    ASSERT_CU(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    assert_int_equal(destroyed, 1);
    begin_with_object(stream, &destroyed);
    ASSERT_OK(cuDevicePrimaryCtxReset(0));
    assert_int_equal(destroyed, 2);
}

/* The dependencies that a capture returns can be added again, all or some of them, without an effect. */
SIM_TEST(dependency_is_added_once)
{
    enum { BRANCHES = 3 };
    const CUstream stream = new_stream();
    const CUevent forked = new_event(), done = new_event();
    const CUgraphNode *dependencies = NULL;
    CUstreamCaptureStatus status;
    size_t count = 0;

    begin_capture(stream);
    launch(stream, 0);
    ASSERT_OK(cuEventRecord(forked, stream));
    launch(stream, 0);
    for (unsigned i = 0; i < BRANCHES; i++) {
        const CUstream branch = new_stream();

        ASSERT_OK(cuStreamWaitEvent(branch, forked, 0));
        launch(branch, 0);
        ASSERT_OK(cuEventRecord(done, branch));
        ASSERT_OK(cuStreamWaitEvent(stream, done, 0));
    }
    for (size_t first = 0; first <= BRANCHES; first++) {
        ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &dependencies, &count));
        assert_int_equal(count, BRANCHES + 1);
        ASSERT_OK(cuStreamUpdateCaptureDependencies(
            stream, (CUgraphNode *)(uintptr_t)dependencies + first, count - first,
            CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    }
    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &dependencies, &count));
    assert_int_equal(count, BRANCHES + 1);
    ASSERT_OK(cuStreamUpdateCaptureDependencies(stream, (CUgraphNode *)(uintptr_t)dependencies + 1,
                                                BRANCHES, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &dependencies, &count));
    assert_int_equal(count, BRANCHES);
    launch(stream, 0);
    (void)cuStreamEndCapture(stream, &(CUgraph){NULL});
}

SIM_TEST(objects_are_released_with_the_last_reference)
{
    CUuserObject object = NULL;
    int destroyed = 0;

    ASSERT_INVALID(cuUserObjectCreate(&object, &destroyed, count_call, 0, 1));
    ASSERT_INVALID(cuUserObjectCreate(&object, &destroyed, count_call, 1, 0));
    ASSERT_OK(cuUserObjectCreate(&object, &destroyed, count_call, 1, 1));
    CUgraph graph = new_graph();
    ASSERT_OK(cuUserObjectRetain(object, 1));
    ASSERT_INVALID(cuUserObjectRelease(object, 3));
    ASSERT_OK(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    ASSERT_OK(cuUserObjectRelease(object, 1));
    CUgraphExec executable = instantiate(graph);
    ASSERT_OK(cuGraphDestroy(graph));
    assert_int_equal(destroyed, 0);
    ASSERT_OK(cuGraphExecDestroy(executable));
    assert_int_equal(destroyed, 1);
    ASSERT_INVALID(cuUserObjectRelease(object, 1));
}

SIM_TEST(remaining_graphs_are_leaks)
{
    CUuserObject object = NULL;
    CUgraph graph = new_graph();
    int calls;

    (void)instantiate(graph);
    ASSERT_OK(cuUserObjectCreate(&object, &calls, count_call, 1, 1));
    expect_leak(4, "executable graphs: 1"); /* in addition to the graph and the context */
    expect_leak(4, "user objects: 1");
}
