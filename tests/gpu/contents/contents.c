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
    {"selftest", "checks detect errors, and only errors", play_selftest, false, false},
    {"random", "blocks of random programs on several streams and threads", play_random, false,
     false},
    {"pause", "a pool that is paused and resumed, in each keep mode", play_pause, true, false},
    {"capture", "captures that are replayed, also after a pause", play_capture, false, false},
    {"share", "blocks that two processes map", play_share, true, false},
    {"peer", "the other process of share", play_peer, true, true},
};

static char repeat[300]; /* the command that repeats the run */

uint64_t stage_length(const struct stage *stage)
{
    return stage->operations > 0 ? stage->operations : stage->seconds;
}

const char *stage_unit(const struct stage *stage)
{
    return stage->operations > 0 ? "operations" : "seconds";
}

static void name_command(const struct section *section, const struct stage *stage)
{
    (void)snprintf(repeat, sizeof(repeat),
                   "gpu-contents %s --%s %" PRIu64 " --seed %" PRIu64 " --memory-mb %zu%s%s",
                   section->is_hidden ? "share" : section->name, stage_unit(stage),
                   stage_length(stage), stage->seed, stage->memory / MIB,
                   stage->is_classic ? " --classic" : "", stage->corrupts ? " --corrupt" : "");
}

static uint64_t now(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

bool stage_has_time(const struct stage *stage)
{
    if (stage->operations > 0)
        return journal_counts[COUNT_OPERATIONS] < stage->operations;
    return now() < stage->ends;
}

void stage_rest(struct stage *stage)
{
    CU(CtxSynchronize, );
    for (int i = 0; i < PLAYERS; i++)
        checks_wait(stage->checks[i]);
}

uint64_t draw(uint64_t *state, uint64_t below)
{
    /* As the pattern: output number *state of splitmix64. */
    return pattern_word(0, 0, (*state)++) % below;
}

/* --- The allocator. --- */

static atomic_uint_fast64_t clock_now = 1000000000;

static uint64_t read_clock(void *context)
{
    (void)context;
    return clock_now;
}

void stage_pass_time(unsigned milliseconds)
{
    clock_now += (uint64_t)milliseconds * 1000000;
}

static void log_line(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    if (level != XSEG_LOG_INFO)
        journal_note("log", 1, "note", "%s", line);
}

struct xseg_allocator *stage_open(const char *config)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;

    options.clock = read_clock;
    options.log = log_line;
    journal_operation("open \"%s\"", config);
    XSEG(open, config, &options, &allocator);
    return allocator;
}

void stage_close(struct xseg_allocator *allocator)
{
    journal_operation("close");
    XSEG(close, allocator);
}

struct piece stage_block(struct stage *stage, struct xseg_allocator *allocator,
                         struct xseg_pool *pool, unsigned stream, size_t bytes)
{
    struct piece piece = {.bytes = bytes, .block = ++stage->blocks};
    struct xseg_request request = {sizeof(request)};
    void *address = NULL;

    request.bytes = bytes;
    request.stream = stage->stream[stream];
    request.pool = pool;
    journal_operation("allocate %" PRIu64 ", %zu bytes, on stream %u", piece.block, bytes, stream);
    XSEG(alloc_with, allocator, &request, &address);
    journal_count(COUNT_BLOCKS, 1);
    piece.address = (CUdeviceptr)(uintptr_t)address;
    piece.seed = draw(&stage->draws, UINT64_MAX);
    return piece;
}

void stage_free(struct xseg_allocator *allocator, const struct piece *piece)
{
    journal_operation("free %" PRIu64, piece->block);
    XSEG(free, allocator, (void *)(uintptr_t)piece->address);
}

/* --- Start and end of a section. --- */

/* Objects that the first use creates exist before memory is measured: code is loaded, queues are set up. */
static void warm_up(struct stage *stage)
{
    struct piece piece = {.bytes = 64 * 1024, .seed = 1};
    CUdeviceptr memory = 0;

    CU(MemAlloc, &memory, 2 * piece.bytes);
    piece.address = memory;
    for (int i = 0; i < STREAMS; i++) {
        struct graph *graph;

        kernel_spin(stage->stream[i], 1);
        kernel_write(stage->stream[i], &piece);
        kernel_check(stage->checks[0], stage->stream[i], &piece);
        kernel_copy(stage->stream[i], memory + piece.bytes, &piece, 1);
        stage_rest(stage);
        /* After the kernels, because a kernel cannot be loaded during a capture. */
        graph = graph_begin(stage->stream[i]);
        kernel_spin(stage->stream[i], 1);
        graph_end(graph);
        graph_launch(graph, stage->stream[i]);
        stage_rest(stage);
        graph_free(graph);
    }
    CU(MemFree, memory);
}

static void set(struct stage *stage)
{
    const char *why = kernel_load();

    if (why != NULL)
        journal_skip("%s", why);
    for (int i = 0; i < STREAMS; i++)
        stage->stream[i] = device_stream();
    for (int i = 0; i < PLAYERS; i++) {
        stage->event[i] = device_event();
        stage->checks[i] = checks_open();
    }
    warm_up(stage);
}

