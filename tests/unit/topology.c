/* SPDX-License-Identifier: MIT */
/* The order of captured streams, in graphs from real captures. */
#include <string.h>

#include "src/core/stream/streams.h"
#include "tests/support/env.h"
#include "vmm/context.h"

int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuStreamBeginCapture_v2(xseg_stream stream, int mode);
int cuStreamEndCapture(xseg_stream stream, void **graph);
int cuGraphDestroy(void *graph);
int cuStreamWaitEvent(xseg_stream stream, xseg_event event, unsigned flags);

enum { STREAMS = 4, RELAXED = 2 };

struct fixture {
    struct xseg_driver *driver;
    struct xseg_context context;
    struct xseg_unreleased_list leftovers;
    struct xseg_mutex table_lock;
    struct xseg_streams streams;
    struct xseg_known_stream *stream[STREAMS]; /* 0 is the origin */
    struct xseg_topology topology;
};

static void set_up(struct fixture *f)
{
    char why[128];

    memset(f, 0, sizeof(*f));
    assert_ok(xseg_sim_reset(NULL));
    assert_ok(xseg_driver_open(env_driver(), &f->driver));
    assert_ok(xseg_unreleased_init(&f->leftovers, &f->context));
    assert_ok(xseg_context_open(&f->context, f->driver, 0, &f->leftovers, why, sizeof(why)));
    xseg_mutex_init(&f->table_lock, XSEG_RANK_TABLE);
    xseg_streams_init(&f->streams, &f->context, &f->table_lock);
    for (unsigned i = 0; i < STREAMS; i++)
        assert_ok(xseg_streams_find_or_add(&f->streams, env_stream(), &f->stream[i]));
    xseg_topology_init(&f->topology);
    assert_int_equal(cuCtxPushCurrent_v2(f->context.primary), 0);
    assert_int_equal(cuStreamBeginCapture_v2(f->stream[0]->handle, RELAXED), 0);
}

