/* SPDX-License-Identifier: MIT */
/*
 * libxseg-preload.so gives a program device memory of xseg.  The program is neither changed nor compiled or linked again.
 *
 *     LD_PRELOAD=libxseg-preload.so ./program
 *
 * The library defines these functions of the CUDA runtime and of the driver, and the dynamic linker finds them first:
 *
 *   cudaMalloc, cudaFree, cudaMallocAsync, cudaFreeAsync, cudaMemGetInfo, cudaStreamDestroy
 *   cuMemAlloc, cuMemFree, cuMemGetInfo, cuStreamDestroy
 *
 * So the program has to use the runtime, or the driver, as a shared library.  The functions of the driver are served
 * while the current context is the primary one of its device.
 *
 * The original functions get the rest: addresses that xseg did not give, other contexts, and requests that xseg refuses.
 * A request that both refuse leaves the error of the original, which cudaGetLastError() gives.
 *
 * What CUDA promises of these functions holds here, too:
 *   - Memory of cudaMalloc may be used on any stream at once.  xseg orders memory by streams; all of this memory is
 *     ordered by one stream of this library's own, on which no work is ever queued.
 *   - cudaFree and cuMemFree wait for the device, because work of any stream may use the memory.
 *   - cudaMallocAsync and cudaFreeAsync are ordered by their streams, and wait for nothing.
 *   - In a capture, memory is a node of the graph: the original functions make it.
 *
 * The allocator is opened at the first call, configured by the environment, and stays until the process ends.
 *
 * Threads: any.
 * Fork:    in the child everything goes to the originals.
 */
#include "preload.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "originals.h"
#include "xseg/xseg.h"

#define DEVICES       64
#define NON_BLOCKING  1
#define NOT_CAPTURING 0
#define CAPTURE_REFUSED \
    900 /* cudaErrorStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct xseg_allocator *allocator;

/* The stream on which a device's memory is ordered that every stream may use; made when first needed. */
static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;
static xseg_stream own[DEVICES];
static atomic_bool is_used[DEVICES]; /* whether xseg has memory there */

/* The driver may be found by name, and the name leads here: xseg's own calls pass. */
static __thread int inside;

static void say(const char *what)
{
    char text[1024] = "";

    (void)xseg_error_text(text, sizeof(text));
    (void)fprintf(stderr, "xseg: %s: %s\n", what, text);
}

static void open_allocator(void)
{
    if (xseg_open(NULL, NULL, &allocator) != XSEG_OK)
        say("memory comes from CUDA itself, since no allocator could be opened");
}

/* Whether xseg serves this thread now. */
static bool enter(void)
{
    if (inside)
        return false;
    inside = 1;
    (void)pthread_once(&once, open_allocator);
    if (!allocator)
        inside = 0;
    return allocator != NULL;
}

static int leave(int result)
{
    inside = 0;
    return result;
}

static xseg_stream own_stream(int device, int (*create)(xseg_stream *, unsigned))
{
    xseg_stream stream;

    (void)pthread_mutex_lock(&own_lock);
    if (!own[device] && (!create || create(&own[device], NON_BLOCKING) != 0))
        own[device] = NULL;
    stream = own[device];
    (void)pthread_mutex_unlock(&own_lock);
    return stream;
}

static bool take(void **out, size_t bytes, int device, xseg_stream stream)
{
    if (xseg_alloc(allocator, device, bytes, stream, out) != XSEG_OK)
        return false;
    atomic_store_explicit(&is_used[device], true, memory_order_relaxed);
    return true;
}

/* Memory for every stream. */
static bool take_for_all(void **out, size_t bytes, int device,
                         int (*create)(xseg_stream *, unsigned))
{
    xseg_stream stream = device >= 0 && device < DEVICES ? own_stream(device, create) : NULL;

    return stream && take(out, bytes, device, stream);
}

/* A handle may come again, as another stream's. */
static void forget(xseg_stream stream)
{
    for (int device = 0; device < DEVICES; device++)
        if (atomic_load_explicit(&is_used[device], memory_order_relaxed))
            (void)!xseg_stream_gone(allocator, device, stream);
}

static bool is_ours(void *ptr)
{
    struct xseg_block_info info = XSEG_BLOCK_INFO_INIT;

    return xseg_block(allocator, ptr, &info) == XSEG_OK && info.base == ptr &&
           info.state == XSEG_BLOCK_LIVE;
}

/* What the library has of the device and could hand out: free, as a program sees it. */
static size_t cached_on(int device)
{
    struct xseg_where where = XSEG_WHERE_ANY;
    struct xseg_statistics now = XSEG_STATISTICS_INIT;
    uint64_t live;

    where.device = device;
    if (device < 0 || !atomic_load_explicit(&is_used[device], memory_order_relaxed) ||
        xseg_stats(allocator, &where, &now) != XSEG_OK)
        return 0;
    live = now.allocated_bytes[XSEG_STAT_ALL].current;
    return now.physical_bytes > live ? (size_t)(now.physical_bytes - live) : 0;
}

static int current_device(const struct runtime *cuda)
{
    int device = -1;

    return cuda->get_device && cuda->get_device(&device) == 0 && device < DEVICES ? device : -1;
}

static bool is_capturing(const struct runtime *cuda, xseg_stream stream)
{
    int status = NOT_CAPTURING;

    return cuda->stream_is_capturing && cuda->stream_is_capturing(stream, &status) == 0 &&
           status != NOT_CAPTURING;
}

