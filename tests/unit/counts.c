/* SPDX-License-Identifier: MIT */
/* Counters of a device: its peaks are exact although every arena counts separately. */
#include "src/core/stats/counts.h"
#include "src/base/align.h"
#include "tests/support/audit.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MEMBERS 5u
#define WHAT    XSEG_COUNT_RESERVED_BYTES

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
        const struct xseg_stat stat = xseg_totals_read(&totals, group, WHAT);

        assert_int_equal(stat.current, model_sum(model, group));
        assert_int_equal(stat.peak, model->peak[group]);
        assert_int_equal(stat.allocated, model->up[group]);
        assert_int_equal(stat.freed, model->down[group]);
    }
}

static void step(struct xseg_counts *counts, struct model *model, unsigned member, unsigned random)
{
    const enum xseg_stat_group group = group_of(member);
    const uint64_t amount = 1 + random / 16 % 100;

    if (random % 16 < 8 || model->value[member] < amount) {
        xseg_counts_increase(&counts[member], WHAT, amount);
        model->value[member] += amount;
        model->up[XSEG_STAT_ALL] += amount;
        model->up[group] += amount;
    } else {
        xseg_counts_decrease(&counts[member], WHAT, amount);
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
            step(counts, &model, (unsigned)random() % joined, (unsigned)random());
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
    uint64_t live, pending; /* of 10 bytes each, 7 of them requested */
};

static const enum xseg_count of_blocks[] = {XSEG_COUNT_ALLOCATION, XSEG_COUNT_ALLOCATED_BYTES,
                                            XSEG_COUNT_ACTIVE, XSEG_COUNT_ACTIVE_BYTES,
                                            XSEG_COUNT_REQUESTED_BYTES};

static void set_blocks(struct blocks *blocks, uint64_t live, uint64_t pending)
{
    const uint64_t now[] = {live, 10 * live, live + pending, 10 * (live + pending),
                            7 * (live + pending)};

    blocks->live = live;
    blocks->pending = pending;
    for (size_t i = 0; i < XSEG_COUNT_OF(of_blocks); i++) {
        const enum xseg_count what = of_blocks[i];

        blocks->value[what] = now[i];
        blocks->peak[what] = xseg_max(blocks->peak[what], now[i]);
    }
}

static void step_blocks(struct xseg_counts *counts, struct blocks *mine, unsigned random)
{
    if (random % 8 < 4) {
        xseg_counts_alloc(counts, 10, 7);
        mine->live++;
    } else if (random % 8 == 4 && mine->live > 0) {
        xseg_counts_mark_pending(counts, 1, 10);
        mine->live--;
        mine->pending++;
    } else if (random % 8 == 5 && mine->pending > 0) {
        xseg_counts_end_pending(counts, 1, 10, 7);
        mine->pending--;
    } else if (mine->live > 0) {
        xseg_counts_free(counts, 10, 7);
        mine->live--;
    }
}

/* Blocks that are active without being allocated count for some quantities and not for others. */
TEST(peaks_of_pending_blocks_are_exact)
{
    for (unsigned seed = 1; seed <= 20; seed++) {
        struct xseg_counts counts[2];
        struct blocks mine[2] = {0}, both = {0};

        srandom(seed);
        (void)set_up(NULL);
        for (unsigned i = 0; i < 2; i++)
            xseg_counts_init(&counts[i], &totals, i == 0);
        for (unsigned i = 0; i < 4000; i++) {
            const unsigned member = (unsigned)random() % 2;
            /* In every other run no block is pending for a long time. */
            const unsigned bits = seed % 2 == 0 && i < 1000 ? 2 : 0;

            step_blocks(&counts[member], &mine[member], (unsigned)random() | bits);
            set_blocks(&both, mine[0].live + mine[1].live, mine[0].pending + mine[1].pending);
        }
        for (size_t i = 0; i < XSEG_COUNT_OF(of_blocks); i++) {
            const struct xseg_stat stat = xseg_totals_read(&totals, XSEG_STAT_ALL, of_blocks[i]);

            assert_int_equal(stat.current, both.value[of_blocks[i]]);
            assert_int_equal(stat.peak, both.peak[of_blocks[i]]);
            assert_int_equal(stat.allocated - stat.freed, stat.current);
        }
        (void)tear_down(NULL);
    }
}

/* An arena without a quota redistributes the headroom of all; arenas that exchange blocks in turn. */
TEST_WITH(quotas_are_seldom_redistributed, set_up, tear_down)
{
    enum { LIVE = 100, ROUNDS = 2000 };
    static uint64_t bytes[MEMBERS][LIVE];
    struct xseg_counts counts[MEMBERS];
    unsigned redistributions = 0;

    srandom(1);
    for (unsigned i = 0; i < MEMBERS; i++)
        xseg_counts_init(&counts[i], &totals, true);
    for (unsigned i = 0; i < (LIVE + ROUNDS) * MEMBERS; i++) {
        struct xseg_counts *one = &counts[i % MEMBERS];
        uint64_t *place = &bytes[i % MEMBERS][i / MEMBERS % LIVE];
        const uint64_t quota = one->quota[XSEG_COUNT_ALLOCATED_BYTES];

        if (i >= LIVE * MEMBERS)
            xseg_counts_free(one, *place, *place);
        *place = 1 + (uint64_t)random() % 100;
        xseg_counts_alloc(one, *place, *place);
        redistributions += i >= LIVE * MEMBERS && one->quota[XSEG_COUNT_ALLOCATED_BYTES] != quota;
    }
    assert_in_range(redistributions, 1, ROUNDS * MEMBERS / 20);
}

TEST_WITH(reset_restarts_peaks, set_up, tear_down)
{
    struct xseg_counts counts;
    struct xseg_stat stat;

    xseg_counts_init(&counts, &totals, false);
    xseg_counts_increase(&counts, WHAT, 100);
    xseg_counts_decrease(&counts, WHAT, 60);

    xseg_totals_reset_peaks(&totals);
    stat = xseg_totals_read(&totals, XSEG_STAT_LARGE, WHAT);
    assert_int_equal(stat.peak, 40);
    assert_int_equal(stat.allocated, 100);
    assert_int_equal(stat.freed, 60);

    xseg_totals_reset_accumulated(&totals);
    xseg_counts_increase(&counts, WHAT, 7);
    stat = xseg_totals_read(&totals, XSEG_STAT_ALL, WHAT);
    assert_int_equal(stat.current, 47);
    assert_int_equal(stat.peak, 47);
    assert_int_equal(stat.allocated, 7);
    assert_int_equal(stat.freed, 0);
    assert_int_equal(xseg_totals_read(&totals, XSEG_STAT_SMALL, WHAT).peak, 0);
}

static void *count_up_and_down(void *counts)
{
    for (unsigned i = 0; i < 100000; i++) {
        xseg_counts_increase(counts, WHAT, 10);
        xseg_counts_decrease(counts, WHAT, 10);
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
    const struct xseg_stat stat = xseg_totals_read(&totals, XSEG_STAT_ALL, WHAT);
    assert_int_equal(stat.current, 0);
    assert_int_equal(stat.allocated, 2000000); /* 2 threads, 100000 times 10 */
    assert_int_equal(stat.freed, 2000000);
    assert_in_range(stat.peak, 10, 20);
}

static atomic_bool is_over;

static void *count_until_end(void *counts)
{
    while (!atomic_load(&is_over)) {
        xseg_counts_alloc(counts, 10, 10);
        xseg_counts_free(counts, 10, 10);
    }
    return NULL;
}

TEST_WITH(values_are_consistent, set_up, tear_down)
{
    struct xseg_counts counts;
    uint64_t most = 0;
    unsigned others = 0;
    pthread_t thread;

    xseg_counts_init(&counts, &totals, true);
    atomic_store(&is_over, false);
    assert_int_equal(pthread_create(&thread, NULL, count_until_end, &counts), 0);
    for (unsigned i = 0; i < 100000 || most == 0; i++) {
        const struct xseg_stat stat =
            xseg_totals_read(&totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATED_BYTES);

        most = xseg_max(most, xseg_max(stat.current, stat.peak));
        others += stat.freed != stat.allocated - stat.current;
    }
    atomic_store(&is_over, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(most, 10);
    assert_int_equal(others, 0);
}

/* --- Suspended counts. --- */

enum { ARENAS = 300 };

/* The part of an arena that counters use. */
struct owner {
    struct xseg_counts counts;
    struct xseg_biased_lock lock;
    atomic_uint_fast64_t notes;
    uint64_t live;
};

static void open_owner(struct owner *owner, bool is_small)
{
    memset(owner, 0, sizeof(*owner));
    xseg_biased_lock_init(&owner->lock, XSEG_RANK_ARENA);
    xseg_counts_init(&owner->counts, &totals, is_small);
    xseg_counts_allow_suspend(&owner->counts, &owner->lock, &owner->notes);
}

/* Count one block more or less, as an arena does. */
static void add_block(struct owner *owner, bool frees) XSEG_UNCHECKED
{
    xseg_biased_lock_lock(&owner->lock);
    if (!frees) {
        xseg_counts_alloc(&owner->counts, 10, 7);
        owner->live++;
    } else if (owner->live > 0) {
        xseg_counts_free(&owner->counts, 10, 7);
        owner->live--;
        if (atomic_load(&owner->notes) != 0)
            xseg_counts_resume(&owner->counts);
    }
    xseg_biased_lock_unlock(&owner->lock);
}

static void expect_audits(struct owner *owners) XSEG_UNCHECKED
{
    for (unsigned i = 0; i < ARENAS; i++) {
        xseg_biased_lock_lock(&owners[i].lock);
        expect_audit(xseg_counts_audit(&owners[i].counts, &violation), NULL);
        xseg_biased_lock_unlock(&owners[i].lock);
    }
    expect_audit(xseg_totals_audit(&totals, &violation), NULL);
}

TEST(peaks_are_exact_with_suspended_counts)
{
    static struct owner owners[ARENAS];

    for (unsigned seed = 1; seed <= 3; seed++) {
        uint64_t live = 0, peak = 0, allocated = 0;
        unsigned suspended = 0;

        srandom(seed);
        (void)set_up(NULL);
        for (unsigned i = 0; i < ARENAS; i++)
            open_owner(&owners[i], i % 2 == 0);
        for (unsigned i = 0; i < 60000; i++) {
            /* A few arenas at a time are busy; occasionally any of them frees. */
            const unsigned at = random() % 8 == 0 ? (unsigned)random() % ARENAS
                                                  : (i / 300 + (unsigned)random() % 4) % ARENAS;
            const bool frees = random() % 16 < 7 || (random() % 4 != 0 && live > 2000);
            const uint64_t before = owners[at].live;

            add_block(&owners[at], frees);
            live += owners[at].live - before;
            allocated += owners[at].live > before;
            peak = xseg_max(peak, live);
            suspended += owners[at].live != before && owners[at].counts.is_suspended;
            if (i % 1000 == 0)
                expect_audits(owners);
        }
        const struct xseg_stat stat =
            xseg_totals_read(&totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATION);
        assert_int_equal(stat.current, live);
        assert_int_equal(stat.peak, peak);
        assert_int_equal(stat.allocated, allocated);
        assert_int_equal(xseg_totals_read(&totals, XSEG_STAT_ALL, XSEG_COUNT_REQUESTED_BYTES).peak,
                         7 * peak);
        assert_int_equal(suspended, 0);
        /* At least one arena was suspended, unless the kernel has no barrier. */
        assert_true(totals.member_count < ARENAS || !xseg_biased_lock_barrier(&owners[0].lock));
        expect_audits(owners);
        (void)tear_down(NULL);
        for (unsigned i = 0; i < ARENAS; i++)
            xseg_biased_lock_fini(&owners[i].lock);
    }
}

/* From another thread, so that the lock ranks of this thread do not change. */
static void hold(struct xseg_biased_lock *lock, bool is_held) XSEG_UNCHECKED
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
    static struct owner owners[ARENAS];

    for (unsigned i = 0; i < ARENAS; i++) {
        open_owner(&owners[i], true);
        add_block(&owners[i], false);
        if (i == 0)
            hold(&owners[i].lock, true);
    }
    assert_false(owners[0].counts.is_suspended);
    assert_true(owners[1].counts.is_suspended || !xseg_biased_lock_barrier(&owners[0].lock));
    hold(&owners[0].lock, false);
    /* The counts are suspended later, and the next change resumes them. */
    for (unsigned i = 0; i < 4096; i++)
        add_block(&owners[1 + i % (ARENAS - 1)], false);
    assert_true(owners[0].counts.is_suspended || !xseg_biased_lock_barrier(&owners[0].lock));
    add_block(&owners[0], true);
    assert_false(owners[0].counts.is_suspended);
    assert_int_equal(atomic_load(&owners[0].notes), 0);
    assert_int_equal(xseg_totals_read(&totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATION).current,
                     ARENAS - 1 + 4096);
    expect_audits(owners);
}

static struct owner shared_owners[ARENAS];

static void *change_on(void *argument)
{
    unsigned seed = *(unsigned *)argument;

    for (unsigned i = 0; i < 20000; i++) {
        const unsigned at = (unsigned)rand_r(&seed) % ARENAS;

        /* Each owner has one thread; the others only read. */
        add_block(&shared_owners[at / 3 * 3 + *(unsigned *)argument % 3], rand_r(&seed) % 2 == 0);
    }
    return NULL;
}

TEST_WITH(threads_resume_counts_that_others_suspend, set_up, tear_down)
{
    pthread_t thread[3];
    unsigned number[3];
    uint64_t live = 0;

    for (unsigned i = 0; i < ARENAS; i++)
        open_owner(&shared_owners[i], i % 2 == 0);
    for (unsigned i = 0; i < 3; i++) {
        number[i] = i;
        assert_int_equal(pthread_create(&thread[i], NULL, change_on, &number[i]), 0);
    }
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (unsigned i = 0; i < ARENAS; i++)
        live += shared_owners[i].live;
    expect_audits(shared_owners);
    assert_int_equal(xseg_totals_read(&totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATION).current, live);
}
