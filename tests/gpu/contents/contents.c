/* SPDX-License-Identifier: MIT */
/*
 * Verifies memory contents: kernels write and check patterns in the blocks of an allocator while it grows, trims,
 * remaps, pauses, captures and exports.
 *
 *     gpu-contents --list             list the sections
 *     gpu-contents SECTION            run a section
 *         --seconds N                 duration (10)
 *         --operations N              run about N operations, without a time limit
 *         --seed N                    seed of the random numbers; default: the time
 *         --memory-mb N               device memory to use (half of the free memory, at most 8 GiB)
 *         --folder FOLDER             folder for the contents of paused pools (.)
 *         --classic                   expandable_segments:False
 *         --corrupt                   overwrite a byte of a block, which the checks must detect
 *
 * Prints results (journal.h).  Exit status: 0 without errors, 1 with errors, 2 for an invalid argument, 77 if the
 * section cannot run on this host.
 *
 * At the end of each section, the allocator is closed, the device must have no sticky error, and as much memory must be
 * free as at the start.  On a GPU, 32 MiB may be missing: until the context is destroyed, the driver keeps its own
 * pools for events, graphs and launches, which grow in units of 2 MiB.  On the simulator, nothing may be missing.
 *
 * XSEG_DRIVER names the driver library; the default is libcuda.so.1.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/contents/journal.h"
#include "tests/gpu/contents/section.h"

#define SLACK      (32 * MIB)
#define MIN_FREE   (64 * MIB)
#define MAX_MEMORY (8 * GIB)
#define GRACE      100u /* seconds that a section may exceed its time */
#define TIMEOUT    900u /* seconds for a number of operations */

static const struct section sections[] = {
    {"selftest", "checks detect errors, and only errors", run_selftest, false, false},
    {"random", "blocks of random programs on several streams and threads", run_random, false,
     false},
    {"pause", "a pool that is paused and resumed, in each keep mode", run_pause, true, false},
    {"capture", "captures that are replayed, also after a pause", run_capture, false, false},
    {"share", "blocks that two processes map", run_share, true, false},
    {"peer", "the other process of share", run_peer, true, true},
};

static char repeat[300]; /* the command that repeats this run */

uint64_t section_length(const struct section_env *env)
{
    return env->operations > 0 ? env->operations : env->seconds;
}

const char *section_unit(const struct section_env *env)
{
    return env->operations > 0 ? "operations" : "seconds";
}

static void format_repeat_command(const struct section *section, const struct section_env *env)
{
    (void)snprintf(repeat, sizeof(repeat),
                   "gpu-contents %s --%s %" PRIu64 " --seed %" PRIu64 " --memory-mb %zu%s%s",
                   section->is_hidden ? "share" : section->name, section_unit(env),
                   section_length(env), env->seed, env->memory / MIB,
                   env->is_classic ? " --classic" : "", env->corrupts_byte ? " --corrupt" : "");
}

static uint64_t now(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

bool section_has_time(const struct section_env *env)
{
    if (env->operations > 0)
        return journal_counts[COUNT_OPERATIONS] < env->operations;
    return now() < env->deadline_ns;
}

void section_synchronize(struct section_env *env)
{
    CU(CtxSynchronize, );
    for (int i = 0; i < MAX_THREADS; i++)
        checks_wait(env->checks[i]);
}

uint64_t random_below(uint64_t *state, uint64_t below)
{
    /* As in the pattern, the number is output *state of splitmix64. */
    return pattern_word(0, 0, (*state)++) % below;
}

/* --- The allocator. --- */

static atomic_uint_fast64_t clock_now = 1000000000;

static uint64_t read_clock(void *context)
{
    (void)context;
    return clock_now;
}

void section_advance_clock(unsigned milliseconds)
{
    clock_now += (uint64_t)milliseconds * 1000000;
}

static void log_line(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    if (level != XSEG_LOG_INFO)
        journal_result("log", 1, "note", "%s", line);
}

struct xseg_allocator *section_open_allocator(const char *config)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;

    options.clock = read_clock;
    options.log = log_line;
    journal_operation("open \"%s\"", config);
    XSEG(open, config, &options, &allocator);
    return allocator;
}

void section_close_allocator(struct xseg_allocator *allocator)
{
    journal_operation("close");
    XSEG(close, allocator);
}

