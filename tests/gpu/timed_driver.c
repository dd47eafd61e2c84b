/* SPDX-License-Identifier: MIT */
/*
 * A driver that forwards each call to another driver, and records the number and the duration of calls:
 * libgpu-timed.so, for any program that loads a driver library by name.
 *
 *     GPU_TIMED_DRIVER=FILE    the other driver; default: libcuda.so.1
 *     GPU_TIMED_OUT=FILE       output file, written at the end of the process; default: none
 *     GPU_TIMED_AT_ONCE=1      a call that queues work on a stream returns after the work has completed
 *
 * The file is a table with tabs: call, bytes, calls, total_ns, median_ns, p99_ns, max_ns, modeled_ns.  A row with `all`
 * instead of bytes is the sum over all sizes; calls with a size also have a row for each size, up to SIZES_MAX.  Times
 * are measured by the host's clock.  The last column is the time that a simulator charged to its virtual clock, or "-".
 * Median and p99 are those of a histogram, with an error of at most 1/64.
 *
 * With GPU_TIMED_AT_ONCE, drivers of different speed return the same results of queries for completed work.  The
 * additional waits are not recorded.
 *
 * Locking: a mutex protects the statistics, and is not held during calls.  Nothing is allocated.  With several threads,
 * a modeled charge may be attributed to a concurrent call of another thread.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dlfcn.h>

#include "tests/support/symbol.h"

#define EXPORT       __attribute__((visibility("default")))
#define STUB_LIBRARY 34    /* CUDA_ERROR_STUB_LIBRARY: the other driver cannot be loaded */
#define NOT_FOUND    500   /* CUDA_ERROR_NOT_FOUND */
#define PER_THREAD   2u    /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */
#define RELAXED      2     /* CU_STREAM_CAPTURE_MODE_RELAXED */
#define SIGNATURES   13000 /* the version of CUDA that changed some of the signatures below */
#define SIZES_MAX    24
#define HANDLES      (1u << 17) /* slots of the table of physical memory sizes; a power of two */
#define STEPS        32u        /* of the histogram, for each power of two */
#define BUCKETS      (44u * STEPS)

typedef unsigned long long address;
struct stream;
struct event;

/* Name of the call, symbol in the library, CUDA version that introduced the signature, parameters, arguments, its
 * size in bytes (0: none), and the action after success. The driver's binary interface in plain C types. */
