/* SPDX-License-Identifier: MIT */
/*
 * Builds a recording event by event, with the resulting state of memory.
 *
 * Each call adds an event and changes the state; builder_end() writes the segments.
 */
#ifndef XSEG_TESTS_RECORDING_BUILDER_H
#define XSEG_TESTS_RECORDING_BUILDER_H

#include <stdlib.h>
#include <string.h>

#include "src/tools/reading/recording.h"

#define BUILDER_MAX 4096 /* events, ranges, blocks */

struct builder_block {
    uint64_t address, bytes;
    uint32_t stack;
    bool is_pending;
};

struct builder_range {
    uint64_t start, end;
    bool is_expandable;
};

struct builder {
    struct recording recording;
    struct recording_device device;
    struct recording_event events[BUILDER_MAX];
    struct recording_segment segments[BUILDER_MAX];
    struct recording_block blocks[BUILDER_MAX];
    struct builder_block block[BUILDER_MAX]; /* current, by address */
    struct builder_range
        range[BUILDER_MAX]; /* current, by address; adjacent expandable ranges are joined */
    size_t block_count, range_count;
    uint64_t now_us;
};

static inline struct builder *builder_new(void)
{
    struct builder *builder = calloc(1, sizeof(*builder));

    if (!builder)
        abort();
    builder->device.events = builder->events;
    builder->device.segments = builder->segments;
    builder->recording.blocks = builder->blocks;
    builder->recording.devices = &builder->device;
    builder->recording.device_count = 1;
    builder->now_us = 1000;
    return builder;
}

/* Add an event now.  Addresses and sizes are as in the file. */
static inline struct recording_event *builder_event(struct builder *builder,
                                                    enum recording_action action, uint64_t address,
                                                    uint64_t bytes)
{
    struct recording_event *event = &builder->events[builder->device.event_count];

    if (++builder->device.event_count > BUILDER_MAX)
        abort();
    *event = (struct recording_event){
        .time_us = builder->now_us, .address = address, .bytes = bytes, .action = (uint8_t)action};
    return event;
}

/* The index of the block at an address, or its insertion point. */
static inline size_t builder_find(const struct builder *builder, uint64_t address)
{
    size_t at = 0;

    while (at < builder->block_count && builder->block[at].address < address)
        at++;
    return at;
}

static inline void builder_alloc(struct builder *builder, uint64_t address, uint64_t bytes,
                                 uint32_t stack)
{
    const size_t at = builder_find(builder, address);

    builder_event(builder, RECORDING_ALLOC, address, bytes)->stack = stack;
    memmove(&builder->block[at + 1], &builder->block[at],
            (builder->block_count++ - at) * sizeof(builder->block[0]));
    builder->block[at] = (struct builder_block){address, (bytes + 511) / 512 * 512, stack, false};
}

static inline void builder_request_free(struct builder *builder, uint64_t address)
{
    struct builder_block *block = &builder->block[builder_find(builder, address)];

    builder_event(builder, RECORDING_FREE_REQUESTED, address, block->bytes);
    block->is_pending = true;
}

static inline void builder_complete_free(struct builder *builder, uint64_t address)
{
    const size_t at = builder_find(builder, address);

    builder_event(builder, RECORDING_FREE_COMPLETED, address, builder->block[at].bytes);
    memmove(&builder->block[at], &builder->block[at + 1],
            (--builder->block_count - at) * sizeof(builder->block[0]));
}

static inline void builder_free(struct builder *builder, uint64_t address)
{
    builder_request_free(builder, address);
    builder_complete_free(builder, address);
}

static inline void builder_sort_ranges(struct builder *builder)
{
    struct builder_range *range = builder->range;
    size_t count = 0;

    for (size_t i = 1; i < builder->range_count; i++)
        for (size_t at = i; at > 0 && range[at].start < range[at - 1].start; at--) {
            const struct builder_range swapped = range[at];

            range[at] = range[at - 1];
            range[at - 1] = swapped;
        }
    for (size_t i = 0; i < builder->range_count; i++) {
        if (range[i].start == range[i].end)
            continue;
        if (count > 0 && range[i].is_expandable && range[count - 1].is_expandable &&
            range[count - 1].end == range[i].start)
            range[count - 1].end = range[i].end;
        else
            range[count++] = range[i];
    }
    builder->range_count = count;
}

/* Map memory of an expandable segment, or allocate a classic segment. */
static inline void builder_map(struct builder *builder, uint64_t address, uint64_t bytes,
                               bool is_expandable)
{
    (void)builder_event(builder, is_expandable ? RECORDING_SEGMENT_MAP : RECORDING_SEGMENT_ALLOC,
                        address, bytes);
    builder->range[builder->range_count++] =
        (struct builder_range){address, address + bytes, is_expandable};
    builder_sort_ranges(builder);
}

/* Unmap a part of one expandable range, or free a whole classic segment. */
static inline void builder_unmap(struct builder *builder, uint64_t address, uint64_t bytes)
{
    for (size_t i = 0; i < builder->range_count; i++) {
        struct builder_range *range = &builder->range[i];

        if (address < range->start || address >= range->end)
            continue;
        (void)builder_event(builder,
                            range->is_expandable ? RECORDING_SEGMENT_UNMAP : RECORDING_SEGMENT_FREE,
                            address, bytes);
        builder->range[builder->range_count++] =
            (struct builder_range){address + bytes, range->end, range->is_expandable};
        range->end = address;
        break;
    }
    builder_sort_ranges(builder);
}

/* Add a block to the current segment; block: NULL for a cached block. */
static inline void builder_add_block(struct builder *builder, uint64_t address, uint64_t end,
                                     const struct builder_block *block)
{
    if (address == end)
        return;
    builder->blocks[builder->recording.block_count++] = (struct recording_block){
        .address = address,
        .bytes = end - address,
        .requested = end - address,
        .stack = block ? block->stack : 0,
        .state = !block              ? RECORDING_INACTIVE
                 : block->is_pending ? RECORDING_PENDING
                                     : RECORDING_ALLOCATED,
    };
}

/* Write the segments of the current state. */
static inline void builder_end(struct builder *builder)
{
    builder->recording.block_count = builder->device.segment_count = 0;
    for (size_t i = 0, at = 0; i < builder->range_count; i++) {
        const struct builder_range *range = &builder->range[i];
        const size_t first = builder->recording.block_count;
        uint64_t address = range->start;

        for (; at < builder->block_count && builder->block[at].address < range->end; at++) {
            const struct builder_block *block = &builder->block[at];

            builder_add_block(builder, address, block->address, NULL);
            address = block->address + block->bytes;
            builder_add_block(builder, block->address, address, block);
        }
        builder_add_block(builder, address, range->end, NULL);
        builder->segments[builder->device.segment_count++] = (struct recording_segment){
            .address = range->start,
            .bytes = range->end - range->start,
            .is_expandable = range->is_expandable,
            .first = (uint32_t)first,
            .count = (uint32_t)(builder->recording.block_count - first),
        };
    }
}

#endif
