/* SPDX-License-Identifier: MIT */
/*
 * A figure that is learned now and then, with the time when it was: how old it is belongs to what it says.
 *
 * Locking: none; any thread notes and reads.  Meanwhile a reader may see the figure of one time with the time of another.
 */
#ifndef XSEG_CORE_DATED_H
#define XSEG_CORE_DATED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct xseg_dated {
    atomic_uint_fast64_t bytes;
    atomic_uint_fast64_t noted; /* nanoseconds of the allocator's clock, plus 1; 0: never */
};

static inline void xseg_dated_note(struct xseg_dated *dated, uint64_t now, uint64_t bytes)
{
    atomic_store_explicit(&dated->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&dated->noted, now + 1, memory_order_release);
}

/* Read the figure and its age in nanoseconds.  Returns false if it is not known. */
static inline bool xseg_dated_read(const struct xseg_dated *dated, uint64_t now, uint64_t *bytes,
                                   uint64_t *age)
{
    const uint64_t noted = atomic_load_explicit(&dated->noted, memory_order_acquire);

    if (noted == 0)
        return false;
    *bytes = atomic_load_explicit(&dated->bytes, memory_order_relaxed);
    /* The clocks that are read differ in how fine they are. */
    *age = now > noted - 1 ? now - (noted - 1) : 0;
    return true;
}

#endif
