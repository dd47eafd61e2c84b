/* SPDX-License-Identifier: MIT */
/* Counters of a device: its peaks are exact although every arena counts separately. */
#include "src/core/stats/counts.h"
#include "src/base/align.h"
#include "tests/support/audit.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MEMBERS  5u
#define QUANTITY XSEG_COUNT_RESERVED_BYTES

static struct xseg_totals totals;

FIXTURE(set_up)
{
    xseg_totals_init(&totals);
}

FIXTURE(tear_down)
{
    xseg_totals_fini(&totals);
}

/* The model of the counters. */
struct model {
    uint64_t value[MEMBERS], up[XSEG_STAT_GROUPS], down[XSEG_STAT_GROUPS];
    uint64_t peak[XSEG_STAT_GROUPS];
};

static enum xseg_stat_group group_of(unsigned member)
{
    return member % 2 == 0 ? XSEG_STAT_SMALL : XSEG_STAT_LARGE;
}

static uint64_t model_sum(const struct model *model, enum xseg_stat_group group)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < MEMBERS; i++)
        sum += group == XSEG_STAT_ALL || group == group_of(i) ? model->value[i] : 0;
    return sum;
}

static void model_update_peaks(struct model *model)
{
    for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++) {
        const uint64_t sum = model_sum(model, (enum xseg_stat_group)group);

        model->peak[group] = xseg_max(model->peak[group], sum);
    }
}

static void expect_equal(const struct model *model)
{
    for (unsigned i = 0; i < XSEG_STAT_GROUPS; i++) {
        const enum xseg_stat_group group = (enum xseg_stat_group)i;
        const struct xseg_stat stat = xseg_totals_read(&totals, group, QUANTITY);

        assert_int_equal(stat.current, model_sum(model, group));
        assert_int_equal(stat.peak, model->peak[group]);
        assert_int_equal(stat.allocated, model->up[group]);
        assert_int_equal(stat.freed, model->down[group]);
    }
}

static void change_randomly(struct xseg_counts *counts, struct model *model, unsigned member,
                            unsigned random)
{
    const enum xseg_stat_group group = group_of(member);
    const uint64_t amount = 1 + random / 16 % 100;

    if (random % 16 < 8 || model->value[member] < amount) {
        xseg_counts_increase(&counts[member], QUANTITY, amount);
        model->value[member] += amount;
        model->up[XSEG_STAT_ALL] += amount;
        model->up[group] += amount;
    } else {
        xseg_counts_decrease(&counts[member], QUANTITY, amount);
        model->value[member] -= amount;
        model->down[XSEG_STAT_ALL] += amount;
        model->down[group] += amount;
    }
    model_update_peaks(model);
}

TEST(peaks_are_exact)
{
    for (unsigned seed = 1; seed <= 20; seed++) {
        struct xseg_counts counts[MEMBERS];
        struct model model = {0};
        unsigned joined = 1;

        srandom(seed);
        (void)set_up(NULL);
        xseg_counts_init(&counts[0], &totals, true);
        for (unsigned i = 0; i < 4000; i++) {
            if (joined < MEMBERS && i % 300 == 299) {
                xseg_counts_init(&counts[joined], &totals, joined % 2 == 0);
                joined++;
            }
            change_randomly(counts, &model, (unsigned)random() % joined, (unsigned)random());
            /* Reads are rare, since a read updates the peaks. */
            if (i % 97 == 0)
                expect_equal(&model);
        }
        expect_equal(&model);
        (void)tear_down(NULL);
    }
}

/* Reference values of the five quantities of allocations. */
struct blocks {
    uint64_t value[XSEG_COUNTS], peak[XSEG_COUNTS];
    uint64_t allocated, pending; /* blocks of 10 bytes each, 7 of them requested */
};

static const enum xseg_count of_blocks[] = {XSEG_COUNT_ALLOCATION, XSEG_COUNT_ALLOCATED_BYTES,
                                            XSEG_COUNT_ACTIVE, XSEG_COUNT_ACTIVE_BYTES,
                                            XSEG_COUNT_REQUESTED_BYTES};

static void set_blocks(struct blocks *blocks, uint64_t allocated, uint64_t pending)
{
    const uint64_t active = allocated + pending;
    const uint64_t now[] = {allocated, 10 * allocated, active, 10 * active, 7 * active};

    blocks->allocated = allocated;
    blocks->pending = pending;
    for (size_t i = 0; i < XSEG_COUNT_OF(of_blocks); i++) {
        const enum xseg_count quantity = of_blocks[i];

        blocks->value[quantity] = now[i];
        blocks->peak[quantity] = xseg_max(blocks->peak[quantity], now[i]);
    }
}

