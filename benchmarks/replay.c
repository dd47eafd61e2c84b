/* SPDX-License-Identifier: MIT */
/*
 * What does an allocation or free cost in a real programme?  Traces (plain text, docs/replay.md) from an
 * empty cache to their end; growth and what else reaches the simulated driver is in the figure.
 *
 *     bench-replay [--config STRING] [--seconds S] [--at-once] FILE...
 *
 * --at-once: queued work ends at once, for subjects whose streams cannot be kept busy.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "benchmarks/measure.h"
#include "benchmarks/subject.h"

#define STREAMS 16u

/*
 * Short, and with blocks by slots that come again: a programme has no list of all that it ever does, and
 * what the player reads takes the cache from the allocator.
 */
struct op {
    uint64_t bytes : 48;
    uint64_t stream : 8;
    uint64_t kind : 8; /* first letter of its line; `y *` is Y */
    uint32_t block;    /* its id; once all of the trace is read, its slot */
    uint32_t pool;
};

struct trace {
    struct op *ops;
    size_t count, capacity;
    uint32_t ids, slots;
    uint64_t events; /* allocations and frees */
    uint64_t most;   /* bytes that are live at once */
    void **blocks;   /* by slot */
    bool at_once;
};

_Noreturn static void fail(const char *file, const char *what)
{
    (void)fprintf(stderr, "%s: %s\n", file, what);
    exit(2);
}

/* What is too high for the player stays so. */
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
    case 'c': /* a capture, if it is not the configuration */
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
            fail(file, "has operations that this benchmark does not play");
        return;
    }
    if (op->stream >= STREAMS)
        fail(file, "has more streams than this benchmark opens");
    if (trace->count == trace->capacity) {
        trace->capacity = trace->capacity == 0 ? 4096 : trace->capacity * 2;
        trace->ops = realloc(trace->ops, trace->capacity * sizeof(*trace->ops));
        if (trace->ops == NULL)
            fail(file, "no host memory is left");
    }
    trace->ops[trace->count++] = *op;
    trace->events += op->kind == 'a' || op->kind == 'f';
    trace->ids = op->block >= trace->ids ? op->block + 1 : trace->ids;
}

/* Slots for ids; that of the last block that was freed is the next one's.  Also how much is live at once. */
static void choose_slots(struct trace *trace, const char *file)
{
    uint32_t *slot = calloc(trace->ids + 1, sizeof(*slot));
    uint32_t *spare = calloc(trace->ids + 1, sizeof(*spare));
    uint64_t *bytes = calloc(trace->ids + 1, sizeof(*bytes));
    uint32_t spares = 0;
    uint64_t live = 0;

    if (slot == NULL || spare == NULL || bytes == NULL)
        fail(file, "no host memory is left");
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
        trace->most = live > trace->most ? live : trace->most;
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
        fail(path, "cannot be read");
    while (fgets(line, sizeof(line), file) != NULL) {
        const struct op op = parse(line);
        add(trace, &op, path);
    }
    (void)fclose(file);
    choose_slots(trace, path);
    trace->blocks = calloc(trace->slots + 1, sizeof(*trace->blocks));
    if (trace->events == 0 || trace->blocks == NULL)
        fail(path, "is no trace");
}

static void play_op(struct trace *trace, const struct op *op)
{
    void **block = &trace->blocks[op->block];

    switch (op->kind) {
    case 'a':
        *block = op->pool == 0 ? subject_alloc(op->bytes, op->stream)
                               : subject_alloc_in(op->bytes, op->stream, op->pool);
        break;
    case 'f':
        subject_free(*block);
        *block = NULL;
        break;
    case 'u':
        if (!trace->at_once)
            subject_make_busy(op->stream, true);
        subject_use(*block, op->stream);
        break;
    case 'y':
        subject_make_busy(op->stream, false);
        break;
    case 'Y':
        for (unsigned stream = 0; stream < STREAMS; stream++)
            subject_make_busy(stream, false);
        break;
    default:
        subject_empty();
        break;
    }
}

static uint64_t play(void *self, uint64_t count)
{
    struct trace *trace = self;

    (void)count;
    for (unsigned stream = 0; stream < STREAMS; stream++)
        subject_make_busy(stream, false);
    subject_empty();
    const uint64_t began = measure_now();
    for (size_t i = 0; i < trace->count; i++)
        play_op(trace, &trace->ops[i]);
    const uint64_t spent = measure_now() - began;
    for (uint32_t slot = 0; slot < trace->slots; slot++) {
        if (trace->blocks[slot] != NULL)
            subject_free(trace->blocks[slot]);
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
        /* An eighth more for the gaps between blocks. */
        if (measure_fits("replay", name, trace.most + trace.most / 8))
            (void)measure_whole(&(struct measure){"replay", name, 0, play, &trace}, trace.events);
        free(trace.ops);
        free(trace.blocks);
    }
    return 0;
}
