/* SPDX-License-Identifier: MIT */
/*
 * Advice: which configuration a programme should have had, or a few ranks of a job in common, by replays under many.
 *
 * Two climbs, one with expandable segments and one without, begin at the configuration in force.  A step looks at every
 * value of every key (tuning.h) and takes the best; when none is better, values close to those taken are tried, and then
 * whether each is needed.  What is better is, in this order: that the programme completes, that the driver takes little
 * more time than in force, and a lower peak on a device that has room.
 *
 * What is advised is the simplest string, in keys that change, among those whose peak is within a hundredth of the lowest.
 * Where that is the string in force, nothing helps.
 *
 * Of several programmes the peak is the largest of theirs, and none may take much more of the driver's time, or get less
 * far, than with the string in force.  Then the more complete the better.
 *
 * Terms:
 *   in force  the configuration that the file was made under
 *   target    the device on which a programme is to complete: what the user says, else the file's; of a snapshot that
 *             has an out of memory, as much as could be reserved then
 *   certain   the replay in force ends with what the file ends with (gaps.h); otherwise the file does not show what another
 *             configuration saves, nor that none does
 *   short     memory ran out: requests failed in the file, or a replay under the configuration in force does not complete
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

/* A configuration, with what came of it. */
struct advise_string {
    char *config;
    unsigned changes;             /* keys that differ from the string in force */
    struct trial_figures figures; /* of all programmes, as a trial has them */
    struct trial_figures of[TRIALS_PROGRAMMES];
};

struct advice {
    const struct trials *trials;
    size_t replayed;    /* configurations */
    uint64_t driver_ns; /* that the driver may take more than in force */
    bool is_short;
    const char *left_out;                        /* of the base, see there */
    struct trace_notes notes[TRIALS_PROGRAMMES]; /* of the file of each program */
    bool is_certain;                             /* the files have no gap that affects the advice */
    bool
        needs_larger; /* a string has a lower peak and is not told, since it needs a larger device */
    struct advise_string in_force;
    struct advise_string advised; /* config is NULL: nothing helps */
    struct advise_string
        runner_up; /* the best that leaves out a key of the advised one; NULL: none helps */
    struct advise_string
        least; /* of a short one: the fewest changes with which it completes on the target; NULL: none */
    const char *key;   /* that the advised string owes most to; NULL: nothing helps */
    const char *cause; /* what follows "since" */
};

/* Whether it is for ranks of a job, and not for one programme. */
static inline bool advice_is_of_ranks(const struct advice *advice)
{
    return advice->trials->count > 1;
}

/* The target of the one programme. */
static inline uint64_t advice_target(const struct advice *advice)
{
    return advice->trials->programmes[0].target_bytes;
}

/*
 * Look for it.
 *
 * @param trials  with the programmes, and whether there is a bar; it must live as long as the advice
 * @param base    the configuration in force, in all programmes
 * @param out     filled in on success; the caller calls advice_fini()
 *
 * Returns: false where it could not be found; standard error has the sentence.
 * Cost:    some 50 to 150 replays, and a dozen for each string that is told, of each programme
 */
bool advise(struct trials *trials, const struct tuning_base *base, struct advice *out);

void advice_fini(struct advice *advice);

#endif
