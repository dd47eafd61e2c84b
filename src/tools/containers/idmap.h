/* SPDX-License-Identifier: MIT */
/*
 * A table from 64-bit names to small records: the IDs of blocks, streams and pools in a trace.
 *
 * Names are only ever added.  Open addressing over a power of two, at most half full.
 *
 * Locking: none; a table belongs to one thread.
 */
#ifndef TOOLS_IDMAP_H
#define TOOLS_IDMAP_H

#include <stddef.h>
#include <stdint.h>

struct idmap_entry {
    uint64_t name;
    uint32_t number; /* the owner's */
    uint32_t line;   /* the owner's, at least 1; 0 is an empty place */
};

struct idmap {
    struct idmap_entry *entries;
    size_t capacity; /* 0 or a power of two */
    size_t count;
};

/* The entry of a name, or NULL.  Good until the next idmap_add(). */
struct idmap_entry *idmap_find(const struct idmap *map, uint64_t name);

/* Add a name that is not there yet.  Returns NULL without host memory; then nothing has changed. */
struct idmap_entry *idmap_add(struct idmap *map, uint64_t name, uint32_t number, uint32_t line);

void idmap_fini(struct idmap *map);

#endif
