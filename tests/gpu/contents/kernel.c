/* SPDX-License-Identifier: MIT */
#include "tests/gpu/contents/kernel.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/contents/journal.h"

#define THREADS    256u
#define MAX_BLOCKS 2048u /* maximum thread blocks; each thread then processes several words */
#define IN_FLIGHT  64u   /* checks whose reports have not been read yet */

enum kind { WRITE, CHECK, COPY, SPIN, KINDS };

/* One launch of a kernel; on the simulator also the argument of its host function. */
struct job {
    enum kind kind;
    struct buffer buffer;
    CUdeviceptr to;        /* COPY */
    uint64_t mask;         /* COPY: of the copy */
    uint64_t microseconds; /* SPIN */
    CUdeviceptr report;    /* CHECK, on a GPU */
    struct pattern_report *host_report;
};

static const char image[] =
#include "tests/gpu/kernels.inc"
    ;

static CUmodule module;
static CUfunction function[KINDS];
static const char *const function_names[KINDS] = {"xseg_write", "xseg_check", "xseg_copy",
                                                  "xseg_spin"};

struct graph {
    CUstream stream;
    CUgraph graph;
    CUgraphExec runnable; /* NULL on the simulator */
    struct job job[64];   /* the captured launches */
    size_t count;
};

/* The graph in which launches of this thread are recorded; NULL: none. */
static _Thread_local struct graph *recorded_graph;

static const char *load_error(CUresult result, const char *log)
{
    static char problem[1400];

    if (result == CUDA_ERROR_JIT_COMPILER_NOT_FOUND)
        return "the driver's compiler of PTX is missing: install libnvidia-ptxjitcompiler.so.1 of "
               "the "
               "driver";
    if (result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION || result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
        device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) < 7)
        return "the kernels require a device of compute capability 7.0 or later";
    (void)snprintf(problem, sizeof(problem), "cannot load the kernels: %s (%d) %s",
                   device_error(result), (int)result, log);
    return problem;
}