static void change_blocks_randomly(struct xseg_counts *counts, struct blocks *blocks,
                                   unsigned random)
{
    if (random % 8 < 4) {
        xseg_counts_alloc(counts, 10, 7);
        blocks->allocated++;
    } else if (random % 8 == 4 && blocks->allocated > 0) {
        xseg_counts_mark_pending(counts, 1, 10);
        blocks->allocated--;
        blocks->pending++;
    } else if (random % 8 == 5 && blocks->pending > 0) {
        xseg_counts_end_pending(counts, 1, 10, 7);
        blocks->pending--;
    } else if (blocks->allocated > 0) {
        xseg_counts_free(counts, 10, 7);
        blocks->allocated--;
    }
}

/* Blocks that are active without being allocated count for some quantities and not for others. */
TEST(peaks_of_pending_blocks_are_exact)
{
    for (unsigned seed = 1; seed <= 20; seed++) {
        struct xseg_counts counts[2];
        struct blocks of_arena[2] = {0}, sum = {0};

        srandom(seed);
        (void)set_up(NULL);
        for (unsigned i = 0; i < 2; i++)
            xseg_counts_init(&counts[i], &totals, i == 0);
        for (unsigned i = 0; i < 4000; i++) {
            const unsigned member = (unsigned)random() % 2;
            /* With an even seed, the first 1000 changes mark no block as pending. */
            const unsigned mask = seed % 2 == 0 && i < 1000 ? 2 : 0;

            change_blocks_randomly(&counts[member], &of_arena[member], (unsigned)random() | mask);
            set_blocks(&sum, of_arena[0].allocated + of_arena[1].allocated,
                       of_arena[0].pending + of_arena[1].pending);
        }
        for (size_t i = 0; i < XSEG_COUNT_OF(of_blocks); i++) {
            const struct xseg_stat stat = xseg_totals_read(&totals, XSEG_STAT_ALL, of_blocks[i]);

            assert_int_equal(stat.current, sum.value[of_blocks[i]]);
            assert_int_equal(stat.peak, sum.peak[of_blocks[i]]);
            assert_int_equal(stat.allocated - stat.freed, stat.current);
        }
        (void)tear_down(NULL);
    }
}

/* An arena that exceeds its quota redistributes the headroom of all arenas.  Here each arena in turn replaces a block by one of
 * another size. */
TEST_WITH(quotas_are_seldom_redistributed, set_up, tear_down)
{
    enum { BLOCKS = 100, ROUNDS = 2000 };
    static uint64_t sizes[MEMBERS][BLOCKS];
    struct xseg_counts counts[MEMBERS];
    unsigned redistributions = 0;

    srandom(1);
    for (unsigned i = 0; i < MEMBERS; i++)
        xseg_counts_init(&counts[i], &totals, true);
    for (unsigned i = 0; i < (BLOCKS + ROUNDS) * MEMBERS; i++) {
        struct xseg_counts *arena = &counts[i % MEMBERS];
        uint64_t *size = &sizes[i % MEMBERS][i / MEMBERS % BLOCKS];
        const uint64_t quota = arena->quota[XSEG_COUNT_ALLOCATED_BYTES];

        if (i >= BLOCKS * MEMBERS)
            xseg_counts_free(arena, *size, *size);
        *size = 1 + (uint64_t)random() % 100;
        xseg_counts_alloc(arena, *size, *size);
        redistributions +=
            i >= BLOCKS * MEMBERS && arena->quota[XSEG_COUNT_ALLOCATED_BYTES] != quota;
    }
    assert_in_range(redistributions, 1, ROUNDS * MEMBERS / 20);
}

TEST_WITH(reset_restarts_peaks, set_up, tear_down)
{
    struct xseg_counts counts;
    struct xseg_stat stat;

    xseg_counts_init(&counts, &totals, false);
    xseg_counts_increase(&counts, QUANTITY, 100);
    xseg_counts_decrease(&counts, QUANTITY, 60);

    xseg_totals_reset_peaks(&totals);
    stat = xseg_totals_read(&totals, XSEG_STAT_LARGE, QUANTITY);
    assert_int_equal(stat.peak, 40);
    assert_int_equal(stat.allocated, 100);
    assert_int_equal(stat.freed, 60);

    xseg_totals_reset_accumulated(&totals);
    xseg_counts_increase(&counts, QUANTITY, 7);
    stat = xseg_totals_read(&totals, XSEG_STAT_ALL, QUANTITY);
    assert_int_equal(stat.current, 47);
    assert_int_equal(stat.peak, 47);
    assert_int_equal(stat.allocated, 7);
    assert_int_equal(stat.freed, 0);
    assert_int_equal(xseg_totals_read(&totals, XSEG_STAT_SMALL, QUANTITY).peak, 0);
}

