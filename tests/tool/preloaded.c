/* SPDX-License-Identifier: MIT */
/* A program that does not use xseg, which preload.py runs with and without libxseg-preload.so: preloaded CASE. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/tool/preloaded.h"

static atomic_bool has_passed = true;

static void check(bool condition, const char *description)
{
    if (condition)
        return;
    printf("failed: %s\n", description);
    atomic_store(&has_passed, false);
}
#define CHECK(condition) check(condition, #condition)

static struct CUstream_st *create_stream(void)
{
    struct CUstream_st *stream = NULL;

    CHECK(cudaStreamCreateWithFlags(&stream, 1) == 0);
    return stream;
}

/* 300 MiB and more are at least 15 pages of 20 MiB. */
static void print_driver_calls(void)
{
    printf("cuMemAlloc %" PRIu64 ", cuMemCreate %s\n", xseg_sim_calls("cuMemAlloc"),
           xseg_sim_calls("cuMemCreate") > 10 ? "some" : "none");
}

static void reuse_freed_memory(void)
{
    struct CUstream_st *stream = create_stream();
    void *first = NULL, *second = NULL;

    CHECK(cudaMalloc(&first, 300 * MIB) == 0);
    CHECK(xseg_sim_launch_on(stream, FOREVER, (uintptr_t)first, 300 * MIB) == XSEG_OK);
    CHECK(cudaFree(first) == 0);
    CHECK(cuStreamQuery(stream) == 0);
    CHECK(cudaMalloc(&second, 300 * MIB) == 0);
    CHECK(xseg_sim_launch_on(stream, 1000, (uintptr_t)second, 300 * MIB) == XSEG_OK);
    CHECK(cudaFree(second) == 0);
    CHECK(cudaFree(NULL) == 0);
    CHECK(cudaStreamDestroy(stream) == 0);
    printf("%s\n", first == second ? "the same memory" : "other memory");
    print_driver_calls();
}

static void stream_ordered(void)
{
    struct CUstream_st *first_stream = create_stream(), *second_stream = create_stream();
    void *first = NULL, *second = NULL, *third = NULL;

    CHECK(cudaMallocAsync(&first, 300 * MIB, first_stream) == 0);
    CHECK(xseg_sim_launch_on(second_stream, FOREVER, (uintptr_t)first, 300 * MIB) == XSEG_OK);
    CHECK(cudaFreeAsync(first, second_stream) == 0);
    CHECK(cudaMallocAsync(&second, 300 * MIB, first_stream) == 0);
    CHECK(second != first);
    CHECK(xseg_sim_finish(second_stream) == XSEG_OK);
    CHECK(cudaMallocAsync(&third, 300 * MIB, first_stream) == 0);
    CHECK(cudaFreeAsync(second, first_stream) == 0);
    CHECK(cudaFree(third) == 0);
    CHECK(cudaStreamDestroy(first_stream) == 0);
    CHECK(cuStreamDestroy_v2(second_stream) == 0);
    printf("%s after the wait\n", third == first ? "the same memory" : "other memory");
    print_driver_calls();
}

static void allocate_in_capture(void)
{
    struct CUstream_st *stream = create_stream();
    void *graph = NULL, *allocated = NULL, *unsupported = NULL;

    CHECK(cudaMalloc(&allocated, MIB) == 0);
    CHECK(cuStreamBeginCapture_v2(stream, RELAXED) == 0);
    CHECK(cudaMallocAsync(&unsupported, MIB, stream) == 801); /* cudaErrorNotSupported */
    const int result = cudaFreeAsync(allocated, stream);
    printf("freeing within the capture: %d, last error %d\n", result, cudaGetLastError());
    CHECK(cuStreamEndCapture(stream, &graph) == 0);
    CHECK(cuGraphDestroy(graph) == 0);
    CHECK(cudaFree(allocated) == 0);
    CHECK(cudaStreamDestroy(stream) == 0);
}

static void excessive_request(void)
{
    void *ptr = NULL;

    printf("excessive request: %d", cudaMalloc(&ptr, (size_t)1 << 50));
    printf(", last error %d\n", cudaGetLastError());
    printf("foreign pointer: %d\n", cudaFree((void *)(uintptr_t)(64 * MIB)));
}

