/* SPDX-License-Identifier: MIT */
/*
 * What does a free cost that comes from another thread than the allocation?  Two threads, each with a
 * stream of its own, allocate blocks of up to 8 KiB and free those of the other.
 *
 * In batches, a thread lays 256 blocks down and takes up what the other has laid down.  One by one,
 * the blocks lie in 1000 places that both exchange at random, so half of what a thread frees is its
 * own, and the places themselves wander between the cores.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

#include "benchmarks/measure.h"
#include "benchmarks/subject.h"
#include "benchmarks/team.h"

#define BATCH  256u
#define PLACES 1000u
#define DRAWN  4096u

/* A batch lies here until the other thread takes it. */
struct desk {
    _Alignas(128) atomic_bool is_full;
    void *blocks[BATCH];
};

struct side {
    unsigned number;
    uint64_t seed;
    size_t bytes[DRAWN];
    uint32_t place[DRAWN];
};

static struct desk desks[2];
static struct {
    _Atomic(void *) block;
} places[PLACES];

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 32);
}

static void wait_until(const atomic_bool *flag, bool value)
{
    while (atomic_load_explicit(flag, memory_order_acquire) != value)
        (void)sched_yield(); /* on a busy machine the other thread may be waiting for this core */
}

/* Take up what the other has laid down for this side, and free it. */
static void take_up(unsigned number)
{
    struct desk *desk = &desks[number];
    void *blocks[BATCH];

    wait_until(&desk->is_full, true);
    for (unsigned i = 0; i < BATCH; i++)
        blocks[i] = desk->blocks[i];
    atomic_store_explicit(&desk->is_full, false, memory_order_release);
    for (unsigned i = 0; i < BATCH; i++)
        subject_free(blocks[i]);
}

static uint64_t in_batches(void *self, uint64_t count)
{
    struct side *side = self;
    struct desk *other = &desks[1 - side->number];
    void *blocks[BATCH];

    for (uint64_t done = 0; done < count; done += BATCH) {
        for (unsigned i = 0; i < BATCH; i++)
            blocks[i] = subject_alloc(side->bytes[(done + i) % DRAWN], side->number);
        wait_until(&other->is_full, false);
        for (unsigned i = 0; i < BATCH; i++)
            other->blocks[i] = blocks[i];
        atomic_store_explicit(&other->is_full, true, memory_order_release);
        take_up(side->number);
    }
    return 0;
}

static uint64_t one_by_one(void *self, uint64_t count)
{
    struct side *side = self;

    for (uint64_t i = 0; i < count; i++) {
        void *block = subject_alloc(side->bytes[i % DRAWN], side->number);
        block = atomic_exchange(&places[(side->place[i % DRAWN] + i) % PLACES].block, block);
        if (block != NULL)
            subject_free(block);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct side sides[2];
    struct team team = {.count = 2, .self = {&sides[0], &sides[1]}};

    measure_open(argc, argv, 2);
    for (unsigned i = 0; i < 2; i++) {
        sides[i].number = i;
        sides[i].seed = i + 1;
        for (unsigned j = 0; j < DRAWN; j++) {
            sides[i].bytes[j] = 1 + draw(&sides[i].seed) % (8 << 10);
            sides[i].place[j] = draw(&sides[i].seed) % PLACES;
        }
    }
    team.work = in_batches;
    (void)measure_steps(&(struct measure){"cross", "batches of 256", 200000, team_run, &team});
    team.work = one_by_one;
    (void)measure_steps(&(struct measure){"cross", "one by one", 200000, team_run, &team});
    for (unsigned i = 0; i < PLACES; i++)
        if (atomic_load(&places[i].block) != NULL)
            subject_free(atomic_load(&places[i].block));
    return 0;
}
