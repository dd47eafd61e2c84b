/* SPDX-License-Identifier: MIT */
/* Stream capture: participants, rejected calls, invalidation. */
#include <pthread.h>

#include "tests/unit/sim_setup.h"

struct CUgraphEdgeData_st;
#undef cuGraphGetEdges
#undef cuGraphNodeGetDependencies
#undef cuStreamUpdateCaptureDependencies
CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count);
CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                                    struct CUgraphEdgeData_st *edges, size_t *count);
CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count);
CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes,
                                               struct CUgraphEdgeData_st *edges, size_t *count);
CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes,
                                                   size_t count, unsigned flags);
CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes,
                                                      const struct CUgraphEdgeData_st *edges,
                                                      size_t count, unsigned flags);
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                                           cuuint64_t *id, CUgraph *graph,
                                           const CUgraphNode **dependencies,
                                           const struct CUgraphEdgeData_st **edges, size_t *count);

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                           cuuint64_t *id, CUgraph *graph,
                                           const CUgraphNode **dependencies, size_t *count);

enum {
    NONE = CU_STREAM_CAPTURE_STATUS_NONE,
    ACTIVE = CU_STREAM_CAPTURE_STATUS_ACTIVE,
    INVALID = CU_STREAM_CAPTURE_STATUS_INVALIDATED
};

static int status_of(CUstream stream)
{
    CUstreamCaptureStatus status = (CUstreamCaptureStatus)-1;

    ASSERT_OK(cuStreamIsCapturing(stream, &status));
    return (int)status;
}

static CUstream begin_capture(CUstreamCaptureMode mode)
{
    CUstream stream = new_stream();

    ASSERT_OK(cuStreamBeginCapture(stream, mode));
    return stream;
}

static void expect_end(CUstream stream, CUresult expected)
{
    CUgraph graph = (CUgraph)(uintptr_t)1;

    ASSERT_CU(cuStreamEndCapture(stream, &graph), expected);
    if (expected == CUDA_SUCCESS) {
        assert_non_null(graph);
        ASSERT_OK(cuGraphDestroy(graph));
        ASSERT_INVALID(cuGraphDestroy(graph));
    } else {
        assert_null(graph);
    }
    assert_int_equal(status_of(stream), NONE);
}

/* Expect that the capture of a stream was invalidated, and end the capture. */
static void expect_invalidated(CUstream stream)
{
    assert_int_equal(status_of(stream), INVALID);
    assert_int_equal(xseg_sim_launch(stream, 1), XSEG_ERR_ARGUMENT);
    expect_end(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

SIM_TEST(capture_has_a_status_and_an_id)
{
    CUstream stream = new_stream();
    CUstreamCaptureStatus status;
    cuuint64_t first = 0, second = 0;
    CUgraph graph = NULL;
    const CUgraphNode *nodes = NULL;
    size_t count = 1;

    assert_int_equal(status_of(stream), NONE);
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_int_equal(status_of(stream), ACTIVE);
    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, &first, &graph, &nodes, &count));
    assert_int_equal(status, ACTIVE);
    assert_true(first != 0);
    assert_int_equal(count, 0);
    ASSERT_INVALID(cuGraphDestroy(graph));
    ASSERT_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_ILLEGAL_STATE);
    expect_end(stream, CUDA_SUCCESS);
    ASSERT_CU(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);

    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, &second, NULL, NULL, NULL));
    assert_true(second > first);
    ASSERT_INVALID(cuStreamGetCaptureInfo_v2(stream, NULL, &second, NULL, NULL, NULL));
    ASSERT_INVALID(cuStreamEndCapture(stream, NULL));
    expect_end(stream, CUDA_SUCCESS);
}