/* Free behind all work of the device, as cudaFree and cuMemFree do. */
static int give_back(void *ptr, int (*synchronize)(void))
{
    int result = synchronize ? synchronize() : UNKNOWN;

    if (result != 0 || xseg_free(allocator, ptr) == XSEG_OK)
        return result;
    say("a block could not be freed");
    return UNKNOWN;
}

/* The runtime. */

PRELOAD_EXPORT int cudaMalloc(void **out, size_t bytes)
{
    const struct runtime *cuda = runtime_found();

    if (!cuda)
        return NO_ORIGINAL;
    if (!out || !enter())
        return cuda->malloc(out, bytes);
    if (take_for_all(out, bytes, current_device(cuda), cuda->stream_create))
        return leave(0);
    return leave(cuda->malloc(out, bytes));
}

PRELOAD_EXPORT int cudaMallocAsync(void **out, size_t bytes, xseg_stream stream)
{
    const struct runtime *cuda = runtime_found();
    int device;

    if (!cuda || !cuda->malloc_async)
        return NO_ORIGINAL;
    if (!out || !enter())
        return cuda->malloc_async(out, bytes, stream);
    device = current_device(cuda);
    if (device >= 0 && !is_capturing(cuda, stream) && take(out, bytes, device, stream))
        return leave(0);
    return leave(cuda->malloc_async(out, bytes, stream));
}

PRELOAD_EXPORT int cudaFree(void *ptr)
{
    const struct runtime *cuda = runtime_found();

    if (!cuda)
        return NO_ORIGINAL;
    if (!ptr || !enter()) /* cudaFree(NULL) starts the runtime */
        return cuda->free(ptr);
    return leave(is_ours(ptr) ? give_back(ptr, cuda->synchronize) : cuda->free(ptr));
}

PRELOAD_EXPORT int cudaFreeAsync(void *ptr, xseg_stream stream)
{
    const struct runtime *cuda = runtime_found();

    if (!cuda || !cuda->free_async)
        return NO_ORIGINAL;
    if (!ptr || !enter())
        return cuda->free_async(ptr, stream);
    if (!is_ours(ptr))
        return leave(cuda->free_async(ptr, stream));
    if (is_capturing(cuda, stream)) /* it is no allocation of the graph's */
        return leave(CAPTURE_REFUSED);
    if (xseg_use(allocator, ptr, stream) == XSEG_OK && xseg_free(allocator, ptr) == XSEG_OK)
        return leave(0);
    say("a block could not be freed");
    return leave(UNKNOWN);
}

PRELOAD_EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    const struct runtime *cuda = runtime_found();
    int result = cuda && cuda->mem_get_info ? cuda->mem_get_info(free_bytes, total) : NO_ORIGINAL;

    if (result != 0 || !enter())
        return result;
    *free_bytes += cached_on(current_device(cuda));
    return leave(0);
}

PRELOAD_EXPORT int cudaStreamDestroy(xseg_stream stream)
{
    const struct runtime *cuda = runtime_found();

    if (!cuda || !cuda->stream_destroy)
        return NO_ORIGINAL;
    if (enter()) {
        forget(stream);
        (void)leave(0);
    }
    return cuda->stream_destroy(stream);
}

/* The driver, by the names that cuda.h makes of cuMemAlloc and the others. */

/* The device whose primary context is current; -1: there is none, or another context is. */
static int primary_device(const struct driver *cu)
{
    void *current = NULL, *primary = NULL;
    int device = -1;

    if (cu->get_current(&current) != 0 || !current || cu->get_device(&device) != 0 ||
        cu->primary_retain(&primary, device) != 0)
        return -1;
    (void)cu->primary_release(device);
    return primary == current ? device : -1;
}

PRELOAD_EXPORT int cuMemAlloc_v2(unsigned long long *out, size_t bytes)
{
    const struct driver *cu = driver_found();
    void *ptr = NULL;

    if (!cu)
        return NO_ORIGINAL;
    if (!out || bytes == 0 || !enter()) /* the driver refuses an allocation of nothing */
        return cu->mem_alloc(out, bytes);
    if (!take_for_all(&ptr, bytes, primary_device(cu), cu->stream_create))
        return leave(cu->mem_alloc(out, bytes));
    *out = (unsigned long long)(uintptr_t)ptr;
    return leave(0);
}

PRELOAD_EXPORT int cuMemFree_v2(unsigned long long address)
{
    const struct driver *cu = driver_found();
    void *ptr = (void *)(uintptr_t)address;

    if (!cu)
        return NO_ORIGINAL;
    if (!ptr || !enter())
        return cu->mem_free(address);
    return leave(is_ours(ptr) ? give_back(ptr, cu->synchronize) : cu->mem_free(address));
}

PRELOAD_EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    const struct driver *cu = driver_found();
    int result = cu ? cu->mem_get_info(free_bytes, total) : NO_ORIGINAL;

    if (result != 0 || !enter())
        return result;
    *free_bytes += cached_on(primary_device(cu));
    return leave(0);
}

PRELOAD_EXPORT int cuStreamDestroy_v2(xseg_stream stream)
{
    const struct driver *cu = driver_found();

    if (!cu)
        return NO_ORIGINAL;
    if (enter()) {
        forget(stream);
        (void)leave(0);
    }
    return cu->stream_destroy(stream);
}
