/* SPDX-License-Identifier: MIT */
#include "tests/support/env.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/driver_calls.h"

enum { CAPTURE_GLOBAL = 0, STREAM_NON_BLOCKING = 1, EVENT_DISABLE_TIMING = 2 };

/* --- Expectations. --- */

void env_expect_ok(xseg_status status, const char *call, const char *file, int line)
{
    char message[1024] = "";

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(message, sizeof(message));
    print_error("%s: %s: %s\n", call, xseg_status_name(status), message);
    _fail(file, line);
}

void env_expect_error_of(xseg_status status, xseg_status expected, const char *words,
                         const char *call, const char *file, int line)
{
    char message[1024] = "";

    (void)xseg_error_message(message, sizeof(message));
    if (status == expected && strstr(message, words) != NULL)
        return;
    print_error("%s: %s: \"%s\"; expected %s: \"%s\"\n", call, xseg_status_name(status), message,
                xseg_status_name(expected), words);
    _fail(file, line);
}

/* --- Allocators. --- */

const char *env_driver(void)
{
    static _Thread_local char path[4096];
    void *symbol = dlsym(RTLD_DEFAULT, "xseg_sim_reset");
    Dl_info info;

    assert_non_null(symbol);
    assert_int_not_equal(dladdr(symbol, &info), 0);
    (void)snprintf(path, sizeof(path), "%s", info.dli_fname);
    return path;
}

xseg_status env_try_open(const char *config, struct xseg_allocator **out)
{
    const struct xseg_options options = {sizeof(options), .driver = env_driver()};

    return xseg_open(config, &options, out);
}

static void log_line(void *context, enum xseg_log_level level, const char *line)
{
    struct env_log *log = context;

    if (level == XSEG_LOG_INFO)
        return;
    log->lines++;
    log->level = level;
    (void)snprintf(log->line, sizeof(log->line), "%s", line);
}

struct xseg_allocator *env_open_logged(const char *config, struct env_log *log)
{
    const struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = log_line,
                                         .log_context = log};
    struct xseg_allocator *allocator = NULL;

    *log = (struct env_log){.lines = 0};
    assert_ok(xseg_open(config, &options, &allocator));
    return allocator;
}

