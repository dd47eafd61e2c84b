/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/advise/advise.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/containers.h"
#include "src/tools/output/message.h"

#define MIB            ((uint64_t)1 << 20)
#define CLIMBS         2
#define STEPS          5         /* of a climb */
#define CLOSE_ROUNDS   3         /* each half as far away */
#define DRIVER_NS      100000000 /* more time in the driver than in force that nobody notices */
#define DRIVER_PART    100       /* or this part of the recorded time */
#define RUNNERS_UP     4         /* that are tried until one does not need a larger device */
#define NONE           SIZE_MAX
#define COMPLETION_MAX (3 * TRIALS_PROGRAMMES + 1)

struct candidate {
    struct tuning tuning;
    char *config;
    struct trial trial;
    unsigned changes;
    bool has_run, is_rejected;
};

struct search {
    struct trials *trials;
    const struct tuning_base *base;
    struct candidate **list; /* the first is the string in force */
    size_t count;
    uint64_t more_driver_ns; /* that the driver may take, beside what it takes in force */
    bool failed;             /* said on standard error */
};

/* --- Candidates. --- */

static void out_of_memory(struct search *search)
{
    if (!search->failed)
        message_print("%s: no host memory is left", search->trials->name);
    search->failed = true;
}

/* The candidate of a tuning, new or not; NONE: its string has an error, or host memory ran out. */
static size_t add(struct search *search, const struct tuning *tuning)
{
    char *config = tuning_string(search->base, tuning);
    struct candidate *candidate;

    for (size_t i = 0; config && i < search->count; i++)
        if (strcmp(search->list[i]->config, config) == 0) {
            free(config);
            return i;
        }
    if (config && !tuning_is_valid(config)) {
        free(config);
        return NONE;
    }
    candidate =
        config && array_reserve((void **)&search->list, search->count, sizeof(search->list[0]))
            ? calloc(1, sizeof(*candidate))
            : NULL;
    if (!candidate) {
        free(config);
        out_of_memory(search);
        return NONE;
    }
    candidate->tuning = *tuning;
    candidate->config = config;
    candidate->trial.config = config;
    candidate->changes = tuning_changes(tuning);
    search->list[search->count] = candidate;
    return search->count++;
}

/* Replay what has not been replayed yet. */
static void run_new(struct search *search)
{
    struct trial **trials = calloc(search->count + 1, sizeof(struct trial *));
    size_t count = 0;

    if (!trials) {
        out_of_memory(search);
        return;
    }
    for (size_t i = 0; i < search->count; i++)
        if (!search->list[i]->has_run) {
            search->list[i]->has_run = true;
            trials[count++] = &search->list[i]->trial;
        }
    search->failed = search->failed || !trials_run(search->trials, trials, count, false);
    free(trials);
}

static void free_candidates(struct search *search)
{
    for (size_t i = 0; i < search->count; i++) {
        free(search->list[i]->config);
        free(search->list[i]);
    }
    free(search->list);
}

/* --- Which is better. --- */

static const struct trial_room *room_of(const struct search *search, size_t number)
{
    return &search->list[number]->trial.whole.room;
}

static unsigned completion_in(const struct trial_figures *figures)
{
    return figures->room.completes + 2u * figures->serves;
}

/*
 * How far it gets, as one number: more is better.  A string with which a programme gets less far than with the one in
 * force has a number below those of all others.
 */
static unsigned completion_of(const struct search *search, size_t number)
{
    const struct trial *trial = &search->list[number]->trial, *in_force = &search->list[0]->trial;
    unsigned sum = 1;
    bool keeps = true;

    if (trial->whole.is_broken)
        return 0;
    for (size_t i = 0; i < search->trials->count; i++) {
        keeps = keeps && trial->figures[i].completes >= in_force->figures[i].completes &&
                completion_in(&trial->figures[i]) >= completion_in(&in_force->figures[i]);
        sum += completion_in(&trial->figures[i]);
    }
    return keeps ? sum + COMPLETION_MAX : sum;
}

static bool is_cheap(const struct search *search, size_t number)
{
    const struct trial *trial = &search->list[number]->trial, *in_force = &search->list[0]->trial;

    for (size_t i = 0; i < search->trials->count; i++)
        if (trial->figures[i].room.driver_ns >
            in_force->figures[i].room.driver_ns + search->more_driver_ns)
            return false;
    return true;
}

static bool is_of_one_class(const struct search *search, size_t a, size_t b)
{
    return completion_of(search, a) == completion_of(search, b) &&
           is_cheap(search, a) == is_cheap(search, b) &&
           room_of(search, a)->reach == room_of(search, b)->reach;
}

