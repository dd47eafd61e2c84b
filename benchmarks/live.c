/* SPDX-License-Identifier: MIT */
#include "benchmarks/live.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"

/* The upper half of xorshift64*. */
static uint32_t draw(uint64_t *seed)
{
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return (uint32_t)(*seed * 0x2545f4914f6cdd1dull >> 32);
}

/* Huge pages reduce the time that the benchmark itself takes to read the table of 10^6 blocks. */
static void *allocate_table(size_t bytes)
{
    const size_t huge_page = (size_t)2 << 20,
                 table_bytes = (bytes + huge_page - 1) / huge_page * huge_page;
    void *table = aligned_alloc(huge_page, table_bytes);

    if (table == NULL)
        exit(3);
    (void)madvise(table, table_bytes, MADV_HUGEPAGE);
    memset(table, 0, table_bytes);
    return table;
}

void live_init(struct live *live, uint32_t count, size_t max_bytes, uint32_t stream,
               uint32_t streams, uint64_t seed)
{
    live->blocks = allocate_table(count * sizeof(*live->blocks));
    live->count = count;
    live->streams = streams;
    live->stream = stream;
    live->offset = live->step = 0;
    for (uint32_t i = 0; i < LIVE_SEQUENCE; i++) {
        live->order[i] = (uint32_t)((uint64_t)draw(&seed) * count >> 32) / streams * streams;
        live->bytes[i] = 1 + (size_t)((uint64_t)draw(&seed) * max_bytes >> 32);
    }
    for (uint32_t i = 0; i < count; i++)
        live->blocks[i] =
            bench_alloc(live->bytes[i % LIVE_SEQUENCE], live->stream + i % live->streams);
}

bool live_fits(const char *benchmark, const char *name, uint32_t count, size_t max_bytes)
{
    const uint64_t bytes = count * (uint64_t)max_bytes / 2;

    return measure_fits(benchmark, name, bytes + bytes / 8);
}

/* The new block has the stream of the freed one, so the number of blocks on each stream is constant. */
uint64_t live_churn(void *self, uint64_t count)
{
    struct live *live = self;
    const uint64_t start_ns = measure_now();
    uint32_t offset = live->offset, stream = live->offset % live->streams, step = live->step;

    for (uint64_t i = 0; i < count; i++, step++) {
        uint32_t index = live->order[step % LIVE_SEQUENCE] + offset;

        index -= index >= live->count ? live->count : 0;
        bench_free(live->blocks[index]);
        live->blocks[index] =
            bench_alloc(live->bytes[step * 7 % LIVE_SEQUENCE], live->stream + stream);
        if (++stream == live->streams)
            stream = 0;
        if (++offset == live->count)
            offset = 0;
    }
    live->offset = offset;
    live->step = step;
    return measure_now() - start_ns;
}

void live_fini(struct live *live)
{
    for (uint32_t i = 0; i < live->count; i++)
        bench_free(live->blocks[i]);
    free(live->blocks);
}