void env_expect_warnings(const struct env_log *log, unsigned lines, const char *words)
{
    assert_int_equal(log->lines, lines);
    assert_int_equal(log->level, XSEG_LOG_WARNING);
    if (strstr(log->line, words) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", log->line, words);
}

struct xseg_allocator *env_open_on(const struct xseg_sim_settings *settings, const char *config)
{
    struct xseg_allocator *allocator = NULL;

    assert_ok(xseg_sim_reset(settings));
    assert_ok(env_try_open(config, &allocator));
    return allocator;
}

uint64_t env_clock(void *context)
{
    (void)context;
    return xseg_sim_clock();
}

static struct xseg_allocator *open_with_log(const struct xseg_sim_settings *settings,
                                            const char *config,
                                            void (*log)(void *, enum xseg_log_level, const char *))
{
    const struct xseg_options options = {sizeof(options), .driver = env_driver(),
                                         .clock = env_clock, .log = log};
    struct xseg_allocator *allocator = NULL;

    assert_ok(xseg_sim_reset(settings));
    assert_ok(xseg_open(config, &options, &allocator));
    return allocator;
}

struct xseg_allocator *env_open_with_clock(const struct xseg_sim_settings *settings,
                                           const char *config)
{
    return open_with_log(settings, config, NULL);
}

void env_no_log(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

struct xseg_allocator *env_open_quietly(const struct xseg_sim_settings *settings,
                                        const char *config)
{
    return open_with_log(settings, config, env_no_log);
}

struct xseg_allocator *env_open_mib(uint64_t mib, const char *config)
{
    return env_open_sim(config, .memory_bytes = mib * MIB);
}

struct xseg_allocator *env_open(const char *config)
{
    return env_open_on(NULL, config);
}

static void expect_no_leaks(void)
{
    char leaks[1024];

    if (xseg_sim_leaks(leaks, sizeof(leaks)) != 0)
        fail_msg("leaked driver resources: %s", leaks);
}

void env_close_all(const void *const *handles, size_t bytes)
{
    assert_ok(xseg_close((struct xseg_allocator *)(uintptr_t)handles[0]));
    for (size_t i = 1; i < bytes / sizeof(*handles); i++)
        env_stream_destroy((xseg_stream)(uintptr_t)handles[i]);
    expect_no_leaks();
}

/* Streams that env_close_with_streams() destroys. */
static struct {
    pthread_mutex_t lock;
    struct {
        xseg_stream stream;
        int device;
    } entry[32];
    size_t count;
} open_streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

void env_streams_discard(void)
{
    open_streams.count = 0;
}

void env_close_with_streams(struct xseg_allocator *allocator)
{
    assert_ok(xseg_close(allocator));
    while (open_streams.count != 0)
        env_stream_destroy_on(open_streams.entry[0].device, open_streams.entry[0].stream);
    expect_no_leaks();
}

/* --- Memory of device 0. --- */

void *env_alloc(struct xseg_allocator *allocator, size_t bytes, xseg_stream stream)
{
    void *ptr = NULL;

    assert_ok(xseg_alloc(allocator, 0, bytes, stream, &ptr));
    return ptr;
}

xseg_status env_try_alloc_in(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                             void **out)
{
    const struct xseg_request request = {sizeof(request), .pool = pool, .bytes = bytes};

    return xseg_alloc_with(allocator, &request, out);
}

void *env_alloc_request(struct xseg_allocator *allocator, const struct xseg_request *request)
{
    void *ptr = NULL;

    assert_ok(xseg_alloc_with(allocator, request, &ptr));
    return ptr;
}

void *env_alloc_on(struct xseg_allocator *allocator, int device, size_t bytes)
{
    void *ptr = NULL;

    assert_ok(xseg_alloc(allocator, device, bytes, NULL, &ptr));
    return ptr;
}

xseg_status env_try_alloc(struct xseg_allocator *allocator, size_t bytes, xseg_stream stream)
{
    void *ptr = NULL;
    const xseg_status status = xseg_alloc(allocator, 0, bytes, stream, &ptr);

    if (status != XSEG_OK)
        assert_null(ptr);
    return status;
}

void *env_alloc_in(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                   xseg_stream stream)
{
    const struct xseg_request request = {sizeof(request), .pool = pool, .bytes = bytes,
                                         .stream = stream};
    void *ptr = NULL;

    assert_ok(xseg_alloc_with(allocator, &request, &ptr));
    return ptr;
}

void env_free_all(struct xseg_allocator *allocator, void *const *blocks, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(*blocks); i++)
        assert_ok(xseg_free(allocator, blocks[i]));
}

struct xseg_trim_result env_trim_by(struct xseg_allocator *allocator, struct xseg_pool *pool,
                                    const struct xseg_trim_options *options)
{
    const struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = pool};
    struct xseg_trim_result result = {sizeof(result)};

    assert_ok(xseg_trim(allocator, pool == NULL ? NULL : &scope, options, &result));
    return result;
}

struct xseg_trim_result env_trim(struct xseg_allocator *allocator)
{
    return env_trim_by(allocator, NULL, NULL);
}

struct xseg_trim_result env_trim_pool(struct xseg_allocator *allocator, struct xseg_pool *pool)
{
    return env_trim_by(allocator, pool, NULL);
}

void env_empty_cache(struct xseg_allocator *allocator)
{
    (void)env_trim_with(allocator, NULL, .wait = true);
}

static struct xseg_statistics stats_of(struct xseg_allocator *allocator,
                                       const struct xseg_scope *scope)
{
    struct xseg_statistics stats = {sizeof(stats)};

    assert_ok(xseg_stats_get(allocator, scope, &stats));
    return stats;
}

struct xseg_statistics env_stats_on(struct xseg_allocator *allocator, int device)
{
    return stats_of(allocator, env_scope(.device = device));
}

struct xseg_statistics env_stats(struct xseg_allocator *allocator)
{
    return env_stats_on(allocator, 0);
}

struct xseg_statistics env_pool_stats(struct xseg_allocator *allocator, struct xseg_pool *pool)
{
    return stats_of(allocator, env_scope(.device = -1, .pool = pool));
}

void env_set_hard_limit(struct xseg_allocator *allocator, struct xseg_pool *pool,
                        uint64_t hard_bytes)
{
    const struct xseg_scope scope = {sizeof(scope), .device = pool == NULL ? 0 : -1, .pool = pool};
    struct xseg_limits limits = XSEG_LIMITS_INIT;

    limits.hard_bytes = hard_bytes;
    assert_ok(xseg_limits_set(allocator, &scope, &limits));
}

uint64_t env_reserved(struct xseg_allocator *allocator)
{
    return env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current;
}

void env_advance_and_trim(struct xseg_allocator *allocator, unsigned steps, uint64_t step_ms)
{
    for (unsigned i = 0; i < steps; i++) {
        xseg_sim_advance(step_ms * 1000000);
        (void)env_trim_with(allocator, NULL, .due_only = true, .max_us = UINT64_MAX);
    }
}

