/* SPDX-License-Identifier: MIT */
/*
 * Frees by a thread other than the allocating one.  Two threads, each with a separate stream, allocate blocks of up to 8 KiB
 * and free those of the other thread.
 *
 * "batches of 256": each thread hands over 256 blocks at a time.  "one by one": both threads exchange blocks in 1000 random
 * slots.  Half of the frees of a thread are of blocks that it allocated, and the cache lines of the slots move between CPUs.
 */
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>

#include "benchmarks/bench.h"
#include "benchmarks/measure.h"
#include "benchmarks/team.h"

#define BATCH    256u
#define SLOTS    1000u
#define SEQUENCE 4096u

/* A batch on its way to the other thread. */
struct mailbox {
    _Alignas(128) atomic_bool is_full;
    void *blocks[BATCH];
};

struct worker {
    unsigned index;
    uint64_t seed;
    size_t bytes[SEQUENCE];
    uint32_t slot[SEQUENCE];
};

static struct mailbox mailboxes[2];
static struct {
    _Atomic(void *) block;
} slots[SLOTS];

static uint32_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 32);
}

static void wait_until(const atomic_bool *flag, bool value)
{
    while (atomic_load_explicit(flag, memory_order_acquire) != value)
        (void)sched_yield(); /* the other thread may wait for this CPU */
}

/* Free the batch of the other thread. */
static void free_batch(unsigned index)
{
    struct mailbox *mailbox = &mailboxes[index];
    void *blocks[BATCH];

    wait_until(&mailbox->is_full, true);
    for (unsigned i = 0; i < BATCH; i++)
        blocks[i] = mailbox->blocks[i];
    atomic_store_explicit(&mailbox->is_full, false, memory_order_release);
    for (unsigned i = 0; i < BATCH; i++)
        bench_free(blocks[i]);
}

static uint64_t exchange_batches(void *self, uint64_t count)
{
    struct worker *worker = self;
    struct mailbox *peer = &mailboxes[1 - worker->index];
    void *blocks[BATCH];

    for (uint64_t completed = 0; completed < count; completed += BATCH) {
        for (unsigned i = 0; i < BATCH; i++)
            blocks[i] = bench_alloc(worker->bytes[(completed + i) % SEQUENCE], worker->index);
        wait_until(&peer->is_full, false);
        for (unsigned i = 0; i < BATCH; i++)
            peer->blocks[i] = blocks[i];
        atomic_store_explicit(&peer->is_full, true, memory_order_release);
        free_batch(worker->index);
    }
    return 0;
}

static uint64_t exchange_singly(void *self, uint64_t count)
{
    struct worker *worker = self;

    for (uint64_t i = 0; i < count; i++) {
        void *block = bench_alloc(worker->bytes[i % SEQUENCE], worker->index);
        block = atomic_exchange(&slots[(worker->slot[i % SEQUENCE] + i) % SLOTS].block, block);
        if (block != NULL)
            bench_free(block);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct worker workers[2];
    struct team team = {.count = 2, .self = {&workers[0], &workers[1]}};

    measure_open(argc, argv, 2);
    for (unsigned i = 0; i < 2; i++) {
        workers[i].index = i;
        workers[i].seed = i + 1;
        for (unsigned j = 0; j < SEQUENCE; j++) {
            workers[i].bytes[j] = 1 + draw(&workers[i].seed) % (8 << 10);
            workers[i].slot[j] = draw(&workers[i].seed) % SLOTS;
        }
    }
    team.work = exchange_batches;
    (void)measure_steps(&(struct measure){"cross", "batches of 256", 200000, team_run, &team});
    team.work = exchange_singly;
    (void)measure_steps(&(struct measure){"cross", "one by one", 200000, team_run, &team});
    for (unsigned i = 0; i < SLOTS; i++)
        if (atomic_load(&slots[i].block) != NULL)
            bench_free(atomic_load(&slots[i].block));
    return 0;
}
