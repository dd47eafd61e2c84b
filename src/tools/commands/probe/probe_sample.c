/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_sample.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

static struct probe_span span_of(uint64_t *sample, unsigned samples)
{
    struct probe_span span = {.samples = samples};

    if (samples == 0)
        return span;
    qsort(sample, samples, sizeof(*sample), compare);
    span.median = sample[samples / 2];
    span.low = sample[samples / 4];
    span.high = sample[samples - 1 - samples / 4];
    return span;
}

bool probe_row_take(struct probe_row *row, struct probe_round *round, enum probe_sampling how,
                    probe_step *take)
{
    struct probe_driver *driver = round->driver;
    const bool busy = how == PROBE_BUSY;
    uint64_t start, taken;
    bool worked, waited = false;

    if (busy && !probe_driver_work(driver))
        return take(round);
    start = probe_driver_clock(driver);
    worked = take(round);
    taken = probe_driver_clock(driver) - start;
    if (busy) {
        waited = !probe_driver_is_working(driver);
        (void)probe_driver_settle(driver);
    }
    if (!worked)
        return false;
    if (how == PROBE_FIRST) {
        row->first = taken;
        row->has_first = true;
        return true;
    }
    row->sample[busy][row->samples[busy]++] = taken;
    row->waits += waited;
    return true;
}

void probe_row_add(struct probe_row *row, const struct probe_row *other)
{
    for (unsigned busy = 0; busy < 2; busy++) {
        memcpy(row->sample[busy] + row->samples[busy], other->sample[busy],
               other->samples[busy] * sizeof(other->sample[busy][0]));
        row->samples[busy] += other->samples[busy];
    }
}

void probe_row_end(struct probe_row *row, struct probe_cost *cost)
{
    cost->first = row->first;
    cost->has_first = row->has_first;
    cost->idle = span_of(row->sample[false], row->samples[false]);
    cost->busy = span_of(row->sample[true], row->samples[true]);
    cost->waits = row->waits * 2 > row->samples[true];
}
