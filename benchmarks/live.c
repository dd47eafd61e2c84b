/* SPDX-License-Identifier: MIT */
#include "benchmarks/live.h"

#include <stdlib.h>

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

void live_start(struct live *live, uint32_t count, size_t most, uint32_t stream, uint32_t streams,
                uint64_t seed)
{
    live->blocks = calloc(count, sizeof(*live->blocks));
    if (live->blocks == NULL)
        exit(3);
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
