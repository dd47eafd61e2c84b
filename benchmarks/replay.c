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

/* Operations are short, and slots of blocks are reused, so that the replay evicts little of the allocator from the CPU cache. */
struct op {
    uint64_t bytes : 48;
    uint64_t stream : 8;
    uint64_t kind : 8; /* first letter of the line; Y for `y *` */
    uint32_t block;    /* its ID; its slot after the whole trace has been read */
    uint32_t pool;
};

struct trace {
    struct op *ops;
    size_t count, capacity;
    uint32_t ids, slots;
    uint64_t events; /* allocations and frees */
    uint64_t peak;   /* of live bytes */
    void **blocks;   /* by slot */
    bool at_once;
};

_Noreturn static void fail(const char *file, const char *message)
{
    (void)fprintf(stderr, "%s: %s\n", file, message);
    exit(2);
}

/* Numbers that are too high become STREAMS. */
static unsigned char stream_of(unsigned long long number)
{
    return (unsigned char)(number < STREAMS ? number : STREAMS);
}

static struct op parse(const char *line)
{
    unsigned long long field[4] = {0};
    struct op op = {.kind = (unsigned char)line[0]};
    const int count =
        sscanf(line + 1, "%llu %llu %llu %llu", &field[0], &field[1], &field[2], &field[3]);

    op.block = (uint32_t)field[0];
    switch (line[0]) {
    case 'a':
        op.bytes = field[1] & (((uint64_t)1 << 48) - 1);
        op.stream = stream_of(field[2]);
        op.pool = (uint32_t)field[3];
        break;
    case 'u':
        op.stream = stream_of(field[1]);
        break;
    case 'c': /* a capture or the configuration */
        op.kind = line[1] == 'b' || line[1] == 'e' ? '?' : 'c';
        break;
    case 'y':
        op.kind = count < 1 ? 'Y' : 'y';
        op.stream = stream_of(field[0]);
        op.block = 0;
        break;
    default:
        break;
    }
    return op;
}

static void add(struct trace *trace, const struct op *op, const char *file)
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
    trace->ids = op->block >= trace->ids ? op->block + 1 : trace->ids;
}

/* Replace IDs by slots; an allocation gets the slot that was freed last.  Also computes the peak of live bytes. */
static void choose_slots(struct trace *trace, const char *file)
{
    uint32_t *slot = calloc(trace->ids + 1, sizeof(*slot));
    uint32_t *spare = calloc(trace->ids + 1, sizeof(*spare));
    uint64_t *bytes = calloc(trace->ids + 1, sizeof(*bytes));
    uint32_t spares = 0;
    uint64_t live = 0;

    if (slot == NULL || spare == NULL || bytes == NULL)
        fail(file, "out of host memory");
    for (size_t i = 0; i < trace->count; i++) {
        struct op *op = &trace->ops[i];
        const uint32_t id = op->block;

        if (op->kind == 'a')
            slot[id] = spares > 0 ? spare[--spares] : trace->slots++;
        op->block = slot[id];
        if (op->kind == 'a')
            live += bytes[id] = op->bytes;
        if (op->kind == 'f') {
            spare[spares++] = slot[id];
            live -= bytes[id];
        }
        trace->peak = live > trace->peak ? live : trace->peak;
    }
    free(bytes);
    free(slot);
    free(spare);
}

static void read_trace(struct trace *trace, const char *path)
{
    FILE *file = fopen(path, "r");
    char line[512];

    if (file == NULL)
        fail(path, "cannot be opened");
    while (fgets(line, sizeof(line), file) != NULL) {
        const struct op op = parse(line);
        add(trace, &op, path);
    }
    (void)fclose(file);
    choose_slots(trace, path);
    trace->blocks = calloc(trace->slots + 1, sizeof(*trace->blocks));
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

static uint64_t play(void *self, uint64_t count)
{
    struct trace *trace = self;

    (void)count;
    for (unsigned stream = 0; stream < STREAMS; stream++)
        bench_set_busy(stream, false);
    bench_empty_cache();
    const uint64_t began = measure_now();
    for (size_t i = 0; i < trace->count; i++)
        play_op(trace, &trace->ops[i]);
    const uint64_t spent = measure_now() - began;
    for (uint32_t slot = 0; slot < trace->slots; slot++) {
        if (trace->blocks[slot] != NULL)
            bench_free(trace->blocks[slot]);
        trace->blocks[slot] = NULL;
    }
    return spent;
}

int main(int argc, char **argv)
{
    bool at_once = false, classic = false;
    int first = 1;

    for (; first < argc && argv[first][0] == '-';
         first += 1 + (strcmp(argv[first], "--at-once") != 0)) {
        at_once = at_once || strcmp(argv[first], "--at-once") == 0;
        classic =
            classic || (first + 1 < argc && strstr(argv[first + 1], "segments:False") != NULL);
    }
    measure_open(first, argv, STREAMS);
    for (int i = first; i < argc; i++) {
        struct trace trace = {.at_once = at_once};
        const char *slash = strrchr(argv[i], '/');
        char name[128];

        read_trace(&trace, argv[i]);
        (void)snprintf(name, sizeof(name), "%s", slash == NULL ? argv[i] : slash + 1);
        name[strcspn(name, ".")] = '\0';
        (void)strncat(name, classic ? ", classic" : ", expandable",
                      sizeof(name) - strlen(name) - 1);
        /* An eighth more for fragmentation. */
        if (measure_fits("replay", name, trace.peak + trace.peak / 8))
            (void)measure_events(&(struct measure){"replay", name, 0, play, &trace}, trace.events);
        free(trace.ops);
        free(trace.blocks);
    }
    return 0;
}
