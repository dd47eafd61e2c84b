/* SPDX-License-Identifier: MIT */
/* A program that does not know xseg, which preload.py starts with and without libxseg-preload.so: preloaded CASE. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/tool/preloaded.h"

static atomic_bool is_good = true;

static void check(bool holds, const char *what)
{
    if (holds)
        return;
    printf("wrong: %s\n", what);
    atomic_store(&is_good, false);
}
#define CHECK(what) check(what, #what)

static struct CUstream_st *new_stream(void)
{
    struct CUstream_st *stream = NULL;

    CHECK(cudaStreamCreateWithFlags(&stream, 1) == 0);
    return stream;
}

static void calls(void)
{
    printf("cuMemAlloc %" PRIu64 ", cuMemCreate %s\n", xseg_sim_calls("cuMemAlloc"),
           xseg_sim_calls("cuMemCreate") > 10 ? "some" : "none");
}

static void again(void)
{
    struct CUstream_st *stream = new_stream();
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
    calls();
}

static void async(void)
{
    struct CUstream_st *one = new_stream(), *other = new_stream();
    void *first = NULL, *second = NULL, *third = NULL;

    CHECK(cudaMallocAsync(&first, 300 * MIB, one) == 0);
    CHECK(xseg_sim_launch_on(other, FOREVER, (uintptr_t)first, 300 * MIB) == XSEG_OK);
    CHECK(cudaFreeAsync(first, other) == 0);
    CHECK(cudaMallocAsync(&second, 300 * MIB, one) == 0);
    CHECK(second != first);
    CHECK(xseg_sim_finish(other) == XSEG_OK);
    CHECK(cudaMallocAsync(&third, 300 * MIB, one) == 0);
    CHECK(cudaFreeAsync(second, one) == 0);
    CHECK(cudaFree(third) == 0);
    CHECK(cudaStreamDestroy(one) == 0);
    CHECK(cuStreamDestroy_v2(other) == 0);
    printf("%s after the wait\n", third == first ? "the same memory" : "other memory");
    calls();
}

static void capture(void)
{
    struct CUstream_st *stream = new_stream();
    void *graph = NULL, *held = NULL, *wanted = NULL;

    CHECK(cudaMalloc(&held, MIB) == 0);
    CHECK(cuStreamBeginCapture_v2(stream, 2) == 0);
    CHECK(cudaMallocAsync(&wanted, MIB, stream) == 801);
    const int result = cudaFreeAsync(held, stream);
    printf("freeing within the capture: %d, last error %d\n", result, cudaGetLastError());
    CHECK(cuStreamEndCapture(stream, &graph) == 0);
    CHECK(cuGraphDestroy(graph) == 0);
    CHECK(cudaFree(held) == 0);
    CHECK(cudaStreamDestroy(stream) == 0);
}

static void much(void)
{
    void *ptr = NULL;

    printf("too much: %d", cudaMalloc(&ptr, (size_t)1 << 50));
    printf(", last error %d\n", cudaGetLastError());
    printf("not mine: %d\n", cudaFree((void *)(uintptr_t)(64 * MIB)));
}

static void info(void)
{
    size_t before = 0, held = 0, after = 0, total = 0;
    void *ptr = NULL;

    CHECK(cudaMemGetInfo(&before, &total) == 0);
    CHECK(cudaMalloc(&ptr, 640 * MIB) == 0);
    CHECK(cudaMemGetInfo(&held, &total) == 0);
    CHECK(cudaFree(ptr) == 0);
    CHECK(cudaMemGetInfo(&after, &total) == 0);
    CHECK(before - held == 640 * MIB && after == before);
    CHECK(cuMemGetInfo_v2(&after, &total) == 0 && after == before);
    calls();
}

static void driver(void)
{
    uint64_t first = 0, second = 0;

    CHECK(cudaFree(NULL) == 0); /* starts the driver */
    CHECK(cuMemAlloc_v2(&first, 300 * MIB) == 0);
    CHECK(cuMemFree_v2(first) == 0);
    CHECK(cuMemAlloc_v2(&second, 300 * MIB) == 0);
    CHECK(cuMemFree_v2(second) == 0);
    CHECK(cuMemAlloc_v2(&second, 0) == 1);
    printf("%s\n", first == second ? "the same memory" : "other memory");
    calls();
}

