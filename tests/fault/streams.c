/* SPDX-License-Identifier: MIT */
/*
 * The sweep over streams, captures and pools: every driver call of every scenario fails once, those
 * of the scenario's own and of its pools' functions included; and pairs of them.  A capture that
 * nobody spoilt yields a graph, whatever failed.
 */
#include "tests/fault/stage.h"

#include <string.h>

/* Entry points of the driver, by their plain C types. */
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void *context);
int cuStreamCreate(xseg_stream *stream, unsigned flags);
int cuStreamDestroy_v2(xseg_stream stream);
int cuStreamBeginCapture_v2(xseg_stream stream, int mode);
int cuStreamEndCapture(xseg_stream stream, void **graph);
int cuStreamWaitEvent(xseg_stream stream, xseg_event event, unsigned flags);
int cuGraphDestroy(void *graph);
int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventRecord(xseg_event event, xseg_stream stream);
int cuEventDestroy_v2(xseg_event event);
int cuMemAlloc_v2(unsigned long long *ptr, size_t bytes);
int cuMemFree_v2(unsigned long long ptr);

#define OWN(stage, call) \
    do {                 \
    } while (stage_again_own((stage), (call)))

/* --- What the scenarios are made of. --- */

/* The scenario's own streams and events need a context of its own. */
static void come(struct stage *stage)
{
    void *context = NULL;

    OWN(stage, cuDevicePrimaryCtxRetain(&context, 0));
    OWN(stage, cuCtxSetCurrent(context));
}

static void go(struct stage *stage)
{
    OWN(stage, cuCtxSetCurrent(NULL));
    OWN(stage, cuDevicePrimaryCtxRelease_v2(0));
}

static void make_pool(struct stage *stage, const struct xseg_pool_options *options,
                      struct xseg_pool **pool)
{
    while (stage_again(stage, xseg_pool_create(stage->allocator, 0, options, pool)))
        ;
}

static void begin_capture(struct stage *stage, struct xseg_pool *pool, xseg_stream stream)
{
    while (stage_again(stage, xseg_capture_begin(pool, stream)))
        ;
    OWN(stage, cuStreamBeginCapture_v2(stream, 0));
}

static void end_capture(struct stage *stage, struct xseg_pool *pool, xseg_stream stream)
{
    void *graph = NULL;

    OWN(stage, cuStreamEndCapture(stream, &graph));
    assert_non_null(graph);
    OWN(stage, cuGraphDestroy(graph));
    while (stage_again(stage, xseg_capture_end(pool)))
        ;
}

static void wait_for(struct stage *stage, xseg_stream later, xseg_stream earlier)
{
    xseg_event event = NULL;

    OWN(stage, cuEventCreate(&event, 2));
    OWN(stage, cuEventRecord(event, earlier));
    OWN(stage, cuStreamWaitEvent(later, event, 0));
    OWN(stage, cuEventDestroy_v2(event));
}

/* Open-ended work on a block, announced. */
static void work(struct stage *stage, void *ptr, size_t bytes, xseg_stream stream)
{
    stage_use(stage, ptr, stream);
    assert_int_equal(xseg_sim_launch_on(stream, UINT64_MAX, (uint64_t)(uintptr_t)ptr, bytes),
                     XSEG_OK);
}

/* --- The scenarios. --- */

