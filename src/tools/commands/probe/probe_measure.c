/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_measure.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/replay/trace_clock.h"

#define SECOND           UINT64_C(1000000000)
#define SAMPLES_MIN      3
#define RESULT_NOT_READY 600
#define EVENT_NO_TIMING  2u

/* --- Time. --- */

void probe_budget_init(struct probe_budget *budget, unsigned seconds, unsigned weight)
{
    *budget = (struct probe_budget){
        .deadline = seconds > 0 ? stopwatch_now() + seconds * SECOND : 0,
        .weight_remaining = weight,
    };
}

struct probe_share probe_budget_share(struct probe_budget *budget, unsigned weight)
{
    const uint64_t now = stopwatch_now();
    struct probe_share share = {.deadline = budget->deadline};
    uint64_t time;

    if (budget->deadline != 0) {
        time = now < budget->deadline ? budget->deadline - now : 0;
        time = time / budget->weight_remaining * weight;
        share.first_half_end = now + time / 2;
        share.end = now + time;
    }
    budget->weight_remaining -= weight;
    return share;
}

bool probe_budget_is_over(const struct probe_budget *budget)
{
    return budget->deadline != 0 && stopwatch_now() >= budget->deadline;
}

bool probe_share_has_time(const struct probe_share *share, bool is_second_half, unsigned samples)
{
    uint64_t end = is_second_half ? share->end : share->first_half_end;

    if (samples < SAMPLES_MIN)
        end = share->deadline;
    return end == 0 || stopwatch_now() < end;
}

/* --- Steps. --- */

bool probe_round_create_page(struct probe_round *round)
{
    const struct probe_properties properties = probe_driver_properties(round->driver);

    if (PROBE_CALL(round->driver, round->purpose, create, &round->handle[round->created],
                   round->page, &properties, 0) != 0)
        return false;
    round->created++;
    return true;
}

bool probe_round_map_page(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->purpose, map, round->base + round->mapped * round->page,
                   round->page, 0, round->handle[round->mapped], 0) != 0)
        return false;
    round->mapped++;
    return true;
}

bool probe_round_set_access_run(struct probe_round *round)
{
    const struct probe_access rights = probe_driver_access(round->driver);

    return PROBE_CALL(round->driver, round->purpose, set_access, round->base,
                      round->mapped * round->page, &rights, 1) == 0;
}

bool probe_round_set_access_each(struct probe_round *round)
{
    const struct probe_access rights = probe_driver_access(round->driver);

    for (unsigned i = 0; i < round->mapped; i++)
        if (PROBE_CALL(round->driver, round->purpose, set_access, round->base + i * round->page,
                       round->page, &rights, 1) != 0)
            return false;
    return true;
}

bool probe_round_unmap_run(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->purpose, unmap, round->base,
                   round->mapped * round->page) != 0)
        return false;
    round->mapped = 0;
    return true;
}

/* From the end, so that the pages that remain mapped are a run. */
bool probe_round_unmap_each(struct probe_round *round)
{
    for (; round->mapped > 0; round->mapped--)
        if (PROBE_CALL(round->driver, round->purpose, unmap,
                       round->base + (round->mapped - 1) * round->page, round->page) != 0)
            return false;
    return true;
}

bool probe_round_release_page(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->purpose, release, round->handle[round->created - 1]) != 0)
        return false;
    round->created--;
    return true;
}

bool probe_round_reserve_range(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->purpose, reserve, &round->base, round->page * round->pages,
                   0, 0, 0) == 0)
        return true;
    round->base = 0;
    return false;
}

bool probe_round_unreserve_range(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->purpose, unreserve, round->base,
                   round->page * round->pages) != 0)
        return false;
    round->base = 0;
    return true;
}

bool probe_round_allocate(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->purpose, memory_alloc, &round->address, round->page) == 0)
        return true;
    round->address = 0;
    return false;
}

bool probe_round_free_allocation(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->purpose, memory_free, round->address) != 0)
        return false;
    round->address = 0;
    return true;
}

bool probe_round_create_event(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->purpose, event_create, &round->event, EVENT_NO_TIMING) ==
        0)
        return true;
    round->event = NULL;
    return false;
}