/* The simulated driver's own cuMemFree ends the process here. */
static void busy(void)
{
    struct CUstream_st *stream = new_stream();
    uint64_t first = 0, second = 0;

    CHECK(cuMemAlloc_v2(&first, 300 * MIB) == 0);
    CHECK(xseg_sim_launch_on(stream, FOREVER, first, 300 * MIB) == XSEG_OK);
    CHECK(cuMemFree_v2(first) == 0);
    CHECK(cuStreamQuery(stream) == 0);
    CHECK(cuMemAlloc_v2(&second, 300 * MIB) == 0);
    printf("%s\n", first == second ? "the same memory" : "other memory");
}

/* A free waits for the device that has the memory, whichever is current, and the current device stays. */
static void other_device(void)
{
    for (int way = 0; way < 4; way++) {
        void *ptr = NULL, *context = NULL, *after = NULL;
        struct CUstream_st *stream;
        int device = -1;

        CHECK(cudaSetDevice(0) == 0);
        stream = new_stream();
        CHECK(cudaMalloc(&ptr, 8 * MIB) == 0);
        CHECK(xseg_sim_launch_on(stream, FOREVER, (uintptr_t)ptr, 8 * MIB) == XSEG_OK);
        CHECK(cudaSetDevice(way % 2) == 0);
        CHECK(cuCtxGetCurrent(&context) == 0);
        if (way < 2)
            CHECK(cudaFree(ptr) == 0);
        else
            CHECK(cuMemFree_v2((uintptr_t)ptr) == 0);
        CHECK(cudaGetDevice(&device) == 0 && device == way % 2);
        CHECK(cuCtxGetCurrent(&after) == 0 && after == context);
        CHECK(cudaSetDevice(0) == 0);
        CHECK(cudaStreamQuery(stream) == 0);
        CHECK(cudaStreamDestroy(stream) == 0);
    }
    printf("the work has finished\n");
}

/* A reset frees the memory of the device, and that of no other; streams that get the handles of destroyed streams have no
 * memory that is in use.  The third reset is one that no library can interpose. */
static void reset(void)
{
    for (int way = 0; way < 3; way++) {
        int (*driver_reset)(int) = NULL;
        struct CUstream_st *stream[4];
        void *old = NULL, *other = NULL, *used[4], *next = NULL;
        size_t free_bytes = 0, total = 0;

        CHECK(cudaSetDevice(1) == 0 && cudaMalloc(&other, MIB) == 0);
        CHECK(cudaSetDevice(0) == 0 && cudaMalloc(&old, MIB) == 0);
        CHECK(cudaMalloc(&next, 40 * MIB) == 0 && cudaFree(next) == 0);
        if (way == 0)
            CHECK(cudaDeviceReset() == 0);
        if (way == 1)
            CHECK(cuDevicePrimaryCtxReset_v2(0) == 0);
        if (way == 2) {
            void *driver = dlopen(getenv("XSEG_DRIVER"), RTLD_NOW);
            CHECK(symbol_find(driver, "cuDevicePrimaryCtxReset_v2", &driver_reset) &&
                  driver_reset(0) == 0);
        }
        CHECK(cudaMemGetInfo(&free_bytes, &total) == 0);
        CHECK(way == 2 || free_bytes == total);
        CHECK(cudaFree(old) == 1 && cudaGetLastError() == 1);
        for (int i = 0; i < 4; i++) {
            stream[i] = new_stream();
            CHECK(cudaMallocAsync(&used[i], 8 * MIB, stream[i]) == 0);
            CHECK(xseg_sim_launch_on(stream[i], FOREVER, (uintptr_t)used[i], 8 * MIB) == XSEG_OK);
        }
        for (int i = 0; i < 4; i++) {
            CHECK(cudaMalloc(&next, 8 * MIB) == 0);
            CHECK(cuMemsetD8_v2((uintptr_t)next, 0, 8 * MIB) == 0);
            for (int k = 0; k < 4; k++)
                CHECK(next != used[k] || cudaStreamQuery(stream[k]) == 0);
        }
        CHECK(cudaDeviceReset() == 0);
        CHECK(cudaSetDevice(1) == 0);
        CHECK(cuMemsetD8_v2((uintptr_t)other, 0, MIB) == 0);
        CHECK(cudaFree(other) == 0);
    }
    printf("nothing in use was handed out\n");
}