struct buffer section_alloc(struct section_env *env, struct xseg_allocator *allocator,
                            struct xseg_pool *pool, unsigned stream, size_t bytes)
{
    struct buffer buffer = {.bytes = bytes, .block = ++env->block_count};
    struct xseg_request request = {sizeof(request)};
    void *address = NULL;

    request.bytes = bytes;
    request.stream = env->stream[stream];
    request.pool = pool;
    journal_operation("allocate %" PRIu64 ", %zu bytes, on stream %u", buffer.block, bytes, stream);
    XSEG(alloc_with, allocator, &request, &address);
    journal_count(COUNT_BLOCKS, 1);
    buffer.address = (CUdeviceptr)(uintptr_t)address;
    buffer.seed = random_below(&env->random_state, UINT64_MAX);
    return buffer;
}

void section_free(struct xseg_allocator *allocator, const struct buffer *buffer)
{
    journal_operation("free %" PRIu64, buffer->block);
    XSEG(free, allocator, (void *)(uintptr_t)buffer->address);
}

/* --- Start and end of a section. --- */

/* The first use of a stream or kernel loads code and creates queues, which must exist before memory is measured. */
static void warm_up(struct section_env *env)
{
    struct buffer buffer = {.bytes = 64 * 1024, .seed = 1};
    CUdeviceptr memory = 0;

    CU(MemAlloc, &memory, 2 * buffer.bytes);
    buffer.address = memory;
    for (int i = 0; i < STREAMS; i++) {
        struct graph *graph;

        kernel_spin(env->stream[i], 1);
        kernel_write(env->stream[i], &buffer);
        kernel_check(env->checks[0], env->stream[i], &buffer);
        kernel_copy(env->stream[i], memory + buffer.bytes, &buffer, 1);
        section_synchronize(env);
        /* The graph follows the kernels, because a kernel cannot be loaded during a capture. */
        graph = graph_begin(env->stream[i]);
        kernel_spin(env->stream[i], 1);
        graph_end(graph);
        graph_launch(graph, env->stream[i]);
        section_synchronize(env);
        graph_free(graph);
    }
    CU(MemFree, memory);
}

static void set_up(struct section_env *env)
{
    const char *problem = kernel_load();

    if (problem != NULL)
        journal_skip("%s", problem);
    for (int i = 0; i < STREAMS; i++)
        env->stream[i] = device_new_stream();
    for (int i = 0; i < MAX_THREADS; i++) {
        env->event[i] = device_new_event();
        env->checks[i] = checks_create();
    }
    warm_up(env);
}

static void tear_down(struct section_env *env)
{
    for (int i = 0; i < MAX_THREADS; i++) {
        checks_destroy(env->checks[i]);
        CU(EventDestroy, env->event[i]);
    }
    for (int i = 0; i < STREAMS; i++)
        CU(StreamDestroy, env->stream[i]);
    kernel_unload();
    device_close();
}

/* The driver frees the memory of an exited process asynchronously, so the query is repeated for two seconds. */
static void check_memory(size_t free_before)
{
    const size_t slack = device.is_simulated ? 0 : SLACK;
    size_t free_after = device_free_memory();

    for (int i = 0; i < 20 && free_after + slack < free_before; i++) {
        (void)usleep(100000);
        free_after = device_free_memory();
    }
    journal_result("memory_before", free_before / MIB, "note", "MiB free");
    journal_result("memory_after", free_after / MIB, "note", "MiB free");
    if (free_after + slack < free_before)
        journal_error(
            "device memory has leaked: %zu bytes were free at the start and %zu at the end, "
            "tolerance %zu; another process may have allocated memory, see nvidia-smi",
            free_before, free_after, slack);
}

static void check_leaks(void)
{
    char leaks[400];

    if (sim.leaks != NULL && sim.leaks(leaks, sizeof(leaks)) != 0)
        journal_error("the simulator reports leaks: %s", leaks);
}

static void choose_memory(struct section_env *env, size_t free_bytes)
{
    if (free_bytes < MIN_FREE)
        journal_skip("low device memory, %zu MiB free; the section requires %zu MiB",
                     free_bytes / MIB, MIN_FREE / MIB);
    if (env->memory == 0)
        env->memory = free_bytes / 2 < MAX_MEMORY ? free_bytes / 2 : MAX_MEMORY;
    if (env->memory > free_bytes)
        journal_skip("--memory-mb is %zu, and %zu MiB are free", env->memory / MIB,
                     free_bytes / MIB);
}