static void memory_info(void)
{
    size_t free_before = 0, free_with_block = 0, free_after = 0, total = 0;
    void *ptr = NULL;

    CHECK(cudaMemGetInfo(&free_before, &total) == 0);
    CHECK(cudaMalloc(&ptr, 640 * MIB) == 0);
    CHECK(cudaMemGetInfo(&free_with_block, &total) == 0);
    CHECK(cudaFree(ptr) == 0);
    CHECK(cudaMemGetInfo(&free_after, &total) == 0);
    CHECK(free_before - free_with_block == 640 * MIB && free_after == free_before);
    CHECK(cuMemGetInfo_v2(&free_after, &total) == 0 && free_after == free_before);
    print_driver_calls();
}

static void driver_functions(void)
{
    uint64_t first = 0, second = 0;

    CHECK(cudaFree(NULL) == 0); /* starts the driver */
    CHECK(cuMemAlloc_v2(&first, 300 * MIB) == 0);
    CHECK(cuMemFree_v2(first) == 0);
    CHECK(cuMemAlloc_v2(&second, 300 * MIB) == 0);
    CHECK(cuMemFree_v2(second) == 0);
    CHECK(cuMemAlloc_v2(&second, 0) == 1);
    printf("%s\n", first == second ? "the same memory" : "other memory");
    print_driver_calls();
}

/* cuMemFree of the simulated driver would abort the process. */
static void free_of_busy_memory(void)
{
    struct CUstream_st *stream = create_stream();
    uint64_t first = 0, second = 0;

    CHECK(cuMemAlloc_v2(&first, 300 * MIB) == 0);
    CHECK(xseg_sim_launch_on(stream, FOREVER, first, 300 * MIB) == XSEG_OK);
    CHECK(cuMemFree_v2(first) == 0);
    CHECK(cuStreamQuery(stream) == 0);
    CHECK(cuMemAlloc_v2(&second, 300 * MIB) == 0);
    printf("%s\n", first == second ? "the same memory" : "other memory");
}

/* A free waits for the device of the memory, whichever device is current, and does not change the current device. */
static void free_from_other_device(void)
{
    for (int variant = 0; variant < 4; variant++) {
        void *ptr = NULL, *context = NULL, *context_after = NULL;
        struct CUstream_st *stream;
        int device = -1;

        CHECK(cudaSetDevice(0) == 0);
        stream = create_stream();
        CHECK(cudaMalloc(&ptr, 8 * MIB) == 0);
        CHECK(xseg_sim_launch_on(stream, FOREVER, (uintptr_t)ptr, 8 * MIB) == XSEG_OK);
        CHECK(cudaSetDevice(variant % 2) == 0);
        CHECK(cuCtxGetCurrent(&context) == 0);
        if (variant < 2)
            CHECK(cudaFree(ptr) == 0);
        else
            CHECK(cuMemFree_v2((uintptr_t)ptr) == 0);
        CHECK(cudaGetDevice(&device) == 0 && device == variant % 2);
        CHECK(cuCtxGetCurrent(&context_after) == 0 && context_after == context);
        CHECK(cudaSetDevice(0) == 0);
        CHECK(cudaStreamQuery(stream) == 0);
        CHECK(cudaStreamDestroy(stream) == 0);
    }
    printf("the work has finished\n");
}

/* A reset frees the memory of its device only.  Allocations on streams that reuse the handles of destroyed streams receive
 * no memory that is in use.  The third variant of the reset cannot be interposed. */
static void device_reset(void)
{
    for (int variant = 0; variant < 3; variant++) {
        int (*driver_reset)(int) = NULL;
        struct CUstream_st *stream[4];
        void *previous = NULL, *other_device_block = NULL, *busy[4], *block = NULL;
        size_t free_bytes = 0, total = 0;

        CHECK(cudaSetDevice(1) == 0 && cudaMalloc(&other_device_block, MIB) == 0);
        CHECK(cudaSetDevice(0) == 0 && cudaMalloc(&previous, MIB) == 0);
        CHECK(cudaMalloc(&block, 40 * MIB) == 0 && cudaFree(block) == 0);
        if (variant == 0)
            CHECK(cudaDeviceReset() == 0);
        if (variant == 1)
            CHECK(cuDevicePrimaryCtxReset_v2(0) == 0);
        if (variant == 2) {
            void *driver = dlopen(getenv("XSEG_DRIVER"), RTLD_NOW);
            CHECK(symbol_find(driver, "cuDevicePrimaryCtxReset_v2", &driver_reset) &&
                  driver_reset(0) == 0);
        }
        CHECK(cudaMemGetInfo(&free_bytes, &total) == 0);
        CHECK(variant == 2 || free_bytes == total);
        CHECK(cudaFree(previous) == 1 && cudaGetLastError() == 1);
        for (int i = 0; i < 4; i++) {
            stream[i] = create_stream();
            CHECK(cudaMallocAsync(&busy[i], 8 * MIB, stream[i]) == 0);
            CHECK(xseg_sim_launch_on(stream[i], FOREVER, (uintptr_t)busy[i], 8 * MIB) == XSEG_OK);
        }
        for (int i = 0; i < 4; i++) {
            CHECK(cudaMalloc(&block, 8 * MIB) == 0);
            CHECK(cuMemsetD8_v2((uintptr_t)block, 0, 8 * MIB) == 0);
            for (int k = 0; k < 4; k++)
                CHECK(block != busy[k] || cudaStreamQuery(stream[k]) == 0);
        }
        CHECK(cudaDeviceReset() == 0);
        CHECK(cudaSetDevice(1) == 0);
        CHECK(cuMemsetD8_v2((uintptr_t)other_device_block, 0, MIB) == 0);
        CHECK(cudaFree(other_device_block) == 0);
    }
    printf("no block was in use\n");
}