/* A call queries the ID of the context once, however many devices have allocators. */
static void queries(void)
{
    void *ptr = NULL;

    for (int device = 0; device < 2; device++) {
        CHECK(cudaSetDevice(device) == 0);
        CHECK(cudaMalloc(&ptr, MIB) == 0 && cudaFree(ptr) == 0);
    }
    struct CUstream_st *stream = new_stream();
    CHECK(cudaMallocAsync(&ptr, MIB, stream) == 0 && cudaFreeAsync(ptr, stream) == 0);
    uint64_t before = xseg_sim_calls("cuCtxGetId");
    CHECK(cudaMalloc(&ptr, MIB) == 0 && cudaFree(ptr) == 0);
    printf("cudaMalloc, cudaFree %" PRIu64, xseg_sim_calls("cuCtxGetId") - before);
    before = xseg_sim_calls("cuCtxGetId");
    CHECK(cudaMallocAsync(&ptr, MIB, stream) == 0 && cudaFreeAsync(ptr, stream) == 0);
    printf(", cudaMallocAsync, cudaFreeAsync %" PRIu64 "\n", xseg_sim_calls("cuCtxGetId") - before);
    CHECK(cudaStreamDestroy(stream) == 0);
}

/* After an error from which a device does not recover, a reset makes it usable again. */
static void sticky(void)
{
    void *ptr = NULL, *other = NULL;

    CHECK(cudaSetDevice(1) == 0 && cudaMalloc(&other, MIB) == 0);
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
    CHECK(cudaSetDevice(1) == 0 && cudaFree(other) == 0 && cudaGetLastError() == 0);
    printf("the device is usable again\n");
}

static int (*found_alloc)(uint64_t *, size_t), (*found_free)(uint64_t);
/* NULL: the simulated driver has neither. */
static int (*alloc_async)(uint64_t *, size_t, struct CUstream_st *);
static int (*free_async)(uint64_t, struct CUstream_st *);

enum { ALLOCATE = 8, FREE = 9, PITCHED = 7 };

static int allocate_by(unsigned way, void **ptr, struct CUstream_st *stream)
{
    uint64_t address = 0;
    size_t pitch = 0;
    int result;

    switch (way) {
    case 0:
        return cudaMalloc(ptr, MIB);
    case 1:
        return cudaMallocAsync(ptr, MIB, stream);
    case 2:
        return cudaMallocAsync_ptsz(ptr, MIB, NULL);
    case 3: /* the stream's device counts */
        CHECK(cudaSetDevice(1) == 0);
        result = cudaMallocAsync(ptr, MIB, stream);
        CHECK(cudaSetDevice(0) == 0);
        return result;
    case PITCHED:
        return cudaMallocPitch(ptr, &pitch, MIB, 1);
    case 4:
        result = found_alloc(&address, MIB);
        break;
    default:
        result = way == 5 && alloc_async ? alloc_async(&address, MIB, stream)
                                         : cuMemAlloc_v2(&address, MIB);
    }
    *ptr = (void *)(uintptr_t)address;
    return result;
}

/* Ways from 7 on free with device 1 current. */
static int free_by(unsigned way, void *ptr, struct CUstream_st *const *stream, bool is_pitched)
{
    const uint64_t address = (uintptr_t)ptr;

    CHECK(cudaSetDevice(way >= 7) == 0);
    switch (way) {
    case 1:
        return cuMemFree_v2(address);
    case 2:
        return found_free(address);
    case 3:
    case 4:
        return cudaFreeAsync(ptr, stream[way - 3]);
    case 5: /* memory of the driver goes to the driver, which has no such function */
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

/* A block that one function allocated is freed by every other one. */
static void mixed(void)
{
    struct CUstream_st *stream[2];
    void *symbol;
    int status;

    for (int device = 1; device >= 0; device--) {
        CHECK(cudaSetDevice(device) == 0);
        stream[device] = new_stream();
    }
    CHECK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &symbol, 12000, 0, &status) == 0);
    memcpy(&found_alloc, &symbol, sizeof(symbol));
    CHECK(cuGetProcAddress_v2("cuMemFree", &symbol, 12000, 0, &status) == 0);
    memcpy(&found_free, &symbol, sizeof(symbol));
    (void)symbol_find(RTLD_DEFAULT, "cuMemAllocAsync", &alloc_async);
    (void)symbol_find(RTLD_DEFAULT, "cuMemFreeAsync", &free_async);
    for (unsigned way = 0; way < ALLOCATE * FREE; way++) {
        const unsigned allocate = way % ALLOCATE;
        void *ptr = NULL;

        CHECK(cudaSetDevice(0) == 0);
        CHECK(allocate_by(allocate, &ptr, stream[0]) == 0);
        CHECK(xseg_sim_launch_on(stream[0], 1000, (uintptr_t)ptr, MIB) == XSEG_OK);
        CHECK(xseg_sim_finish(stream[0]) == XSEG_OK);
        CHECK(free_by(way / ALLOCATE, ptr, stream, allocate == PITCHED) == 0);
        CHECK(cudaGetLastError() == 0);
        CHECK(cudaFree(ptr) == 1 && cudaGetLastError() == 1);
        CHECK(cudaFreeAsync(ptr, stream[0]) == 1 && cudaGetLastError() == 1);
        CHECK(cuMemFree_v2((uintptr_t)ptr) == 1);
    }
    printf("every function has freed the memory of every other\n");
}

