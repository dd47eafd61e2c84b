/* SPDX-License-Identifier: MIT */
#include "benchmarks/live.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "benchmarks/measure.h"
#include "benchmarks/subject.h"

/* xorshift64*, the upper half. */
static uint32_t draw(uint64_t *seed)
{
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return (uint32_t)(*seed * 0x2545f4914f6cdd1dull >> 32);
}

/* The table is the programme's own, and the same for every subject.  In huge pages a look at it costs
 * less, so more of what is measured at 10^6 blocks is the subject. */
static void *make_table(size_t bytes)
{
    const size_t huge = (size_t)2 << 20, all = (bytes + huge - 1) / huge * huge;
    void *table = aligned_alloc(huge, all);

    if (table == NULL)
        exit(3);
    (void)madvise(table, all, MADV_HUGEPAGE);
    memset(table, 0, all);
    return table;
}

void live_start(struct live *live, uint32_t count, size_t most, uint32_t stream, uint32_t streams,
                uint64_t seed)
{
    live->blocks = make_table(count * sizeof(*live->blocks));
    live->count = count;
    live->streams = streams;
    live->stream = stream;
    live->turn = live->step = 0;
    for (uint32_t i = 0; i < LIVE_DRAWN; i++) {
        live->order[i] = (uint32_t)((uint64_t)draw(&seed) * count >> 32) / streams * streams;
        live->bytes[i] = 1 + (size_t)((uint64_t)draw(&seed) * most >> 32);
    }
    for (uint32_t i = 0; i < count; i++)
        live->blocks[i] =
            subject_alloc(live->bytes[i % LIVE_DRAWN], live->stream + i % live->streams);
}

bool live_fits(const char *question, const char *name, uint32_t count, size_t most)
{
    const uint64_t bytes = count * (uint64_t)most / 2;

    return measure_fits(question, name, bytes + bytes / 8);
}

/* A block is always exchanged for one of its own stream, so each stream keeps its share. */
uint64_t live_churn(void *self, uint64_t count)
{
    struct live *live = self;
    const uint64_t began = measure_now();
    uint32_t turn = live->turn, stream = live->turn % live->streams, step = live->step;

    for (uint64_t i = 0; i < count; i++, step++) {
        uint32_t at = live->order[step % LIVE_DRAWN] + turn;

        at -= at >= live->count ? live->count : 0;
        subject_free(live->blocks[at]);
        live->blocks[at] = subject_alloc(live->bytes[step * 7 % LIVE_DRAWN], live->stream + stream);
        if (++stream == live->streams)
            stream = 0;
        if (++turn == live->count)
            turn = 0;
    }
    live->turn = turn;
    live->step = step;
    return measure_now() - began;
}

void live_end(struct live *live)
{
    for (uint32_t i = 0; i < live->count; i++)
        subject_free(live->blocks[i]);
    free(live->blocks);
}