static int run_section(const struct section *section, struct section_env *env)
{
    format_repeat_command(section, env);
    journal_open(section->is_hidden ? "share" : section->name, repeat,
                 env->operations > 0 ? TIMEOUT : env->seconds + GRACE);
    const char *problem = device_open();
    if (problem != NULL)
        journal_skip("%s", problem);
    if (section->needs_vmm && !device.has_vmm)
        journal_skip("the device has no virtual memory management");
    env->is_classic |= !device.has_vmm;
    set_up(env);
    const size_t free_before = device_free_memory();
    choose_memory(env, free_before);
    format_repeat_command(section, env);
    if (!section->is_hidden)
        journal_result("begin", env->memory / MIB, "note",
                       "MiB, %" PRIu64 " %s, seed %" PRIu64 ", %s", section_length(env),
                       section_unit(env), env->seed,
                       device.is_simulated ? "simulated kernels" : "kernels of the GPU");
    for (int kind = 0; kind < COUNT_KINDS; kind++)
        journal_counts[kind] = 0;
    env->deadline_ns = now() + (uint64_t)env->seconds * 1000000000;
    env->random_state = env->seed;
    section->run(env);
    section_synchronize(env);
    if (!section->is_hidden) {
        journal_result("context", 0, "ok", "no sticky error");
        check_memory(free_before);
    }
    tear_down(env);
    check_leaks();
    return section->is_hidden ? journal_exit() : journal_close();
}

/* --- The command line. --- */

static int usage_error(const char *problem, const char *value)
{
    (void)fprintf(stderr, "gpu-contents: %s, %s; see gpu-contents --list\n", problem, value);
    return 2;
}

static int list(void)
{
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
        if (!sections[i].is_hidden)
            (void)printf("%s\t%s\n", sections[i].name, sections[i].title);
    return 0;
}

static bool read_number(const char *text, uint64_t min, uint64_t max, uint64_t *number)
{
    char *end;

    if (text == NULL || *text < '0' || *text > '9')
        return false;
    *number = strtoull(text, &end, 10);
    return *end == '\0' && *number >= min && *number <= max;
}

/* Returns the number of arguments that an option uses; 0: unknown option or invalid value. */
static int read_option(char **argument, struct section_env *env)
{
    uint64_t number = 0;

    if (strcmp(argument[0], "--classic") == 0) {
        env->is_classic = true;
        return 1;
    }
    if (strcmp(argument[0], "--corrupt") == 0) {
        env->corrupts_byte = true;
        return 1;
    }
    if (strcmp(argument[0], "--folder") == 0 && argument[1] != NULL)
        env->folder = argument[1];
    else if (strcmp(argument[0], "--seconds") == 0 && read_number(argument[1], 1, 3600, &number))
        env->seconds = (unsigned)number;
    else if (strcmp(argument[0], "--operations") == 0 &&
             read_number(argument[1], 1, UINT32_MAX, &number))
        env->operations = number;
    else if (strcmp(argument[0], "--seed") == 0 && read_number(argument[1], 0, UINT64_MAX, &number))
        env->seed = number;
    else if (strcmp(argument[0], "--memory-mb") == 0 &&
             read_number(argument[1], MIN_FREE / MIB / 2, 1 << 24, &number))
        env->memory = (size_t)number * MIB;
    else if (strcmp(argument[0], "--socket") == 0 && read_number(argument[1], 0, 1 << 20, &number))
        env->socket = (int)number;
    else
        return 0;
    return 2;
}

int main(int argc, char **argv)
{
    struct section_env env = {.seconds = 10, .folder = ".", .socket = -1, .seed = now() / 1000000};
    const struct section *section = NULL;

    if (argc < 2)
        return usage_error("missing section", "specify one");
    if (strcmp(argv[1], "--list") == 0)
        return list();
    for (size_t i = 0; i < sizeof(sections) / sizeof(sections[0]); i++)
        if (strcmp(argv[1], sections[i].name) == 0)
            section = &sections[i];
    if (section == NULL)
        return usage_error("unknown section", argv[1]);
    for (int i = 2, used; i < argc; i += used) {
        used = read_option(&argv[i], &env);
        if (used == 0)
            return usage_error("unknown option or invalid value", argv[i]);
    }
    return run_section(section, &env);
}