static bool is_better(const struct search *search, size_t a, size_t b)
{
    const struct trial_room *left = room_of(search, a), *right = room_of(search, b);

    if (completion_of(search, a) != completion_of(search, b))
        return completion_of(search, a) > completion_of(search, b);
    if (is_cheap(search, a) != is_cheap(search, b))
        return is_cheap(search, a);
    /* A peak is one only where all was played. */
    if (left->reach != right->reach)
        return left->reach > right->reach;
    return left->peak_reserved < right->peak_reserved;
}

/* What is no more than this apart is not worth another key. */
static uint64_t tolerance(uint64_t bytes)
{
    return bytes / 100 > 2 * MIB ? bytes / 100 : 2 * MIB;
}

static bool is_as_good(const struct search *search, size_t a, size_t best)
{
    const uint64_t lowest = room_of(search, best)->peak_reserved;

    return is_of_one_class(search, a, best) &&
           room_of(search, a)->peak_reserved <= lowest + tolerance(lowest);
}

/* Of two that are as good: fewer keys, a lower peak, less time in the driver. */
static bool is_simpler(const struct search *search, size_t a, size_t b)
{
    const struct trial_room *left = room_of(search, a), *right = room_of(search, b);

    if (search->list[a]->changes != search->list[b]->changes)
        return search->list[a]->changes < search->list[b]->changes;
    if (left->peak_reserved != right->peak_reserved)
        return left->peak_reserved < right->peak_reserved;
    return left->driver_ns < right->driver_ns;
}

/* Whether a string has all keys that another one changes. */
static bool has_keys_of(const struct search *search, size_t a, size_t other)
{
    for (unsigned i = 0; i < TUNING_KEYS; i++)
        if (search->list[other]->tuning.value[i] != TUNING_KEPT &&
            search->list[a]->tuning.value[i] == TUNING_KEPT)
            return false;
    return true;
}

/* The simplest among the best; of those only that lack a key of `other`, unless that is NONE. */
static size_t choose(const struct search *search, size_t other)
{
    size_t best = NONE, chosen = NONE;

    for (size_t i = 0; i < search->count; i++)
        if (!search->list[i]->is_rejected && (other == NONE || !has_keys_of(search, i, other)) &&
            (best == NONE || is_better(search, i, best)))
            best = i;
    for (size_t i = 0; best != NONE && i < search->count; i++)
        if (!search->list[i]->is_rejected && (other == NONE || !has_keys_of(search, i, other)) &&
            is_as_good(search, i, best) && (chosen == NONE || is_simpler(search, i, chosen)))
            chosen = i;
    return chosen;
}

/* --- The climbs. --- */

/* A step: every far value of every key. */
static void add_far(struct search *search, size_t from)
{
    const struct tuning at = search->list[from]->tuning;

    for (unsigned key = TUNING_EXPANDABLE + 1; key < TUNING_KEYS; key++) {
        uint64_t values[TUNING_VALUES];
        const size_t count = tuning_far(search->base, &at, (enum tuning_key)key, values);

        for (size_t i = 0; i < count && !search->failed; i++) {
            struct tuning next = at;

            next.value[key] = values[i];
            (void)add(search, &next);
        }
    }
}

static void add_close(struct search *search, size_t from, unsigned round)
{
    const struct tuning at = search->list[from]->tuning;

    for (unsigned key = 0; key < TUNING_KEYS; key++) {
        uint64_t values[TUNING_VALUES];
        const size_t count = tuning_close(&at, (enum tuning_key)key, round, values);

        for (size_t i = 0; i < count && !search->failed; i++) {
            struct tuning next = at;

            next.value[key] = values[i];
            (void)add(search, &next);
        }
    }
}

/* Without each of its keys. */
static void add_simpler(struct search *search, size_t from)
{
    const struct tuning at = search->list[from]->tuning;

    for (unsigned key = 0; key < TUNING_KEYS && !search->failed; key++) {
        struct tuning next = at;

        next.value[key] = TUNING_KEPT;
        (void)add(search, &next);
    }
}

/* The best string that has, or has not, expandable segments. */
static size_t best_of(const struct search *search, bool expandable, size_t best)
{
    for (size_t i = 0; i < search->count; i++)
        if (tuning_is_expandable(search->base, &search->list[i]->tuning) == expandable &&
            is_better(search, i, best))
            best = i;
    return best;
}

