/* SPDX-License-Identifier: MIT */
/*
 * A recording that a test writes event by event, with the state of memory that it ends in.
 *
 * Each call adds an event and changes the state; programme_end() makes the segments of it.
 */
#ifndef TESTS_SUPPORT_PROGRAMME_H
#define TESTS_SUPPORT_PROGRAMME_H

#include <stdlib.h>
#include <string.h>

#include "src/tools/reading/recording.h"

#define PROGRAMME_MAX 4096 /* events, ranges, blocks */

struct programme_block {
    uint64_t address, bytes;
    uint32_t stack;
    bool is_pending;
};

struct programme_range {
    uint64_t start, end;
    bool is_expandable;
};

struct programme {
    struct recording recording;
    struct recording_device device;
    struct recording_event events[PROGRAMME_MAX];
    struct recording_segment segments[PROGRAMME_MAX];
    struct recording_block blocks[PROGRAMME_MAX];
    struct programme_block block[PROGRAMME_MAX]; /* now, by address */
    struct programme_range
        range[PROGRAMME_MAX]; /* now, by address; adjacent expandable ones are one */
    size_t block_count, range_count;
    uint64_t now_us;
};

static inline struct programme *programme_new(void)
{
    struct programme *programme = calloc(1, sizeof(*programme));

    if (!programme)
        abort();
    programme->device.events = programme->events;
    programme->device.segments = programme->segments;
    programme->recording.blocks = programme->blocks;
    programme->recording.devices = &programme->device;
    programme->recording.device_count = 1;
    programme->now_us = 1000;
    return programme;
}

/* Add an event now.  Addresses and sizes are as in the file. */
static inline struct recording_event *programme_event(struct programme *programme,
                                                      enum recording_action action,
                                                      uint64_t address, uint64_t bytes)
{
    struct recording_event *event = &programme->events[programme->device.event_count];

    if (++programme->device.event_count > PROGRAMME_MAX)
        abort();
    *event = (struct recording_event){.time_us = programme->now_us,
                                      .address = address,
                                      .bytes = bytes,
                                      .action = (uint8_t)action};
    return event;
}

/* The place of the block at an address, or where it would be. */
static inline size_t programme_find(const struct programme *programme, uint64_t address)
{
    size_t at = 0;

    while (at < programme->block_count && programme->block[at].address < address)
        at++;
    return at;
}

static inline void programme_alloc(struct programme *programme, uint64_t address, uint64_t bytes,
                                   uint32_t stack)
{
    const size_t at = programme_find(programme, address);

    programme_event(programme, RECORDING_ALLOC, address, bytes)->stack = stack;
    memmove(&programme->block[at + 1], &programme->block[at],
            (programme->block_count++ - at) * sizeof(programme->block[0]));
    programme->block[at] =
        (struct programme_block){address, (bytes + 511) / 512 * 512, stack, false};
}

static inline void programme_request_free(struct programme *programme, uint64_t address)
{
    struct programme_block *block = &programme->block[programme_find(programme, address)];

    programme_event(programme, RECORDING_FREE_REQUESTED, address, block->bytes);
    block->is_pending = true;
}

static inline void programme_complete_free(struct programme *programme, uint64_t address)
{
    const size_t at = programme_find(programme, address);

    programme_event(programme, RECORDING_FREE_COMPLETED, address, programme->block[at].bytes);
    memmove(&programme->block[at], &programme->block[at + 1],
            (--programme->block_count - at) * sizeof(programme->block[0]));
}

static inline void programme_free(struct programme *programme, uint64_t address)
{
    programme_request_free(programme, address);
    programme_complete_free(programme, address);
}

static inline void programme_sort_ranges(struct programme *programme)
{
    struct programme_range *range = programme->range;
    size_t kept = 0;

    for (size_t i = 1; i < programme->range_count; i++)
        for (size_t at = i; at > 0 && range[at].start < range[at - 1].start; at--) {
            const struct programme_range swapped = range[at];

            range[at] = range[at - 1];
            range[at - 1] = swapped;
        }
    for (size_t i = 0; i < programme->range_count; i++) {
        if (range[i].start == range[i].end)
            continue;
        if (kept > 0 && range[i].is_expandable && range[kept - 1].is_expandable &&
            range[kept - 1].end == range[i].start)
            range[kept - 1].end = range[i].end;
        else
            range[kept++] = range[i];
    }
    programme->range_count = kept;
}

/* Memory comes: of an expandable segment, or as a classic one. */
static inline void programme_map(struct programme *programme, uint64_t address, uint64_t bytes,
                                 bool is_expandable)
{
    (void)programme_event(
        programme, is_expandable ? RECORDING_SEGMENT_MAP : RECORDING_SEGMENT_ALLOC, address, bytes);
    programme->range[programme->range_count++] =
        (struct programme_range){address, address + bytes, is_expandable};
    programme_sort_ranges(programme);
}

/* Memory goes; it lies in one range, of a classic segment all of it. */
static inline void programme_unmap(struct programme *programme, uint64_t address, uint64_t bytes)
{
    for (size_t i = 0; i < programme->range_count; i++) {
        struct programme_range *range = &programme->range[i];

        if (address < range->start || address >= range->end)
            continue;
        (void)programme_event(
            programme, range->is_expandable ? RECORDING_SEGMENT_UNMAP : RECORDING_SEGMENT_FREE,
            address, bytes);
        programme->range[programme->range_count++] =
            (struct programme_range){address + bytes, range->end, range->is_expandable};
        range->end = address;
        break;
    }
    programme_sort_ranges(programme);
}

static inline void programme_put(struct programme *programme, uint64_t address, uint64_t end,
                                 const struct programme_block *block)
{
    if (address == end)
        return;
    programme->blocks[programme->recording.block_count++] = (struct recording_block){
        .address = address,
        .bytes = end - address,
        .requested = end - address,
        .stack = block ? block->stack : 0,
        .state = !block              ? RECORDING_INACTIVE
                 : block->is_pending ? RECORDING_PENDING
                                     : RECORDING_ALLOCATED,
    };
}

/* Write the segments as they are now. */
static inline void programme_end(struct programme *programme)
{
    programme->recording.block_count = programme->device.segment_count = 0;
    for (size_t i = 0, at = 0; i < programme->range_count; i++) {
        const struct programme_range *range = &programme->range[i];
        const size_t first = programme->recording.block_count;
        uint64_t address = range->start;

        for (; at < programme->block_count && programme->block[at].address < range->end; at++) {
            const struct programme_block *block = &programme->block[at];

            programme_put(programme, address, block->address, NULL);
            address = block->address + block->bytes;
            programme_put(programme, block->address, address, block);
        }
        programme_put(programme, address, range->end, NULL);
        programme->segments[programme->device.segment_count++] = (struct recording_segment){
            .address = range->start,
            .bytes = range->end - range->start,
            .is_expandable = range->is_expandable,
            .first = (uint32_t)first,
            .count = (uint32_t)(programme->recording.block_count - first),
        };
    }
}

#endif