/* A call queries the ID of the context once, independent of the number of devices with allocators. */
static void context_queries(void)
{
    void *ptr = NULL;

    for (int device = 0; device < 2; device++) {
        CHECK(cudaSetDevice(device) == 0);
        CHECK(cudaMalloc(&ptr, MIB) == 0 && cudaFree(ptr) == 0);
    }
    struct CUstream_st *stream = create_stream();
    CHECK(cudaMallocAsync(&ptr, MIB, stream) == 0 && cudaFreeAsync(ptr, stream) == 0);
    uint64_t calls_before = xseg_sim_calls("cuCtxGetId");
    CHECK(cudaMalloc(&ptr, MIB) == 0 && cudaFree(ptr) == 0);
    printf("cudaMalloc, cudaFree %" PRIu64, xseg_sim_calls("cuCtxGetId") - calls_before);
    calls_before = xseg_sim_calls("cuCtxGetId");
    CHECK(cudaMallocAsync(&ptr, MIB, stream) == 0 && cudaFreeAsync(ptr, stream) == 0);
    printf(", cudaMallocAsync, cudaFreeAsync %" PRIu64 "\n",
           xseg_sim_calls("cuCtxGetId") - calls_before);
    CHECK(cudaStreamDestroy(stream) == 0);
}

/* A reset makes a device usable again after a sticky error, 700 (cudaErrorIllegalAddress). */
static void sticky_error(void)
{
    void *ptr = NULL, *other_device_block = NULL;

    CHECK(cudaSetDevice(1) == 0 && cudaMalloc(&other_device_block, MIB) == 0);
    CHECK(cudaSetDevice(0) == 0 && cudaMalloc(&ptr, MIB) == 0);
    CHECK(xseg_sim_fail(NULL, 1, 700) == XSEG_OK);
    int result = cudaFree(ptr);
    CHECK(result == cudaGetLastError());
    CHECK(xseg_sim_fail("cuMemCreate", 1, 700) == XSEG_OK);
    result = cudaMalloc(&ptr, 100 * MIB);
    CHECK(result == cudaGetLastError());
    CHECK(xseg_sim_fail(NULL, 0, 0) == XSEG_OK);
    CHECK(cudaDeviceReset() == 0);
    CHECK(cudaMalloc(&ptr, 100 * MIB) == 0 && cudaFree(ptr) == 0);
    CHECK(cudaSetDevice(1) == 0 && cudaFree(other_device_block) == 0 && cudaGetLastError() == 0);
    printf("the device is usable again\n");
}

static int (*alloc_by_lookup)(uint64_t *, size_t), (*free_by_lookup)(uint64_t);
/* NULL with the simulated driver. */
static int (*alloc_async)(uint64_t *, size_t, struct CUstream_st *);
static int (*free_async)(uint64_t, struct CUstream_st *);

enum { ALLOCATE_FUNCTIONS = 8, FREE_FUNCTIONS = 9, PITCHED = 7 };

