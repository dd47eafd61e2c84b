/* SPDX-License-Identifier: MIT */
/*
 * An event: one thing that happened to a block or a segment.
 *
 * A ring (ring.h) keeps an event as eight words, 64 bytes, which a reader may copy while a writer overwrites them.  The
 * word of a block's request, `user`, is none of these: rings and readers keep it beside them where it is asked for.
 */
#ifndef XSEG_CORE_HISTORY_EVENT_H
#define XSEG_CORE_HISTORY_EVENT_H

#include <stdatomic.h>
#include <stdint.h>

#include "src/base/check.h"
#include "xseg/history.h"

#define XSEG_HISTORY_EVENT_WORDS 8u

/* Sizes and addresses of blocks are multiples of 2^9 bytes, so a size below 2^49 takes 40 bits. */
#define XSEG_HISTORY_BYTES_SHIFT 9u

#define XSEG_HISTORY_SIZE_MASK (((uint64_t)1 << 40) - 1)

/* Flags of an event. */
#define XSEG_HISTORY_FALLBACK \
    1u /* the block is of the default pool, and lies in the named pool's memory */
#define XSEG_HISTORY_HAS_USER 2u /* the ring has the event's `user`, beside the event */
#define XSEG_HISTORY_EVICTED  4u /* the block's memory is away: its pool is paused */
/* From this bit on the device's number, which a reader adds: rings of several devices are merged. */
#define XSEG_HISTORY_DEVICE_SHIFT 8u

struct xseg_history_event {
    uint64_t time;                    /* of history.h: in ticks of its clock */
    uint64_t base;                    /* 0: the event is about no memory */
    uint64_t requested;               /* as the user asked for it; of a segment: its bytes */
    uint64_t stream;                  /* handle */
    __extension__ uint64_t size : 40; /* of the block, in 512 bytes */
    __extension__ uint64_t action : 8;
    __extension__ uint64_t flags : 16;
    uint32_t order;  /* number drawn under the device memory lock, see history.h; 0: none */
    uint32_t pool;   /* number of the pool; 0: the default pool */
    uint32_t stack;  /* in the depot of stacks; 0: none was taken */
    uint32_t frames; /* as the user's hook numbered its own frames; 0: none */
    uint32_t label;  /* of the thread, see labels.h; 0: none */
    uint32_t thread; /* the kernel's number of the thread */
};

_Static_assert(sizeof(struct xseg_history_event) == 8 * XSEG_HISTORY_EVENT_WORDS,
               "a copy of an event takes as much as the event in its ring");

/* Write an event as words. */
static inline void xseg_history_event_write(const struct xseg_history_event *event,
                                            atomic_uint_fast64_t *words)
{
    const uint64_t kind = (uint64_t)event->flags << 48 | (uint64_t)event->action << 40;

    XSEG_ASSERT(event->size <= XSEG_HISTORY_SIZE_MASK);
    atomic_store_explicit(&words[0], event->time, memory_order_relaxed);
    atomic_store_explicit(&words[1], event->base, memory_order_relaxed);
    atomic_store_explicit(&words[2], event->requested, memory_order_relaxed);
    atomic_store_explicit(&words[3], event->stream, memory_order_relaxed);
    atomic_store_explicit(&words[4], event->size | kind, memory_order_relaxed);
    atomic_store_explicit(&words[5], event->order | (uint64_t)event->pool << 32,
                          memory_order_relaxed);
    atomic_store_explicit(&words[6], event->stack | (uint64_t)event->frames << 32,
                          memory_order_relaxed);
    atomic_store_explicit(&words[7], event->label | (uint64_t)event->thread << 32,
                          memory_order_relaxed);
}

/* The event that a copy of its words says. */
static inline struct xseg_history_event
xseg_history_event_read(const uint64_t words[XSEG_HISTORY_EVENT_WORDS])
{
    return (struct xseg_history_event){
        .time = words[0],
        .base = words[1],
        .requested = words[2],
        .stream = words[3],
        .size = words[4] & XSEG_HISTORY_SIZE_MASK,
        .action = (uint8_t)(words[4] >> 40),
        .flags = (uint16_t)(words[4] >> 48),
        .order = (uint32_t)words[5],
        .pool = (uint32_t)(words[5] >> 32),
        .stack = (uint32_t)words[6],
        .frames = (uint32_t)(words[6] >> 32),
        .label = (uint32_t)words[7],
        .thread = (uint32_t)(words[7] >> 32),
    };
}

static inline uint64_t xseg_history_event_bytes(const struct xseg_history_event *event)
{
    return event->size << XSEG_HISTORY_BYTES_SHIFT;
}

static inline uint64_t xseg_history_event_size(uint64_t bytes)
{
    XSEG_ASSERT(bytes % (1u << XSEG_HISTORY_BYTES_SHIFT) == 0 && bytes < (uint64_t)1 << 49);
    return bytes >> XSEG_HISTORY_BYTES_SHIFT;
}

#endif
