/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_pair.h"

#include <pthread.h>
#include <stdatomic.h>

struct pair {
    const struct probe_chain *chain;
    const struct probe_share *share;
    pthread_barrier_t begin;
    pthread_mutex_t turn; /* on the simulator */
    bool takes_turns;
    atomic_uint finished;
};

struct half {
    struct pair *pair;
    struct probe_driver driver;
    struct probe_row row[PROBE_STAGES];
};

static bool take(struct half *half, struct probe_round *round, unsigned stage, bool is_sample)
{
    struct pair *pair = half->pair;
    probe_step *const step = pair->chain->stage[stage].take;
    bool fine;

    if (pair->takes_turns)
        (void)pthread_mutex_lock(&pair->turn);
    fine = is_sample ? probe_row_take(&half->row[stage], round, PROBE_IDLE, step) : step(round);
    if (pair->takes_turns)
        (void)pthread_mutex_unlock(&pair->turn);
    return fine;
}

static bool play(struct half *half, struct probe_round *round, bool is_sample)
{
    bool fine = true;

    for (unsigned i = 0; i < half->pair->chain->stages && fine; i++)
        fine = take(half, round, i, is_sample);
    return probe_round_put_back(round) && fine;
}

/* The first round is of nobody's: the other thread may still be on its way. */
static void play_all(struct half *half, struct probe_round *round)
{
    const struct probe_chain *chain = half->pair->chain;
    unsigned samples = 0;
    bool fine = play(half, round, false);

    while (fine && samples < chain->samples &&
           probe_share_has_time(half->pair->share, true, samples)) {
        fine = play(half, round, true);
        samples++;
    }
    (void)atomic_fetch_add(&half->pair->finished, 1);
    while (fine && atomic_load(&half->pair->finished) < PROBE_THREADS)
        fine = play(half, round, false);
}

static void *run(void *context)
{
    struct half *half = context;
    const struct probe_chain *chain = half->pair->chain;
    struct probe_round round = {
        .driver = &half->driver, .doing = chain->doing, .page = chain->page, .pages = 1};
    const bool fine = probe_driver_enter(&half->driver) &&
                      (!chain->has_range || probe_round_reserve_range(&round));

    (void)pthread_barrier_wait(&half->pair->begin);
    if (fine)
        play_all(half, &round);
    else
        (void)atomic_fetch_add(&half->pair->finished, 1);
    (void)probe_round_put_range_back(&round);
    probe_driver_leave(&half->driver);
    return NULL;
}

bool probe_pair_measure(struct probe_driver *driver, const struct probe_chain *chain,
                        const struct probe_share *share, struct probe_row *rows)
{
    static struct half half[PROBE_THREADS];
    struct pair pair = {.chain = chain,
                        .share = share,
                        .turn = PTHREAD_MUTEX_INITIALIZER,
                        .takes_turns = driver->is_simulated};
    pthread_t other;
    bool started;

    if (pthread_barrier_init(&pair.begin, NULL, PROBE_THREADS) != 0)
        return false;
    for (unsigned i = 0; i < PROBE_THREADS; i++)
        half[i] = (struct half){.pair = &pair, .driver = probe_driver_split(driver)};
    started = pthread_create(&other, NULL, run, &half[1]) == 0;
    if (started) {
        (void)run(&half[0]);
        (void)pthread_join(other, NULL);
    }
    for (unsigned i = 0; i < PROBE_THREADS && started; i++) {
        probe_driver_join(driver, &half[i].driver);
        for (unsigned n = 0; n < chain->stages; n++)
            probe_row_add(&rows[n], &half[i].row[n]);
    }
    (void)pthread_barrier_destroy(&pair.begin);
    return started;
}