static void climb(struct search *search)
{
    const struct tuning base = tuning_of_base(), turned = tuning_turned(search->base, &base);
    const bool expandable = tuning_is_expandable(search->base, &base);
    size_t at[CLIMBS] = {0, add(search, &turned)};

    for (unsigned step = 0; step < STEPS && !search->failed; step++) {
        const size_t before = search->count;

        for (unsigned i = 0; i < CLIMBS; i++)
            if (at[i] != NONE)
                add_far(search, at[i]);
        if (step > 0 && search->count == before)
            break;
        if (step == 0)
            search->trials->expected = 2 * search->count;
        run_new(search);
        for (unsigned i = 0; i < CLIMBS; i++)
            if (at[i] != NONE)
                at[i] = best_of(search, expandable == (i == 0), at[i]);
    }
    for (unsigned round = 1; round <= CLOSE_ROUNDS && !search->failed; round++) {
        for (unsigned i = 0; i < CLIMBS; i++)
            if (at[i] != NONE)
                add_close(search, at[i], round);
        run_new(search);
        for (unsigned i = 0; i < CLIMBS; i++)
            if (at[i] != NONE)
                at[i] = best_of(search, expandable == (i == 0), at[i]);
    }
}

/* Leave out what is not needed, until nothing can be. */
static size_t simplify(struct search *search)
{
    size_t chosen = choose(search, NONE), before = 0;

    while (!search->failed && before != search->count) {
        before = search->count;
        add_simpler(search, chosen);
        run_new(search);
        chosen = choose(search, NONE);
    }
    return chosen;
}

/* --- What is told. --- */

static uint64_t recorded_ns(const struct xtrace *trace)
{
    uint64_t first = 0, last = 0;
    bool has_first = false;

    for (size_t i = 0; i < trace->op_count; i++)
        if (trace->ops[i].kind == XTRACE_CLOCK) {
            first = has_first ? first : trace->ops[i].value;
            last = trace->ops[i].value;
            has_first = true;
        }
    return last - first < UINT64_MAX / 1000 ? (last - first) * 1000 : UINT64_MAX;
}

/* What the driver may take in each programme, beside what it takes in force. */
static uint64_t more_driver_ns(const struct trials *trials)
{
    uint64_t least = UINT64_MAX;

    for (size_t i = 0; i < trials->count; i++) {
        const uint64_t part = recorded_ns(trials->programmes[i].trace) / DRIVER_PART;

        least = part < least ? part : least;
    }
    return least > DRIVER_NS ? least : DRIVER_NS;
}

/* Find the smallest devices, too. */
static void run_in_full(struct search *search, const size_t *numbers, size_t count)
{
    struct trial *trials[4];
    size_t wanted = 0;

    for (size_t i = 0; i < count; i++)
        if (numbers[i] != NONE && !search->list[numbers[i]]->trial.whole.has_min_device)
            trials[wanted++] = &search->list[numbers[i]]->trial;
    search->failed = search->failed || !trials_run(search->trials, trials, wanted, true);
}

/* Whether programmes that complete on some device with the string in force take a larger one. */
static bool needs_more(const struct search *search, size_t number)
{
    const struct trial_figures *figures = search->list[number]->trial.figures;
    const struct trial_figures *in_force = search->list[0]->trial.figures;
    uint64_t most = 0, most_in_force = 0;

    for (size_t i = 0; i < search->trials->count; i++) {
        if (!in_force[i].has_min_device)
            continue;
        if (!figures[i].has_min_device)
            return true;
        most = figures[i].min_device > most ? figures[i].min_device : most;
        most_in_force =
            in_force[i].min_device > most_in_force ? in_force[i].min_device : most_in_force;
    }
    return most > most_in_force + tolerance(most_in_force);
}

/* What completes where the string in force does not is better, however it does so. */
static bool is_worth_it(const struct search *search, size_t number)
{
    return number != NONE && number != 0 &&
           (completion_of(search, number) > completion_of(search, 0) ||
            !needs_more(search, number));
}

static size_t runner_up_of(const struct search *search, size_t advised)
{
    const size_t second = advised == 0 ? NONE : choose(search, advised);

    return second == NONE || second == 0 || is_as_good(search, 0, second) ||
                   is_better(search, 0, second)
               ? NONE
               : second;
}

static bool reject(struct search *search, size_t number)
{
    search->list[number]->is_rejected = true;
    return true;
}

/* A lower peak that needs a larger device is none: then the next is looked at.  Returns whether there was such a string. */
static bool decide(struct search *search, size_t *advised, size_t *runner_up)
{
    bool needs_larger = false;

    for (;;) {
        *advised = simplify(search);
        *runner_up = runner_up_of(search, *advised);
        run_in_full(search, (const size_t[]){0, *advised, *runner_up}, 3);
        if (search->failed || *advised == 0 || *advised == NONE)
            return needs_larger;
        if (is_worth_it(search, *advised))
            break;
        needs_larger = reject(search, *advised);
    }
    for (unsigned i = 1; *runner_up != NONE && !is_worth_it(search, *runner_up); i++) {
        needs_larger = reject(search, *runner_up);
        *runner_up = i < RUNNERS_UP ? runner_up_of(search, *advised) : NONE;
        run_in_full(search, runner_up, 1);
        if (search->failed)
            break;
    }
    return needs_larger;
}

