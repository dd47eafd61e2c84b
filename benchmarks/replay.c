/* SPDX-License-Identifier: MIT */
/*
 * Time of an allocation or free in recorded traces (plain text, docs/replay.md), each from an empty cache to its end.  The time
 * includes growth and other work of the simulated driver.
 *
 *     bench-replay [--config STRING] [--seconds S] [--at-once] FILE...
 *
 * --at-once: queued work completes immediately, for allocators whose streams cannot be kept busy.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"

#define STREAMS 16u

/* Operations are short, and slots of blocks are reused, so that the replay evicts little of the allocator from the CPU
 * cache. */
struct op {
    uint64_t bytes : 48;
    uint64_t stream : 8;
    uint64_t kind : 8; /* first letter of the line; Y for `y *` */
    uint32_t block;    /* ID of the block; after assign_slots(), its slot */
    uint32_t pool;
};

struct trace {
    struct op *ops;
    size_t count, capacity;
    uint32_t id_count, slot_count;
    uint64_t events; /* allocations and frees */
    uint64_t peak;   /* of allocated bytes */
    void **blocks;   /* by slot */
    bool at_once;
};

_Noreturn static void fail(const char *file, const char *message)
{
    (void)fprintf(stderr, "%s: %s\n", file, message);
    exit(2);
}

/* Indices that are too high become STREAMS. */
static unsigned char clamp_stream(unsigned long long index)
{
    return (unsigned char)(index < STREAMS ? index : STREAMS);
}

static struct op parse_line(const char *line)
{
    unsigned long long field[4] = {0};
    struct op op = {.kind = (unsigned char)line[0]};
    const int count =
        sscanf(line + 1, "%llu %llu %llu %llu", &field[0], &field[1], &field[2], &field[3]);

    op.block = (uint32_t)field[0];
    switch (line[0]) {
    case 'a':
        op.bytes = field[1] & (((uint64_t)1 << 48) - 1);
        op.stream = clamp_stream(field[2]);
        op.pool = (uint32_t)field[3];
        break;
    case 'u':
        op.stream = clamp_stream(field[1]);
        break;
    case 'c': /* a capture or the configuration */
        op.kind = line[1] == 'b' || line[1] == 'e' ? '?' : 'c';
        break;
    case 'y':
        op.kind = count < 1 ? 'Y' : 'y';
        op.stream = clamp_stream(field[0]);
        op.block = 0;
        break;
    default:
        break;
    }
    return op;
}

static void add_op(struct trace *trace, const struct op *op, const char *file)
{
    if (strchr("afuyYe", op->kind) == NULL) {
        if (strchr("x#mcd\n", op->kind) == NULL)
            fail(file, "operation is not supported by this benchmark");
        return;
    }
    if (op->stream >= STREAMS)
        fail(file, "too many streams for this benchmark");
    if (trace->count == trace->capacity) {
        trace->capacity = trace->capacity == 0 ? 4096 : trace->capacity * 2;
        trace->ops = realloc(trace->ops, trace->capacity * sizeof(*trace->ops));
        if (trace->ops == NULL)
            fail(file, "out of host memory");
    }
    trace->ops[trace->count++] = *op;
    trace->events += op->kind == 'a' || op->kind == 'f';
    trace->id_count = op->block >= trace->id_count ? op->block + 1 : trace->id_count;
}

/* Replace IDs by slots; an allocation gets the slot that was freed last.  Also computes the peak of allocated bytes. */
static void assign_slots(struct trace *trace, const char *file)
{
    uint32_t *slot_of = calloc(trace->id_count + 1, sizeof(*slot_of));
    uint32_t *free_slots = calloc(trace->id_count + 1, sizeof(*free_slots));
    uint64_t *bytes = calloc(trace->id_count + 1, sizeof(*bytes));
    uint32_t free_count = 0;
    uint64_t allocated = 0;

    if (slot_of == NULL || free_slots == NULL || bytes == NULL)
        fail(file, "out of host memory");
    for (size_t i = 0; i < trace->count; i++) {
        struct op *op = &trace->ops[i];
        const uint32_t id = op->block;

        if (op->kind == 'a')
            slot_of[id] = free_count > 0 ? free_slots[--free_count] : trace->slot_count++;
        op->block = slot_of[id];
        if (op->kind == 'a')
            allocated += bytes[id] = op->bytes;
        if (op->kind == 'f') {
            free_slots[free_count++] = slot_of[id];
            allocated -= bytes[id];
        }
        trace->peak = allocated > trace->peak ? allocated : trace->peak;
    }
    free(bytes);
    free(slot_of);
    free(free_slots);
}

