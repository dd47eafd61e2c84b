/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/advise/advise.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/containers.h"
#include "src/tools/output/message.h"

#define MIB            ((uint64_t)1 << 20)
#define CLIMBS         2
#define STEPS          5         /* of a climb */
#define CLOSE_ROUNDS   3         /* rounds, each with half the distance of the previous one */
#define DRIVER_NS      100000000 /* additional driver time that is accepted */
#define DRIVER_PART    100       /* or this part of the recorded time, if that is more */
#define RUNNERS_UP     4         /* candidates for the runner-up that may need a larger device */
#define NONE           SIZE_MAX
#define COMPLETION_MAX (3 * TRIALS_PROGRAMS + 1)

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
    struct candidate **list; /* the first is the current string */
    size_t count;
    uint64_t extra_driver_ns; /* accepted in addition to the driver time of the current string */
    bool failed;              /* an error message is on standard error */
};

/* --- Candidates. --- */

static void out_of_memory(struct search *search)
{
    if (!search->failed)
        message_print("%s: out of host memory", search->trials->name);
    search->failed = true;
}

/* Find or add the candidate of a tuning.  NONE: its string is invalid, or host memory ran out. */
static size_t add_candidate(struct search *search, const struct tuning *tuning)
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

/* Replay the new candidates. */
static void replay_new(struct search *search)
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

/* --- Comparison of candidates. --- */

static const struct trial_large *large_results(const struct search *search, size_t number)
{
    return &search->list[number]->trial.combined.large;
}

static unsigned program_completion(const struct trial_results *results)
{
    return results->large.completes + 2u * results->completes_on_target;
}

/* Get the completeness of the replays with a candidate; larger is better.  A candidate with which a program replays fewer
 * events than with the current string ranks below all others. */
static unsigned completion_of(const struct search *search, size_t number)
{
    const struct trial *trial = &search->list[number]->trial, *current = &search->list[0]->trial;
    unsigned sum = 1;
    bool is_no_regression = true;

    if (trial->combined.is_broken)
        return 0;
    for (size_t i = 0; i < search->trials->count; i++) {
        is_no_regression =
            is_no_regression && trial->results[i].completes >= current->results[i].completes &&
            program_completion(&trial->results[i]) >= program_completion(&current->results[i]);
        sum += program_completion(&trial->results[i]);
    }
    return is_no_regression ? sum + COMPLETION_MAX : sum;
}

static bool has_acceptable_time(const struct search *search, size_t number)
{
    const struct trial *trial = &search->list[number]->trial, *current = &search->list[0]->trial;

    for (size_t i = 0; i < search->trials->count; i++)
        if (trial->results[i].large.driver_ns >
            current->results[i].large.driver_ns + search->extra_driver_ns)
            return false;
    return true;
}

static bool is_comparable(const struct search *search, size_t a, size_t b)
{
    return completion_of(search, a) == completion_of(search, b) &&
           has_acceptable_time(search, a) == has_acceptable_time(search, b) &&
           large_results(search, a)->reach == large_results(search, b)->reach;
}

static bool is_better(const struct search *search, size_t a, size_t b)
{
    const struct trial_large *a_results = large_results(search, a),
                             *b_results = large_results(search, b);

    if (completion_of(search, a) != completion_of(search, b))
        return completion_of(search, a) > completion_of(search, b);
    if (has_acceptable_time(search, a) != has_acceptable_time(search, b))
        return has_acceptable_time(search, a);
    /* Peaks are comparable only if the same events were replayed. */
    if (a_results->reach != b_results->reach)
        return a_results->reach > b_results->reach;
    return a_results->peak_reserved < b_results->peak_reserved;
}

/* Get the difference that justifies another key. */
static uint64_t tolerance(uint64_t bytes)
{
    return bytes / 100 > 2 * MIB ? bytes / 100 : 2 * MIB;
}

static bool is_as_good(const struct search *search, size_t a, size_t best)
{
    const uint64_t lowest = large_results(search, best)->peak_reserved;

    return is_comparable(search, a, best) &&
           large_results(search, a)->peak_reserved <= lowest + tolerance(lowest);
}

/* Of two equally good candidates: fewer keys, a lower peak, less driver time. */
static bool is_simpler(const struct search *search, size_t a, size_t b)
{
    const struct trial_large *a_results = large_results(search, a),
                             *b_results = large_results(search, b);

    if (search->list[a]->changes != search->list[b]->changes)
        return search->list[a]->changes < search->list[b]->changes;
    if (a_results->peak_reserved != b_results->peak_reserved)
        return a_results->peak_reserved < b_results->peak_reserved;
    return a_results->driver_ns < b_results->driver_ns;
}