/* The fewest changes with which it completes on the target; those that are advised, unless fewer do. */
static size_t least_of(const struct search *search, size_t advised)
{
    const bool serves = advised != NONE && search->list[advised]->trial.whole.serves;
    size_t least = serves ? advised : NONE;

    for (size_t i = 0; i < search->count; i++) {
        if (!search->list[i]->trial.whole.serves)
            continue;
        if (least == NONE || search->list[i]->changes < search->list[least]->changes ||
            (least != advised && is_simpler(search, i, least)))
            least = i;
    }
    return least;
}

/* Whether a string takes more than another; what the driver takes is no part of it. */
static bool takes_more(const struct search *search, size_t a, size_t b)
{
    const struct trial_room *left = room_of(search, a), *right = room_of(search, b);

    if (completion_of(search, a) != completion_of(search, b))
        return completion_of(search, a) < completion_of(search, b);
    return left->reach != right->reach ? left->reach < right->reach
                                       : left->peak_reserved > right->peak_reserved;
}

/* The key without which the peak would be highest. */
static enum tuning_key main_key(struct search *search, size_t advised)
{
    const struct tuning *tuning = &search->list[advised]->tuning;
    enum tuning_key most = TUNING_KEYS;
    size_t worst = NONE;

    for (unsigned key = 0; key < TUNING_KEYS; key++) {
        struct tuning without = *tuning;
        size_t number;

        if (tuning->value[key] == TUNING_KEPT)
            continue;
        without.value[key] = TUNING_KEPT;
        number = add(search, &without); /* simplify() has replayed it, if it is valid */
        if (most != TUNING_KEYS &&
            (number == NONE || worst == NONE || !takes_more(search, number, worst)))
            continue;
        most = (enum tuning_key)key;
        worst = number;
    }
    return most;
}

static void tell(struct search *search, size_t number, struct advise_string *out)
{
    struct candidate *candidate;

    if (number == NONE || search->failed)
        return;
    candidate = search->list[number];
    out->config = strdup(candidate->config);
    out->changes = candidate->changes;
    out->figures = candidate->trial.whole;
    memcpy(out->of, candidate->trial.figures, sizeof(out->of));
    if (!out->config)
        out_of_memory(search);
}

/* Compare the end of the replay in force with that of the file. */
static void find_gaps(const struct search *search, struct advice *out)
{
    out->is_certain = true;
    for (size_t i = 0; i < search->trials->count; i++) {
        const struct trial_figures *figures = &out->in_force.of[i];

        trace_notes_find(&out->notes[i], search->trials->programmes[i].trace, out->in_force.config,
                         true, figures->completes ? figures->end_reserved : TRACE_NOTES_UNKNOWN);
        out->is_certain = out->is_certain && out->notes[i].is_certain;
    }
}

static void tell_all(struct search *search, struct advice *out)
{
    const struct trial_figures *in_force = &search->list[0]->trial.whole;
    size_t advised, runner_up;

    out->needs_larger = decide(search, &advised, &runner_up);
    if (search->failed)
        return;
    out->is_short = in_force->failed > 0 || !in_force->completes || !in_force->serves;
    tell(search, 0, &out->in_force);
    if (search->failed)
        return;
    find_gaps(search, out);
    if (advised != 0 && advised != NONE) {
        const enum tuning_key key = main_key(search, advised);

        tell(search, advised, &out->advised);
        tell(search, runner_up, &out->runner_up);
        out->key = tuning_name(key);
        out->cause = tuning_cause(search->base, &search->list[advised]->tuning, key);
    }
    if (out->is_short)
        tell(search, least_of(search, advised), &out->least);
    out->replayed = search->trials->done;
}

/* Replay what is in force. */
static bool begin(struct search *search)
{
    const struct tuning in_force = tuning_of_base();

    if (add(search, &in_force) == NONE) {
        out_of_memory(search);
        return false;
    }
    search->trials->expected = 1;
    run_new(search);
    search->failed = search->failed || search->list[0]->trial.whole.is_broken;
    return !search->failed;
}

bool advise(struct trials *trials, const struct tuning_base *base, struct advice *out)
{
    struct search search = {.trials = trials, .base = base};

    *out = (struct advice){.trials = trials, .left_out = base->left_out};
    if (begin(&search)) {
        out->driver_ns = search.more_driver_ns = more_driver_ns(trials);
        climb(&search);
    }
    if (!search.failed)
        tell_all(&search, out);
    free_candidates(&search);
    if (search.failed)
        advice_fini(out);
    return !search.failed;
}

void advice_fini(struct advice *advice)
{
    free(advice->in_force.config);
    free(advice->advised.config);
    free(advice->runner_up.config);
    free(advice->least.config);
}
