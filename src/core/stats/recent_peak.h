/* SPDX-License-Identifier: MIT */
/*
 * The highest value of the last minute, which any number of readers may ask for without changing it.
 *
 * Time is cut into *slots* of five seconds, and the highest value of each of the last thirteen is kept: the slot that
 * the clock is in, and twelve whole ones.  Every change of the value is noted, so the peak is exact; what is rough is
 * where its time begins, 60 to 65 seconds ago.
 *
 * A slot's peak begins with the value before its first change.  So slots without a change need nothing: their value
 * is the one with which the next change begins, or the current one.
 *
 * Locking: one thread notes at a time; any thread reads meanwhile, without a lock.
 */
#ifndef XSEG_CORE_RECENT_PEAK_H
#define XSEG_CORE_RECENT_PEAK_H

#include <stdatomic.h>
#include <stdint.h>

#define XSEG_RECENT_PEAK_SLOT  (5 * UINT64_C(1000000000)) /* nanoseconds */
#define XSEG_RECENT_PEAK_SLOTS 13u

struct xseg_recent_peak_slot {
    atomic_uint_fast64_t
        number; /* of the slot since the clock's start, plus 1; 0: nothing was noted */
    atomic_uint_fast64_t peak;
};

struct xseg_recent_peak {
    struct xseg_recent_peak_slot slot[XSEG_RECENT_PEAK_SLOTS];
};

/* Forget everything. */
void xseg_recent_peak_init(struct xseg_recent_peak *recent);

/* Note a change of the value.  now: nanoseconds; it does not go back */
void xseg_recent_peak_note(struct xseg_recent_peak *recent, uint64_t now, uint64_t before,
                           uint64_t after);

/* The highest value of the last 60 to 65 seconds. */
uint64_t xseg_recent_peak_read(const struct xseg_recent_peak *recent, uint64_t now,
                               uint64_t current);

#endif
