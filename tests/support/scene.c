/* SPDX-License-Identifier: MIT */
#include "tests/support/scene.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The few entry points of the driver that a program calls itself, by their plain C types. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuStreamCreate(xseg_stream *stream, unsigned flags);
int cuStreamDestroy_v2(xseg_stream stream);
int cuStreamWaitEvent(xseg_stream stream, xseg_event event, unsigned flags);
int cuStreamBeginCapture_v2(xseg_stream stream, int mode);
int cuStreamEndCapture(xseg_stream stream, struct CUgraph_st **graph);
int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventRecord(xseg_event event, xseg_stream stream);
int cuEventDestroy_v2(xseg_event event);
int cuGraphDestroy(struct CUgraph_st *graph);

const char *scene_driver(void)
{
    static _Thread_local char path[4096];
    void *symbol = dlsym(RTLD_DEFAULT, "xseg_sim_reset");
    Dl_info info;

    assert_non_null(symbol);
    assert_int_not_equal(dladdr(symbol, &info), 0);
    (void)snprintf(path, sizeof(path), "%s", info.dli_fname);
    return path;
}

xseg_status scene_try_open(const char *config, struct xseg_allocator **out)
{
    struct xseg_options options = {sizeof(options)};

    options.driver = scene_driver();
    return xseg_open(config, &options, out);
}

static void expect_ok(xseg_status status, const char *what)
{
    char text[1024];

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(text, sizeof(text));
    fail_msg("%s: %s: %s", what, xseg_status_name(status), text);
}

static void hear(void *context, enum xseg_log_level level, const char *line)
{
    struct scene_heard *heard = context;

    if (level == XSEG_LOG_INFO)
        return;
    heard->lines++;
    (void)snprintf(heard->line, sizeof(heard->line), "%s", line);
}

struct xseg_allocator *scene_open_heard(const char *config, struct scene_heard *heard)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;

    *heard = (struct scene_heard){.lines = 0};
    options.driver = scene_driver();
    options.log = hear;
    options.log_context = heard;
    assert_int_equal(xseg_open(config, &options, &allocator), XSEG_OK);
    return allocator;
}

struct xseg_allocator *scene_open_on(const struct xseg_sim_settings *settings, const char *config)
{
    struct xseg_allocator *allocator = NULL;

    assert_int_equal(xseg_sim_reset(settings), XSEG_OK);
    expect_ok(scene_try_open(config, &allocator), "open");
    return allocator;
}

uint64_t scene_clock(void *context)
{
    (void)context;
    return xseg_sim_clock();
}

struct xseg_allocator *scene_open_with_clock(const struct xseg_sim_settings *settings,
                                             const char *config)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;

    assert_int_equal(xseg_sim_reset(settings), XSEG_OK);
    options.driver = scene_driver();
    options.clock = scene_clock;
    expect_ok(xseg_open(config, &options, &allocator), "open");
    return allocator;
}

struct xseg_allocator *scene_open(const char *config)
{
    const struct xseg_sim_settings settings = {sizeof(settings)};

    return scene_open_on(&settings, config);
}

void scene_close(struct xseg_allocator *allocator)
{
    char text[1024];

    expect_ok(xseg_close(allocator), "close");
    if (xseg_sim_leaks(text, sizeof(text)) != 0)
        fail_msg("left behind: %s", text);
}

void *scene_alloc(struct xseg_allocator *allocator, size_t bytes, xseg_stream stream)
{
    void *ptr = NULL;

    expect_ok(xseg_alloc(allocator, 0, bytes, stream, &ptr), "alloc");
    return ptr;
}

xseg_status scene_try_alloc_in(struct xseg_allocator *allocator, struct xseg_pool *pool,
                               size_t bytes, void **out)
{
    struct xseg_request request = {sizeof(request)};

    request.pool = pool;
    request.bytes = bytes;
    return xseg_alloc_with(allocator, &request, out);
}

void *scene_alloc_in(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                     xseg_stream stream)
{
    struct xseg_request request = {sizeof(request)};
    void *ptr = NULL;

    request.pool = pool;
    request.bytes = bytes;
    request.stream = stream;
    expect_ok(xseg_alloc_with(allocator, &request, &ptr), "alloc");
    return ptr;
}

