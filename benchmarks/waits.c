/* SPDX-License-Identifier: MIT */
/*
 * What do the accesses of a small churn's pair cost by themselves, at 10^6 live blocks?  No allocator is
 * in it: a table of 8 MiB, and 44 MiB as chunk maps lie in them, of each of which a round changes a word, a requested
 * size and a bin.
 *
 *     bench-waits
 *
 * chase:   one access that waits for the one before, in so much memory
 * rounds:  the four accesses of a pair, with so many plain instructions between two rounds.  What the
 *          processor does not look ahead over, it does not ask for ahead.
 * ahead:   two chains as of `chase`, in turn, with so many instructions of a kind after each access.  As long
 *          as the processor can hold them, two accesses take as long as one.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "benchmarks/measure.h"

#define MIB        ((size_t)1 << 20)
#define BLOCKS     1000000u
#define CHUNK_MAPS 2100u
#define CHUNK_MAP  21056u
#define DRAWN      4096u
#define ROUNDS     1000000u
#define TRIES      5u

static uint64_t seed = 1;

static uint32_t draw(uint32_t below)
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (uint32_t)((seed * 0x2545f4914f6cdd1dull >> 32) * below >> 32);
}

static char *huge_pages(size_t bytes)
{
    char *memory = aligned_alloc(2 * MIB, bytes);

    if (memory == NULL)
        exit(3);
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    return memory;
}

/* A chain of accesses that goes round through all cache lines in random order. */
static void **make_chain(size_t bytes)
{
    const uint32_t lines = (uint32_t)(bytes / 64);
    char *memory = huge_pages(bytes);
    uint32_t *order = malloc(lines * sizeof(*order));

    if (order == NULL)
        exit(3);
    for (uint32_t i = 0; i < lines; i++)
        order[i] = i;
    for (uint32_t i = lines - 1; i > 0; i--) {
        const uint32_t other = draw(i), kept = order[i];

        order[i] = order[other];
        order[other] = kept;
    }
    for (uint32_t i = 0; i < lines; i++)
        *(void **)(void *)(memory + order[i] * (size_t)64) =
            memory + order[(i + 1) % lines] * (size_t)64;
    free(order);
    return (void **)(void *)memory;
}

/* ns for one access. */
static double chase(size_t bytes)
{
    void **chain = make_chain(bytes), **at = chain;
    const uint64_t began = measure_now();
    for (uint32_t i = 0; i < ROUNDS; i++)
        at = *at;
    const double ns = (double)(measure_now() - began) / ROUNDS;
    if (at == NULL)
        exit(3);
    free(chain);
    return ns;
}

#if defined(__x86_64__)

#define AHEAD_MIB 64u

/* Instructions that a processor holds behind one that waits.  NOTHINGS do nothing, and RESULTS have a
 * result to keep.  WAITING and STORES wait for the access themselves: they calculate with its result, or
 * store it. */
#define NOTHINGS "nop\n nop\n"
#define RESULTS  "add %%rdx, %%rax\n add %%rdx, %%rcx\n"
#define WAITING  "add %0, %%rax\n add %0, %%rcx\n"
#define STORES   "mov %0, (%1)\n mov %0, 64(%1)\n"

#define AFTER(half, text)                              \
    __asm__ volatile(".rept " #half "\n " text ".endr" \
                     :                                 \
                     : "r"(waits), "r"(place)          \
                     : "rax", "rcx", "rdx", "cc", "memory")

/* ns for an access of each chain, with twice `half` instructions after either. */
#define AHEAD(kind, half)                                              \
    static double kind##_##half(void **one, void **other, char *place) \
    {                                                                  \
        const uint64_t began = measure_now();                          \
                                                                       \
        for (uint32_t i = 0; i < ROUNDS / 4; i++) {                    \
            void **waits = one = *one;                                 \
            AFTER(half, kind);                                         \
            waits = other = *other;                                    \
            AFTER(half, kind);                                         \
        }                                                              \
        return (double)(measure_now() - began) / (ROUNDS / 4);         \
    }