static void *count_up_and_down(void *counts)
{
    for (unsigned i = 0; i < 100000; i++) {
        xseg_counts_increase(counts, QUANTITY, 10);
        xseg_counts_decrease(counts, QUANTITY, 10);
    }
    return NULL;
}

/* With concurrent threads values and totals are exact; a peak misses at most the last calls of other threads. */
TEST_WITH(concurrent_updates_are_all_counted, set_up, tear_down)
{
    struct xseg_counts counts[2];
    pthread_t thread[2];

    for (unsigned i = 0; i < 2; i++)
        xseg_counts_init(&counts[i], &totals, true);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, count_up_and_down, &counts[i]), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    const struct xseg_stat stat = xseg_totals_read(&totals, XSEG_STAT_ALL, QUANTITY);
    assert_int_equal(stat.current, 0);
    assert_int_equal(stat.allocated, 2000000); /* 2 threads, 100,000 times 10 */
    assert_int_equal(stat.freed, 2000000);
    assert_in_range(stat.peak, 10, 20); /* of one thread, or of both */
}

static atomic_bool must_end;

static void *count_until_end(void *counts)
{
    while (!atomic_load(&must_end)) {
        xseg_counts_alloc(counts, 10, 10);
        xseg_counts_free(counts, 10, 10);
    }
    return NULL;
}