static void tear_down(struct fixture *f)
{
    void *graph = NULL, *popped = NULL;

    (void)cuStreamEndCapture(f->stream[0]->handle, &graph);
    if (graph != NULL)
        assert_int_equal(cuGraphDestroy(graph), 0);
    xseg_topology_fini(&f->topology);
    assert_int_equal(cuCtxPopCurrent_v2(&popped), 0);
    for (unsigned i = 0; i < STREAMS; i++)
        env_stream_destroy(f->stream[i]->handle);
    xseg_streams_fini(&f->streams);
    xseg_mutex_fini(&f->table_lock);
    assert_ok(xseg_driver_release_context(&f->context));
    xseg_unreleased_fini(&f->leftovers);
    xseg_driver_close(f->driver);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

/* Capture one node on a stream. */
static void launch(struct fixture *f, unsigned stream)
{
    assert_ok(xseg_sim_launch(f->stream[stream]->handle, 10));
}

/* Order stream `to` after the current work of stream `from`. */
static void join(struct fixture *f, unsigned to, unsigned from)
{
    xseg_event event = NULL;

    assert_ok(xseg_driver_event_create(&f->context, &event));
    assert_ok(xseg_driver_event_record(&f->context, event, f->stream[from]->handle));
    assert_int_equal(cuStreamWaitEvent(f->stream[to]->handle, event, 0), 0);
    assert_ok(xseg_driver_event_destroy(&f->context, event));
}

static struct xseg_capture_info info_of(struct fixture *f, unsigned stream)
{
    struct xseg_capture_info info;

    assert_ok(xseg_driver_capture_info(&f->context, f->stream[stream]->handle, &info));
    return info;
}

static struct xseg_topology_view *view_of(struct fixture *f, unsigned stream)
{
    struct xseg_topology_view *view =
        xseg_topology_get(&f->topology, info_of(f, stream).id, f->stream[stream]);

    assert_non_null(view);
    return view;
}

/* In the view of a stream, wait for the last nodes of another stream. */
static void wait_for(struct fixture *f, unsigned stream, unsigned other,
                     struct xseg_topology_waiter *waiter, struct xseg_topology_mark *mark)
{
    const struct xseg_capture_info info = info_of(f, other);

    assert_int_equal(info.count, 1);
    memset(mark, 0, sizeof(*mark));
    mark->node = info.nodes[0];
    assert_true(xseg_topology_wait(view_of(f, stream), waiter, mark, 1));
}

static void advance(struct fixture *f, unsigned stream)
{
    struct xseg_topology_view *view = view_of(f, stream);
    const struct xseg_capture_info info = info_of(f, stream);

    xseg_topology_advance(view, &f->context, info.nodes, info.count);
}

static bool is_ready(const struct xseg_topology_waiter *waiter)
{
    return !xseg_list_is_empty(&waiter->link);
}

/* Two branches: unordered before the join, ordered after it. */
TEST(branch_is_ordered_after_the_join)
{
    struct fixture f;
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark mark;

    set_up(&f);
    launch(&f, 0);
    join(&f, 1, 0);
    launch(&f, 1);
    launch(&f, 0);
    wait_for(&f, 0, 1, &waiter, &mark);
    advance(&f, 0);
    assert_false(is_ready(&waiter));
    launch(&f, 0);
    advance(&f, 0);
    assert_false(is_ready(&waiter));
    join(&f, 0, 1);
    advance(&f, 0);
    assert_true(is_ready(&waiter));
    tear_down(&f);
}

/* Markers that already precede the stream make a waiter ready immediately. */
TEST(ordered_streams_need_no_wait)
{
    struct fixture f;
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark mark;

    set_up(&f);
    launch(&f, 0);
    advance(&f, 0);
    wait_for(&f, 0, 0, &waiter, &mark);
    assert_true(is_ready(&waiter));
    tear_down(&f);
}

/* All markers count: two of three branches are not enough. */
TEST(every_marker_must_be_ordered_before)
{
    struct fixture f;
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark marks[3];

    set_up(&f);
    launch(&f, 0);
    memset(marks, 0, sizeof(marks));
    for (unsigned i = 1; i < STREAMS; i++) {
        join(&f, i, 0);
        launch(&f, i);
        marks[i - 1].node = info_of(&f, i).nodes[0];
    }
    assert_true(xseg_topology_wait(view_of(&f, 0), &waiter, marks, 3));
    for (unsigned i = 1; i < STREAMS; i++) {
        assert_false(is_ready(&waiter));
        join(&f, 0, i);
        launch(&f, 0);
        advance(&f, 0);
    }
    assert_true(is_ready(&waiter));
    tear_down(&f);
}

/* A view belongs to one stream: a marker that precedes one stream may not precede another. */
TEST(views_are_independent)
{
    struct fixture f;
    struct xseg_topology_waiter here, there;
    struct xseg_topology_mark marks[2];

    set_up(&f);
    launch(&f, 0);
    join(&f, 1, 0);
    launch(&f, 0);
    launch(&f, 1);
    wait_for(&f, 0, 0, &here, &marks[0]);
    wait_for(&f, 1, 0, &there, &marks[1]);
    advance(&f, 0);
    advance(&f, 1);
    assert_true(is_ready(&here));
    assert_false(is_ready(&there));
    join(&f, 0, 1);
    tear_down(&f);
}

/* A query reads the new nodes only, however many precede them; nodes with many dependencies are read completely. */
TEST(query_reads_new_nodes_only)
{
    struct fixture f;

    set_up(&f);
    for (unsigned i = 0; i < 500; i++)
        launch(&f, 0);
    advance(&f, 0);
    const uint64_t before = xseg_sim_calls("cuGraphNodeGetDependencies");
    assert_true(before >= 500);
    advance(&f, 0);
    assert_int_equal(xseg_sim_calls("cuGraphNodeGetDependencies"), before);
    for (unsigned i = 0; i < 3; i++)
        launch(&f, 0);
    advance(&f, 0);
    assert_int_equal(xseg_sim_calls("cuGraphNodeGetDependencies"), before + 3);
    tear_down(&f);
}

/* A node with more dependencies than one query returns. */
TEST(nodes_with_many_dependencies_are_read_completely)
{
    enum { BRANCHES = 40 };
    struct fixture f;
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark marks[BRANCHES];
    xseg_stream branch[BRANCHES];
    xseg_event event = NULL;

    set_up(&f);
    launch(&f, 0);
    memset(marks, 0, sizeof(marks));
    for (unsigned i = 0; i < BRANCHES; i++) {
        struct xseg_capture_info info;

        branch[i] = env_stream();
        assert_ok(xseg_driver_event_create(&f.context, &event));
        assert_ok(xseg_driver_event_record(&f.context, event, f.stream[0]->handle));
        assert_int_equal(cuStreamWaitEvent(branch[i], event, 0), 0);
        assert_ok(xseg_sim_launch(branch[i], 10));
        assert_ok(xseg_driver_capture_info(&f.context, branch[i], &info));
        marks[i].node = info.nodes[0];
        assert_ok(xseg_driver_event_record(&f.context, event, branch[i]));
        assert_int_equal(cuStreamWaitEvent(f.stream[0]->handle, event, 0), 0);
        assert_ok(xseg_driver_event_destroy(&f.context, event));
    }
    assert_true(xseg_topology_wait(view_of(&f, 0), &waiter, marks, BRANCHES));
    launch(&f, 0);
    advance(&f, 0);
    assert_true(is_ready(&waiter));
    void *graph = NULL;
    assert_int_equal(cuStreamEndCapture(f.stream[0]->handle, &graph), 0);
    assert_int_equal(cuGraphDestroy(graph), 0);
    for (unsigned i = 0; i < BRANCHES; i++)
        env_stream_destroy(branch[i]);
    tear_down(&f);
}

/* A failed driver query only prolongs the wait. */
TEST(failed_query_counts_as_unordered)
{
    struct fixture f;
    struct xseg_topology_waiter waiter;
    struct xseg_topology_mark mark;

    set_up(&f);
    launch(&f, 0);
    wait_for(&f, 0, 0, &waiter, &mark);
    launch(&f, 0);
    assert_ok(xseg_sim_fail("cuGraphNodeGetDependencies", 1, 1));
    advance(&f, 0);
    assert_true(xseg_sim_failed());
    assert_false(is_ready(&waiter));
    tear_down(&f);
}
