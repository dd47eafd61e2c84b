/* SPDX-License-Identifier: MIT */
/* Two threads with a stream each compete for the last pages of a device. A thread writes into every block that it
 * gets, and compares its words when it frees the block. So memory that two threads hold, or that is unmapped while
 * it is held, is detected, and ThreadSanitizer detects the race. */
#include "tests/support/check.h"
#include "tests/support/env.h"
#include "tests/support/rng.h"

#include <pthread.h>
#include <stdatomic.h>

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
        CHECK(*word_at(fighter->ptr[i], at) == (uintptr_t)fighter->ptr[i] + at + fighter->number);
    CHECK(xseg_free(fighter->fight->allocator, fighter->ptr[i]) == XSEG_OK);
    fighter->ptr[i] = NULL;
}

/* Small blocks, blocks of a few pages, and occasionally one of most of the device. */
static size_t choose_bytes(struct fighter *fighter)
{
    const uint64_t random = rng_next(&fighter->random);
    const size_t most = random % 8 == 0 ? 30 * MIB : random % 2 == 0 ? 6 * MIB : MIB;

    return (1 + random / 8 % most + 7) / 8 * 8;
}

static void take(struct fighter *fighter, unsigned i)
{
    struct fight *fight = fighter->fight;

    fighter->bytes[i] = choose_bytes(fighter);
    const xseg_status status =
        xseg_alloc(fight->allocator, 0, fighter->bytes[i], fighter->stream, &fighter->ptr[i]);
    CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    atomic_fetch_add(status == XSEG_OK ? &fight->served : &fight->refused, 1);
    if (status == XSEG_OK)
        mark(fighter, i);
}

static void *run(void *self)
{
    struct fighter *fighter = self;
    struct fight *fight = fighter->fight;

    for (unsigned round = 0; round < fight->rounds; round++) {
        const unsigned i = (unsigned)(rng_next(&fighter->random) % HELD);
        void *spare = NULL;

        give(fighter, i);
        take(fighter, i);
        if (round % 16 != 0 ||
            xseg_alloc(fight->allocator, 0, 3 * MIB, fighter->stream, &spare) != XSEG_OK)
            continue;
        spare = atomic_exchange(&fight->spare, spare);
        CHECK(spare == NULL || xseg_free(fight->allocator, spare) == XSEG_OK);
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
    CHECK(xseg_free(fight->allocator, spare) == XSEG_OK);
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
    const struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 40 * MIB,
                                               .real_bytes = true};
    struct fight fight = {.allocator = env_open_on(&settings, config), .rounds = rounds};
    const struct xseg_observer observer = {sizeof(observer), .context = &fight,
                                           .on_low_memory = free_spare, .on_trace = count};
    struct fighter fighter[THREADS];
    pthread_t thread[THREADS];
    uint64_t id = 0;

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
    env_free(fight.allocator, atomic_load(&fight.spare));
    /* The bytes of each thread depend on timing; that every request was answered does not. */
    assert_true(fight.refused > 0 && fight.served > 0);
    assert_int_equal(fight.refused + fight.served, THREADS * rounds);
    assert_true(observed == (fight.traced > 0) && (!observed || fight.spared > 0));
    env_empty_cache(fight.allocator);
    assert_int_equal(env_reserved(fight.allocator), 0);
    env_close(fight.allocator, fighter[0].stream, fighter[1].stream);
}

TEST(threads_compete_for_expandable_segments)
{
    play("expandable_segments:True", false, 3000);
}

TEST(threads_compete_for_classic_segments)
{
    play("expandable_segments:False", false, 3000);
}

TEST(threads_compete_under_a_hard_limit)
{
    play("expandable_segments:True,hard_limit_mb:36,max_split_size_mb:20", false, 1500);
}

TEST(low_memory_callbacks_free_blocks_of_competing_threads)
{
    play("expandable_segments:True", true, 1500);
}