const char *kernel_load(void)
{
    char log[1024] = "";
    CUjit_option option[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *value[] = {log, (void *)sizeof(log)};

    if (device.is_simulated)
        return NULL;
    CUresult result = cu.ModuleLoadDataEx(&module, image, 2, option, value);
    for (int kind = 0; kind < KINDS && result == CUDA_SUCCESS; kind++)
        result = cu.ModuleGetFunction(&function[kind], module, function_names[kind]);
    return result == CUDA_SUCCESS ? NULL : load_error(result, log);
}

void kernel_unload(void)
{
    if (module != NULL)
        CU(ModuleUnload, module);
}

/* --- The simulator's kernels. --- */

static void *pointer_to(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

static void copy_words(const struct job *job)
{
    const unsigned char *from = pointer_to(job->buffer.address);
    const size_t bytes = job->buffer.bytes;

    for (uint64_t index = 0; index < pattern_words(bytes); index++)
        pattern_store(pointer_to(job->to), bytes, index,
                      pattern_load(from, bytes, index) ^ job->mask);
}

static void run_on_host(void *argument)
{
    const struct job *job = argument;
    const struct buffer *buffer = &job->buffer;

    if (job->kind == WRITE)
        pattern_write(pointer_to(buffer->address), buffer->bytes, buffer->seed, buffer->mask);
    else if (job->kind == CHECK)
        *job->host_report =
            pattern_check(pointer_to(buffer->address), buffer->bytes, buffer->seed, buffer->mask);
    else if (job->kind == COPY)
        copy_words(job);
    free(argument);
}

static void sim_check(xseg_status status)
{
    if (status != XSEG_OK)
        journal_stop("the simulator rejected work: status %d", (int)status);
}

/* The duration of a kernel: 3 us, and 1 us per MB (1 TB/s). */
static uint64_t nanoseconds_of(const struct job *job)
{
    return job->kind == SPIN ? job->microseconds * 1000 : 3000 + job->buffer.bytes / 1000;
}

static void simulate(CUstream stream, const struct job *job)
{
    const struct xseg_sim_access accesses[] = {{job->buffer.address, job->buffer.bytes},
                                               {job->to, job->buffer.bytes}};
    const size_t access_count = job->kind == COPY ? 2 : job->kind == SPIN ? 0 : 1;

    if (access_count == 0) {
        sim_check(sim.launch(stream, nanoseconds_of(job)));
        return;
    }
    sim_check(sim.launch_accessing(stream, nanoseconds_of(job), accesses, access_count));
    if (recorded_graph != NULL)
        return;
    struct job *host_job = malloc(sizeof(*host_job));

    if (host_job == NULL)
        journal_stop("out of host memory");
    *host_job = *job;
    CU(LaunchHostFunc, stream, run_on_host, host_job);
    /* The memory is in use until the function returns. */
    sim_check(sim.launch_accessing(stream, 1, accesses, access_count));
}

/* --- Launches. --- */

static void launch_on_gpu(CUstream stream, struct job *job)
{
    const uint64_t blocks_needed = (pattern_words(job->buffer.bytes) + THREADS - 1) / THREADS;
    const unsigned blocks = blocks_needed > MAX_BLOCKS ? MAX_BLOCKS
                            : blocks_needed < 1        ? 1
                                                       : (unsigned)blocks_needed;
    const uint64_t khz = device.clock_khz > 0 ? (uint64_t)device.clock_khz : 1500000;
    uint64_t cycles = job->microseconds * khz / 1000, bytes = job->buffer.bytes;
    void *write_parameters[] = {&job->buffer.address, &bytes, &job->buffer.seed, &job->buffer.mask};
    void *check_parameters[] = {&job->buffer.address, &bytes, &job->buffer.seed, &job->buffer.mask,
                                &job->report};
    void *copy_parameters[] = {&job->to, &job->buffer.address, &bytes, &job->mask};
    void *spin_parameters[] = {&cycles};
    void **const parameters[KINDS] = {write_parameters, check_parameters, copy_parameters,
                                      spin_parameters};

    CU(LaunchKernel, function[job->kind], blocks, 1, 1, job->kind == SPIN ? 1 : THREADS, 1, 1, 0,
       stream, parameters[job->kind], NULL);
}

static void count_launch(const struct job *job)
{
    journal_count(COUNT_KERNELS, 1);
    if (job->kind == WRITE || job->kind == COPY)
        journal_count(COUNT_WRITTEN, job->buffer.bytes);
    if (job->kind == CHECK)
        journal_count(COUNT_CHECKED, job->buffer.bytes);
}

static void launch(CUstream stream, struct job *job)
{
    if (recorded_graph == NULL) {
        count_launch(job);
    } else {
        if (recorded_graph->count == sizeof(recorded_graph->job) / sizeof(recorded_graph->job[0]))
            journal_stop("too many captured kernels in a graph");
        recorded_graph->job[recorded_graph->count++] = *job;
    }
    if (device.is_simulated)
        simulate(stream, job);
    else
        launch_on_gpu(stream, job);
}

void kernel_write(CUstream stream, const struct buffer *buffer)
{
    struct job job = {.kind = WRITE, .buffer = *buffer};

    launch(stream, &job);
}

void kernel_copy(CUstream stream, CUdeviceptr to, const struct buffer *from, uint64_t mask)
{
    struct job job = {.kind = COPY, .buffer = *from, .to = to, .mask = mask};

    launch(stream, &job);
}

void kernel_spin(CUstream stream, unsigned microseconds)
{
    struct job job = {.kind = SPIN, .microseconds = microseconds};

    launch(stream, &job);
}

/* --- Checks. --- */

struct check {
    struct buffer buffer;
    CUevent event; /* recorded after the copy of the report to the host */
    bool is_pending;
};

struct checks {
    struct check check[IN_FLIGHT];
    unsigned next;
    CUdeviceptr reports;         /* [IN_FLIGHT], on a GPU */
    struct pattern_report *host; /* [IN_FLIGHT + 1]: copies of the reports, and an initial report */
};

struct checks *checks_create(void)
{
    struct checks *checks = calloc(1, sizeof(*checks));
    void *host = NULL;

    if (checks == NULL)
        journal_stop("out of host memory");
    CU(MemHostAlloc, &host, (IN_FLIGHT + 1) * sizeof(*checks->host), 0);
    CU(MemAlloc, &checks->reports, IN_FLIGHT * sizeof(*checks->host));
    checks->host = host;
    checks->host[IN_FLIGHT] = (struct pattern_report)PATTERN_REPORT_NONE;
    for (unsigned i = 0; i < IN_FLIGHT; i++)
        checks->check[i].event = device_new_event();
    return checks;
}

void checks_destroy(struct checks *checks)
{
    checks_wait(checks);
    for (unsigned i = 0; i < IN_FLIGHT; i++)
        CU(EventDestroy, checks->check[i].event);
    CU(MemFree, checks->reports);
    CU(MemFreeHost, checks->host);
    free(checks);
}

void kernel_report(const struct buffer *buffer, const struct pattern_report *report)
{
    const uint64_t words = pattern_words(buffer->bytes), offset = report->index * sizeof(uint64_t);

    if (report->compared != words)
        journal_error("block %" PRIu64 " of %zu bytes at 0x%" PRIx64 ": a check compared %" PRIu64
                      " of its %" PRIu64 " words",
                      buffer->block, buffer->bytes, (uint64_t)buffer->address, report->compared,
                      words);
    if (report->count == 0)
        return;
    journal_count(COUNT_MISMATCHES, report->count);
    journal_error("block %" PRIu64 " of %zu bytes at 0x%" PRIx64 ": %" PRIu64 " of %" PRIu64
                  " words differ, the lowest at offset %" PRIu64 "; at offset %" PRIu64
                  " expected %016" PRIx64 ", got %016" PRIx64,
                  buffer->block, buffer->bytes, (uint64_t)buffer->address, report->count, words,
                  report->lowest * (uint64_t)sizeof(uint64_t), offset,
                  pattern_truncate(pattern_word(buffer->seed, buffer->mask, report->index),
                                   buffer->bytes - (size_t)offset),
                  report->actual);
}

static void finish_check(struct checks *checks, unsigned index)
{
    struct check *check = &checks->check[index];

    if (!check->is_pending)
        return;
    CU(EventSynchronize, check->event);
    check->is_pending = false;
    kernel_report(&check->buffer, &checks->host[index]);
}

void checks_wait(struct checks *checks)
{
    for (unsigned i = 0; i < IN_FLIGHT; i++)
        finish_check(checks, (checks->next + i) % IN_FLIGHT);
}

static unsigned begin_check(struct checks *checks, CUstream stream, const struct buffer *buffer)
{
    const unsigned index = checks->next;
    struct check *check = &checks->check[index];
    struct job job = {.kind = CHECK,
                      .buffer = *buffer,
                      .report = checks->reports + index * sizeof(*checks->host),
                      .host_report = &checks->host[index]};

    finish_check(checks, index);
    checks->next = (index + 1) % IN_FLIGHT;
    check->buffer = *buffer;
    checks->host[index] = checks->host[IN_FLIGHT];
    if (!device.is_simulated)
        CU(MemcpyHtoDAsync, job.report, &checks->host[IN_FLIGHT], sizeof(*checks->host), stream);
    launch(stream, &job);
    if (!device.is_simulated)
        CU(MemcpyDtoHAsync, job.host_report, job.report, sizeof(*checks->host), stream);
    CU(EventRecord, check->event, stream);
    check->is_pending = true;
    return index;
}

void kernel_check(struct checks *checks, CUstream stream, const struct buffer *buffer)
{
    (void)begin_check(checks, stream, buffer);
}

struct pattern_report kernel_check_now(struct checks *checks, CUstream stream,
                                       const struct buffer *buffer)
{
    const unsigned index = begin_check(checks, stream, buffer);

    CU(EventSynchronize, checks->check[index].event);
    checks->check[index].is_pending = false;
    return checks->host[index];
}

/* --- Graphs. --- */

struct graph *graph_begin(CUstream stream)
{
    struct graph *graph = calloc(1, sizeof(*graph));

    if (graph == NULL)
        journal_stop("out of host memory");
    graph->stream = stream;
    CU(StreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    recorded_graph = graph;
    return graph;
}

void graph_end(struct graph *graph)
{
    recorded_graph = NULL;
    CU(StreamEndCapture, graph->stream, &graph->graph);
    if (!device.is_simulated)
        CU(GraphInstantiateWithFlags, &graph->runnable, graph->graph, 0);
}

void graph_launch(struct graph *graph, CUstream stream)
{
    if (!device.is_simulated)
        CU(GraphLaunch, graph->runnable, stream);
    for (size_t i = 0; i < graph->count; i++) {
        count_launch(&graph->job[i]);
        if (device.is_simulated)
            simulate(stream, &graph->job[i]);
    }
}

void graph_free(struct graph *graph)
{
    if (graph->runnable != NULL)
        CU(GraphExecDestroy, graph->runnable);
    CU(GraphDestroy, graph->graph);
    free(graph);
}
