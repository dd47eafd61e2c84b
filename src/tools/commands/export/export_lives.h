/* SPDX-License-Identifier: MIT */
/*
 * The lifetimes of blocks as slices of a trace: the blocks with the largest product of size and lifetime, and the number
 * of the omitted blocks.
 *
 * The slices of a track must be nested or disjoint, which lifetimes are not.  Therefore slices are distributed among
 * several tracks with one name, which Perfetto draws as one: a slice is written to a track without an open slice.
 *
 * Locking: none; lives belong to one thread.
 */
#ifndef TOOLS_EXPORT_LIVES_H
#define TOOLS_EXPORT_LIVES_H

#include "src/tools/commands/export/perfetto.h"
#include "src/tools/containers/containers.h"

struct export_life {
    uint64_t address, bytes, stream;
    uint64_t began_us, ended_us;
    uint64_t freed_us;   /* free requested; equal to ended_us if no stream had to complete */
    uint32_t site, pool; /* pool: of the recording */
    bool is_freed;       /* false: allocated at the end of the recording, which is then ended_us */
};

struct export_lives {
    struct export_life *lives; /* [count] */
    size_t count, max;
    struct heap smallest; /* indices of lives, by bytes times lifetime */
    size_t omitted;
};

/* Returns false on host allocation failure; then `lives` requires no export_lives_fini(). */
bool export_lives_init(struct export_lives *lives, size_t max);
void export_lives_fini(struct export_lives *lives);

/* Add a life, which can replace another one.  Returns false on host allocation failure.  Cost: O(log max). */
bool export_lives_add(struct export_lives *lives, const struct export_life *life);

/* Sort the lives by their begin. */
void export_lives_sort(struct export_lives *lives);

/*
 * Write the slices of sorted lives.
 *
 * @param begin  writes the begin of a slice on a track
 * @param track  the description of the tracks
 * @return false on host allocation failure
 */
bool export_lives_write(
    const struct export_lives *lives, struct perfetto *trace, const struct perfetto_track *track,
    bool (*begin)(void *context, const struct export_life *life, uint64_t track), void *context);

#endif