bool probe_round_record_event(struct probe_round *round)
{
    return PROBE_CALL(round->driver, round->purpose, event_record, round->event,
                      round->driver->stream) == 0;
}

bool probe_round_query_event(struct probe_round *round)
{
    const int result = PROBE_CALL(round->driver, round->purpose, event_query, round->event);

    return result == 0 || result == RESULT_NOT_READY;
}

/* The waiting stream is the legacy default stream. */
bool probe_round_wait_for_event(struct probe_round *round)
{
    return PROBE_CALL(round->driver, round->purpose, stream_wait, NULL, round->event, 0) == 0;
}

/* The stream has no work, so this is the cost of the call without waiting. */
bool probe_round_wait_for_stream(struct probe_round *round)
{
    return PROBE_CALL(round->driver, round->purpose, stream_synchronize, NULL) == 0;
}

bool probe_round_destroy_event(struct probe_round *round)
{
    if (PROBE_CALL(round->driver, round->purpose, event_destroy, round->event) != 0)
        return false;
    round->event = NULL;
    return true;
}

bool probe_round_query_memory(struct probe_round *round)
{
    size_t free_bytes, total_bytes;

    return PROBE_CALL(round->driver, round->purpose, memory_info, &free_bytes, &total_bytes) == 0;
}

bool probe_round_release(struct probe_round *round)
{
    struct probe_driver *driver = round->driver;
    bool success = true;

    for (; round->mapped > 0; round->mapped--)
        success &= PROBE_RELEASE(driver, round->purpose, unmap,
                                 round->base + (round->mapped - 1) * round->page, round->page);
    for (; round->created > 0; round->created--)
        success &=
            PROBE_RELEASE(driver, round->purpose, release, round->handle[round->created - 1]);
    if (round->address)
        success &= PROBE_RELEASE(driver, round->purpose, memory_free, round->address);
    if (round->event)
        success &= PROBE_RELEASE(driver, round->purpose, event_destroy, round->event);
    round->address = 0;
    round->event = NULL;
    return success;
}

bool probe_round_release_range(struct probe_round *round)
{
    const bool success = !round->base || PROBE_RELEASE(round->driver, round->purpose, unreserve,
                                                       round->base, round->page * round->pages);

    round->base = 0;
    return success;
}

/* --- Samples. --- */

static int compare_times(const void *a, const void *b)
{
    const uint64_t a_time = *(const uint64_t *)a, b_time = *(const uint64_t *)b;

    return a_time < b_time ? -1 : a_time > b_time;
}

static struct probe_quartiles compute_quartiles(uint64_t *sample, unsigned samples)
{
    struct probe_quartiles quartiles = {.samples = samples};

    if (samples == 0)
        return quartiles;
    qsort(sample, samples, sizeof(*sample), compare_times);
    quartiles.median = sample[samples / 2];
    quartiles.low = sample[samples / 4];
    quartiles.high = sample[samples - 1 - samples / 4];
    return quartiles;
}

bool probe_row_measure(struct probe_row *row, struct probe_round *round,
                       enum probe_sampling sampling, probe_step *step)
{
    struct probe_driver *driver = round->driver;
    const bool busy = sampling == PROBE_BUSY;
    uint64_t start, time;
    bool succeeded, waited = false;

    if (busy && !probe_driver_work(driver))
        return step(round);
    start = probe_driver_clock(driver);
    succeeded = step(round);
    time = probe_driver_clock(driver) - start;
    if (busy) {
        waited = !probe_driver_is_working(driver);
        (void)probe_driver_wait(driver);
    }
    if (!succeeded)
        return false;
    if (sampling == PROBE_FIRST) {
        row->first = time;
        row->has_first = true;
        return true;
    }
    row->sample[busy][row->samples[busy]++] = time;
    row->blocking += waited;
    return true;
}

static void merge_rows(struct probe_row *row, const struct probe_row *other)
{
    for (unsigned busy = 0; busy < 2; busy++) {
        memcpy(row->sample[busy] + row->samples[busy], other->sample[busy],
               other->samples[busy] * sizeof(other->sample[busy][0]));
        row->samples[busy] += other->samples[busy];
    }
}

