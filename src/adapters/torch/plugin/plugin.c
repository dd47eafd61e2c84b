/* SPDX-License-Identifier: MIT */
/*
 * libxseg-torch.so: the plug-in for torch.cuda.memory.CUDAPluggableAllocator.  It needs no compiler, and supports the functions
 * of that interface: allocations, frees, streams, graphs, limits.  docs/pytorch.md lists what is missing.
 *
 * The process has one allocator, which is opened by the first allocation and never closed.
 *
 * Errors:  a failed allocation returns NULL, and writes its message to standard error, because PyTorch raises no exception.
 * Threads: any.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "xseg/xseg.h"

/* --- The functions whose names CUDAPluggableAllocator receives (docs/pytorch.md). --- */

/** Allocate: `alloc_fn_name` of CUDAPluggableAllocator. */
XSEG_API void *xseg_torch_malloc(size_t bytes, int device, xseg_stream stream);

/** Free: `free_fn_name` of CUDAPluggableAllocator. */
XSEG_API void xseg_torch_free(void *ptr, size_t bytes, int device, xseg_stream stream);

/** For set_init_fn(). */
XSEG_API void xseg_torch_init(int device_count);

/** For set_reset_fn(): torch.cuda.empty_cache(). */
XSEG_API void xseg_torch_reset(void);

/** For set_memory_fraction_fn(). */
XSEG_API void xseg_torch_memory_fraction(double fraction, int device);

/** For set_base_alloc_fn(): start and length of the memory that contains a block. */
XSEG_API void *xseg_torch_base_alloc(void *ptr, size_t *bytes);

/** For set_record_stream_fn(). */
XSEG_API void xseg_torch_record_stream(void *ptr, xseg_stream stream);

/** For set_begin_allocate_to_pool(); the predicate of PyTorch is ignored. */
XSEG_API void xseg_torch_begin_allocate_to_pool(int device, unsigned long long first,
                                                unsigned long long second);

/** For set_end_allocate_to_pool_fn(). */
XSEG_API void xseg_torch_end_allocate_to_pool(int device, unsigned long long first,
                                              unsigned long long second);

/** For set_release_pool(). */
XSEG_API void xseg_torch_release_pool(int device, unsigned long long first,
                                      unsigned long long second);

/* --- State. --- */

/* A pool of PyTorch's graphs. */
struct graph_pool {
    struct graph_pool *next;
    int device;
    unsigned long long first, second;
    struct xseg_pool *handle;
    unsigned use_count;
    /* While a route is active: the pool of the thread's enclosing route. */
    struct graph_pool *outer;
};

static struct xseg_allocator *allocator;
static struct graph_pool *graph_pools;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Write the message of the failed function of the library. */
static void report_error(void)
{
    char message[1024];

    xseg_error_message(message, sizeof(message));
    (void)fprintf(stderr, "xseg-torch: %s\n", message);
}

static struct xseg_allocator *open_once(void)
{
    static bool has_failed;

    (void)pthread_mutex_lock(&lock);
    if (allocator == NULL && !has_failed && xseg_open(NULL, NULL, &allocator) != XSEG_OK) {
        has_failed = true;
        report_error();
    }
    struct xseg_allocator *const library = allocator;
    (void)pthread_mutex_unlock(&lock);
    return library;
}

XSEG_API void *xseg_torch_malloc(size_t bytes, int device, xseg_stream stream)
{
    struct xseg_allocator *const library = open_once();
    void *ptr = NULL;

    if (library != NULL && xseg_alloc(library, device, bytes, stream, &ptr) != XSEG_OK)
        report_error();
    return ptr;
}

XSEG_API void xseg_torch_free(void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)bytes;
    (void)device;
    (void)stream;
    const xseg_status status = allocator == NULL ? XSEG_OK : xseg_free(allocator, ptr);
    if (status != XSEG_OK && status != XSEG_ERR_FORKED)
        report_error();
}

XSEG_API void xseg_torch_init(int device_count)
{
    (void)device_count;
}

XSEG_API void xseg_torch_reset(void)
{
    struct xseg_trim_options options = {sizeof(options)};

    options.wait = true;
    if (allocator != NULL && xseg_trim(allocator, NULL, &options, NULL) != XSEG_OK)
        report_error();
}

XSEG_API void xseg_torch_memory_fraction(double fraction, int device)
{
    struct xseg_allocator *const library = open_once();
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_limits limits = XSEG_LIMITS_INIT;

    scope.device = device;
    if (library == NULL)
        return;
    xseg_status status = xseg_limits_get(library, &scope, &limits);
    limits.fraction = fraction;
    limits.has_fraction = true;
    if (status == XSEG_OK)
        status = xseg_limits_set(library, &scope, &limits);
    if (status != XSEG_OK)
        report_error();
}