/* Get whether a candidate changes all keys that the reference changes. */
static bool has_keys_of(const struct search *search, size_t a, size_t reference)
{
    for (unsigned i = 0; i < TUNING_KEYS; i++)
        if (search->list[reference]->tuning.value[i] != TUNING_UNCHANGED &&
            search->list[a]->tuning.value[i] == TUNING_UNCHANGED)
            return false;
    return true;
}

/* Choose the simplest of the best candidates.  If `excluded` is not NONE, candidates with all its keys are ignored. */
static size_t choose_candidate(const struct search *search, size_t excluded)
{
    size_t best = NONE, chosen = NONE;

    for (size_t i = 0; i < search->count; i++)
        if (!search->list[i]->is_rejected &&
            (excluded == NONE || !has_keys_of(search, i, excluded)) &&
            (best == NONE || is_better(search, i, best)))
            best = i;
    for (size_t i = 0; best != NONE && i < search->count; i++)
        if (!search->list[i]->is_rejected &&
            (excluded == NONE || !has_keys_of(search, i, excluded)) &&
            is_as_good(search, i, best) && (chosen == NONE || is_simpler(search, i, chosen)))
            chosen = i;
    return chosen;
}

/* --- Hill climbing. --- */

/* Add all far values of each key. */
static void add_far(struct search *search, size_t from)
{
    const struct tuning start = search->list[from]->tuning;

    for (unsigned key = TUNING_EXPANDABLE + 1; key < TUNING_KEYS; key++) {
        uint64_t values[TUNING_VALUES];
        const size_t count = tuning_far(search->base, &start, (enum tuning_key)key, values);

        for (size_t i = 0; i < count && !search->failed; i++) {
            struct tuning next = start;

            next.value[key] = values[i];
            (void)add_candidate(search, &next);
        }
    }
}

static void add_close(struct search *search, size_t from, unsigned round)
{
    const struct tuning start = search->list[from]->tuning;

    for (unsigned key = 0; key < TUNING_KEYS; key++) {
        uint64_t values[TUNING_VALUES];
        const size_t count = tuning_close(&start, (enum tuning_key)key, round, values);

        for (size_t i = 0; i < count && !search->failed; i++) {
            struct tuning next = start;

            next.value[key] = values[i];
            (void)add_candidate(search, &next);
        }
    }
}

/* Add a candidate without each of the keys. */
static void add_simpler(struct search *search, size_t from)
{
    const struct tuning start = search->list[from]->tuning;

    for (unsigned key = 0; key < TUNING_KEYS && !search->failed; key++) {
        struct tuning next = start;

        next.value[key] = TUNING_UNCHANGED;
        (void)add_candidate(search, &next);
    }
}

/* Find the best candidate with or without expandable segments, starting with `best`. */
static size_t find_best(const struct search *search, bool expandable, size_t best)
{
    for (size_t i = 0; i < search->count; i++)
        if (tuning_is_expandable(search->base, &search->list[i]->tuning) == expandable &&
            is_better(search, i, best))
            best = i;
    return best;
}

static void hill_climb(struct search *search)
{
    const struct tuning base = tuning_unchanged(),
                        flipped = tuning_flip_expandable(search->base, &base);
    const bool expandable = tuning_is_expandable(search->base, &base);
    size_t positions[CLIMBS] = {0, add_candidate(search, &flipped)};

    for (unsigned step = 0; step < STEPS && !search->failed; step++) {
        const size_t previous_count = search->count;

        for (unsigned i = 0; i < CLIMBS; i++)
            if (positions[i] != NONE)
                add_far(search, positions[i]);
        if (step > 0 && search->count == previous_count)
            break;
        if (step == 0)
            search->trials->expected = 2 * search->count;
        replay_new(search);
        for (unsigned i = 0; i < CLIMBS; i++)
            if (positions[i] != NONE)
                positions[i] = find_best(search, expandable == (i == 0), positions[i]);
    }
    for (unsigned round = 1; round <= CLOSE_ROUNDS && !search->failed; round++) {
        for (unsigned i = 0; i < CLIMBS; i++)
            if (positions[i] != NONE)
                add_close(search, positions[i], round);
        replay_new(search);
        for (unsigned i = 0; i < CLIMBS; i++)
            if (positions[i] != NONE)
                positions[i] = find_best(search, expandable == (i == 0), positions[i]);
    }
}