AHEAD(NOTHINGS, 200)
AHEAD(NOTHINGS, 240)
AHEAD(NOTHINGS, 280)
AHEAD(RESULTS, 80)
AHEAD(RESULTS, 110)
AHEAD(RESULTS, 140)
AHEAD(WAITING, 30)
AHEAD(WAITING, 45)
AHEAD(WAITING, 60)
AHEAD(STORES, 15)
AHEAD(STORES, 20)
AHEAD(STORES, 30)

static void look_ahead(void)
{
    static const struct {
        const char *kind;
        unsigned count;
        double (*run)(void **one, void **other, char *place);
    } cases[] = {
        {"instructions", 400, NOTHINGS_200}, {"instructions", 480, NOTHINGS_240},
        {"instructions", 560, NOTHINGS_280}, {"results", 160, RESULTS_80},
        {"results", 220, RESULTS_110},       {"results", 280, RESULTS_140},
        {"that wait", 60, WAITING_30},       {"that wait", 90, WAITING_45},
        {"that wait", 120, WAITING_60},      {"stores that wait", 30, STORES_15},
        {"stores that wait", 40, STORES_20}, {"stores that wait", 60, STORES_30},
    };
    void **one = make_chain(AHEAD_MIB * MIB), **other = make_chain(AHEAD_MIB * MIB);
    char place[128];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        (void)printf("ahead\t%u %s\t%.1f ns\n", cases[i].count, cases[i].kind,
                     cases[i].run(one, other, place));
    free(one);
    free(other);
}

#else

static void look_ahead(void) {}

#endif

static void touch(char *chunk_maps, uint64_t place)
{
    char *chunk_map = chunk_maps + (place >> 12) * CHUNK_MAP;
    const uint64_t quantum = place & 4095;
    uint64_t *word = (uint64_t *)(void *)(chunk_map + 64 + quantum / 64 * 32);
    uint32_t *requested = (uint32_t *)(void *)(chunk_map + 4160 + quantum * 4);

    *word ^= (uint64_t)1 << (quantum & 63);
    *requested += (uint32_t)place;
    uint64_t *bin =
        (uint64_t *)(void *)(chunk_map + 2112 + (1 + (*word * 0x9e3779b97f4a7c15ull >> 60)) * 8);
    *bin |= (uint64_t)1 << quantum / 64;
}

/* ns for a round, with 6 * `between` instructions of which none waits for memory. */
static double rounds(uint64_t *table, char *chunk_maps, const uint32_t *order, unsigned between)
{
    const uint64_t began = measure_now();

    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint64_t *place = &table[(order[i % DRAWN] + i) % BLOCKS];

        touch(chunk_maps, *place);
        *place ^= 1;
        for (unsigned k = 0; k < between; k++)
            __asm__ volatile("nop;nop;nop;nop");
    }
    return (double)(measure_now() - began) / ROUNDS;
}

int main(void)
{
    static const unsigned between[] = {0, 50, 100};
    static uint32_t order[DRAWN];
    uint64_t *table = (uint64_t *)(void *)huge_pages(8 * MIB);
    char *chunk_maps = huge_pages(44 * MIB);

    for (size_t mib = 1; mib <= 64; mib *= 2)
        (void)printf("chase\t%zu MiB\t%.1f ns\n", mib, chase(mib * MIB));
    for (uint32_t i = 0; i < DRAWN; i++)
        order[i] = draw(BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++)
        table[i] = (uint64_t)draw(CHUNK_MAPS) << 12 | draw(4096);
    for (size_t i = 0; i < sizeof(between) / sizeof(between[0]); i++) {
        double best = rounds(table, chunk_maps, order, between[i]);

        for (unsigned k = 1; k < TRIES; k++) {
            const double ns = rounds(table, chunk_maps, order, between[i]);

            best = ns < best ? ns : best;
        }
        (void)printf("rounds\t%u instructions between\t%.1f ns\n", 6 * between[i], best);
    }
    look_ahead();
    free(table);
    free(chunk_maps);
    return 0;
}
