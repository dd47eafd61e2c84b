/* SPDX-License-Identifier: MIT */
/*
 * The lives of blocks as slices of a trace: those that held most bytes for longest, and of the others their number.
 *
 * Slices of one track lie within each other or apart, and lives do neither.  So they are put on several tracks of one
 * name, which Perfetto draws as one: a life goes to the first that is free.
 *
 * Locking: none; lives belong to one thread.
 */
#ifndef TOOLS_EXPORT_LIVES_H
#define TOOLS_EXPORT_LIVES_H

#include "src/tools/commands/export/perfetto.h"
#include "src/tools/containers/containers.h"

struct export_life {
    uint64_t address, bytes, stream;
    uint64_t began_us, freed_us,
        ended_us;        /* freed: by its user.  Equal to the end if no stream was waited for */
    uint32_t site, pool; /* pool: of the recording */
    bool is_over; /* otherwise it was there when the recording ended, which is its end then */
};

struct export_lives {
    struct export_life *lives; /* [count] */
    size_t count, most;
    struct heap least; /* numbers of lives, by bytes x time */
    size_t left_out;
};

/* Returns: false without host memory; there is nothing to end then. */
bool export_lives_init(struct export_lives *lives, size_t most);
void export_lives_fini(struct export_lives *lives);

/* Add a life; another one may be left out for it.  Returns: false without host memory.  Cost: O(log most). */
bool export_lives_add(struct export_lives *lives, const struct export_life *life);

/* Put lives in the order in which they begin. */
void export_lives_sort(struct export_lives *lives);

/*
 * Write the slices; the lives must be in order.
 *
 * begin:  writes the begin of a slice on a track
 * track:  the first track; others are described when they are needed, as it is
 *
 * Returns: false without host memory
 */
bool export_lives_write(
    const struct export_lives *lives, struct perfetto *trace, const struct perfetto_track *track,
    bool (*begin)(void *context, const struct export_life *life, uint64_t track), void *context);

#endif