#define TIMED_CALLS(X)                                                                             \
    X(cuInit, cuInit, 2000, (unsigned flags), (flags), 0, NOTHING)                                 \
    X(cuDeviceGet, cuDeviceGet, 2000, (int *device, int ordinal), (device, ordinal), 0, NOTHING)   \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, (void **context, int device),      \
      (context, device), 0, NOTHING)                                                               \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, (int device), (device), 0,   \
      NOTHING)                                                                                     \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, (void *context), (context), 0, NOTHING)         \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, (void **context), (context), 0, NOTHING)          \
    X(cuCtxSynchronize, cuCtxSynchronize, 2000, (void), (), 0, NOTHING)                            \
    X(cuMemGetInfo, cuMemGetInfo_v2, 3020, (size_t * free_bytes, size_t * all), (free_bytes, all), \
      0, NOTHING)                                                                                  \
    X(cuMemAlloc, cuMemAlloc_v2, 3020, (address * out, size_t bytes), (out, bytes), bytes,         \
      NOTHING)                                                                                     \
    X(cuMemFree, cuMemFree_v2, 3020, (address from), (from), 0, NOTHING)                           \
    X(cuMemAddressReserve, cuMemAddressReserve, 10020,                                             \
      (address * out, size_t bytes, size_t alignment, address at, unsigned long long flags),       \
      (out, bytes, alignment, at, flags), 0, NOTHING)                                              \
    X(cuMemAddressFree, cuMemAddressFree, 10020, (address from, size_t bytes), (from, bytes), 0,   \
      NOTHING)                                                                                     \
    X(cuMemCreate, cuMemCreate, 10020,                                                             \
      (unsigned long long *memory, size_t bytes, const void *properties,                           \
       unsigned long long flags),                                                                  \
      (memory, bytes, properties, flags), bytes, record_size(*memory, bytes))                      \
    X(cuMemRelease, cuMemRelease, 10020, (unsigned long long memory), (memory),                    \
      remove_size(memory), NOTHING)                                                                \
    X(cuMemMap, cuMemMap, 10020,                                                                   \
      (address at, size_t bytes, size_t offset, unsigned long long memory,                         \
       unsigned long long flags),                                                                  \
      (at, bytes, offset, memory, flags), bytes, NOTHING)                                          \
    X(cuMemUnmap, cuMemUnmap, 10020, (address at, size_t bytes), (at, bytes), bytes, NOTHING)      \
    X(cuMemSetAccess, cuMemSetAccess, 10020,                                                       \
      (address at, size_t bytes, const void *rights, size_t count), (at, bytes, rights, count),    \
      bytes, NOTHING)                                                                              \
    X(cuMemsetD8Async, cuMemsetD8Async, 3020,                                                      \
      (address at, unsigned char byte, size_t bytes, struct stream *stream),                       \
      (at, byte, bytes, stream), 0, wait_for_work(stream))                                         \
    X(cuStreamCreate, cuStreamCreate, 2000, (struct stream * *stream, unsigned flags),             \
      (stream, flags), 0, NOTHING)                                                                 \
    X(cuStreamDestroy, cuStreamDestroy_v2, 4000, (struct stream * stream), (stream), 0, NOTHING)   \
    X(cuStreamQuery, cuStreamQuery, 2000, (struct stream * stream), (stream), 0, NOTHING)          \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000, (struct stream * stream), (stream), 0,       \
      NOTHING)                                                                                     \
    X(cuStreamWaitEvent, cuStreamWaitEvent, 3020,                                                  \
      (struct stream * stream, struct event * event, unsigned flags), (stream, event, flags), 0,   \
      NOTHING)                                                                                     \
    X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, (struct stream * stream, int *status),      \
      (stream, status), 0, NOTHING)                                                                \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, (struct stream * stream, int mode),    \
      (stream, mode), 0, NOTHING)                                                                  \
    X(cuStreamEndCapture, cuStreamEndCapture, 10000, (struct stream * stream, void **graph),       \
      (stream, graph), 0, NOTHING)                                                                 \
    X(cuGraphDestroy, cuGraphDestroy, 10000, (void *graph), (graph), 0, NOTHING)                   \
    X(cuEventCreate, cuEventCreate, 2000, (struct event * *event, unsigned flags), (event, flags), \
      0, NOTHING)                                                                                  \
    X(cuEventDestroy, cuEventDestroy_v2, 4000, (struct event * event), (event), 0, NOTHING)        \
    X(cuEventRecord, cuEventRecord, 2000, (struct event * event, struct stream * stream),          \
      (event, stream), 0, wait_for_work(stream))                                                   \
    X(cuEventQuery, cuEventQuery, 2000, (struct event * event), (event), 0, NOTHING)               \
    X(cuEventSynchronize, cuEventSynchronize, 2000, (struct event * event), (event), 0, NOTHING)   \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, (int *mode),    \
      (mode), 0, NOTHING)

enum call {
#define X(name, symbol, version, parameters, arguments, bytes, after) CALL_##name,
    TIMED_CALLS(X)
#undef X
        CALL_COUNT
};

#define X(name, symbol, version, parameters, arguments, bytes, after) EXPORT int symbol parameters;
TIMED_CALLS(X)
#undef X
EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version,
                               unsigned long long flags, int *found);

static struct {
    int (*get_proc_address)(const char *, void **, int, unsigned long long, int *);
    uint64_t (*modeled)(void); /* nanoseconds charged so far; NULL: no simulator */
    bool completes_work;
#define X(name, symbol, version, parameters, arguments, bytes, after) int(*name) parameters;
    TIMED_CALLS(X)
#undef X
} real;

/* --- Statistics. --- */

struct statistics {
    uint64_t bytes, calls, total, max, modeled;
    uint32_t bucket[BUCKETS];
};

