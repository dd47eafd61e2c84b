/* SPDX-License-Identifier: MIT */
/*
 * A hash table of records by key, for one thread; handle_table.h has the one that is read without a lock.
 *
 * A record begins with its key, a uint64_t that is not 0.  The rest of a new record is zeros.  No record is taken out,
 * and records move when another one is added.
 *
 * Linear probing, at most half full.
 *
 * Locking: the owner's.
 */
#ifndef XSEG_BASE_TABLE_H
#define XSEG_BASE_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct xseg_table {
    unsigned char *records; /* [capacity]; NULL before the first */
    size_t record_bytes;
    size_t capacity; /* a power of two, or 0 */
    size_t used;
};

/* record_bytes: a multiple of 8 */
void xseg_table_init(struct xseg_table *table, size_t record_bytes);
void xseg_table_fini(struct xseg_table *table);

/* The record of a key; NULL if there is none. */
void *xseg_table_find(const struct xseg_table *table, uint64_t key);

/* The record of a key, which is added if it is new; NULL without host memory. */
void *xseg_table_get(struct xseg_table *table, uint64_t key);

/* The record behind another one, in no order; of NULL the first.  NULL: that was the last. */
void *xseg_table_next(const struct xseg_table *table, const void *record);

#endif
