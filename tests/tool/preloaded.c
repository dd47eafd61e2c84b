/* SPDX-License-Identifier: MIT */
/*
 * A program that knows nothing of xseg: what preload.py starts with and without libxseg-preload.so.
 *
 * preloaded CASE; prints what the case saw.  Fails where CUDA itself would not do the same.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/runtime.h"
#include "xseg/sim.h"

#define MIB     ((size_t)1 << 20)
#define FOREVER UINT64_MAX

/* Linked from the driver, as programs do that use it themselves. */
int cuMemAlloc_v2(uint64_t *out, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
int cuStreamBeginCapture_v2(struct CUstream_st *stream, int mode);
int cuStreamEndCapture(struct CUstream_st *stream, void **graph);
int cuGraphDestroy(void *graph);
int cuStreamDestroy_v2(struct CUstream_st *stream);
int cuStreamQuery(struct CUstream_st *stream);

static bool is_good = true;

static void check(bool holds, const char *what)
{
    if (!holds)
        printf("wrong: %s\n", what);
    is_good = is_good && holds;
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

/* What is freed is there for the next, and waits for whoever uses it. */
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

/* Memory that is ordered on streams. */
static void async(void)
{
    struct CUstream_st *one = new_stream(), *other = new_stream();
    void *first = NULL, *second = NULL, *third = NULL;
    int result = cudaMallocAsync(&first, 300 * MIB, one);

    if (result != 0) {
        printf("refused with %d, last error %d\n", result, cudaGetLastError());
        return;
    }
    CHECK(xseg_sim_launch_on(other, FOREVER, (uintptr_t)first, 300 * MIB) == XSEG_OK);
    CHECK(cudaFreeAsync(first, other) == 0);
    CHECK(cudaMallocAsync(&second, 300 * MIB, one) == 0);
    CHECK(second != first);
    CHECK(xseg_sim_finish(other) == XSEG_OK);
    CHECK(cudaMallocAsync(&third, 300 * MIB, one) == 0);
    CHECK(third == first);
    CHECK(cudaFreeAsync(second, one) == 0);
    CHECK(cudaFree(third) == 0);
    CHECK(cudaStreamDestroy(one) == 0);
    CHECK(cuStreamDestroy_v2(other) == 0);
    printf("waited for the other stream\n");
    calls();
}

/* A capture gets its memory of the runtime. */
static void capture(void)
{
    struct CUstream_st *stream = new_stream();
    void *graph = NULL, *held = NULL, *wanted = NULL;

    CHECK(cudaMalloc(&held, MIB) == 0);
    CHECK(cuStreamBeginCapture_v2(stream, 2) == 0);
    CHECK(cudaMallocAsync(&wanted, MIB, stream) == 801);
    printf("freeing within the capture: %d\n", cudaFreeAsync(held, stream));
    CHECK(cuStreamEndCapture(stream, &graph) == 0);
    CHECK(cuGraphDestroy(graph) == 0);
    CHECK(cudaFree(held) == 0);
    CHECK(cudaStreamDestroy(stream) == 0);
}

/* What nobody has is refused by the runtime, which says so again. */
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

static void child(void)
{
    void *ptr = NULL;
    int status = 0;
    pid_t pid;

    CHECK(cudaMalloc(&ptr, MIB) == 0);
    pid = fork();
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
    } cases[] = {{"again", again}, {"async", async},   {"capture", capture}, {"much", much},
                 {"info", info},   {"driver", driver}, {"busy", busy},       {"child", child}};

    for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++)
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return is_good ? 0 : 1;
        }
    return 2;
}