struct probe_quartiles probe_row_quartiles(struct probe_row *row, bool is_busy)
{
    return compute_quartiles(row->sample[is_busy], row->samples[is_busy]);
}

/* --- Two threads. --- */

struct pair {
    const struct probe_chain *chain;
    const struct probe_share *share;
    pthread_barrier_t begin;
    pthread_mutex_t serial_mutex; /* of the simulator */
    bool is_serial;
    atomic_uint finished;
};

struct pair_thread {
    struct pair *pair;
    struct probe_driver driver;
    struct probe_row row[PROBE_STAGES];
};

static bool run_step(struct pair_thread *pair_thread, struct probe_round *round, unsigned stage,
                     bool is_sample)
{
    struct pair *pair = pair_thread->pair;
    probe_step *const step = pair->chain->stage[stage].run;
    bool success;

    if (pair->is_serial)
        (void)pthread_mutex_lock(&pair->serial_mutex);
    success = is_sample ? probe_row_measure(&pair_thread->row[stage], round, PROBE_IDLE, step)
                        : step(round);
    if (pair->is_serial)
        (void)pthread_mutex_unlock(&pair->serial_mutex);
    return success;
}

static bool run_round(struct pair_thread *pair_thread, struct probe_round *round, bool is_sample)
{
    bool success = true;

    for (unsigned i = 0; i < pair_thread->pair->chain->stages && success; i++)
        success = run_step(pair_thread, round, i, is_sample);
    return probe_round_release(round) && success;
}

/* The first round takes no samples, because the other thread can still be starting. */
static void run_rounds(struct pair_thread *pair_thread, struct probe_round *round)
{
    const struct probe_chain *chain = pair_thread->pair->chain;
    unsigned samples = 0;
    bool success = run_round(pair_thread, round, false);

    while (success && samples < chain->samples &&
           probe_share_has_time(pair_thread->pair->share, true, samples)) {
        success = run_round(pair_thread, round, true);
        samples++;
    }
    (void)atomic_fetch_add(&pair_thread->pair->finished, 1);
    while (success && atomic_load(&pair_thread->pair->finished) < PROBE_THREADS)
        success = run_round(pair_thread, round, false);
}

static void *run_thread(void *context)
{
    struct pair_thread *pair_thread = context;
    const struct probe_chain *chain = pair_thread->pair->chain;
    struct probe_round round = {
        .driver = &pair_thread->driver, .purpose = chain->purpose, .page = chain->page, .pages = 1};
    const bool success = probe_driver_enter(&pair_thread->driver) &&
                         (!chain->has_range || probe_round_reserve_range(&round));

    (void)pthread_barrier_wait(&pair_thread->pair->begin);
    if (success)
        run_rounds(pair_thread, &round);
    else
        (void)atomic_fetch_add(&pair_thread->pair->finished, 1);
    (void)probe_round_release_range(&round);
    probe_driver_leave(&pair_thread->driver);
    return NULL;
}

bool probe_pair_measure(struct probe_driver *driver, const struct probe_chain *chain,
                        const struct probe_share *share, struct probe_row *rows)
{
    static struct pair_thread pair_thread[PROBE_THREADS];
    struct pair pair = {.chain = chain,
                        .share = share,
                        .serial_mutex = PTHREAD_MUTEX_INITIALIZER,
                        .is_serial = driver->is_simulated};
    pthread_t second_thread;
    bool started;

    if (pthread_barrier_init(&pair.begin, NULL, PROBE_THREADS) != 0)
        return false;
    for (unsigned i = 0; i < PROBE_THREADS; i++)
        pair_thread[i] = (struct pair_thread){.pair = &pair, .driver = probe_driver_split(driver)};
    started = pthread_create(&second_thread, NULL, run_thread, &pair_thread[1]) == 0;
    if (started) {
        (void)run_thread(&pair_thread[0]);
        (void)pthread_join(second_thread, NULL);
    }
    for (unsigned i = 0; i < PROBE_THREADS && started; i++) {
        probe_driver_join(driver, &pair_thread[i].driver);
        for (unsigned n = 0; n < chain->stages; n++)
            merge_rows(&rows[n], &pair_thread[i].row[n]);
    }
    (void)pthread_barrier_destroy(&pair.begin);
    return started;
}