uint64_t env_reserved_without_cache(struct xseg_allocator *allocator)
{
    env_empty_cache(allocator);
    return env_reserved(allocator);
}

struct xseg_block_info env_block(struct xseg_allocator *allocator, const void *address)
{
    struct xseg_block_info info = {sizeof(info)};

    assert_ok(xseg_block_query(allocator, address, &info));
    return info;
}

struct xseg_pool *env_pool_with(struct xseg_allocator *allocator,
                                const struct xseg_pool_options *options)
{
    struct xseg_pool *pool = NULL;

    assert_ok(xseg_pool_create(allocator, 0, options, &pool));
    return pool;
}

struct xseg_pool *env_pool(struct xseg_allocator *allocator)
{
    return env_pool_with(allocator, NULL);
}

static void *alloc_nothing(void *context, size_t bytes, int device, xseg_stream stream)
{
    (void)context, (void)bytes, (void)device, (void)stream;
    return NULL;
}

static void free_nothing(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)context, (void)ptr, (void)bytes, (void)device, (void)stream;
}

const struct xseg_pool_memory env_no_memory = {alloc_nothing, free_nothing, NULL};

static void ignore_destroy(void *context, const struct xseg_statistics *last)
{
    (void)context;
    (void)last;
}

struct xseg_pool *env_observed_pool(struct xseg_allocator *allocator)
{
    return env_pool_of(allocator, .on_destroy = ignore_destroy);
}

struct xseg_checkpoint *env_checkpoint(struct xseg_pool *pool)
{
    struct xseg_checkpoint *checkpoint = NULL;

    assert_ok(xseg_pool_checkpoint(pool, &checkpoint));
    return checkpoint;
}

uint64_t env_observe_with(struct xseg_allocator *allocator, const struct xseg_observer *observer)
{
    uint64_t id = 0;

    assert_ok(xseg_observer_add(allocator, observer, &id));
    return id;
}

/* --- Streams. --- */

void env_context_push(int device)
{
    void *context = NULL;

    assert_int_equal(cuInit(0), 0);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, device), 0);
    assert_int_equal(cuCtxPushCurrent_v2(context), 0);
}

void env_context_pop(int device)
{
    void *context = NULL;

    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(device), 0);
}

xseg_stream env_stream(void)
{
    return env_stream_on(0);
}

xseg_stream env_stream_on(int device)
{
    xseg_stream stream = NULL;
    void *context = NULL;

    env_context_push(device); /* env_stream_destroy_on() releases the context */
    assert_int_equal(cuStreamCreate(&stream, STREAM_NON_BLOCKING), 0);
    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
    (void)pthread_mutex_lock(&open_streams.lock);
    if (open_streams.count < COUNT_OF(open_streams.entry)) {
        open_streams.entry[open_streams.count].stream = stream;
        open_streams.entry[open_streams.count++].device = device;
    }
    (void)pthread_mutex_unlock(&open_streams.lock);
    return stream;
}

void env_streams_destroy(const xseg_stream *streams, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(*streams); i++)
        env_stream_destroy_on(0, streams[i]);
}

void env_stream_destroy_on(int device, xseg_stream stream)
{
    (void)pthread_mutex_lock(&open_streams.lock);
    for (size_t i = open_streams.count; i-- != 0;)
        if (open_streams.entry[i].stream == stream)
            open_streams.entry[i] = open_streams.entry[--open_streams.count];
    (void)pthread_mutex_unlock(&open_streams.lock);
    env_context_push(device);
    assert_int_equal(cuStreamDestroy_v2(stream), 0);
    env_context_pop(device);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(device), 0);
}

static void push_context_of(xseg_stream stream)
{
    void *context = NULL;

    assert_int_equal(cuStreamGetCtx(stream, &context), 0);
    assert_int_equal(cuCtxPushCurrent_v2(context), 0);
}

static void pop_context(void)
{
    void *context = NULL;

    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
}

void env_stream_wait(xseg_stream stream, xseg_stream other)
{
    xseg_event event = NULL;

    env_context_push(0); /* the default stream belongs to the current context */
    push_context_of(other);
    assert_int_equal(cuEventCreate(&event, EVENT_DISABLE_TIMING), 0);
    assert_int_equal(cuEventRecord(event, other), 0);
    pop_context();
    push_context_of(stream);
    assert_int_equal(cuStreamWaitEvent(stream, event, 0), 0);
    pop_context();
    assert_int_equal(cuEventDestroy_v2(event), 0);
    env_context_pop(0);
}

void env_launch(struct xseg_allocator *allocator, xseg_stream stream, const void *ptr)
{
    const struct xseg_block_info block = env_block(allocator, ptr);

    env_launch_at(stream, block.base, block.bytes);
}