/* Remove keys that are not needed.  Returns the chosen candidate. */
static size_t simplify(struct search *search)
{
    size_t chosen = choose_candidate(search, NONE), previous_count = 0;

    while (!search->failed && previous_count != search->count) {
        previous_count = search->count;
        add_simpler(search, chosen);
        replay_new(search);
        chosen = choose_candidate(search, NONE);
    }
    return chosen;
}

/* --- The advice. --- */

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

/* Get the additional driver time that is accepted in each program. */
static uint64_t extra_driver_ns(const struct trials *trials)
{
    uint64_t min = UINT64_MAX;

    for (size_t i = 0; i < trials->count; i++) {
        const uint64_t part = recorded_ns(trials->programs[i].trace) / DRIVER_PART;

        min = part < min ? part : min;
    }
    return min > DRIVER_NS ? min : DRIVER_NS;
}

/* Replay to find the smallest devices. */
static void find_min_devices(struct search *search, const size_t *numbers, size_t count)
{
    struct trial *trials[4];
    size_t trial_count = 0;

    for (size_t i = 0; i < count; i++)
        if (numbers[i] != NONE && !search->list[numbers[i]]->trial.combined.has_min_device)
            trials[trial_count++] = &search->list[numbers[i]]->trial;
    search->failed = search->failed || !trials_run(search->trials, trials, trial_count, true);
}

/* Get whether programs that complete with the current string need a larger device with a candidate. */
static bool needs_larger_device(const struct search *search, size_t number)
{
    const struct trial_results *results = search->list[number]->trial.results;
    const struct trial_results *current = search->list[0]->trial.results;
    uint64_t max = 0, max_current = 0;

    for (size_t i = 0; i < search->trials->count; i++) {
        if (!current[i].has_min_device)
            continue;
        if (!results[i].has_min_device)
            return true;
        max = results[i].min_device > max ? results[i].min_device : max;
        max_current = current[i].min_device > max_current ? current[i].min_device : max_current;
    }
    return max > max_current + tolerance(max_current);
}

/* A candidate that completes more is better even if it needs a larger device. */
static bool is_acceptable(const struct search *search, size_t number)
{
    return number != NONE && number != 0 &&
           (completion_of(search, number) > completion_of(search, 0) ||
            !needs_larger_device(search, number));
}

static size_t find_runner_up(const struct search *search, size_t advised)
{
    const size_t candidate = advised == 0 ? NONE : choose_candidate(search, advised);

    return candidate == NONE || candidate == 0 || is_as_good(search, 0, candidate) ||
                   is_better(search, 0, candidate)
               ? NONE
               : candidate;
}

static bool reject_candidate(struct search *search, size_t number)
{
    search->list[number]->is_rejected = true;
    return true;
}

/* Choose the advised string and the runner-up.  Candidates that need a larger device than the current string are rejected.
 * Returns whether a candidate was rejected. */
static bool choose_strings(struct search *search, size_t *advised, size_t *runner_up)
{
    bool needs_larger = false;

    for (;;) {
        *advised = simplify(search);
        *runner_up = find_runner_up(search, *advised);
        find_min_devices(search, (const size_t[]){0, *advised, *runner_up}, 3);
        if (search->failed || *advised == 0 || *advised == NONE)
            return needs_larger;
        if (is_acceptable(search, *advised))
            break;
        needs_larger = reject_candidate(search, *advised);
    }
    for (unsigned i = 1; *runner_up != NONE && !is_acceptable(search, *runner_up); i++) {
        needs_larger = reject_candidate(search, *runner_up);
        *runner_up = i < RUNNERS_UP ? find_runner_up(search, *advised) : NONE;
        find_min_devices(search, runner_up, 1);
        if (search->failed)
            break;
    }
    return needs_larger;
}

/* Find the candidate with the fewest changes that completes on the target; on a tie, the advised one. */
static size_t find_least_change(const struct search *search, size_t advised)
{
    const bool completes_on_target =
        advised != NONE && search->list[advised]->trial.combined.completes_on_target;
    size_t least_change = completes_on_target ? advised : NONE;

    for (size_t i = 0; i < search->count; i++) {
        if (!search->list[i]->trial.combined.completes_on_target)
            continue;
        if (least_change == NONE ||
            search->list[i]->changes < search->list[least_change]->changes ||
            (least_change != advised && is_simpler(search, i, least_change)))
            least_change = i;
    }
    return least_change;
}

