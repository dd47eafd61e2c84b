/* SPDX-License-Identifier: MIT */
/* The order of captured streams, in graphs from real captures. */
#include "src/core/stream/streams.h"
#include "tests/support/device_context.h"
#include "tests/support/driver_calls.h"

enum { STREAMS = 4, RELAXED = 2 };

static struct xseg_mutex table_lock;
static struct xseg_streams streams;
static struct xseg_known_stream *stream[STREAMS]; /* 0 is the origin */
static struct xseg_topology topology;

FIXTURE(set_up)
{
    context_open(NULL);
    xseg_mutex_init(&table_lock, XSEG_RANK_TABLE);
    xseg_streams_init(&streams, &context, &table_lock);
    for (unsigned i = 0; i < STREAMS; i++)
        assert_ok(xseg_streams_find_or_add(&streams, env_stream(), &stream[i]));
    xseg_topology_init(&topology);
    assert_int_equal(cuCtxPushCurrent_v2(context.primary), 0);
    assert_int_equal(cuStreamBeginCapture_v2(stream[0]->handle, RELAXED), 0);
}

FIXTURE(tear_down)
{
    struct CUgraph_st *graph = NULL;
    void *popped = NULL;

    (void)cuStreamEndCapture(stream[0]->handle, &graph);
    if (graph != NULL)
        assert_int_equal(cuGraphDestroy(graph), 0);
    xseg_topology_fini(&topology);
    assert_int_equal(cuCtxPopCurrent_v2(&popped), 0);
    for (unsigned i = 0; i < STREAMS; i++)
        env_stream_destroy(stream[i]->handle);
    xseg_streams_fini(&streams);
    xseg_mutex_fini(&table_lock);
    context_close();
}

/* Capture one node on a stream. */
static void launch(unsigned index)
{
    assert_ok(xseg_sim_launch(stream[index]->handle, 10));
}

/* Order stream `to` after the current work of stream `from`. */
static void join_streams(xseg_stream to, xseg_stream from)
{
    xseg_event event = NULL;

    assert_ok(xseg_driver_event_create(&context, &event));
    assert_ok(xseg_driver_event_record(&context, event, from));
    assert_int_equal(cuStreamWaitEvent(to, event, 0), 0);
    assert_ok(xseg_driver_event_destroy(&context, event));
}

static void join(unsigned to, unsigned from)
{
    join_streams(stream[to]->handle, stream[from]->handle);
}

static struct xseg_capture_info info_of(unsigned index)
{
    struct xseg_capture_info info;

    assert_ok(xseg_driver_capture_info(&context, stream[index]->handle, &info));
    return info;
}

static struct xseg_topology_view *view_of(unsigned index)
{
    struct xseg_topology_view *view =
        xseg_topology_get(&topology, info_of(index).id, stream[index]);

    assert_non_null(view);
    return view;
}

/* Wait in the view of a stream for the last node of another stream. */
static void wait_for(unsigned index, unsigned awaited, struct xseg_topology_waiter *waiter,
                     struct xseg_topology_mark *mark)
{
    const struct xseg_capture_info info = info_of(awaited);

    assert_int_equal(info.count, 1);
    memset(mark, 0, sizeof(*mark));
    mark->node = info.nodes[0];
    assert_true(xseg_topology_wait(view_of(index), waiter, mark, 1));
}

static void advance(unsigned index)
{
    struct xseg_topology_view *view = view_of(index);
    const struct xseg_capture_info info = info_of(index);

    xseg_topology_advance(view, &context, info.nodes, info.count);
}

static bool is_ready(const struct xseg_topology_waiter *waiter)
{
    return !xseg_list_is_empty(&waiter->link);
}

TEST_WITH(branch_is_ordered_after_the_join, set_up, tear_down)
{
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark mark;

    launch(0);
    join(1, 0);
    launch(1);
    launch(0);
    wait_for(0, 1, &waiter, &mark);
    advance(0);
    assert_false(is_ready(&waiter));
    launch(0);
    advance(0);
    assert_false(is_ready(&waiter));
    join(0, 1);
    advance(0);
    assert_true(is_ready(&waiter));
}