static void strike(struct stage *stage)
{
    for (int i = 0; i < PLAYERS; i++) {
        checks_close(stage->checks[i]);
        CU(EventDestroy, stage->event[i]);
    }
    for (int i = 0; i < STREAMS; i++)
        CU(StreamDestroy, stage->stream[i]);
    kernel_unload();
    device_close();
}

/* Memory of a process that has just exited becomes free slightly later. */
static void check_memory(size_t before)
{
    const size_t slack = device.is_simulated ? 0 : SLACK;
    size_t after = device_free_memory();

    for (int i = 0; i < 20 && after + slack < before; i++) {
        (void)usleep(100000);
        after = device_free_memory();
    }
    journal_note("memory_before", before / MIB, "note", "MiB free");
    journal_note("memory_after", after / MIB, "note", "MiB free");
    if (after + slack < before)
        journal_wrong(
            "device memory has leaked: %zu bytes were free at the start and %zu at the end, "
            "tolerance %zu; another process may have allocated memory, see nvidia-smi",
            before, after, slack);
}

static void check_leaks(void)
{
    char text[400];

    if (sim.leaks != NULL && sim.leaks(text, sizeof(text)) != 0)
        journal_wrong("the simulator reports leaks: %s", text);
}

static void choose_memory(struct stage *stage, size_t free_bytes)
{
    if (free_bytes < MIN_FREE)
        journal_skip("low device memory, %zu MiB free; the section requires %zu MiB",
                     free_bytes / MIB, MIN_FREE / MIB);
    if (stage->memory == 0)
        stage->memory = free_bytes / 2 < MAX_MEMORY ? free_bytes / 2 : MAX_MEMORY;
    if (stage->memory > free_bytes)
        journal_skip("--memory-mb is %zu, and %zu MiB are free", stage->memory / MIB,
                     free_bytes / MIB);
}

static int play(const struct section *section, struct stage *stage)
{
    name_command(section, stage);
    journal_open(section->is_hidden ? "share" : section->name, repeat,
                 stage->operations > 0 ? TIMEOUT : stage->seconds + GRACE);
    const char *why = device_open();
    if (why != NULL)
        journal_skip("%s", why);
    if (section->needs_vmm && !device.has_vmm)
        journal_skip("the device has no virtual memory management");
    stage->is_classic |= !device.has_vmm;
    set(stage);
    const size_t before = device_free_memory();
    choose_memory(stage, before);
    name_command(section, stage);
    if (!section->is_hidden)
        journal_note("begin", stage->memory / MIB, "note",
                     "MiB, %" PRIu64 " %s, seed %" PRIu64 ", %s", stage_length(stage),
                     stage_unit(stage), stage->seed,
                     device.is_simulated ? "simulated kernels" : "kernels of the GPU");
    for (int kind = 0; kind < COUNT_KINDS; kind++)
        journal_counts[kind] = 0;
    stage->ends = now() + (uint64_t)stage->seconds * 1000000000;
    stage->draws = stage->seed;
    section->play(stage);
    stage_rest(stage);
    if (!section->is_hidden) {
        journal_note("context", 0, "ok", "no sticky error");
        check_memory(before);
    }
    strike(stage);
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

/* Parse one option and its value. Returns the number of arguments it used; 0: unknown option or invalid value */
static int read_option(char **argument, struct stage *stage)
{
    uint64_t number = 0;

    if (strcmp(argument[0], "--classic") == 0) {
        stage->is_classic = true;
        return 1;
    }
    if (strcmp(argument[0], "--corrupt") == 0) {
        stage->corrupts = true;
        return 1;
    }
    if (strcmp(argument[0], "--folder") == 0 && argument[1] != NULL)
        stage->folder = argument[1];
    else if (strcmp(argument[0], "--seconds") == 0 && read_number(argument[1], 1, 3600, &number))
        stage->seconds = (unsigned)number;
    else if (strcmp(argument[0], "--operations") == 0 &&
             read_number(argument[1], 1, UINT32_MAX, &number))
        stage->operations = number;
    else if (strcmp(argument[0], "--seed") == 0 && read_number(argument[1], 0, UINT64_MAX, &number))
        stage->seed = number;
    else if (strcmp(argument[0], "--memory-mb") == 0 &&
             read_number(argument[1], MIN_FREE / MIB / 2, 1 << 24, &number))
        stage->memory = (size_t)number * MIB;
    else if (strcmp(argument[0], "--socket") == 0 && read_number(argument[1], 0, 1 << 20, &number))
        stage->socket = (int)number;
    else
        return 0;
    return 2;
}

int main(int argc, char **argv)
{
    struct stage stage = {.seconds = 10, .folder = ".", .socket = -1, .seed = now() / 1000000};
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
    for (int i = 2, took; i < argc; i += took) {
        took = read_option(&argv[i], &stage);
        if (took == 0)
            return usage_error("unknown option or invalid value", argv[i]);
    }
    return play(section, &stage);
}