void env_launch_at(xseg_stream stream, const void *address, uint64_t bytes)
{
    env_context_push(0);
    assert_ok(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)address, bytes));
    env_context_pop(0);
}

void env_use(struct xseg_allocator *allocator, void *ptr, xseg_stream stream)
{
    env_launch(allocator, stream, ptr);
    assert_ok(xseg_record_stream(allocator, ptr, stream));
}

void env_free_in_use(struct xseg_allocator *allocator, void *ptr, xseg_stream stream)
{
    env_use(allocator, ptr, stream);
    assert_ok(xseg_free(allocator, ptr));
}

unsigned env_access_at(const void *address, int device)
{
    const int location[] = {1, device}; /* 1: CU_MEM_LOCATION_TYPE_DEVICE */
    unsigned long long flags = 0;

    assert_int_equal(cuMemGetAccess(&flags, location, (uintptr_t)address), 0);
    return (unsigned)flags;
}

/* --- Captures. --- */

void env_driver_capture_begin(xseg_stream stream)
{
    push_context_of(stream);
    assert_int_equal(cuStreamBeginCapture_v2(stream, CAPTURE_GLOBAL), 0);
    pop_context();
}

/* End a capture of the driver.  Returns NULL if the capture was invalidated. */
static struct CUgraph_st *end_capture(xseg_stream stream)
{
    struct CUgraph_st *graph = NULL;

    push_context_of(stream);
    if (cuStreamEndCapture(stream, &graph) != 0)
        graph = NULL;
    pop_context();
    return graph;
}

bool env_driver_capture_end(xseg_stream stream)
{
    struct CUgraph_st *graph = end_capture(stream);

    if (graph != NULL)
        env_graph_destroy(graph);
    return graph != NULL;
}

void env_capture_begin(struct xseg_pool *pool, xseg_stream stream)
{
    assert_ok(xseg_capture_begin(pool, stream));
    env_driver_capture_begin(stream);
}

void env_capture_end(struct xseg_pool *pool, xseg_stream stream)
{
    assert_true(env_driver_capture_end(stream));
    assert_ok(xseg_capture_end(pool));
}

struct CUgraph_st *env_capture_end_graph(struct xseg_pool *pool, xseg_stream stream)
{
    struct CUgraph_st *graph = end_capture(stream);

    assert_ok(xseg_capture_end(pool));
    assert_non_null(graph);
    return graph;
}

void env_graph_destroy(struct CUgraph_st *graph)
{
    assert_int_equal(cuGraphDestroy(graph), 0);
}

uint64_t env_unsafe_calls(void)
{
    static const char *const calls[] = {
        "cuMemFree",           "cuMemUnmap",       "cuMemAddressFree", "cuEventQuery",
        "cuEventRecord",       "cuStreamQuery",    "cuEventDestroy",   "cuEventSynchronize",
        "cuStreamSynchronize", "cuCtxSynchronize",
    };
    uint64_t sum = 0;

    for (size_t i = 0; i < COUNT_OF(calls); i++)
        sum += xseg_sim_calls(calls[i]);
    return sum;
}

void env_fault_at(unsigned slot, struct xseg_sim_fault fault)
{
    if (fault.nth == 0)
        fault.nth = 1;
    if (fault.error == 0)
        fault.error = 2;
    assert_ok(xseg_sim_fault_set(slot, &fault));
}

void env_fail_every(const char *call, int error)
{
    env_fault(0, .call = call, .every = 1, .error = error);
}

/* --- Process. --- */

static unsigned count_entries(const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;
    unsigned count = 0;

    assert_non_null(folder);
    while ((entry = readdir(folder)) != NULL)
        count += entry->d_name[0] != '.';
    (void)closedir(folder);
    return count;
}

unsigned env_open_fds(void)
{
    return count_entries("/proc/self/fd");
}

unsigned env_threads(void)
{
    return count_entries("/proc/self/task");
}

uint64_t env_resident_bytes(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    unsigned long kib = 0;
    char line[256];

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "Rss: %lu", &kib) == 1)
            break;
    (void)fclose(file);
    return (uint64_t)kib * KIB;
}

void *env_run_thread(void *(*function)(void *context), void *context)
{
    void *result = NULL;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, function, context), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    return result;
}

int env_fork(void)
{
    return fork();
}

void env_exit_forked(bool condition, const xseg_status *statuses, size_t count)
{
    size_t rejected = 0;

    while (rejected < count && statuses[rejected] == XSEG_ERR_FORKED)
        rejected++;
    _exit(rejected == count && condition ? 0 : 1 + (int)rejected);
}

int env_wait(int child)
{
    int status = 0;

    assert_true(child >= 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}
