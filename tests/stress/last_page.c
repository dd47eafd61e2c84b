/* SPDX-License-Identifier: MIT */
/* Two threads with a stream each compete for the last pages of a device. A thread writes into every block that it
 * gets, and compares its words when it frees the block. So memory that two threads hold, or that is unmapped while
 * it is held, is detected, and ThreadSanitizer detects the race. */
#include "tests/support/env.h"
#include "tests/support/rng.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define THREADS 2u
#define HELD    6u
#define STEP    (256 * KIB)

struct fight {
    struct xseg_allocator *allocator;
    unsigned rounds;
    atomic_uint_fast64_t served, refused, spared, traced;
    _Atomic(void *) spare; /* that an observer may free */
};

struct fighter {
    struct fight *fight;
    xseg_stream stream;
    uint64_t number, random;
    void *ptr[HELD];
    size_t bytes[HELD];
};

static uint64_t next_random(struct fighter *fighter)
{
    return rng_next(&fighter->random);
}

static uint64_t *word_at(void *ptr, size_t offset)
{
    return (uint64_t *)(void *)((char *)ptr + offset);
}

static void mark(const struct fighter *fighter, unsigned i)
{
    for (size_t at = 0; at < fighter->bytes[i]; at += STEP)
        *word_at(fighter->ptr[i], at) = (uintptr_t)fighter->ptr[i] + at + fighter->number;
}

static void give(struct fighter *fighter, unsigned i)
{
    if (fighter->ptr[i] == NULL)
        return;
    for (size_t at = 0; at < fighter->bytes[i]; at += STEP)
        if (*word_at(fighter->ptr[i], at) != (uintptr_t)fighter->ptr[i] + at + fighter->number)
            abort();
    if (xseg_free(fighter->fight->allocator, fighter->ptr[i]) != XSEG_OK)
        abort();
    fighter->ptr[i] = NULL;
}

/* Small blocks, blocks of a few pages, and occasionally one of most of the device. */
static size_t choose_bytes(struct fighter *fighter)
{
    const uint64_t random = next_random(fighter);
    const size_t most = random % 8 == 0 ? 30 * MIB : random % 2 == 0 ? 6 * MIB : MIB;

    return (1 + random / 8 % most + 7) / 8 * 8;
}

static void take(struct fighter *fighter, unsigned i)
{
    struct fight *fight = fighter->fight;

    fighter->bytes[i] = choose_bytes(fighter);
    const xseg_status status =
        xseg_alloc(fight->allocator, 0, fighter->bytes[i], fighter->stream, &fighter->ptr[i]);
    if (status != XSEG_OK && status != XSEG_ERR_NO_MEMORY && status != XSEG_ERR_LIMIT)
        abort();
    atomic_fetch_add(status == XSEG_OK ? &fight->served : &fight->refused, 1);
    if (status == XSEG_OK)
        mark(fighter, i);
}

static void *run(void *self)
{
    struct fighter *fighter = self;
    struct fight *fight = fighter->fight;

    for (unsigned round = 0; round < fight->rounds; round++) {
        const unsigned i = (unsigned)(next_random(fighter) % HELD);
        void *spare = NULL;

        give(fighter, i);
        take(fighter, i);
        if (round % 16 != 0 ||
            xseg_alloc(fight->allocator, 0, 3 * MIB, fighter->stream, &spare) != XSEG_OK)
            continue;
        spare = atomic_exchange(&fight->spare, spare);
        if (spare != NULL && xseg_free(fight->allocator, spare) != XSEG_OK)
            abort();
    }
    for (unsigned i = 0; i < HELD; i++)
        give(fighter, i);
    return NULL;
}

static bool free_spare(void *context, const struct xseg_oom_info *shortage)
{
    struct fight *fight = context;
    void *spare = atomic_exchange(&fight->spare, NULL);

    (void)shortage;
    if (spare == NULL)
        return false;
    if (xseg_free(fight->allocator, spare) != XSEG_OK)
        abort();
    atomic_fetch_add(&fight->spared, 1);
    return true;
}

static void count(void *context, const struct xseg_trace_entry *entry)
{
    struct fight *fight = context;

    (void)entry;
    atomic_fetch_add(&fight->traced, 1);
}

static void play(const char *config, bool observed, unsigned rounds)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_observer observer = {sizeof(observer)};
    struct fight fight = {.rounds = rounds};
    struct fighter fighter[THREADS];
    pthread_t thread[THREADS];
    uint64_t id = 0;

    settings.memory_bytes = 40 * MIB;
    settings.real_bytes = true;
    fight.allocator = env_open_on(&settings, config);
    observer.context = &fight;
    observer.on_low_memory = free_spare;
    observer.on_trace = count;
    if (observed)
        assert_ok(xseg_observer_add(fight.allocator, &observer, &id));
    for (unsigned i = 0; i < THREADS; i++) {
        fighter[i] = (struct fighter){.fight = &fight,
                                      .stream = env_stream(),
                                      .number = i + 1,
                                      .random = 88172645463325252U + i * 1000003U};
        assert_int_equal(pthread_create(&thread[i], NULL, run, &fighter[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    if (observed)
        assert_ok(xseg_observer_remove(fight.allocator, id));
    void *spare = atomic_load(&fight.spare);
    if (spare != NULL)
        env_free(fight.allocator, spare);
    /* The bytes of each thread depend on timing; that every request was answered does not. */
    assert_true(fight.refused > 0 && fight.served > 0);
    assert_int_equal(fight.refused + fight.served, THREADS * rounds);
    assert_true(observed == (fight.traced > 0) && (!observed || fight.spared > 0));
    env_empty_cache(fight.allocator);
    assert_int_equal(env_stats(fight.allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_ok(xseg_close(fight.allocator));
    for (unsigned i = 0; i < THREADS; i++)
        env_stream_destroy(fighter[i].stream);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

TEST(expandable)
{
    play("expandable_segments:True", false, 3000);
}

TEST(classic)
{
    play("expandable_segments:False", false, 3000);
}

TEST(under_a_limit)
{
    play("expandable_segments:True,hard_limit_mb:36,max_split_size_mb:20", false, 1500);
}

TEST(observed)
{
    play("expandable_segments:True", true, 1500);
}