static int allocate_by(unsigned function, void **ptr, struct CUstream_st *stream)
{
    uint64_t address = 0;
    size_t pitch = 0;
    int result;

    switch (function) {
    case 0:
        return cudaMalloc(ptr, MIB);
    case 1:
        return cudaMallocAsync(ptr, MIB, stream);
    case 2:
        return cudaMallocAsync_ptsz(ptr, MIB, NULL);
    case 3: /* the device of the stream, not the current one */
        CHECK(cudaSetDevice(1) == 0);
        result = cudaMallocAsync(ptr, MIB, stream);
        CHECK(cudaSetDevice(0) == 0);
        return result;
    case PITCHED:
        return cudaMallocPitch(ptr, &pitch, MIB, 1);
    case 4:
        result = alloc_by_lookup(&address, MIB);
        break;
    default:
        result = function == 5 && alloc_async ? alloc_async(&address, MIB, stream)
                                              : cuMemAlloc_v2(&address, MIB);
    }
    *ptr = (void *)(uintptr_t)address;
    return result;
}

/* Device 1 is current while function 7 or 8 frees. */
static int free_by(unsigned function, void *ptr, struct CUstream_st *const *stream, bool is_pitched)
{
    const uint64_t address = (uintptr_t)ptr;

    CHECK(cudaSetDevice(function >= 7) == 0);
    switch (function) {
    case 1:
        return cuMemFree_v2(address);
    case 2:
        return free_by_lookup(address);
    case 3:
    case 4:
        return cudaFreeAsync(ptr, stream[function - 3]);
    case 5: /* pitched memory belongs to the driver, which has no such function */
        return free_async && !is_pitched ? free_async(address, stream[0]) : cudaFree(ptr);
    case 6:
    case 7:
        return cudaFreeAsync_ptsz(ptr, NULL);
    case 8:
        return cudaFreeAsync(ptr, NULL);
    default:
        return cudaFree(ptr);
    }
}

/* Each function that frees accepts blocks of each function that allocates. */
static void cross_free(void)
{
    struct CUstream_st *stream[2];
    void *symbol;
    int status;

    for (int device = 1; device >= 0; device--) {
        CHECK(cudaSetDevice(device) == 0);
        stream[device] = create_stream();
    }
    CHECK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &symbol, 12000, 0, &status) == 0);
    memcpy(&alloc_by_lookup, &symbol, sizeof(symbol));
    CHECK(cuGetProcAddress_v2("cuMemFree", &symbol, 12000, 0, &status) == 0);
    memcpy(&free_by_lookup, &symbol, sizeof(symbol));
    (void)symbol_find(RTLD_DEFAULT, "cuMemAllocAsync", &alloc_async);
    (void)symbol_find(RTLD_DEFAULT, "cuMemFreeAsync", &free_async);
    for (unsigned pair = 0; pair < ALLOCATE_FUNCTIONS * FREE_FUNCTIONS; pair++) {
        const unsigned allocate_function = pair % ALLOCATE_FUNCTIONS;
        void *ptr = NULL;

        CHECK(cudaSetDevice(0) == 0);
        CHECK(allocate_by(allocate_function, &ptr, stream[0]) == 0);
        CHECK(xseg_sim_launch_on(stream[0], 1000, (uintptr_t)ptr, MIB) == XSEG_OK);
        CHECK(xseg_sim_finish(stream[0]) == XSEG_OK);
        CHECK(free_by(pair / ALLOCATE_FUNCTIONS, ptr, stream, allocate_function == PITCHED) == 0);
        CHECK(cudaGetLastError() == 0);
        CHECK(cudaFree(ptr) == 1 && cudaGetLastError() == 1);
        CHECK(cudaFreeAsync(ptr, stream[0]) == 1 && cudaGetLastError() == 1);
        CHECK(cuMemFree_v2((uintptr_t)ptr) == 1);
    }
    printf("each function has freed memory of each other function\n");
}

/* --- Threads and processes. --- */

#define THREADS 4

static atomic_bool should_stop;

static void *fail(const char *description)
{
    check(false, description);
    return NULL;
}

/* The block that the next thread frees. */
static _Atomic(void *) shared_block;

static size_t tagged_bytes(uint64_t tag)
{
    return 300 * 1024 * (size_t)(tag & 0xff);
}

static bool has_tag(const void *ptr, uint64_t *tag)
{
    uint64_t last;

    memcpy(tag, ptr, sizeof(*tag));
    memcpy(&last, (const char *)ptr + tagged_bytes(*tag) - sizeof(last), sizeof(last));
    return *tag == last;
}