TEST_WITH(values_are_consistent, set_up, tear_down)
{
    struct xseg_counts counts;
    uint64_t max_value = 0;
    unsigned inconsistent = 0;
    pthread_t thread;

    xseg_counts_init(&counts, &totals, true);
    atomic_store(&must_end, false);
    assert_int_equal(pthread_create(&thread, NULL, count_until_end, &counts), 0);
    for (unsigned i = 0; i < 100000 || max_value == 0; i++) {
        const struct xseg_stat stat =
            xseg_totals_read(&totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATED_BYTES);

        max_value = xseg_max(max_value, xseg_max(stat.current, stat.peak));
        inconsistent += stat.freed != stat.allocated - stat.current;
    }
    atomic_store(&must_end, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(max_value, 10);
    assert_int_equal(inconsistent, 0);
}

/* --- Suspended counts. --- */

enum { ARENAS = 300 };

/* The members of an arena that counters use. */
struct arena {
    struct xseg_counts counts;
    struct xseg_biased_lock lock;
    atomic_uint_fast64_t flags;
    uint64_t blocks;
};

static void open_arena(struct arena *arena, bool is_small)
{
    memset(arena, 0, sizeof(*arena));
    xseg_biased_lock_init(&arena->lock, XSEG_RANK_ARENA);
    xseg_counts_init(&arena->counts, &totals, is_small);
    xseg_counts_allow_suspend(&arena->counts, &arena->lock, &arena->flags);
}

/* Count the allocation of a block, or the free of one if there is any, as an arena does. */
static void count_block(struct arena *arena, bool frees) XSEG_UNCHECKED
{
    xseg_biased_lock_lock(&arena->lock);
    if (!frees) {
        xseg_counts_alloc(&arena->counts, 10, 7);
        arena->blocks++;
    } else if (arena->blocks > 0) {
        xseg_counts_free(&arena->counts, 10, 7);
        arena->blocks--;
        if (atomic_load(&arena->flags) != 0)
            xseg_counts_resume(&arena->counts);
    }
    xseg_biased_lock_unlock(&arena->lock);
}

static void expect_audits(struct arena *arenas) XSEG_UNCHECKED
{
    for (unsigned i = 0; i < ARENAS; i++) {
        xseg_biased_lock_lock(&arenas[i].lock);
        expect_audit(xseg_counts_audit(&arenas[i].counts, &violation), NULL);
        xseg_biased_lock_unlock(&arenas[i].lock);
    }
    expect_audit(xseg_totals_audit(&totals, &violation), NULL);
}

TEST(peaks_are_exact_with_suspended_counts)
{
    static struct arena arenas[ARENAS];

    for (unsigned seed = 1; seed <= 3; seed++) {
        uint64_t blocks = 0, peak = 0, allocations = 0;
        unsigned still_suspended = 0;

        srandom(seed);
        (void)set_up(NULL);
        for (unsigned i = 0; i < ARENAS; i++)
            open_arena(&arenas[i], i % 2 == 0);
        for (unsigned i = 0; i < 60000; i++) {
            /* One call in eight uses any arena, the others one of four arenas, which change every 300 calls. */
            const unsigned at = random() % 8 == 0 ? (unsigned)random() % ARENAS
                                                  : (i / 300 + (unsigned)random() % 4) % ARENAS;
            const bool frees = random() % 16 < 7 || (random() % 4 != 0 && blocks > 2000);
            const uint64_t before = arenas[at].blocks;

            count_block(&arenas[at], frees);
            blocks += arenas[at].blocks - before;
            allocations += arenas[at].blocks > before;
            peak = xseg_max(peak, blocks);
            still_suspended += arenas[at].blocks != before && arenas[at].counts.is_suspended;
            if (i % 1000 == 0)
                expect_audits(arenas);
        }
        const struct xseg_stat stat =
            xseg_totals_read(&totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATION);
        assert_int_equal(stat.current, blocks);
        assert_int_equal(stat.peak, peak);
        assert_int_equal(stat.allocated, allocations);
        assert_int_equal(xseg_totals_read(&totals, XSEG_STAT_ALL, XSEG_COUNT_REQUESTED_BYTES).peak,
                         7 * peak);
        assert_int_equal(still_suspended, 0);
        /* The counts of at least one arena are suspended, unless the kernel has no barrier. */
        assert_true(totals.member_count < ARENAS || !xseg_biased_lock_barrier(&arenas[0].lock));
        expect_audits(arenas);
        (void)tear_down(NULL);
        for (unsigned i = 0; i < ARENAS; i++)
            xseg_biased_lock_fini(&arenas[i].lock);
    }
}

/* Mark the lock as held by another thread: the lock ranks of this thread do not change. */
static void set_held(struct xseg_biased_lock *lock, bool is_held) XSEG_UNCHECKED
{
#if XSEG_BIASED_LOCK_IS_ATOMIC
    atomic_store(&lock->locked, is_held);
#else
    atomic_store(&lock->owner_locked, is_held);
#endif
}

/* The counts of an arena whose lock is held are not suspended: the holder may be changing a value. */
TEST_WITH(counts_of_locked_arenas_are_not_suspended, set_up, tear_down)
{
    static struct arena arenas[ARENAS];

    for (unsigned i = 0; i < ARENAS; i++) {
        open_arena(&arenas[i], true);
        count_block(&arenas[i], false);
        if (i == 0)
            set_held(&arenas[i].lock, true);
    }
    assert_false(arenas[0].counts.is_suspended);
    assert_true(arenas[1].counts.is_suspended || !xseg_biased_lock_barrier(&arenas[0].lock));
    set_held(&arenas[0].lock, false);
    /* The counts are suspended later, and the next change resumes them. */
    for (unsigned i = 0; i < 4096; i++)
        count_block(&arenas[1 + i % (ARENAS - 1)], false);
    assert_true(arenas[0].counts.is_suspended || !xseg_biased_lock_barrier(&arenas[0].lock));
    count_block(&arenas[0], true);
    assert_false(arenas[0].counts.is_suspended);
    assert_int_equal(atomic_load(&arenas[0].flags), 0);
    assert_int_equal(xseg_totals_read(&totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATION).current,
                     ARENAS - 1 + 4096);
    expect_audits(arenas);
}

static struct arena shared_arenas[ARENAS];

static void *change_arenas(void *argument)
{
    unsigned seed = *(unsigned *)argument;

    for (unsigned i = 0; i < 20000; i++) {
        const unsigned at = (unsigned)rand_r(&seed) % ARENAS;

        /* Each arena is changed by one thread; the other threads only read it. */
        count_block(&shared_arenas[at / 3 * 3 + *(unsigned *)argument % 3], rand_r(&seed) % 2 == 0);
    }
    return NULL;
}

TEST_WITH(threads_resume_counts_that_others_suspend, set_up, tear_down)
{
    pthread_t thread[3];
    unsigned index[3];
    uint64_t blocks = 0;

    for (unsigned i = 0; i < ARENAS; i++)
        open_arena(&shared_arenas[i], i % 2 == 0);
    for (unsigned i = 0; i < 3; i++) {
        index[i] = i;
        assert_int_equal(pthread_create(&thread[i], NULL, change_arenas, &index[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (unsigned i = 0; i < ARENAS; i++)
        blocks += shared_arenas[i].blocks;
    expect_audits(shared_arenas);
    assert_int_equal(xseg_totals_read(&totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATION).current,
                     blocks);
}
