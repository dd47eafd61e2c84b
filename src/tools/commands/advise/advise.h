/* SPDX-License-Identifier: MIT */
/*
 * Advice: the best configuration for a program, or for several ranks of a job, found by replays.
 *
 * Two hill climbs, one with expandable segments and one without, start at the current configuration.  A step tries all values
 * of all keys (tuning.h) and keeps the best.  When no value is better, closer values are tried, and then keys that are not
 * needed are removed.  A candidate is better if, in this order, more of the program completes, the driver takes at most a
 * little more time than with the current string, and the peak on a large device is lower.
 *
 * The advised string is the one with the fewest changes among those whose peak is within 1 % of the lowest.  If that is the
 * current string, no configuration helps.
 *
 * Of several programs, the peak is the maximum of their peaks.  No program may take much more driver time, or get less far,
 * than with the current string.
 *
 * Terms:
 *   current  the configuration that is recorded in the file
 *   target   the device on which the program must complete: of --device-memory; or, of a snapshot with an out-of-memory error,
 *            the memory that could be reserved then; or of the file
 *   certain  the replay with the current string ends with the reserved bytes of the file (trace_notes.h); otherwise the file
 *            does not show which memory another configuration saves
 *   short    memory ran out: requests failed in the file, or a replay with the current string does not complete
 *
 * Locking: as for trials.h.
 */
#ifndef TOOLS_ADVISE_H
#define TOOLS_ADVISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/commands/advise/trials.h"
#include "src/tools/commands/advise/tuning.h"
#include "src/tools/trace/trace_notes.h"

/* A configuration with its results. */
struct advise_string {
    char *config;
    unsigned changes;             /* keys that differ from the current string */
    struct trial_results results; /* of all programs, as in struct trial */
    struct trial_results programs[TRIALS_PROGRAMS];
};

struct advice {
    const struct trials *trials;
    size_t replayed;    /* configurations */
    uint64_t driver_ns; /* accepted additional driver time */
    bool is_short;
    const char *omitted;                       /* as in struct tuning_base */
    struct trace_notes notes[TRIALS_PROGRAMS]; /* of the file of each program */
    bool is_certain;                           /* the files have no gap that affects the advice */
    /* A string with a lower peak was rejected, because it needs a larger device. */
    bool needs_larger;
    struct advise_string current;
    struct advise_string advised; /* config is NULL: no configuration helps */
    /* The best string without one of the keys of the advised one; config is NULL: none helps. */
    struct advise_string runner_up;
    /* If memory is short: the fewest changes with which the program completes on the target; NULL: none. */
    struct advise_string least_change;
    const char *key;   /* with the largest effect in the advised string */
    const char *cause; /* completes "since ..." */
};

/* Whether the advice is for ranks of a job. */
static inline bool advice_is_of_ranks(const struct advice *advice)
{
    return advice->trials->count > 1;
}

/* The target of a single program. */
static inline uint64_t advice_target(const struct advice *advice)
{
    return advice->trials->programs[0].target_bytes;
}

/*
 * Find the advice.
 *
 * @param trials  the programs; must outlive the advice
 * @param base    the current configuration of all programs
 * @param out     filled in on success; the caller calls advice_fini()
 *
 * @return false on failure; an error message is on standard error
 *
 * Cost: 50 to 150 replays of each program, and a dozen for each string of the advice
 */
bool advise(struct trials *trials, const struct tuning_base *base, struct advice *out);

void advice_fini(struct advice *advice);

#endif