/* --- Threads and processes. --- */

#define THREADS 4

static atomic_bool is_over;

static void *fail(const char *what)
{
    check(false, what);
    return NULL;
}

/* A thread frees a block of another thread. */
static _Atomic(void *) passed_on;

static size_t churned_bytes(uint64_t tag)
{
    return 300 * 1024 * (size_t)(tag & 0xff);
}

static bool has_tag(const void *ptr, uint64_t *tag)
{
    uint64_t last;

    memcpy(tag, ptr, sizeof(*tag));
    memcpy(&last, (const char *)ptr + churned_bytes(*tag) - sizeof(last), sizeof(last));
    return *tag == last;
}

/* Allocate and free until the end; contents stay. */
static void *churn(void *argument)
{
    const uint64_t number = (uintptr_t)argument + 1;
    struct CUstream_st *stream = NULL;

    if (cudaSetDevice(0) != 0)
        return fail("cudaSetDevice");
    if (cudaStreamCreateWithFlags(&stream, 1) != 0)
        return fail("cudaStreamCreateWithFlags");
    for (uint64_t i = 0; !atomic_load(&is_over); i++) {
        const uint64_t tag = i << 8 | number;
        const size_t bytes = churned_bytes(tag);
        uint64_t found;
        void *ptr = NULL;

        if ((i % 4 == 1   ? cudaMallocAsync(&ptr, bytes, stream)
             : i % 4 == 2 ? cudaMallocAsync_ptsz(&ptr, bytes, NULL)
                          : cudaMalloc(&ptr, bytes)) != 0)
            return fail("cudaMalloc");
        memcpy(ptr, &tag, sizeof(tag));
        memcpy((char *)ptr + bytes - sizeof(tag), &tag, sizeof(tag));
        ptr = atomic_exchange(&passed_on, ptr);
        if (!ptr)
            continue;
        if (!has_tag(ptr, &found))
            return fail("contents");
        if ((i % 3 == 1   ? cudaFreeAsync(ptr, stream)
             : i % 3 == 2 ? cudaFreeAsync_ptsz(ptr, NULL)
                          : cudaFree(ptr)) != 0 ||
            cudaGetLastError() != 0)
            return fail("cudaFree");
    }
    return cudaStreamDestroy(stream) == 0 ? NULL : fail("cudaStreamDestroy");
}

static void *reset_often(void *unused)
{
    (void)unused;
    if (cudaSetDevice(1) != 0)
        return fail("cudaSetDevice");
    while (!atomic_load(&is_over)) {
        void *ptr = NULL, *next = NULL;

        if (cudaMalloc(&ptr, 3 * MIB) != 0 || cudaMalloc(&next, 30 * MIB) != 0)
            return fail("cudaMalloc");
        if (cudaFree(ptr) != 0 || cudaDeviceReset() != 0)
            return fail("cudaDeviceReset");
        if (cudaFree(next) != 1 || cudaGetLastError() != 1)
            return fail("memory of before the reset");
    }
    return NULL;
}

/* Allocate and free on device 0, the device of every new thread.  Its resets free the memory concurrently. */
static void *churn_on_reset(void *argument)
{
    const bool is_async = (uintptr_t)argument % 2 == 1;

    while (!atomic_load(&is_over)) {
        void *ptr = NULL;

        if ((is_async ? cudaMallocAsync_ptsz(&ptr, 3 * MIB, NULL) : cudaMalloc(&ptr, 3 * MIB)) == 0)
            (void)!(is_async ? cudaFreeAsync_ptsz(ptr, NULL) : cudaFree(ptr));
        (void)cudaGetLastError();
    }
    return NULL;
}

/* Allocate what cannot be allocated: much of the time is spent outside the allocator. */
static void *ask_for_too_much(void *unused)
{
    void *ptr = NULL;

    (void)unused;
    while (!atomic_load(&is_over))
        if (cudaMalloc(&ptr, (size_t)1 << 50) != 2)
            return fail("too much");
    return NULL;
}

static void start_threads(pthread_t *thread, void *(*first)(void *), void *(*others)(void *))
{
    atomic_store(&is_over, false);
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, i == 0 ? first : others, (void *)i) == 0);
}

static void join_threads(const pthread_t *thread)
{
    atomic_store(&is_over, true);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
}