/* Blocks that were used before and in a capture are freed in it. */
static void capture(struct stage *stage)
{
    const xseg_stream side = stage->side;
    struct xseg_pool *pool = NULL;
    xseg_stream joined = NULL;
    void *a = stage_take(stage, 5 * MIB, NULL), *b = stage_take(stage, 3 * MIB, NULL), *c, *d;

    come(stage);
    OWN(stage, cuStreamCreate(&joined, 1));
    make_pool(stage, NULL, &pool);
    work(stage, a, 5 * MIB, side);
    begin_capture(stage, pool, side);
    wait_for(stage, joined, side);
    c = stage_take(stage, 7 * MIB, side);
    assert_ptr_equal(scene_block(stage->allocator, c).pool, pool);
    d = stage_take(stage, 600, joined);
    assert_ptr_equal(scene_block(stage->allocator, d).pool, pool);
    stage_use(stage, b, side);
    stage_use(stage, c, joined);
    stage_give(stage, a);
    stage_give(stage, b);
    stage_give(stage, c);
    stage_trim(stage, true);
    wait_for(stage, side, joined);
    c = stage_take(stage, 7 * MIB, side);
    a = stage_take(stage, 40 * MIB, NULL);
    end_capture(stage, pool, side);
    b = stage_take(stage, 3 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    stage_give(stage, c);
    while (stage_again(stage, xseg_pool_release(pool)))
        ;
    stage_trim(stage, false);
    stage_give(stage, a);
    stage_give(stage, b);
    stage_give(stage, d);
    while (stage_again(stage, xseg_stream_retire(stage->allocator, 0, joined)))
        ;
    OWN(stage, cuStreamDestroy_v2(joined));
    stage_trim(stage, true);
    go(stage);
}

static bool is_side(void *self, xseg_stream stream)
{
    const struct stage *stage = self;

    return stream == stage->side;
}

static void route(struct stage *stage)
{
    struct xseg_pool *pool = NULL;
    void *a, *b;

    make_pool(stage, NULL, &pool);
    while (stage_again(stage, xseg_route_begin(pool, is_side, stage)))
        ;
    a = stage_take(stage, 4 * MIB, stage->side);
    b = stage_take(stage, 4 * MIB, NULL);
    assert_ptr_equal(scene_block(stage->allocator, a).pool, pool);
    assert_null(scene_block(stage->allocator, b).pool);
    stage_give(stage, a);
    a = stage_take(stage, 30 * MIB, stage->side);
    while (stage_again(stage, xseg_route_end(pool)))
        ;
    stage_give(stage, b);
    while (stage_again(stage, xseg_pool_release(pool)))
        ;
    stage_trim(stage, true);
    stage_give(stage, a);
    stage_trim(stage, true);
}

/* A capture that is marked, and routed in two parts: blocks that were used before and in it are freed in it. */
static void marked(struct stage *stage)
{
    const xseg_stream side = stage->side;
    struct xseg_pool *pool = NULL;
    void *a = stage_take(stage, 5 * MIB, NULL), *b, *c = NULL, *graph = NULL;

    come(stage);
    make_pool(stage, NULL, &pool);
    work(stage, a, 5 * MIB, side);
    OWN(stage, cuStreamBeginCapture_v2(side, 0));
    while (stage_again(stage, xseg_capture_mark(stage->allocator, 0)))
        ;
    for (unsigned i = 0; i < 2; i++) {
        while (stage_again(stage, xseg_route_begin(pool, is_side, stage)))
            ;
        b = stage_take(stage, 7 * MIB, side);
        c = stage_take(stage, 600, side);
        assert_ptr_equal(scene_block(stage->allocator, b).pool, pool);
        stage_use(stage, b, side);
        stage_give(stage, i == 0 ? a : b);
        stage_trim(stage, true);
        if (i == 0) {
            stage_give(stage, b);
            stage_give(stage, c);
            while (stage_again(stage, xseg_route_end(pool)))
                ;
        }
    }
    OWN(stage, cuStreamEndCapture(side, &graph));
    OWN(stage, cuGraphDestroy(graph));
    while (stage_again(stage, xseg_capture_unmark(stage->allocator, 0)))
        ;
    while (stage_again(stage, xseg_route_end(pool)))
        ;
    b = stage_take(stage, 3 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    while (stage_again(stage, xseg_pool_release(pool)))
        ;
    stage_trim(stage, false);
    stage_give(stage, b);
    stage_give(stage, c);
    stage_trim(stage, true);
    go(stage);
}

/* What a restoration tells of: the stage's list follows. */
static void hear(void *self, void *ptr, bool freed)
{
    struct stage *stage = self;

    if (freed)
        stage_drop(stage, ptr);
    else
        stage->held[stage->count++] =
            (struct stage_held){ptr, scene_block(stage->allocator, ptr).bytes};
}

/* Sizes are multiples of 512: a block that is live again was asked for in its full size. */
static void checkpoint(struct stage *stage)
{
    struct xseg_checkpoint *saved = NULL;
    struct xseg_pool *pool = NULL;
    void *a, *b, *c;

    come(stage);
    make_pool(stage, NULL, &pool);
    a = stage_take_from(stage, pool, 12 * MIB, NULL);
    b = stage_take_from(stage, pool, 1024, NULL);
    c = stage_take_from(stage, pool, 3 * MIB, stage->side);
    work(stage, a, 12 * MIB, stage->side);
    stage_give(stage, a);
    assert_int_equal(xseg_sim_finish(stage->side), XSEG_OK);
    while (stage_again(stage, xseg_pool_checkpoint(pool, &saved)))
        ;
    stage_give(stage, b);
    (void)stage_take_from(stage, pool, 5 * MIB, NULL);
    (void)stage_take_from(stage, pool, 90 * MIB, NULL);
    a = stage_take_from(stage, pool, 512, stage->side);
    work(stage, a, 512, NULL);
    stage_give(stage, a);
    xseg_sim_finish_all();
    while (stage_again(stage, xseg_pool_restore(pool, saved, hear, stage)))
        ;
    assert_int_equal(stage->count, 2);
    xseg_checkpoint_destroy(saved);
    stage_give(stage, b);
    while (stage_again(stage, xseg_pool_release(pool)))
        ;
    stage_trim(stage, true);
    stage_give(stage, c);
    stage_trim(stage, true);
    go(stage);
}

/* A stream goes with work on its blocks and uses of it under way; another one takes its memory. */
static void departure(struct stage *stage)
{
    xseg_stream leaving = NULL, heir = NULL;
    void *a, *b, *c;

    come(stage);
    OWN(stage, cuStreamCreate(&leaving, 1));
    a = stage_take(stage, 5 * MIB, leaving);
    b = stage_take(stage, 25 * MIB, NULL);
    c = stage_take(stage, 2048, leaving);
    work(stage, a, 5 * MIB, leaving);
    work(stage, b, 25 * MIB, leaving);
    while (stage_again(stage, xseg_stream_retire(stage->allocator, 0, leaving)))
        ;
    OWN(stage, cuStreamDestroy_v2(leaving));
    stage_give(stage, a);
    stage_give(stage, b);
    stage_trim(stage, false);
    OWN(stage, cuStreamCreate(&heir, 1));
    a = stage_take(stage, 5 * MIB, heir);
    xseg_sim_finish_all();
    b = stage_take(stage, 25 * MIB, heir);
    stage_trim(stage, false);
    stage_give(stage, c);
    while (stage_again(stage, xseg_stream_retire(stage->allocator, 0, heir)))
        ;
    OWN(stage, cuStreamDestroy_v2(heir));
    OWN(stage, cuStreamCreate(&heir, 1));
    c = stage_take(stage, 4 * MIB, heir);
    stage_give(stage, a);
    stage_give(stage, b);
    stage_give(stage, c);
    while (stage_again(stage, xseg_stream_retire(stage->allocator, 0, heir)))
        ;
    OWN(stage, cuStreamDestroy_v2(heir));
    stage_trim(stage, true);
    go(stage);
}

static void free_after(struct stage *stage)
{
    xseg_event early = NULL, late = NULL;
    void *a = stage_take(stage, 30 * MIB, NULL), *b = stage_take(stage, 700, NULL);
    const xseg_event *events[] = {&early, &late};

    come(stage);
    OWN(stage, cuEventCreate(&early, 2));
    OWN(stage, cuEventCreate(&late, 2));
    OWN(stage, cuEventRecord(early, stage->side));
    work(stage, a, 30 * MIB, stage->side);
    OWN(stage, cuEventRecord(late, stage->side));
    for (unsigned i = 0; i < 2; i++) {
        void *ptr = i == 0 ? b : a;
        xseg_status status;

        do {
            status = xseg_free_after(stage->allocator, ptr, events[i], 1);
            if (status == XSEG_OK)
                stage_drop(stage, ptr);
        } while (stage_again(stage, status));
    }
    OWN(stage, cuEventDestroy_v2(early));
    OWN(stage, cuEventDestroy_v2(late));
    stage_trim(stage, false);
    a = stage_take(stage, 30 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(stage->side), XSEG_OK);
    b = stage_take(stage, 30 * MIB, NULL);
    stage_give(stage, a);
    stage_give(stage, b);
    stage_trim(stage, true);
    go(stage);
}

/* A pool's own functions: they ask the driver, which may refuse. */
static void *own_alloc(void *self, size_t bytes, int device, xseg_stream stream)
{
    unsigned long long ptr = 0;

    (void)self;
    (void)stream;
    assert_int_equal(device, 0);
    /* NULL where the driver has none. */
    return cuMemAlloc_v2(&ptr, bytes) == 0
               ? (void *)(uintptr_t)ptr /* NOLINT(performance-no-int-to-ptr) */
               : NULL;
}

static void own_free(void *self, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)bytes;
    (void)device;
    (void)stream;
    OWN((struct stage *)self, cuMemFree_v2((uint64_t)(uintptr_t)ptr));
}

/* Pools that have not told of their end; in the run before, all did. */
static int untold;

static void hear_end(void *context, const struct xseg_statistics *last)
{
    (void)context;
    assert_int_equal(last->reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(last->reserved_bytes[XSEG_STAT_ALL].allocated,
                     last->reserved_bytes[XSEG_STAT_ALL].freed);
    untold--;
}

static void own_memory(struct stage *stage)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;
    void *a, *b;

    come(stage);
    assert_int_equal(untold, 0);
    options.memory = (struct xseg_pool_memory){own_alloc, own_free, stage};
    options.id[1] = 7;
    options.on_destroy = hear_end;
    make_pool(stage, &options, &pool);
    untold++;
    a = stage_take_from(stage, pool, 12 * MIB, NULL);
    b = stage_take_from(stage, pool, 4000, stage->side);
    work(stage, a, 12 * MIB, stage->side);
    stage_give(stage, a);
    a = stage_take_from(stage, pool, 60 * MIB, NULL);
    stage_trim(stage, true);
    while (stage_again(stage, xseg_pool_release(pool)))
        ;
    stage_give(stage, a);
    stage_trim(stage, true);
    stage_give(stage, b);
    stage_trim(stage, false);
    go(stage);
}

/* --- The sweep. --- */

static const struct {
    const char *name;
    stage_scenario play;
} scenarios[] = {
    {"capture", capture},     {"route", route},           {"checkpoint", checkpoint},
    {"departure", departure}, {"free after", free_after}, {"own memory", own_memory},
    {"marked", marked},
};

static void sweep(const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    settings.memory_bytes = GIB;
    for (unsigned i = 0; i < COUNT_OF(scenarios); i++)
        stage_sweep(scenarios[i].name, scenarios[i].play, &settings, config);
}

static void expandable(void **state)
{
    (void)state;
    sweep("expandable_segments:True");
}

static void classic(void **state)
{
    (void)state;
    sweep("expandable_segments:False");
}

static void with_reuse(void **state)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    (void)state;
    settings.memory_bytes = GIB;
    settings.real_bytes = true;
    stage_sweep("capture with contents", capture, &settings,
                "expandable_segments:True,graph_capture_record_stream_reuse:True");
}

static void pairs(void **state)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    uint64_t runs = 0;

    (void)state;
    settings.memory_bytes = GIB;
    for (unsigned i = 0; i < COUNT_OF(scenarios); i++)
        runs += stage_pairs(scenarios[i].play, &settings,
                            "expandable_segments:True,graph_capture_record_stream_reuse:True", 2);
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expandable),
        cmocka_unit_test(classic),
        cmocka_unit_test(with_reuse),
        cmocka_unit_test(pairs),
    };

    return cmocka_run_group_tests_name("streams", tests, NULL, NULL);
}