XSEG_API void *xseg_torch_base_alloc(void *ptr, size_t *bytes)
{
    struct xseg_block_info block = {sizeof(block)};

    if (allocator == NULL || xseg_block_query(allocator, ptr, &block) != XSEG_OK)
        return ptr;
    if (bytes != NULL)
        *bytes = block.is_expandable ? block.bytes : block.segment_bytes;
    return block.is_expandable ? block.base : block.segment_base;
}

XSEG_API void xseg_torch_record_stream(void *ptr, xseg_stream stream)
{
    if (allocator != NULL && xseg_record_stream(allocator, ptr, stream) != XSEG_OK)
        report_error();
}

static struct graph_pool **find_pool(int device, unsigned long long first,
                                     unsigned long long second)
{
    struct graph_pool **link = &graph_pools;

    while (*link != NULL &&
           ((*link)->device != device || (*link)->first != first || (*link)->second != second))
        link = &(*link)->next;
    return link;
}

static _Thread_local struct graph_pool *innermost;

/* cuStreamIsCapturing() of the driver that the library uses, or NULL. */
static int (*stream_is_capturing)(xseg_stream, int *);

static void find_driver(void)
{
    const char *const name = secure_getenv("XSEG_DRIVER");
    void *const driver =
        dlopen(name != NULL && *name != '\0' ? name : "libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);

    if (driver != NULL)
        *(void **)&stream_is_capturing = dlsym(driver, "cuStreamIsCapturing");
}

/* Get whether a stream is capturing.  The legacy default stream never captures. */
static bool is_captured(xseg_stream stream)
{
    int status = 0;

    return stream_is_capturing != NULL && stream != NULL && (uintptr_t)stream != 1 &&
           stream_is_capturing(stream, &status) == 0 && status == 1;
}

/*
 * PyTorch's predicate is a C++ object, which C cannot call.  So the pool serves requests of the capturing thread, and requests
 * on captured streams of threads without a capture, such as that of backward().
 */
static bool route_accepts(void *context, xseg_stream stream)
{
    return innermost == context || (innermost == NULL && is_captured(stream));
}

static struct graph_pool *retain_pool(int device, unsigned long long first,
                                      unsigned long long second)
{
    struct graph_pool **link = find_pool(device, first, second);

    if (*link == NULL) {
        struct graph_pool *pool = calloc(1, sizeof(*pool));

        if (pool == NULL) {
            (void)fprintf(stderr, "xseg-torch: out of host memory, pool of a graph\n");
            return NULL;
        }
        if (xseg_pool_create(allocator, device, NULL, &pool->handle) != XSEG_OK) {
            report_error();
            free(pool);
            return NULL;
        }
        pool->device = device;
        pool->first = first;
        pool->second = second;
        *link = pool;
    }
    (*link)->use_count++;
    return *link;
}

/* Begin the route and mark the capture.  On failure neither is active. */
static void begin_route(struct graph_pool *pool)
{
    if (xseg_route_begin(pool->handle, route_accepts, pool) != XSEG_OK) {
        report_error();
        return;
    }
    if (xseg_capture_mark(allocator, pool->device) != XSEG_OK) {
        report_error();
        if (xseg_route_end(pool->handle) != XSEG_OK)
            report_error();
        return;
    }
    pool->outer = innermost;
    innermost = pool;
}

XSEG_API void xseg_torch_begin_allocate_to_pool(int device, unsigned long long first,
                                                unsigned long long second)
{
    static pthread_once_t has_driver = PTHREAD_ONCE_INIT;

    if (open_once() == NULL)
        return;
    (void)pthread_once(&has_driver, find_driver);
    (void)pthread_mutex_lock(&lock);
    struct graph_pool *const pool = retain_pool(device, first, second);
    if (pool != NULL)
        begin_route(pool);
    (void)pthread_mutex_unlock(&lock);
}

XSEG_API void xseg_torch_end_allocate_to_pool(int device, unsigned long long first,
                                              unsigned long long second)
{
    (void)pthread_mutex_lock(&lock);
    struct graph_pool *const pool = *find_pool(device, first, second);
    if (pool == NULL)
        (void)fprintf(stderr,
                      "xseg-torch: xseg_torch_end_allocate_to_pool: unknown pool, ID (%llu, %llu) "
                      "on device %d\n",
                      first, second, device);
    else if (xseg_route_end(pool->handle) == XSEG_OK &&
             xseg_capture_unmark(allocator, device) == XSEG_OK)
        innermost = pool->outer;
    else
        report_error();
    (void)pthread_mutex_unlock(&lock);
}

XSEG_API void xseg_torch_release_pool(int device, unsigned long long first,
                                      unsigned long long second)
{
    (void)pthread_mutex_lock(&lock);
    struct graph_pool **const link = find_pool(device, first, second);
    struct graph_pool *const pool = *link;
    xseg_status status = XSEG_OK;

    if (pool != NULL && --pool->use_count == 0) {
        status = xseg_pool_release(pool->handle);
        *link = pool->next;
        free(pool);
    }
    (void)pthread_mutex_unlock(&lock);
    if (status != XSEG_OK)
        report_error();
}