static void threads(void)
{
    pthread_t thread[THREADS];
    void *held = NULL;

    CHECK(cudaSetDevice(0) == 0 && cudaMalloc(&held, 64 * MIB) == 0);
    start_threads(thread, reset_often, churn);
    for (unsigned i = 0; i < 600; i++) {
        size_t free_bytes = 0, total = 0;

        CHECK((i % 2 == 0 ? cudaMemGetInfo(&free_bytes, &total)
                          : cuMemGetInfo_v2(&free_bytes, &total)) == 0);
        CHECK(free_bytes + 64 * MIB <= total);
    }
    join_threads(thread);
    CHECK(cudaFree(held) == 0);
    printf("free memory was at most the total\n");
}

/* No allocator opens between the end of the one before and the reset, where it would lose its memory. */
static void reset_under_load(void)
{
    pthread_t thread[THREADS];
    size_t free_bytes = 0, total = 0;

    CHECK(cudaSetDevice(0) == 0);
    start_threads(thread, churn_on_reset, churn_on_reset);
    for (unsigned i = 0; i < 40; i++) {
        CHECK(cudaDeviceReset() == 0);
        (void)usleep(500);
    }
    join_threads(thread);
    CHECK(cudaDeviceReset() == 0);
    CHECK(cudaMemGetInfo(&free_bytes, &total) == 0 && free_bytes == total);
    printf("all memory is free\n");
}

/* Fork a child, in which no call succeeds and none hangs. */
static void fork_once(void *of_parent)
{
    int status = 0;
    const pid_t pid = fork();

    if (pid == 0) {
        size_t free_bytes, total;
        bool is_denied;
        void *ptr;

        (void)alarm(60);
        (void)dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        is_denied = cudaMalloc(&ptr, MIB) != 0 && cudaGetLastError() != 0;
        is_denied = is_denied && cudaMallocAsync(&ptr, MIB, NULL) != 0;
        is_denied = is_denied && cudaFree(of_parent) != 0 && cudaGetLastError() != 0;
        is_denied = is_denied && cudaMemGetInfo(&free_bytes, &total) != 0;
        is_denied = is_denied && cudaDeviceReset() != 0;
        _exit(is_denied ? 7 : 8);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void forks(void)
{
    pthread_t thread[THREADS];
    void *held = NULL;

    CHECK(cudaSetDevice(0) == 0 && cudaMalloc(&held, MIB) == 0);
    start_threads(thread, churn, ask_for_too_much);
    for (unsigned i = 0; i < 60 && is_good; i++)
        fork_once(held);
    join_threads(thread);
    CHECK(cudaFree(held) == 0);
    printf("no child was stopped\n");
}

static void *first_call(void *unused)
{
    void *ptr = NULL;

    (void)unused;
    return cudaSetDevice(0) == 0 && cudaMalloc(&ptr, MIB) == 0 ? NULL : fail("cudaMalloc");
}

/* A child is forked while a thread opens the allocator: that thread waits to write to standard error, which is full. */
static void opening(void)
{
    int ends[2], saved = dup(STDERR_FILENO);
    char byte = 0;
    pthread_t thread;

    CHECK(pipe(ends) == 0);
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    while (write(ends[1], &byte, 1) == 1) {
    }
    CHECK(fcntl(ends[1], F_SETFL, 0) == 0);
    CHECK(dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
    CHECK(pthread_create(&thread, NULL, first_call, NULL) == 0);
    /* The runtime is started first; then the thread gets as far as it can. */
    while (xseg_sim_calls("cuInit") == 0)
        (void)usleep(1000);
    (void)usleep(100000);
    for (unsigned i = 0; i < 3; i++)
        fork_once(&byte);
    CHECK(dup2(saved, STDERR_FILENO) == STDERR_FILENO);
    CHECK(close(ends[1]) == 0);
    while (read(ends[0], &byte, 1) == 1) {
    }
    CHECK(pthread_join(thread, NULL) == 0);
    printf("no child was stopped\n");
}

static void child(void)
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
    printf("the child went on\n");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"again", again},
                 {"async", async},
                 {"capture", capture},
                 {"much", much},
                 {"info", info},
                 {"driver", driver},
                 {"busy", busy},
                 {"other_device", other_device},
                 {"reset", reset},
                 {"sticky", sticky},
                 {"mixed", mixed},
                 {"threads", threads},
                 {"forks", forks},
                 {"opening", opening},
                 {"child", child},
                 {"queries", queries},
                 {"reset_under_load", reset_under_load}};

    for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return is_good ? 0 : 1;
        }
    return 2;
}