TEST_WITH(ordered_streams_need_no_wait, set_up, tear_down)
{
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark mark;

    launch(0);
    advance(0);
    wait_for(0, 0, &waiter, &mark);
    assert_true(is_ready(&waiter));
}

TEST_WITH(every_marker_must_be_ordered_before, set_up, tear_down)
{
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark marks[3];

    launch(0);
    memset(marks, 0, sizeof(marks));
    for (unsigned i = 1; i < STREAMS; i++) {
        join(i, 0);
        launch(i);
        marks[i - 1].node = info_of(i).nodes[0];
    }
    assert_true(xseg_topology_wait(view_of(0), &waiter, marks, 3));
    for (unsigned i = 1; i < STREAMS; i++) {
        assert_false(is_ready(&waiter));
        join(0, i);
        launch(0);
        advance(0);
    }
    assert_true(is_ready(&waiter));
}

/* A view belongs to one stream: a marker that precedes one stream may not precede another. */
TEST_WITH(views_are_independent, set_up, tear_down)
{
    struct xseg_topology_waiter first, second;
    struct xseg_topology_mark marks[2];

    launch(0);
    join(1, 0);
    launch(0);
    launch(1);
    wait_for(0, 0, &first, &marks[0]);
    wait_for(1, 0, &second, &marks[1]);
    advance(0);
    advance(1);
    assert_true(is_ready(&first));
    assert_false(is_ready(&second));
    join(0, 1);
}

TEST_WITH(query_reads_new_nodes_only, set_up, tear_down)
{
    for (unsigned i = 0; i < 500; i++)
        launch(0);
    advance(0);
    const uint64_t calls = xseg_sim_calls("cuGraphNodeGetDependencies");
    assert_true(calls >= 500);
    advance(0);
    assert_int_equal(xseg_sim_calls("cuGraphNodeGetDependencies"), calls);
    for (unsigned i = 0; i < 3; i++)
        launch(0);
    advance(0);
    assert_int_equal(xseg_sim_calls("cuGraphNodeGetDependencies"), calls + 3);
}

TEST_WITH(nodes_with_many_dependencies_are_read_completely, set_up, tear_down)
{
    enum { BRANCHES = 40 };
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark marks[BRANCHES];
    xseg_stream branch[BRANCHES];

    launch(0);
    memset(marks, 0, sizeof(marks));
    for (unsigned i = 0; i < BRANCHES; i++) {
        struct xseg_capture_info info;

        branch[i] = env_stream();
        join_streams(branch[i], stream[0]->handle);
        assert_ok(xseg_sim_launch(branch[i], 10));
        assert_ok(xseg_driver_capture_info(&context, branch[i], &info));
        marks[i].node = info.nodes[0];
        join_streams(stream[0]->handle, branch[i]);
    }
    assert_true(xseg_topology_wait(view_of(0), &waiter, marks, BRANCHES));
    launch(0);
    advance(0);
    assert_true(is_ready(&waiter));
    struct CUgraph_st *graph = NULL;
    assert_int_equal(cuStreamEndCapture(stream[0]->handle, &graph), 0);
    assert_int_equal(cuGraphDestroy(graph), 0);
    for (unsigned i = 0; i < BRANCHES; i++)
        env_stream_destroy(branch[i]);
}

/* A failed driver query only prolongs the wait. */
TEST_WITH(failed_query_counts_as_unordered, set_up, tear_down)
{
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark mark;

    launch(0);
    wait_for(0, 0, &waiter, &mark);
    launch(0);
    assert_ok(xseg_sim_fail("cuGraphNodeGetDependencies", 1, 1));
    advance(0);
    assert_true(xseg_sim_failed());
    assert_false(is_ready(&waiter));
}