SIM_TEST(uncapturable_calls_are_rejected)
{
    ASSERT_CU(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ASSERT_CU(cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ASSERT_INVALID(cuStreamBeginCapture(new_stream(), (CUstreamCaptureMode)3));
    ASSERT_CU(cuStreamBeginCapture((CUstream)(uintptr_t)99, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_INVALID_HANDLE);
    ASSERT_OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
    expect_end(CU_STREAM_PER_THREAD, CUDA_SUCCESS);
}

SIM_TEST(captured_work_does_not_make_a_stream_busy)
{
    CUstream joined = new_stream(), stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);

    launch(stream, UINT64_MAX);
    ASSERT_OK(cuStreamWaitEvent(joined, record(stream), 0));
    launch(joined, UINT64_MAX);
    ASSERT_OK(cuStreamWaitEvent(stream, record(joined), 0));
    expect_end(stream, CUDA_SUCCESS);
    ASSERT_OK(cuStreamQuery(stream));
    ASSERT_OK(cuStreamQuery(joined));
    /* Work from before a capture continues. */
    launch(stream, UINT64_MAX);
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    expect_end(stream, CUDA_SUCCESS);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
}

SIM_TEST(a_stream_that_waits_joins)
{
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL), second = new_stream(),
             third = new_stream();
    cuuint64_t id = 0, joined = 1;
    CUstreamCaptureStatus status;
    CUgraph graph = NULL;

    ASSERT_OK(cuStreamWaitEvent(second, record(stream), 0));
    ASSERT_OK(cuStreamWaitEvent(third, record(second), 0));
    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL));
    ASSERT_OK(cuStreamGetCaptureInfo_v2(third, &status, &joined, NULL, NULL, NULL));
    assert_int_equal(status, ACTIVE);
    assert_int_equal(id, joined);
    ASSERT_OK(cuStreamWaitEvent(stream, record(third), 0));
    ASSERT_OK(cuStreamWaitEvent(stream, record(stream), 0));
    ASSERT_CU(cuStreamEndCapture(third, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    assert_int_equal(status_of(third), INVALID);
    expect_invalidated(stream);
    assert_int_equal(status_of(second), NONE);
    assert_int_equal(status_of(third), NONE);
}

SIM_TEST(a_capturing_stream_cannot_be_waited_for)
{
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalidated(stream);
    stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalidated(stream);
    stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalidated(stream);
    stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuStreamDestroy(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalidated(stream);
}

SIM_TEST(captured_event_cannot_be_queried)
{
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUevent event = record(stream);
    ASSERT_CU(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    ASSERT_CU(cuEventRecord(event, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    expect_invalidated(stream);

    stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    event = record(stream);
    ASSERT_CU(cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT);
    expect_invalidated(stream);
    /* The event cannot be used until it is recorded outside of a capture. */
    ASSERT_CU(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    ASSERT_INVALID(cuStreamWaitEvent(stream, event, 0));
    ASSERT_OK(cuEventRecord(event, stream));
    ASSERT_OK(cuEventQuery(event));
}

SIM_TEST(capture_boundaries_are_enforced)
{
    CUstream outside = new_stream();
    CUevent before = record(outside), unrecorded = new_event();
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);

    ASSERT_OK(cuStreamWaitEvent(stream, unrecorded, 0));
    ASSERT_OK(cuStreamWaitEvent(stream, before, CU_EVENT_WAIT_EXTERNAL));
    assert_int_equal(status_of(stream), ACTIVE);
    ASSERT_CU(cuStreamWaitEvent(stream, before, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    expect_invalidated(stream);

    stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    CUevent captured = record(stream);
    CUstream second = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuStreamWaitEvent(second, captured, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    expect_invalidated(second);
    ASSERT_INVALID(cuStreamWaitEvent(outside, captured, 0));
    assert_int_equal(status_of(outside), NONE);
    expect_invalidated(stream);

    stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuStreamWaitEvent(NULL, record(stream), 0), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    expect_invalidated(stream);
}

SIM_TEST(legacy_stream_conflicts_with_a_blocking_capture)
{
    CUstreamCaptureStatus status;
    CUstream stream = NULL;
    CUevent event = new_event();

    ASSERT_OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_CU(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_int_equal(status_of(stream), ACTIVE);
    ASSERT_CU(cuEventRecord(event, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    expect_invalidated(stream);
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    assert_int_equal(xseg_sim_launch(NULL, 1), XSEG_ERR_ARGUMENT);
    expect_invalidated(stream);

    stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_int_equal(status_of(NULL), NONE);
    ASSERT_OK(cuEventRecord(event, NULL));
    expect_end(stream, CUDA_SUCCESS);
}

static CUresult try_alloc(void)
{
    CUdeviceptr address = 0;
    CUresult result = cuMemAlloc(&address, 1);

    if (result == CUDA_SUCCESS)
        (void)cuMemFree(address);
    return result;
}

static CUresult try_query(void)
{
    CUevent event = new_event();
    CUresult result = cuEventQuery(event);

    ASSERT_OK(cuEventDestroy(event));
    return result;
}

static CUstreamCaptureMode exchange_mode(CUstreamCaptureMode mode)
{
    ASSERT_OK(cuThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

/* An unsafe call by a thread in a capture mode. */
struct attempt {
    CUstreamCaptureMode mode;
    CUresult (*call)(void);
    CUresult result;
};

static void *attempt_in_thread(void *argument)
{
    struct attempt *attempt = argument;

    (void)enter(0);
    assert_int_equal(exchange_mode(attempt->mode), CU_STREAM_CAPTURE_MODE_GLOBAL);
    attempt->result = attempt->call();
    return NULL;
}

static CUgraph graph_of(CUstream stream)
{
    CUstreamCaptureStatus status;
    CUgraph graph = NULL;

    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, &graph, NULL, NULL));
    return graph;
}

/* The only node on which the stream's next node depends. */
static CUgraphNode last_node(CUstream stream)
{
    const CUgraphNode *nodes = NULL;
    CUstreamCaptureStatus status;
    size_t count = 0;

    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &nodes, &count));
    assert_int_equal(count, 1);
    return nodes[0];
}

static CUgraphNode capture_kernel(CUstream stream)
{
    launch(stream, 1);
    return last_node(stream);
}

static bool has_edge(CUgraph graph, CUgraphNode from, CUgraphNode to)
{
    CUgraphNode froms[16], tos[16];
    size_t count = 16;

    ASSERT_OK(cuGraphGetEdges(graph, froms, tos, &count));
    for (size_t i = 0; i < count; i++)
        if (froms[i] == from && tos[i] == to)
            return true;
    return false;
}

/* a -> b on one stream, a -> c on a forked stream, b and c -> d on the first stream. */
SIM_TEST(a_graph_has_nodes_and_edges)
{
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL), forked = new_stream();
    CUgraphNode nodes[8], from[8], to[8];
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    unsigned char edges[8][8];
    size_t count = 8;

    CUgraphNode a = capture_kernel(stream);
    ASSERT_OK(cuStreamWaitEvent(forked, record(stream), 0));
    assert_ptr_equal(last_node(forked), a);
    CUgraphNode b = capture_kernel(stream), c = capture_kernel(forked);
    ASSERT_OK(cuStreamWaitEvent(stream, record(forked), 0));
    CUgraphNode d = capture_kernel(stream);
    CUgraph graph = end_capture(stream);

    ASSERT_OK(cuGraphGetNodes(graph, NULL, &count));
    assert_int_equal(count, 4);
    count = 8;
    memset(nodes, 0xff, sizeof(nodes));
    ASSERT_OK(cuGraphGetNodes(graph, nodes, &count));
    assert_int_equal(count, 4);
    assert_true(nodes[0] == a && nodes[1] == b && nodes[2] == c && nodes[3] == d);
    assert_null(nodes[4]);
    count = 2;
    ASSERT_OK(cuGraphGetNodes(graph, nodes, &count));
    assert_int_equal(count, 2);
    count = 8;
    ASSERT_OK(cuGraphGetRootNodes(graph, nodes, &count));
    assert_int_equal(count, 1);
    assert_ptr_equal(nodes[0], a);

    count = 0;
    ASSERT_OK(cuGraphGetEdges(graph, NULL, NULL, &count));
    assert_int_equal(count, 4);
    assert_true(has_edge(graph, a, b) && has_edge(graph, a, c) && has_edge(graph, b, d) &&
                has_edge(graph, c, d));
    count = 8;
    memset(edges, 0xff, sizeof(edges));
    ASSERT_OK(cuGraphGetEdges_v2(graph, from, to, (struct CUgraphEdgeData_st *)edges, &count));
    assert_int_equal(count, 4);
    assert_int_equal(edges[3][0], 0);
    count = 8;
    ASSERT_OK(cuGraphNodeGetDependencies(d, nodes, &count));
    assert_int_equal(count, 2);
    assert_true(nodes[0] == b && nodes[1] == c);
    count = 0;
    ASSERT_OK(cuGraphNodeGetDependencies_v2(a, NULL, NULL, &count));
    assert_int_equal(count, 0);
    ASSERT_OK(cuGraphNodeGetType(a, &type));
    assert_int_equal(type, CU_GRAPH_NODE_TYPE_KERNEL);

    ASSERT_INVALID(cuGraphGetNodes(graph, nodes, NULL));
    ASSERT_INVALID(cuGraphGetEdges(graph, from, NULL, &count));
    ASSERT_OK(cuGraphDestroy(graph));
    ASSERT_INVALID(cuGraphNodeGetType(a, &type));
    ASSERT_INVALID(cuGraphGetNodes(graph, nodes, &count));
    ASSERT_INVALID(cuGraphNodeGetDependencies(a, nodes, &count));
}

static void CUDA_CB count_call(void *argument)
{
    *(int *)argument += 1;
}

SIM_TEST(each_kind_of_work_is_a_node)
{
    static const CUgraphNodeType expected[] = {
        CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY,     CU_GRAPH_NODE_TYPE_MEMSET,
        CU_GRAPH_NODE_TYPE_HOST,   CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    };
    CUgraphNode nodes[8];
    CUevent before = record(new_stream());
    size_t count = 8;
    int calls = 0;

    CUdeviceptr memory = allocate(64);
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    launch(stream, 1);
    ASSERT_OK(cuMemcpyDtoDAsync(memory, memory + 32, 32, stream));
    ASSERT_OK(cuMemsetD8Async(memory, 0, 32, stream));
    ASSERT_OK(cuLaunchHostFunc(stream, count_call, &calls));
    ASSERT_OK(cuStreamWaitEvent(stream, before, CU_EVENT_WAIT_EXTERNAL));
    CUgraph graph = end_capture(stream);
    assert_int_equal(calls, 0);
    ASSERT_OK(cuGraphGetNodes(graph, nodes, &count));
    assert_int_equal(count, 5);
    for (size_t i = 0; i < 5; i++) {
        CUgraphNodeType type;

        ASSERT_OK(cuGraphNodeGetType(nodes[i], &type));
        assert_int_equal(type, expected[i]);
    }
    ASSERT_OK(cuGraphDestroy(graph));
    /* Calls that wait for the work are unsafe. */
    stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_CU(cuMemsetD8(memory, 0, 32), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_invalidated(stream);
}

SIM_TEST(forked_streams_must_be_joined)
{
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL), forked = new_stream(),
             nested = new_stream();

    launch(stream, 1);
    ASSERT_OK(cuStreamWaitEvent(forked, record(stream), 0));
    launch(forked, 1);
    expect_end(stream, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    assert_int_equal(status_of(forked), NONE);

    /* A join through another stream is valid, and work after the join is not. */
    for (int has_late_work = 0; has_late_work < 2; has_late_work++) {
        ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        ASSERT_OK(cuStreamWaitEvent(forked, record(stream), 0));
        launch(forked, 1);
        ASSERT_OK(cuStreamWaitEvent(nested, record(forked), 0));
        launch(nested, 1);
        ASSERT_OK(cuStreamWaitEvent(stream, record(nested), 0));
        if (has_late_work)
            launch(forked, 1);
        expect_end(stream, has_late_work ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED : CUDA_SUCCESS);
    }
}

SIM_TEST(dependencies_can_be_set)
{
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    const struct CUgraphEdgeData_st *edges = NULL;
    const CUgraphNode *dependencies = NULL;
    static const unsigned char zero[16], nonzero[16] = {1};
    CUstreamCaptureStatus status;
    CUgraphNode node[3];
    size_t count = 0;

    node[0] = capture_kernel(stream);
    node[1] = capture_kernel(stream);
    ASSERT_OK(
        cuStreamUpdateCaptureDependencies(stream, node, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    assert_ptr_equal(last_node(stream), node[0]);
    ASSERT_OK(cuStreamUpdateCaptureDependencies_v2(stream, node, (const void *)zero, 2,
                                                   CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    ASSERT_OK(
        cuStreamGetCaptureInfo_v3(stream, &status, NULL, NULL, &dependencies, &edges, &count));
    assert_int_equal(count, 2);
    assert_memory_equal(edges, zero, sizeof(zero));
    node[2] = capture_kernel(stream);
    assert_true(has_edge(graph_of(stream), node[0], node[2]));
    assert_true(has_edge(graph_of(stream), node[1], node[2]));
    ASSERT_OK(
        cuStreamUpdateCaptureDependencies(stream, NULL, 0, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &dependencies, &count));
    assert_int_equal(count, 0);

    CUstream second = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    CUgraphNode foreign = capture_kernel(second);
    ASSERT_INVALID(cuStreamUpdateCaptureDependencies(stream, &foreign, 1, 0));
    ASSERT_INVALID(cuStreamUpdateCaptureDependencies(stream, NULL, 1, 0));
    ASSERT_INVALID(cuStreamUpdateCaptureDependencies(stream, node, 1, 2));
    ASSERT_CU(cuStreamUpdateCaptureDependencies_v2(stream, node, (const void *)nonzero, 1, 0),
              CUDA_ERROR_NOT_SUPPORTED);
    ASSERT_CU(cuStreamUpdateCaptureDependencies(new_stream(), node, 1, 0),
              CUDA_ERROR_ILLEGAL_STATE);
    expect_end(stream, CUDA_SUCCESS);
    expect_end(second, CUDA_SUCCESS);
}

SIM_TEST(event_keeps_its_captured_dependencies)
{
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL), forked = new_stream();
    CUgraphNode first = capture_kernel(stream);
    CUevent event = record(stream);

    (void)capture_kernel(stream);
    ASSERT_OK(cuStreamWaitEvent(forked, event, 0));
    assert_ptr_equal(last_node(forked), first);
    /* A graph with a hundred nodes on as many streams. */
    for (int i = 0; i < 100; i++) {
        CUstream branch = new_stream();

        ASSERT_OK(cuStreamWaitEvent(branch, event, 0));
        launch(branch, 1);
        ASSERT_OK(cuStreamWaitEvent(forked, record(branch), 0));
    }
    launch(forked, 1);
    ASSERT_OK(cuStreamWaitEvent(stream, record(forked), 0));
    expect_end(stream, CUDA_SUCCESS);
}

SIM_TEST(unsafe_calls_are_rejected_by_capture_mode)
{
    static const struct {
        CUstreamCaptureMode capture, thread;
        bool in_other_thread, is_rejected;
    } rows[] = {
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL, false, true},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL, true, true},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false, true},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true, false},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, false, false},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, true, false},
        {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL, false, true},
        {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL, true, false},
        {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL, false, false},
        {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL, true, false},
    };
    static CUresult (*const call[])(void) = {try_alloc, try_query};
    CUstreamCaptureMode mode = (CUstreamCaptureMode)3;

    ASSERT_INVALID(cuThreadExchangeStreamCaptureMode(&mode));
    ASSERT_INVALID(cuThreadExchangeStreamCaptureMode(NULL));
    assert_int_equal(exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED), CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(exchange_mode(CU_STREAM_CAPTURE_MODE_GLOBAL), CU_STREAM_CAPTURE_MODE_RELAXED);
    for (size_t i = 0; i < 2 * COUNT_OF(rows); i++) {
        struct attempt attempt = {.mode = rows[i / 2].thread, .call = call[i % 2]};
        CUstream stream = begin_capture(rows[i / 2].capture);
        pthread_t thread;

        if (rows[i / 2].in_other_thread) {
            assert_int_equal(pthread_create(&thread, NULL, attempt_in_thread, &attempt), 0);
            assert_int_equal(pthread_join(thread, NULL), 0);
        } else {
            (void)exchange_mode(attempt.mode);
            attempt.result = attempt.call();
            (void)exchange_mode(CU_STREAM_CAPTURE_MODE_GLOBAL);
        }
        ASSERT_CU(attempt.result,
                  rows[i / 2].is_rejected ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
        if (rows[i / 2].is_rejected)
            expect_invalidated(stream);
        else
            expect_end(stream, CUDA_SUCCESS);
    }
}

SIM_TEST(virtual_memory_calls_succeed_during_a_capture)
{
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUdeviceptr base = reserve(GRANULE);
    size_t free_bytes, total;

    back_usable(base, GRANULE);
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    ASSERT_OK(cuMemAddressFree(base, GRANULE));
    ASSERT_OK(cuMemGetInfo(&free_bytes, &total));
    expect_end(stream, CUDA_SUCCESS);
}

static void *end_in_thread(void *argument)
{
    CUgraph graph = NULL;
    static CUresult result;

    (void)enter(0);
    result = cuStreamEndCapture(argument, &graph);
    if (result == CUDA_SUCCESS)
        result = cuGraphDestroy(graph);
    return &result;
}

SIM_TEST(a_capture_ends_in_its_thread)
{
    pthread_t thread;
    void *result;
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);

    assert_int_equal(pthread_create(&thread, NULL, end_in_thread, stream), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    ASSERT_CU(*(CUresult *)result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    expect_invalidated(stream);
    stream = begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_int_equal(pthread_create(&thread, NULL, end_in_thread, stream), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    ASSERT_OK(*(CUresult *)result);
}

SIM_TEST(destroyed_context_ends_its_captures)
{
    CUstream stream = begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL), joined = new_stream();
    char text[256];

    ASSERT_OK(cuStreamWaitEvent(joined, record(stream), 0));
    ASSERT_OK(cuDevicePrimaryCtxReset(0));
    ASSERT_OK(cuDevicePrimaryCtxRelease(0));
    assert_int_equal(xseg_sim_leaks(text, sizeof(text)), 0);
    assert_string_equal(text, "");
    (void)enter(0);
    ASSERT_OK(try_alloc());
    /* A reset of the machine ends its captures as well. */
    (void)begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(fresh(state), 0);
    ASSERT_OK(try_alloc());
}