/* Allocate blocks and free those of other threads, whose contents must be unchanged. */
static void *exchange_blocks(void *argument)
{
    const uint64_t thread_index = (uintptr_t)argument + 1;
    struct CUstream_st *stream = NULL;

    if (cudaSetDevice(0) != 0)
        return fail("cudaSetDevice");
    if (cudaStreamCreateWithFlags(&stream, 1) != 0)
        return fail("cudaStreamCreateWithFlags");
    for (uint64_t i = 0; !atomic_load(&should_stop); i++) {
        const uint64_t tag = i << 8 | thread_index;
        const size_t bytes = tagged_bytes(tag);
        uint64_t tag_in_block;
        void *ptr = NULL;

        if ((i % 4 == 1   ? cudaMallocAsync(&ptr, bytes, stream)
             : i % 4 == 2 ? cudaMallocAsync_ptsz(&ptr, bytes, NULL)
                          : cudaMalloc(&ptr, bytes)) != 0)
            return fail("cudaMalloc");
        memcpy(ptr, &tag, sizeof(tag));
        memcpy((char *)ptr + bytes - sizeof(tag), &tag, sizeof(tag));
        ptr = atomic_exchange(&shared_block, ptr);
        if (!ptr)
            continue;
        if (!has_tag(ptr, &tag_in_block))
            return fail("contents");
        if ((i % 3 == 1   ? cudaFreeAsync(ptr, stream)
             : i % 3 == 2 ? cudaFreeAsync_ptsz(ptr, NULL)
                          : cudaFree(ptr)) != 0 ||
            cudaGetLastError() != 0)
            return fail("cudaFree");
    }
    return cudaStreamDestroy(stream) == 0 ? NULL : fail("cudaStreamDestroy");
}

static void *reset_repeatedly(void *unused)
{
    (void)unused;
    if (cudaSetDevice(1) != 0)
        return fail("cudaSetDevice");
    while (!atomic_load(&should_stop)) {
        void *ptr = NULL, *large = NULL;

        if (cudaMalloc(&ptr, 3 * MIB) != 0 || cudaMalloc(&large, 30 * MIB) != 0)
            return fail("cudaMalloc");
        if (cudaFree(ptr) != 0 || cudaDeviceReset() != 0)
            return fail("cudaDeviceReset");
        if (cudaFree(large) != 1 || cudaGetLastError() != 1)
            return fail("memory allocated before the reset");
    }
    return NULL;
}

/* Allocate and free on device 0, which is current in new threads.  Concurrent resets free the memory. */
static void *allocate_during_resets(void *argument)
{
    const bool is_async = (uintptr_t)argument % 2 == 1;

    while (!atomic_load(&should_stop)) {
        void *ptr = NULL;

        if ((is_async ? cudaMallocAsync_ptsz(&ptr, 3 * MIB, NULL) : cudaMalloc(&ptr, 3 * MIB)) == 0)
            (void)!(is_async ? cudaFreeAsync_ptsz(ptr, NULL) : cudaFree(ptr));
        (void)cudaGetLastError();
    }
    return NULL;
}

/* Requests that exceed the device.  Most of the time is spent outside the allocator. */
static void *request_excessive_memory(void *unused)
{
    void *ptr = NULL;

    (void)unused;
    while (!atomic_load(&should_stop))
        if (cudaMalloc(&ptr, (size_t)1 << 50) != 2)
            return fail("excessive request");
    return NULL;
}

static void start_threads(pthread_t *thread, void *(*first_function)(void *),
                          void *(*other_functions)(void *))
{
    atomic_store(&should_stop, false);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, i == 0 ? first_function : other_functions,
                             (void *)i) == 0);
}

static void join_threads(const pthread_t *thread)
{
    atomic_store(&should_stop, true);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
}

static void exchange_during_resets(void)
{
    pthread_t thread[THREADS];
    void *allocated = NULL;

    CHECK(cudaSetDevice(0) == 0 && cudaMalloc(&allocated, 64 * MIB) == 0);
    start_threads(thread, reset_repeatedly, exchange_blocks);
    for (unsigned i = 0; i < 600; i++) {
        size_t free_bytes = 0, total = 0;

        CHECK((i % 2 == 0 ? cudaMemGetInfo(&free_bytes, &total)
                          : cuMemGetInfo_v2(&free_bytes, &total)) == 0);
        CHECK(free_bytes + 64 * MIB <= total);
    }
    join_threads(thread);
    CHECK(cudaFree(allocated) == 0);
    printf("free memory was at most the total\n");
}

/* No allocator may open between the destruction of the previous one and the reset, which would free its memory. */
static void reset_under_load(void)
{
    pthread_t thread[THREADS];
    size_t free_bytes = 0, total = 0;

    CHECK(cudaSetDevice(0) == 0);
    start_threads(thread, allocate_during_resets, allocate_during_resets);
    for (unsigned i = 0; i < 40; i++) {
        CHECK(cudaDeviceReset() == 0);
        (void)usleep(500);
    }
    join_threads(thread);
    CHECK(cudaDeviceReset() == 0);
    CHECK(cudaMemGetInfo(&free_bytes, &total) == 0 && free_bytes == total);
    printf("all memory is free\n");
}

