/* SPDX-License-Identifier: MIT */
/*
 * A timestamped value: a number of bytes that is queried rarely, with the time of the query, so
 * that a reader can report its age.
 *
 * Locking: none.  Any thread sets and reads the value.  A reader may combine the bytes of one query
 * with the time of another.
 */
#ifndef XSEG_CORE_TIMESTAMPED_H
#define XSEG_CORE_TIMESTAMPED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct xseg_timestamped {
    atomic_uint_fast64_t bytes;
    atomic_uint_fast64_t recorded; /* nanoseconds of the allocator's clock, plus 1; 0: never */
};

static inline void xseg_timestamped_set(struct xseg_timestamped *timestamped, uint64_t now,
                                        uint64_t bytes)
{
    atomic_store_explicit(&timestamped->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&timestamped->recorded, now + 1, memory_order_release);
}

/* Read the value and its age in nanoseconds.  Returns false if there is none. */
static inline bool xseg_timestamped_read(const struct xseg_timestamped *timestamped, uint64_t now,
                                         uint64_t *bytes, uint64_t *age)
{
    const uint64_t recorded = atomic_load_explicit(&timestamped->recorded, memory_order_acquire);

    if (recorded == 0)
        return false;
    *bytes = atomic_load_explicit(&timestamped->bytes, memory_order_relaxed);
    /* The clocks of the writer and the reader may have different resolutions. */
    *age = now > recorded - 1 ? now - (recorded - 1) : 0;
    return true;
}

#endif