static struct {
    pthread_mutex_t lock;
    struct statistics all[CALL_COUNT];
    struct statistics sized[CALL_COUNT][SIZES_MAX]; /* by size, in order of first use */
    struct {
        unsigned long long memory; /* 0: empty */
        uint64_t bytes;
    } handles[HANDLES];
    size_t handle_count;
} recorded = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t now(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t modeled(void)
{
    return real.modeled != NULL ? real.modeled() : 0;
}

/* Each power of two has STEPS buckets; the buckets of the first 2 * STEPS nanoseconds have a width of one nanosecond. */
static unsigned bucket_of(uint64_t ns)
{
    unsigned power = 0;

    while (ns >> power >= 2 * (uint64_t)STEPS)
        power++;
    const uint64_t bucket = (uint64_t)power * STEPS + (ns >> power);
    return bucket < BUCKETS ? (unsigned)bucket : BUCKETS - 1;
}

/* The middle of a bucket. */
static uint64_t time_of(unsigned bucket)
{
    const unsigned power = bucket < 2 * STEPS ? 0 : bucket / STEPS - 1;

    return ((uint64_t)(bucket - power * STEPS) << power) + ((uint64_t)1 << power) / 2;
}

static uint64_t quantile(const struct statistics *statistics, double fraction)
{
    const double rank = fraction * (double)(statistics->calls - 1);
    uint64_t count = 0;

    for (unsigned i = 0; i < BUCKETS; i++) {
        count += statistics->bucket[i];
        if ((double)count > rank)
            return time_of(i) < statistics->max ? time_of(i) : statistics->max;
    }
    return statistics->max;
}

static void add(struct statistics *statistics, uint64_t ns, uint64_t charged)
{
    statistics->calls++;
    statistics->total += ns;
    statistics->modeled += charged;
    statistics->max = ns > statistics->max ? ns : statistics->max;
    statistics->bucket[bucket_of(ns)]++;
}

static void record(enum call call, uint64_t bytes, uint64_t ns, uint64_t charged)
{
    (void)pthread_mutex_lock(&recorded.lock);
    add(&recorded.all[call], ns, charged);
    for (unsigned i = 0; bytes != 0 && i < SIZES_MAX; i++) {
        struct statistics *sized = &recorded.sized[call][i];

        if (sized->calls != 0 && sized->bytes != bytes)
            continue;
        sized->bytes = bytes;
        add(sized, ns, charged);
        break;
    }
    (void)pthread_mutex_unlock(&recorded.lock);
}

static size_t slot_of(unsigned long long memory)
{
    size_t slot = (size_t)(memory * 0x9e3779b97f4a7c15u >> 40) % HANDLES;

    while (recorded.handles[slot].memory != 0 && recorded.handles[slot].memory != memory)
        slot = (slot + 1) % HANDLES;
    return slot;
}

/* Records the size of physical memory for cuMemRelease(), which has no size.  At most half of the table is used. */
static void record_size(unsigned long long memory, uint64_t bytes)
{
    (void)pthread_mutex_lock(&recorded.lock);
    if (memory != 0 && recorded.handle_count < HANDLES / 2) {
        const size_t slot = slot_of(memory);

        recorded.handle_count += recorded.handles[slot].memory == 0;
        recorded.handles[slot].memory = memory;
        recorded.handles[slot].bytes = bytes;
    }
    (void)pthread_mutex_unlock(&recorded.lock);
}

/* Removes an entry, and inserts again the entries that follow it without an empty slot. */
static uint64_t remove_size(unsigned long long memory)
{
    uint64_t bytes = 0;

    (void)pthread_mutex_lock(&recorded.lock);
    size_t slot = slot_of(memory);
    if (memory != 0 && recorded.handles[slot].memory == memory) {
        bytes = recorded.handles[slot].bytes;
        recorded.handle_count--;
        recorded.handles[slot].memory = 0;
        for (size_t next = (slot + 1) % HANDLES; recorded.handles[next].memory != 0;
             next = (next + 1) % HANDLES) {
            const unsigned long long moved = recorded.handles[next].memory;
            const uint64_t moved_bytes = recorded.handles[next].bytes;

            recorded.handles[next].memory = 0;
            slot = slot_of(moved);
            recorded.handles[slot].memory = moved;
            recorded.handles[slot].bytes = moved_bytes;
        }
    }
    (void)pthread_mutex_unlock(&recorded.lock);
    return bytes;
}

static void print_row(FILE *out, const char *name, const char *bytes,
                      const struct statistics *statistics)
{
    (void)fprintf(out, "%s\t%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t",
                  name, bytes, statistics->calls, statistics->total, quantile(statistics, 0.5),
                  quantile(statistics, 0.99), statistics->max);
    if (real.modeled != NULL)
        (void)fprintf(out, "%" PRIu64 "\n", statistics->modeled);
    else
        (void)fprintf(out, "-\n");
}

__attribute__((destructor)) static void write_table(void)
{
    static const char *const names[] = {
#define X(name, symbol, version, parameters, arguments, bytes, after) #name,
        TIMED_CALLS(X)
#undef X
    };
    const char *path = getenv("GPU_TIMED_OUT");
    FILE *out = path != NULL && *path != '\0' ? fopen(path, "w") : NULL;
    char bytes[24];

    if (out == NULL) {
        if (path != NULL && *path != '\0')
            (void)fprintf(stderr, "libgpu-timed: cannot open the output file, %s\n", path);
        return;
    }
    (void)fprintf(out, "call\tbytes\tcalls\ttotal_ns\tmedian_ns\tp99_ns\tmax_ns\tmodeled_ns\n");
    for (unsigned call = 0; call < CALL_COUNT; call++) {
        if (recorded.all[call].calls != 0)
            print_row(out, names[call], "all", &recorded.all[call]);
        for (unsigned i = 0; i < SIZES_MAX && recorded.sized[call][i].calls != 0; i++) {
            (void)snprintf(bytes, sizeof(bytes), "%" PRIu64, recorded.sized[call][i].bytes);
            print_row(out, names[call], bytes, &recorded.sized[call][i]);
        }
    }
    if (fclose(out) != 0)
        (void)fprintf(stderr, "libgpu-timed: cannot write the output file, %s\n", path);
}

/* --- The other driver. --- */

/* The library stays open: its functions are called until the process exits. */
__attribute__((constructor)) static void open_driver(void)
{
    const char *name = getenv("GPU_TIMED_DRIVER");
    const char *completes_work = getenv("GPU_TIMED_AT_ONCE");

    name = name != NULL && *name != '\0' ? name : "libcuda.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        (void)fprintf(stderr, "libgpu-timed: cannot load the driver: %s; set GPU_TIMED_DRIVER\n",
                      dlerror());
        return;
    }
    (void)symbol_find(library, "cuGetProcAddress_v2", &real.get_proc_address);
    (void)symbol_find(library, "xseg_sim_driver_time", &real.modeled);
    real.completes_work = completes_work != NULL && strcmp(completes_work, "1") == 0;