/* Get whether candidate a needs more memory than candidate b, regardless of driver time. */
static bool needs_more_memory(const struct search *search, size_t a, size_t b)
{
    const struct trial_large *a_results = large_results(search, a),
                             *b_results = large_results(search, b);

    if (completion_of(search, a) != completion_of(search, b))
        return completion_of(search, a) < completion_of(search, b);
    return a_results->reach != b_results->reach
               ? a_results->reach < b_results->reach
               : a_results->peak_reserved > b_results->peak_reserved;
}

/* Find the key without which the peak is highest. */
static enum tuning_key main_key(struct search *search, size_t advised)
{
    const struct tuning *tuning = &search->list[advised]->tuning;
    enum tuning_key main_key_found = TUNING_KEYS;
    size_t worst = NONE;

    for (unsigned key = 0; key < TUNING_KEYS; key++) {
        struct tuning tuning_without = *tuning;
        size_t number;

        if (tuning->value[key] == TUNING_UNCHANGED)
            continue;
        tuning_without.value[key] = TUNING_UNCHANGED;
        number =
            add_candidate(search, &tuning_without); /* replayed by simplify(), if it is valid */
        if (main_key_found != TUNING_KEYS &&
            (number == NONE || worst == NONE || !needs_more_memory(search, number, worst)))
            continue;
        main_key_found = (enum tuning_key)key;
        worst = number;
    }
    return main_key_found;
}

static void copy_string(struct search *search, size_t number, struct advise_string *out)
{
    struct candidate *candidate;

    if (number == NONE || search->failed)
        return;
    candidate = search->list[number];
    out->config = strdup(candidate->config);
    out->changes = candidate->changes;
    out->results = candidate->trial.combined;
    memcpy(out->programs, candidate->trial.results, sizeof(out->programs));
    if (!out->config)
        out_of_memory(search);
}

/* Compare the end of the replay with the current string with the end of the file. */
static void find_gaps(const struct search *search, struct advice *out)
{
    out->is_certain = true;
    for (size_t i = 0; i < search->trials->count; i++) {
        const struct trial_results *results = &out->current.programs[i];

        trace_notes_find(&out->notes[i], search->trials->programs[i].trace, out->current.config,
                         true, results->completes ? results->end_reserved : TRACE_NOTES_UNKNOWN);
        out->is_certain = out->is_certain && out->notes[i].is_certain;
    }
}

static void fill_advice(struct search *search, struct advice *out)
{
    const struct trial_results *current = &search->list[0]->trial.combined;
    size_t advised, runner_up;

    out->needs_larger = choose_strings(search, &advised, &runner_up);
    if (search->failed)
        return;
    out->is_short = current->failed > 0 || !current->completes || !current->completes_on_target;
    copy_string(search, 0, &out->current);
    if (search->failed)
        return;
    find_gaps(search, out);
    if (advised != 0 && advised != NONE) {
        const enum tuning_key key = main_key(search, advised);

        copy_string(search, advised, &out->advised);
        copy_string(search, runner_up, &out->runner_up);
        out->key = tuning_name(key);
        out->cause = tuning_cause(search->base, &search->list[advised]->tuning, key);
    }
    if (out->is_short)
        copy_string(search, find_least_change(search, advised), &out->least_change);
    out->replayed = search->trials->done;
}

/* Replay the current string. */
static bool replay_current(struct search *search)
{
    const struct tuning current = tuning_unchanged();

    if (add_candidate(search, &current) == NONE) {
        out_of_memory(search);
        return false;
    }
    search->trials->expected = 1;
    replay_new(search);
    search->failed = search->failed || search->list[0]->trial.combined.is_broken;
    return !search->failed;
}

bool advise(struct trials *trials, const struct tuning_base *base, struct advice *out)
{
    struct search search = {.trials = trials, .base = base};

    *out = (struct advice){.trials = trials, .omitted = base->omitted};
    if (replay_current(&search)) {
        out->driver_ns = search.extra_driver_ns = extra_driver_ns(trials);
        hill_climb(&search);
    }
    if (!search.failed)
        fill_advice(&search, out);
    free_candidates(&search);
    if (search.failed)
        advice_fini(out);
    return !search.failed;
}

void advice_fini(struct advice *advice)
{
    free(advice->current.config);
    free(advice->advised.config);
    free(advice->runner_up.config);
    free(advice->least_change.config);
}