/* Fork a child, in which calls fail and do not block.  The exit status is 7 if all calls fail. */
static void fork_once(void *parent_block)
{
    int status = 0;
    const pid_t pid = fork();

    if (pid == 0) {
        size_t free_bytes, total;
        bool has_failed;
        void *ptr;

        (void)alarm(60);
        (void)dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        has_failed = cudaMalloc(&ptr, MIB) != 0 && cudaGetLastError() != 0;
        has_failed = has_failed && cudaMallocAsync(&ptr, MIB, NULL) != 0;
        has_failed = has_failed && cudaFree(parent_block) != 0 && cudaGetLastError() != 0;
        has_failed = has_failed && cudaMemGetInfo(&free_bytes, &total) != 0;
        has_failed = has_failed && cudaDeviceReset() != 0;
        _exit(has_failed ? 7 : 8);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void fork_under_load(void)
{
    pthread_t thread[THREADS];
    void *allocated = NULL;

    CHECK(cudaSetDevice(0) == 0 && cudaMalloc(&allocated, MIB) == 0);
    start_threads(thread, exchange_blocks, request_excessive_memory);
    for (unsigned i = 0; i < 60 && has_passed; i++)
        fork_once(allocated);
    join_threads(thread);
    CHECK(cudaFree(allocated) == 0);
    printf("no child was killed\n");
}

static void *first_call(void *unused)
{
    void *ptr = NULL;

    (void)unused;
    return cudaSetDevice(0) == 0 && cudaMalloc(&ptr, MIB) == 0 ? NULL : fail("cudaMalloc");
}

/* Fork while a thread opens the allocator; the thread blocks in a write to standard error, a full pipe. */
static void fork_during_open(void)
{
    int pipe_ends[2], saved_stderr = dup(STDERR_FILENO);
    char byte = 0;
    pthread_t thread;

    CHECK(pipe(pipe_ends) == 0);
    CHECK(fcntl(pipe_ends[1], F_SETFL, O_NONBLOCK) == 0);
    while (write(pipe_ends[1], &byte, 1) == 1) {
    }
    CHECK(fcntl(pipe_ends[1], F_SETFL, 0) == 0);
    CHECK(dup2(pipe_ends[1], STDERR_FILENO) == STDERR_FILENO);
    CHECK(pthread_create(&thread, NULL, first_call, NULL) == 0);
    /* Wait until the runtime has initialized the driver and the thread is blocked. */
    while (xseg_sim_calls("cuInit") == 0)
        (void)usleep(1000);
    (void)usleep(100000);
    for (unsigned i = 0; i < 3; i++)
        fork_once(&byte);
    CHECK(dup2(saved_stderr, STDERR_FILENO) == STDERR_FILENO);
    CHECK(close(pipe_ends[1]) == 0);
    while (read(pipe_ends[0], &byte, 1) == 1) {
    }
    CHECK(pthread_join(thread, NULL) == 0);
    printf("no child was killed\n");
}

static void fork_child(void)
{
    void *ptr = NULL;
    int status = 0;

    CHECK(cudaMalloc(&ptr, MIB) == 0);
    const pid_t pid = fork();
    if (pid == 0) {
        (void)!cudaMalloc(&ptr, MIB);
        (void)!cudaFree(ptr);
        _exit(7);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    CHECK(cudaFree(ptr) == 0);
    printf("the child exited\n");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"reuse_freed_memory", reuse_freed_memory},
                 {"stream_ordered", stream_ordered},
                 {"allocate_in_capture", allocate_in_capture},
                 {"excessive_request", excessive_request},
                 {"memory_info", memory_info},
                 {"driver_functions", driver_functions},
                 {"free_of_busy_memory", free_of_busy_memory},
                 {"free_from_other_device", free_from_other_device},
                 {"device_reset", device_reset},
                 {"sticky_error", sticky_error},
                 {"cross_free", cross_free},
                 {"exchange_during_resets", exchange_during_resets},
                 {"fork_under_load", fork_under_load},
                 {"fork_during_open", fork_during_open},
                 {"fork_child", fork_child},
                 {"context_queries", context_queries},
                 {"reset_under_load", reset_under_load}};

    for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return has_passed ? 0 : 1;
        }
    return 2;
}