static void read_trace(struct trace *trace, const char *path)
{
    FILE *file = fopen(path, "r");
    char line[512];

    if (file == NULL)
        fail(path, "cannot be opened");
    while (fgets(line, sizeof(line), file) != NULL) {
        const struct op op = parse_line(line);
        add_op(trace, &op, path);
    }
    (void)fclose(file);
    assign_slots(trace, path);
    trace->blocks = calloc(trace->slot_count + 1, sizeof(*trace->blocks));
    if (trace->events == 0 || trace->blocks == NULL)
        fail(path, "not a trace");
}

static void play_op(struct trace *trace, const struct op *op)
{
    void **block = &trace->blocks[op->block];

    switch (op->kind) {
    case 'a':
        *block = op->pool == 0 ? bench_alloc(op->bytes, op->stream)
                               : bench_alloc_in_pool(op->bytes, op->stream, op->pool);
        break;
    case 'f':
        bench_free(*block);
        *block = NULL;
        break;
    case 'u':
        if (!trace->at_once)
            bench_set_busy(op->stream, true);
        bench_record_stream(*block, op->stream);
        break;
    case 'y':
        bench_set_busy(op->stream, false);
        break;
    case 'Y':
        for (unsigned stream = 0; stream < STREAMS; stream++)
            bench_set_busy(stream, false);
        break;
    default:
        bench_empty_cache();
        break;
    }
}

static uint64_t play_trace(void *self, uint64_t count)
{
    struct trace *trace = self;

    (void)count;
    for (unsigned stream = 0; stream < STREAMS; stream++)
        bench_set_busy(stream, false);
    bench_empty_cache();
    const uint64_t start_ns = measure_now();
    for (size_t i = 0; i < trace->count; i++)
        play_op(trace, &trace->ops[i]);
    const uint64_t elapsed_ns = measure_now() - start_ns;
    for (uint32_t slot = 0; slot < trace->slot_count; slot++) {
        if (trace->blocks[slot] != NULL)
            bench_free(trace->blocks[slot]);
        trace->blocks[slot] = NULL;
    }
    return elapsed_ns;
}

int main(int argc, char **argv)
{
    bool at_once = false, classic = false;
    int first_file = 1;

    for (; first_file < argc && argv[first_file][0] == '-';
         first_file += 1 + (strcmp(argv[first_file], "--at-once") != 0)) {
        at_once = at_once || strcmp(argv[first_file], "--at-once") == 0;
        classic = classic ||
                  (first_file + 1 < argc && strstr(argv[first_file + 1], "segments:False") != NULL);
    }
    measure_open(first_file, argv, STREAMS);
    for (int i = first_file; i < argc; i++) {
        struct trace trace = {.at_once = at_once};
        const char *slash = strrchr(argv[i], '/');
        char name[128];

        read_trace(&trace, argv[i]);
        (void)snprintf(name, sizeof(name), "%s", slash == NULL ? argv[i] : slash + 1);
        name[strcspn(name, ".")] = '\0';
        (void)strncat(name, classic ? ", classic" : ", expandable",
                      sizeof(name) - strlen(name) - 1);
        /* With an additional eighth for fragmentation. */
        if (measure_fits("replay", name, trace.peak + trace.peak / 8))
            (void)measure_events(&(struct measure){"replay", name, 0, play_trace, &trace},
                                 trace.events);
        free(trace.ops);
        free(trace.blocks);
    }
    return 0;
}