#define X(name, symbol, version, parameters, arguments, bytes, after) \
    (void)symbol_find(library, #symbol, &real.name);
    TIMED_CALLS(X)
#undef X
}

/* Waits for the work that was just queued, unless it is a node of a graph. */
static void wait_for_work(struct stream *stream)
{
    int status = 0, mode = RELAXED;

    if (!real.completes_work || real.cuThreadExchangeStreamCaptureMode == NULL ||
        real.cuStreamIsCapturing == NULL || real.cuStreamSynchronize == NULL)
        return;
    /* During a capture of another stream, only the relaxed mode permits this thread to wait. */
    if (real.cuStreamIsCapturing(stream, &status) != 0 || status != 0 ||
        real.cuThreadExchangeStreamCaptureMode(&mode) != 0)
        return;
    (void)real.cuStreamSynchronize(stream);
    (void)real.cuThreadExchangeStreamCaptureMode(&mode);
}

#define NOTHING (void)0

#define X(name, symbol, version, parameters, arguments, bytes, after) \
    int symbol parameters                                             \
    {                                                                 \
        const uint64_t bytes_ = (bytes);                              \
                                                                      \
        if (real.name == NULL)                                        \
            return STUB_LIBRARY;                                      \
        const uint64_t charged_ = modeled(), began_ = now();          \
        const int result_ = real.name arguments;                      \
        const uint64_t ns_ = now() - began_;                          \
                                                                      \
        record(CALL_##name, bytes_, ns_, modeled() - charged_);       \
        if (result_ == 0)                                             \
            after;                                                    \
        return result_;                                               \
    }
TIMED_CALLS(X)
#undef X

/* Returns the wrappers above in place of the functions of the other driver. */
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags,
                        int *found)
{
    if (real.get_proc_address == NULL)
        return NOT_FOUND;
    const int result = real.get_proc_address(name, function, version, flags, found);
    if (result != 0 || *function == NULL || version >= SIGNATURES || (flags & PER_THREAD) != 0)
        return result;
#define X(call, symbol, from, parameters, arguments, bytes, after)            \
    if (strcmp(name, #call) == 0 && version >= (from) && real.call != NULL) { \
        int(*own) parameters = symbol;                                        \
                                                                              \
        memcpy(function, &own, sizeof(own));                                  \
    }
    TIMED_CALLS(X)
#undef X
    return result;
}