void scene_free(struct xseg_allocator *allocator, void *ptr)
{
    expect_ok(xseg_free(allocator, ptr), "free");
}

void scene_empty_cache(struct xseg_allocator *allocator)
{
    struct xseg_trim_options trim = {sizeof(trim)};

    trim.wait = true;
    expect_ok(xseg_trim(allocator, NULL, &trim, NULL), "trim");
}

struct xseg_statistics scene_stats(struct xseg_allocator *allocator)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};

    where.device = 0;
    expect_ok(xseg_stats_get(allocator, &where, &stats), "stats");
    return stats;
}

struct xseg_block_info scene_block(struct xseg_allocator *allocator, const void *address)
{
    struct xseg_block_info info = {sizeof(info)};

    expect_ok(xseg_block_query(allocator, address, &info), "block");
    return info;
}

/* Make device 0's primary context current, and hold it, until leave_context(). */
static void enter_context(void)
{
    void *context = NULL;

    assert_int_equal(cuInit(0), 0);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), 0);
    assert_int_equal(cuCtxPushCurrent_v2(context), 0);
}

static void leave_context(void)
{
    void *context = NULL;

    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), 0);
}

xseg_stream scene_stream(void)
{
    xseg_stream stream = NULL;
    void *context = NULL;

    enter_context();
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), 0);
    assert_int_equal(cuStreamCreate(&stream, 1), 0);
    leave_context();
    return stream;
}

void scene_stream_destroy(xseg_stream stream)
{
    enter_context();
    assert_int_equal(cuStreamDestroy_v2(stream), 0);
    leave_context();
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), 0);
}

void scene_stream_wait(xseg_stream stream, xseg_stream other)
{
    xseg_event event = NULL;

    enter_context();
    assert_int_equal(cuEventCreate(&event, 2), 0);
    assert_int_equal(cuEventRecord(event, other), 0);
    assert_int_equal(cuStreamWaitEvent(stream, event, 0), 0);
    assert_int_equal(cuEventDestroy_v2(event), 0);
    leave_context();
}

void scene_work(struct xseg_allocator *allocator, xseg_stream stream, const void *ptr)
{
    const struct xseg_block_info block = scene_block(allocator, ptr);

    scene_work_at(stream, block.base, block.bytes);
}

void scene_work_at(xseg_stream stream, const void *address, uint64_t bytes)
{
    enter_context();
    assert_int_equal(xseg_sim_launch_on(stream, UINT64_MAX, (uint64_t)(uintptr_t)address, bytes),
                     XSEG_OK);
    leave_context();
}

struct xseg_pool *scene_pool(struct xseg_allocator *allocator)
{
    struct xseg_pool *pool = NULL;

    expect_ok(xseg_pool_create(allocator, 0, NULL, &pool), "pool");
    return pool;
}

static void ignore(void *context, const struct xseg_statistics *last)
{
    (void)context;
    (void)last;
}

struct xseg_pool *scene_watched_pool(struct xseg_allocator *allocator)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    options.on_destroy = ignore;
    expect_ok(xseg_pool_create(allocator, 0, &options, &pool), "pool");
    return pool;
}

void scene_capture_begin(struct xseg_pool *pool, xseg_stream stream)
{
    expect_ok(xseg_capture_begin(pool, stream), "capture begin");
    enter_context();
    assert_int_equal(cuStreamBeginCapture_v2(stream, 0), 0);
    leave_context();
}

struct CUgraph_st *scene_capture_end(struct xseg_pool *pool, xseg_stream stream)
{
    struct CUgraph_st *graph = NULL;
    int result;

    enter_context();
    result = cuStreamEndCapture(stream, &graph);
    leave_context();
    expect_ok(xseg_capture_end(pool), "capture end");
    if (result != 0)
        fail_msg("the capture was spoilt: its end is refused with error %d", result);
    return graph;
}

void scene_graph_destroy(struct CUgraph_st *graph)
{
    assert_int_equal(cuGraphDestroy(graph), 0);
}

unsigned scene_open_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;

    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    (void)closedir(folder);
    return count;
}

void scene_expect_error(xseg_status got, xseg_status want, const char *word)
{
    char text[1024];

    assert_int_equal(got, want);
    (void)xseg_error_message(text, sizeof(text));
    if (strstr(text, word) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", text, word);
}
