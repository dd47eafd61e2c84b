/* SPDX-License-Identifier: MIT */
/*
 * Random programs with elastic ranges, against arrays: the use of each granule, its page, and the stream and work that
 * its pending unmap waits for.
 *
 * Five ranges of one device, in three pools: three share one, one has longer pages, one has exportable pages and a
 * limit. Commits, decommits, aliases, holds, prepared pages, quotas, checkpoints, marked captures, pauses; and blocks,
 * on a device of little memory.  All work is open-ended and names its granules, so that the simulator ends the process
 * if a page in use is unmapped.  After each step each granule, page, content and statistic is that of the arrays.
 *
 * If the library has waited for streams, or may have released memory, the arrays adopt the unmapped granules, and
 * expect that each was allowed to be unmapped.
 *
 * A failure prints its seed.  By hand:
 *   XSEG_TEST_SEED=N XSEG_TEST_SEEDS=1 build-tests/tests/test-model-ranges
 *   XSEG_TEST_TRACE=1 ...                     (the name of each step)
 *   XSEG_TEST_SEED=1000 XSEG_TEST_SEEDS=10000 XSEG_TEST_STEPS=1000 ...
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/core/block/block.h"
#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "src/core/range/range.h"
#include "tests/model/driver.h"
#include "tests/support/env.h"
#include "tests/support/rng.h"
#include "vmm/alias.h"
#include "xseg/range.h"

#define RANGES   5u
#define GRANULES 24u
#define PLACES   (RANGES * GRANULES)
#define STREAMS  4u
#define WORK     16u /* pieces that may be queued on a stream at once */
#define BLOCKS   12u
#define NONE     UINT32_MAX

/* Number of completed kernels of each stream. */
struct point {
    uint64_t of[STREAMS];
};

struct granule {
    enum xseg_elastic_use use;
    unsigned page, batch; /* NONE: none */
    unsigned holds;
    struct point user; /* the last pieces of work that touch it */
};

/* A physical page. */
struct page {
    uint64_t tag;
    unsigned places; /* granules that map it */
    unsigned
        charged; /* the range that is charged for it, since it mapped the page first and still does; NONE: none */
};

struct batch {
    unsigned range, stream, left;
    struct point behind;
    bool has_event, is_over; /* is_over: the library knows that the stream has passed */
};

struct kind {
    uint64_t page_bytes, limit;
    unsigned pool; /* of the named pools; NONE: a private one */
    bool exportable;
};

static const struct kind kinds[RANGES] = {
    {2 * MIB, 0, 0, false},    {2 * MIB, 0, 0, false},       {4 * MIB, 0, 0, false},
    {2 * MIB, 0, NONE, false}, {2 * MIB, 24 * MIB, 1, true},
};

static struct env {
    struct xseg_allocator *allocator;
    struct xseg_device *device;
    xseg_stream stream[STREAMS];
    xseg_event event[STREAMS][WORK]; /* behind piece number n: at n % WORK */
    bool is_known[STREAMS];          /* to the library */
    struct point behind[STREAMS];    /* what the next piece of a stream waits for */
    struct point over;               /* completed work */
    struct xseg_pool *pool[2];
    struct xseg_range *range[RANGES];
    bool is_paused[RANGES];
    uint64_t quota[RANGES], recommits[RANGES];
    uint64_t reserved[RANGES], reservations; /* the number of the range among all that there were */
    struct granule granule[PLACES];
    struct page page[PLACES];
    struct batch batch[PLACES]; /* the oldest first */
    unsigned batches, marks;
    char *block[BLOCKS];
    unsigned blocks;
    struct xseg_checkpoint *checkpoint; /* of the first pool; NULL: none */
    bool was_live[PLACES];              /* when it was taken */
    uint64_t was_reserved[RANGES];
    uint64_t random, tag, cache, limit;
    bool has_bytes, ran_short;
} env;

/* Totals of all programs, to detect a test without effect. */
static struct {
    uint64_t commits, refused, recommits, shares, gone, outlived, waited, parted, pauses, restored,
        not_restored, brought_back;
} tally;

static uint64_t below(uint64_t bound)
{
    return rng_next(&env.random) % bound;
}

static struct granule *granule_of(unsigned range, unsigned at)
{
    return &env.granule[range * GRANULES + at];
}

/* --- Points. --- */

static void wait_for(unsigned stream, const struct point *point)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (point->of[i] > env.behind[stream].of[i])
            env.behind[stream].of[i] = point->of[i];
}

static bool has_passed(const struct point *point)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (point->of[i] > env.over.of[i])
            return false;
    return true;
}

/* Poll the streams: the library may have waited for some. */
static void look_at_streams(void)
{
    for (unsigned i = 0; i < STREAMS; i++)
        while (env.over.of[i] < env.behind[i].of[i]) {
            xseg_event *event = &env.event[i][(env.over.of[i] + 1) % WORK];

            if (!driver_has_completed(*event))
                break;
            driver_event_destroy(*event);
            env.over.of[i]++;
        }
}

/* Let a stream wait for all work that touches some granules. */
static void order(unsigned stream, unsigned range, unsigned first, unsigned count)
{
    for (unsigned at = first; at < first + count; at++)
        for (unsigned i = 0; i < STREAMS; i++)
            if (granule_of(range, at)->user.of[i] > env.behind[stream].of[i] && i != stream) {
                env_stream_wait(env.stream[stream], env.stream[i]);
                wait_for(stream, &env.behind[i]);
            }
}

/* --- Pages. --- */

static struct page *page_at(unsigned place)
{
    return &env.page[env.granule[place].page];
}

static bool is_live(unsigned place)
{
    return env.granule[place].use == XSEG_ELASTIC_ALLOCATED;
}

static bool runs(unsigned place)
{
    return !env.is_paused[place / GRANULES];
}

/* Whether a granule is the first of those that map its page, in a range or in all of them. */
static bool is_first_mapping(unsigned place, bool in_range)
{
    const unsigned first = in_range ? place / GRANULES * GRANULES : 0;

    for (unsigned other = first; other < place; other++)
        if (env.granule[other].page == env.granule[place].page)
            return false;
    return true;
}

static bool is_page_live(unsigned page)
{
    for (unsigned place = 0; place < PLACES; place++)
        if (env.granule[place].page == page && is_live(place))
            return true;
    return false;
}

/* The mapping of a granule is removed. */
static void forget_place(unsigned place)
{
    const unsigned page = env.granule[place].page, range = place / GRANULES;
    bool is_mapped = false;

    env.granule[place].page = NONE;
    env.page[page].places--;
    for (unsigned other = range * GRANULES; other < (range + 1) * GRANULES; other++)
        is_mapped = is_mapped || env.granule[other].page == page;
    if (env.page[page].charged != range || is_mapped)
        return;
    env.page[page].charged = NONE;
    tally.outlived += env.page[page].places != 0;
}

/* --- Batches. --- */

static void end_batch(unsigned batch)
{
    env.batches--;
    memmove(&env.batch[batch], &env.batch[batch + 1], (env.batches - batch) * sizeof(env.batch[0]));
    for (unsigned place = 0; place < PLACES; place++)
        env.granule[place].batch -=
            env.granule[place].batch != NONE && env.granule[place].batch > batch;
}

static void leave_batch(unsigned place)
{
    const unsigned batch = env.granule[place].batch;

    env.granule[place].batch = NONE;
    if (--env.batch[batch].left == 0)
        end_batch(batch);
}

static void add_batch(unsigned range, unsigned first, unsigned count, unsigned stream)
{
    env.batch[env.batches] = (struct batch){.range = range,
                                            .stream = stream,
                                            .left = count,
                                            .behind = env.behind[stream],
                                            .has_event = env.marks == 0};
    for (unsigned at = first; at < first + count; at++)
        granule_of(range, at)->batch = env.batches;
    env.batches++;
}

/* The granules are unmapped. */
static void go(unsigned first, unsigned count)
{
    for (unsigned place = first; place < first + count; place++) {
        assert_int_equal(env.granule[place].holds, 0);
        forget_place(place);
        leave_batch(place);
        env.granule[place].use = XSEG_ELASTIC_EMPTY;
        tally.gone++;
    }
}

static bool may_go(unsigned place, unsigned batch)
{
    const struct granule *granule = &env.granule[place];

    return granule->use == XSEG_ELASTIC_UNMAPPING && granule->batch == batch && granule->holds == 0;
}

/* Take away what may go of a batch; whether the batch has ended. */
static bool work_off(unsigned batch)
{
    const unsigned base = env.batch[batch].range * GRANULES;

    for (unsigned first = base, count; first < base + GRANULES; first += count + 1) {
        for (count = 0; first + count < base + GRANULES && may_go(first + count, batch);)
            count++;
        const bool is_last = env.batch[batch].left == count;
        if (count != 0)
            go(first, count);
        if (is_last)
            return true;
    }
    return false;
}

/* Ask which batches may go: behind the first of a stream that may not, none is asked about. */
static void ask(void)
{
    bool at_work[STREAMS] = {false};

    for (unsigned i = 0; i < env.batches; i++) {
        struct batch *batch = &env.batch[i];

        if (!batch->has_event && !batch->is_over)
            batch->behind = env.behind[batch->stream];
        batch->has_event = true;
    }
    for (unsigned i = 0; i < env.batches; i++) {
        struct batch *batch = &env.batch[i];

        if (batch->is_over || at_work[batch->stream])
            continue;
        batch->is_over = has_passed(&batch->behind);
        at_work[batch->stream] = !batch->is_over;
    }
}

static void look(void)
{
    if (env.marks > 0)
        return;
    ask();
    for (unsigned i = 0; i < env.batches;)
        i += env.batch[i].is_over && work_off(i) ? 0 : 1;
}

/* --- What the library has waited for, or given back. --- */

static const struct xseg_elastic *elastic_of(unsigned range)
{
    return &env.range[range]->state->elastic;
}

/* Expect that unmapped granules were allowed to be. */
static void adopt(void)
{
    look_at_streams();
    for (unsigned place = 0; place < PLACES; place++) {
        const struct granule *granule = &env.granule[place];

        if (granule->use != XSEG_ELASTIC_UNMAPPING ||
            elastic_of(place / GRANULES)->use[place % GRANULES] != XSEG_ELASTIC_EMPTY)
            continue;
        assert_int_equal(env.marks, 0);
        assert_true(has_passed(&env.batch[granule->batch].behind));
        go(place, 1);
    }
}

static uint64_t waits(void)
{
    return xseg_sim_calls("cuEventSynchronize") + xseg_sim_calls("cuStreamSynchronize") +
           xseg_sim_calls("cuCtxSynchronize");
}

/* --- What must hold. --- */

/* Bytes of the pages for which a range is charged. */
static uint64_t own_of(unsigned range)
{
    uint64_t own = 0;

    for (unsigned place = range * GRANULES; place < (range + 1) * GRANULES; place++)
        own += env.granule[place].page != NONE && page_at(place)->charged == range &&
               is_first_mapping(place, true);
    return own * kinds[range].page_bytes;
}

/* Bytes of the pages of a pool, or of those of them that are live. */
static uint64_t pages_of(const struct xseg_pool *pool, bool live)
{
    uint64_t bytes = 0;

    for (unsigned place = 0; place < PLACES; place++)
        if (env.granule[place].page != NONE && env.range[place / GRANULES]->state->pool == pool &&
            is_first_mapping(place, false) && (!live || is_page_live(env.granule[place].page)))
            bytes += kinds[place / GRANULES].page_bytes;
    return bytes;
}

static uint64_t count_use(unsigned range, enum xseg_elastic_use use)
{
    uint64_t count = 0;

    for (unsigned at = 0; at < GRANULES; at++)
        count += granule_of(range, at)->use == use;
    return count * kinds[range].page_bytes;
}

static struct xseg_range_info info_of(unsigned range)
{
    struct xseg_range_info info = {sizeof(info)};

    assert_ok(xseg_range_query(env.range[range], &info));
    return info;
}

static struct xseg_statistics stats_of(struct xseg_pool *pool)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope where = {sizeof(where), .device = 0, .pool = pool};

    assert_ok(xseg_stats_get(env.allocator, &where, &stats));
    return stats;
}

static void check_range(unsigned range)
{
    const struct xseg_range_info info = info_of(range);
    const uint64_t live = count_use(range, XSEG_ELASTIC_ALLOCATED),
                   leaving = count_use(range, XSEG_ELASTIC_UNMAPPING);

    assert_int_equal(info.committed_bytes, live);
    assert_int_equal(info.pending_unmap_bytes, leaving);
    assert_int_equal(info.mapped_bytes, env.is_paused[range] ? 0 : live + leaving);
    assert_int_equal(info.physical_bytes, (env.is_paused[range] ? 0 : own_of(range)));
    assert_int_equal(info.quota_bytes, env.quota[range]);
    assert_int_equal(info.recommits, env.recommits[range]);
}

static void check_pool(struct xseg_pool *pool)
{
    const struct xseg_statistics stats = stats_of(pool);
    const uint64_t own = pages_of(pool, false), live = pages_of(pool, true);
    bool is_paused = false;

    for (unsigned range = 0; range < RANGES; range++)
        if (env.range[range]->state->pool == pool)
            is_paused = env.is_paused[range];
    assert_int_equal(stats.reserved_bytes[0].current, is_paused ? 0 : own);
    assert_int_equal(stats.active_bytes[0].current, own);
    assert_int_equal(stats.allocated_bytes[0].current, live);
    assert_int_equal(stats.physical_bytes, is_paused ? 0 : own);
}

static uint64_t *word_of(unsigned place, unsigned which)
{
    const struct xseg_segment *segment = &env.range[place / GRANULES]->state->extent->segment;
    const uint64_t at = segment->base + (place % GRANULES) * segment->granule_bytes;

    /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
    return (uint64_t *)(uintptr_t)(at + which * (segment->granule_bytes / 2 - sizeof(uint64_t)));
}

static void check_granule(unsigned place)
{
    const struct granule *granule = &env.granule[place];
    const struct xseg_elastic *elastic = elastic_of(place / GRANULES);

    if (granule->use != elastic->use[place % GRANULES])
        fail_msg("granule %u of range %u is in use %d, for %d", place % GRANULES, place / GRANULES,
                 elastic->use[place % GRANULES], granule->use);
    if (granule->page == NONE)
        return;
    const struct xseg_segment *segment = &env.range[place / GRANULES]->state->extent->segment;
    const bool has_others = page_at(place)->places > 1;
    if (xseg_alias_exists(segment, place % GRANULES) != has_others)
        fail_msg("granule %u of range %u has a page with %u mappings", place % GRANULES,
                 place / GRANULES, page_at(place)->places);
    for (unsigned which = 0; env.has_bytes && runs(place) && which < 3; which++)
        if (*word_of(place, which) != page_at(place)->tag)
            fail_msg("granule %u of range %u contains something else", place % GRANULES,
                     place / GRANULES);
}

/* A block of an adjacent run of granules, as others see them. */
static void check_block(unsigned place)
{
    const unsigned range = place / GRANULES;
    const enum xseg_elastic_use use = env.granule[place].use;
    unsigned first = place, end = place + 1;

    if (use == XSEG_ELASTIC_EMPTY)
        return;
    while (first > range * GRANULES && env.granule[first - 1].use == use)
        first--;
    while (end < (range + 1) * GRANULES && env.granule[end].use == use)
        end++;
    const struct xseg_segment *segment = &env.range[range]->state->extent->segment;
    const uint64_t base = segment->base + (first % GRANULES) * segment->granule_bytes;
    const struct xseg_block_info info = env_block(env.allocator, word_of(place, 1));
    assert_int_equal((uintptr_t)info.base, base);
    assert_int_equal(info.bytes, (end - first) * segment->granule_bytes);
    assert_int_equal(info.state, use == XSEG_ELASTIC_ALLOCATED ? XSEG_BLOCK_ALLOCATED
                                                               : XSEG_BLOCK_PENDING_FREE);
}

static void check_device(bool audits)
{
    const struct xseg_statistics stats = stats_of(NULL);
    struct xseg_violation violation = {0};
    uint64_t prepared = 0, promised = 0;

    for (unsigned range = 0; range < RANGES; range++) {
        const uint64_t own = own_of(range);

        prepared += info_of(range).prepared_bytes;
        promised += env.quota[range] > own ? env.quota[range] - own : 0;
    }
    assert_int_equal(stats.physical_bytes, xseg_sim_used(0));
    assert_true(xseg_sim_used(0) <= env.limit);
    assert_true(stats.idle_page_bytes >= prepared);
    assert_true(stats.idle_page_bytes - prepared <= env.cache);
    assert_int_equal(env.device->unused_quota, promised);
    if (audits && !xseg_device_audit(env.device, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

static void check(bool audits)
{
    for (unsigned place = 0; place < PLACES; place++)
        check_granule(place);
    for (unsigned range = 0; range < RANGES; range++) {
        check_range(range);
        check_pool(env.range[range]->state->pool);
    }
    check_block((unsigned)below(PLACES));
    check_device(audits);
}

/* --- Work. --- */

/* Queue work on granules, if there is room for it. */
static void launch(unsigned stream, unsigned range, unsigned first, unsigned count)
{
    if (env.behind[stream].of[stream] - env.over.of[stream] >= WORK - 1 || env.is_paused[range])
        return;
    const uint64_t number = ++env.behind[stream].of[stream];
    env.event[stream][number % WORK] = driver_work(
        env.stream[stream], word_of(range * GRANULES + first, 0), count * kinds[range].page_bytes);
    for (unsigned at = first; at < first + count; at++)
        granule_of(range, at)->user.of[stream] = number;
}

/* --- Commits. --- */

/* Some adjacent granules of a range. */
static void draw_run(unsigned *range, unsigned *first, unsigned *count)
{
    *range = (unsigned)below(RANGES);
    *first = (unsigned)below(GRANULES);
    *count = 1 + (unsigned)below(below(3) == 0 ? 12 : 3);
    if (*count > GRANULES - *first)
        *count = GRANULES - *first;
}

/* Shorten a run to the granules at its start that are in a use; whether there is one. */
static bool cut_run(unsigned range, unsigned first, unsigned *count, enum xseg_elastic_use use,
                    enum xseg_elastic_use or)
{
    unsigned end = first;

    while (end < first + *count &&
           (granule_of(range, end)->use == use || granule_of(range, end)->use == or))
        end++;
    *count = end - first;
    return *count != 0;
}

static uint64_t offset_of(unsigned range, unsigned at)
{
    return at * kinds[range].page_bytes;
}

/* Whether a commit, or letting go, has to wait for other streams: what no capture allows. */
static bool must_wait(unsigned batch, unsigned stream)
{
    return env.batch[batch].stream != stream && !has_passed(&env.batch[batch].behind);
}

static bool may_wait(unsigned batch, unsigned stream)
{
    return env.batch[batch].stream != stream && !env.batch[batch].is_over;
}

/* Take a granule back that leaves. */
static void retake(unsigned place, unsigned stream)
{
    struct granule *granule = &env.granule[place];
    struct batch *batch = &env.batch[granule->batch];

    if (batch->stream != stream && !batch->is_over) {
        if (!batch->has_event)
            batch->behind = env.behind[batch->stream];
        batch->has_event = true;
        wait_for(stream, &batch->behind);
    }
    leave_batch(place);
    granule->use = XSEG_ELASTIC_ALLOCATED;
    env.recommits[place / GRANULES]++;
    tally.recommits++;
}

static void have_page(unsigned place)
{
    struct granule *granule = &env.granule[place];

    granule->use = XSEG_ELASTIC_ALLOCATED;
    memset(&granule->user, 0, sizeof(granule->user));
    for (granule->page = 0; env.page[granule->page].places != 0;)
        granule->page++;
    env.page[granule->page] = (struct page){++env.tag, 1, place / GRANULES};
    for (unsigned which = 0; env.has_bytes && which < 3; which++)
        *word_of(place, which) = env.tag;
}

/* Quotas of all ranges but one. */
static uint64_t promised_to_others(unsigned range, uint64_t more)
{
    uint64_t promised = 0;

    for (unsigned i = 0; i < RANGES; i++) {
        const uint64_t own = own_of(i) + (i == range ? more : 0);

        promised += env.quota[i] > own ? env.quota[i] - own : 0;
    }
    return promised;
}

/* Expect that a failure is right: outside captures all idle memory has been released, and the rest is insufficient. */
static void expect_no_room(unsigned range, uint64_t missing, uint64_t used_before)
{
    const uint64_t own = own_of(range), limit = kinds[range].limit;
    const uint64_t used = env.marks > 0 ? used_before : xseg_sim_used(0);

    if (limit != 0 && own + missing > limit)
        return;
    assert_true(used + missing + promised_to_others(range, missing) > env.limit);
    for (unsigned place = 0; env.marks == 0 && place < PLACES; place++)
        assert_true(env.granule[place].use != XSEG_ELASTIC_UNMAPPING ||
                    env.granule[place].holds != 0 || env.granule[place].batch == NONE);
}

/* The generations of the memory of some granules. */
static void read_generations(unsigned range, unsigned first, unsigned count, uint64_t *out)
{
    const struct xseg_segment *segment = &env.range[range]->state->extent->segment;

    for (unsigned i = 0; i < count; i++)
        out[i] = xseg_segment_generation(segment, offset_of(range, first + i),
                                         offset_of(range, first + i + 1));
}

/* Granules of a commit that left, and have lost their page in it, were allowed to.  One that keeps its page has it
 * alone. */
static void part(unsigned range, unsigned first, unsigned count, const uint64_t *before,
                 bool is_committed)
{
    const struct xseg_elastic *elastic = elastic_of(range);
    uint64_t now[GRANULES];

    read_generations(range, first, count, now);
    for (unsigned i = 0; i < count; i++) {
        const unsigned place = range * GRANULES + first + i;
        const bool has_gone =
            is_committed ? now[i] != before[i] : elastic->use[first + i] == XSEG_ELASTIC_EMPTY;

        if (env.granule[place].use != XSEG_ELASTIC_UNMAPPING || !has_gone)
            continue;
        assert_int_equal(env.marks, 0);
        assert_true(has_passed(&env.batch[env.granule[place].batch].behind));
        go(place, 1);
        tally.parted++;
    }
}

/* Set what granules are used for that are about to be committed, or were not. */
static void claim(unsigned range, unsigned first, unsigned count, bool is_claimed)
{
    for (unsigned at = first; at < first + count; at++)
        granule_of(range, at)->use = is_claimed ? XSEG_ELASTIC_CLAIMED
                                     : granule_of(range, at)->batch == NONE
                                         ? XSEG_ELASTIC_EMPTY
                                         : XSEG_ELASTIC_UNMAPPING;
}

static void step_commit(void)
{
    unsigned range, first, count, empty = 0, others = 0;
    const unsigned stream = (unsigned)below(STREAMS);
    bool is_free = env.is_known[stream], may_fail = false, must_fail = false;

    draw_run(&range, &first, &count);
    while (below(8) != 0 && granule_of(range, first)->use != XSEG_ELASTIC_UNMAPPING)
        draw_run(&range, &first, &count);
    if (!cut_run(range, first, &count, XSEG_ELASTIC_EMPTY, XSEG_ELASTIC_UNMAPPING))
        return;
    if (env.is_paused[range]) {
        assert_int_equal(xseg_range_commit(env.range[range], offset_of(range, first),
                                           count * kinds[range].page_bytes, env.stream[stream]),
                         XSEG_ERR_PAUSED);
        env.is_known[stream] = true;
        return;
    }
    for (unsigned place = range * GRANULES + first, i = 0; i < count; i++, place++) {
        const struct granule *granule = &env.granule[place];
        const bool leaves = granule->use == XSEG_ELASTIC_UNMAPPING;
        const bool is_other = leaves && (page_at(place)->places > 1);

        empty += !leaves || is_other;
        others += is_other;
        /* It may keep its page, or lose the place that it shares it with meanwhile. */
        may_fail = may_fail || is_other;
        must_fail = must_fail || (is_other && env.marks > 0 && granule->holds > 0);
        is_free = is_free && leaves && !is_other && env.batch[granule->batch].stream == stream;
        must_fail = must_fail || (env.marks > 0 && leaves && must_wait(granule->batch, stream));
        may_fail = may_fail || (env.marks > 0 && leaves && may_wait(granule->batch, stream));
    }
    uint64_t missing = empty * kinds[range].page_bytes, generation[GRANULES];
    const uint64_t before = waits(), calls = xseg_sim_calls(NULL),
                   creates = xseg_sim_calls("cuMemCreate");
    const struct xseg_range_info was = info_of(range);
    const uint64_t own = own_of(range), used = xseg_sim_used(0);
    const bool is_low_on_memory = used + missing + promised_to_others(range, missing) > env.limit;
    const bool has_room = env.quota[range] >= own + missing && env.marks == 0 &&
                          xseg_sim_used(0) + promised_to_others(range, 0) <= env.limit;
    read_generations(range, first, count, generation);
    const xseg_status status =
        xseg_range_commit(env.range[range], offset_of(range, first),
                          count * kinds[range].page_bytes, env.stream[stream]);
    const bool waited = waits() != before || others != 0 || status == XSEG_ERR_LIMIT ||
                        status == XSEG_ERR_NO_MEMORY;
    env.is_known[stream] = true;
    tally.commits++;
    tally.waited += waited;
    if (is_free)
        assert_int_equal(xseg_sim_calls(NULL), calls);
    if (others != 0) {
        look_at_streams();
        part(range, first, count, generation, status == XSEG_OK);
        missing = 0;
        for (unsigned at = first, i = 0; i < count; i++, at++)
            missing +=
                granule_of(range, at)->use == XSEG_ELASTIC_EMPTY ? kinds[range].page_bytes : 0;
    }
    /* Granules that are committed do not go meanwhile. */
    claim(range, first, count, true);
    if (empty != 0 && !waited)
        look();
    if (waited)
        adopt();
    claim(range, first, count, false);
    if (status != XSEG_OK) {
        tally.refused++;
        if (status == XSEG_ERR_BUSY) {
            assert_true(may_fail);
            return;
        }
        assert_true(status == XSEG_ERR_LIMIT || status == XSEG_ERR_NO_MEMORY);
        assert_false(has_room);
        claim(range, first, count, true);
        expect_no_room(range, missing, used);
        claim(range, first, count, false);
        return;
    }
    assert_false(must_fail);
    if (!waited && !is_low_on_memory)
        assert_true(xseg_sim_calls("cuMemCreate") - creates <=
                    empty - xseg_min(empty, was.prepared_bytes / was.page_bytes));
    for (unsigned place = range * GRANULES + first, i = 0; i < count; i++, place++)
        if (env.granule[place].use == XSEG_ELASTIC_UNMAPPING) {
            assert_true(page_at(place)->places == 1);
            retake(place, stream);
        } else {
            have_page(place);
        }
}

/* --- Decommits, and holds. --- */

static void decommit(unsigned range, unsigned first, unsigned count, unsigned stream)
{
    if (below(2) == 0)
        launch(stream, range, first, count);
    order(stream, range, first, count);
    assert_ok(xseg_range_decommit(env.range[range], offset_of(range, first),
                                  count * kinds[range].page_bytes, env.stream[stream]));
    env.is_known[stream] = true;
    for (unsigned at = first; at < first + count; at++)
        granule_of(range, at)->use = XSEG_ELASTIC_UNMAPPING;
    add_batch(range, first, count, stream);
    look();
}

static void step_decommit(void)
{
    unsigned range, first, count;
    const unsigned stream = (unsigned)below(STREAMS);

    draw_run(&range, &first, &count);
    if (!cut_run(range, first, &count, XSEG_ELASTIC_ALLOCATED, XSEG_ELASTIC_ALLOCATED))
        return;
    if (!env.is_paused[range]) {
        decommit(range, first, count, stream);
        return;
    }
    assert_int_equal(xseg_range_decommit(env.range[range], offset_of(range, first),
                                         count * kinds[range].page_bytes, env.stream[stream]),
                     XSEG_ERR_PAUSED);
    env.is_known[stream] = true;
}

static void step_hold(void)
{
    unsigned range, first, count;

    draw_run(&range, &first, &count);
    assert_ok(xseg_range_hold(env.range[range], offset_of(range, first),
                              count * kinds[range].page_bytes));
    for (unsigned at = first; at < first + count; at++)
        granule_of(range, at)->holds++;
}

/* Whether the call releases a granule that is pending unmap. */
static bool is_let_go(unsigned range, unsigned at)
{
    const struct granule *granule = granule_of(range, at);

    return granule->use == XSEG_ELASTIC_UNMAPPING && granule->holds == 1;
}

static void step_let_go(void)
{
    unsigned range, first, count, end;
    const unsigned stream = (unsigned)below(STREAMS);

    draw_run(&range, &first, &count);
    while (count != 0 && granule_of(range, first + count - 1)->holds == 0)
        count--;
    for (end = first; end < first + count && granule_of(range, end)->holds != 0;)
        end++;
    const bool is_held = end == first + count;
    /* In a capture other streams cannot be made to be waited for. */
    for (unsigned at = first; env.marks > 0 && at < first + count; at++)
        if (is_let_go(range, at) && may_wait(granule_of(range, at)->batch, stream))
            return;
    order(stream, range, first, count);
    const xseg_status status =
        xseg_range_unhold(env.range[range], offset_of(range, first),
                          count * kinds[range].page_bytes, env.stream[stream]);
    assert_int_equal(status, is_held ? XSEG_OK : XSEG_ERR_ARGUMENT);
    env.is_known[stream] = true;
    for (unsigned at = first, run; is_held && at < end; at += run + 1) {
        for (run = 0; at + run < end && is_let_go(range, at + run); run++) {
            struct batch *batch = &env.batch[granule_of(range, at + run)->batch];

            if (batch->stream == stream || batch->is_over)
                continue;
            if (!batch->has_event)
                batch->behind = env.behind[batch->stream];
            batch->has_event = true;
            wait_for(stream, &batch->behind);
        }
        for (unsigned i = 0; i < run; i++)
            leave_batch(range * GRANULES + at + i);
        if (run != 0)
            add_batch(range, at, run, stream);
    }
    for (unsigned at = first; is_held && at < end; at++)
        granule_of(range, at)->holds--;
    if (is_held)
        look();
}

/* --- Shares. --- */

static void step_share(void)
{
    unsigned range, first, count, from, at;

    draw_run(&range, &first, &count);
    while (below(8) != 0 && granule_of(range, first)->use != XSEG_ELASTIC_EMPTY)
        draw_run(&range, &first, &count);
    draw_run(&from, &at, &(unsigned){0});
    while (below(8) != 0 && (granule_of(from, at)->use != XSEG_ELASTIC_ALLOCATED ||
                             kinds[from].page_bytes != kinds[range].page_bytes))
        draw_run(&from, &at, &(unsigned){0});
    if (count > GRANULES - at)
        count = GRANULES - at;
    if (!cut_run(from, at, &count, XSEG_ELASTIC_ALLOCATED, XSEG_ELASTIC_ALLOCATED) ||
        env.is_paused[from] || env.is_paused[range])
        return;
    const bool fits =
        kinds[range].page_bytes == kinds[from].page_bytes &&
        (range == from || (kinds[range].pool == kinds[from].pool && kinds[from].pool != NONE));
    unsigned empty = count;
    if (fits && !cut_run(range, first, &empty, XSEG_ELASTIC_EMPTY, XSEG_ELASTIC_EMPTY))
        empty = 0;
    if (empty != 0 && fits)
        count = empty;
    const uint64_t used = xseg_sim_used(0), creates = xseg_sim_calls("cuMemCreate");
    const xseg_status status =
        xseg_range_alias(env.range[range], offset_of(range, first), count * kinds[from].page_bytes,
                         env.range[from], offset_of(from, at));
    assert_int_equal(status, !fits || empty == 0 ? XSEG_ERR_ARGUMENT : XSEG_OK);
    assert_int_equal(xseg_sim_used(0), used);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    for (unsigned i = 0; status == XSEG_OK && i < count; i++) {
        struct granule *granule = granule_of(range, first + i);

        granule->page = granule_of(from, at + i)->page;
        granule->use = XSEG_ELASTIC_ALLOCATED;
        memset(&granule->user, 0, sizeof(granule->user));
        env.page[granule->page].places++;
        tally.shares++;
    }
}

/* --- Checkpoints of the first pool. --- */

static bool is_of_pool(unsigned range)
{
    return kinds[range].pool == 0;
}

/* Whether a granule is in the checkpoint: of this range, not of one that it had before. */
static bool is_saved(unsigned place)
{
    const unsigned range = place / GRANULES;

    return env.was_live[place] && env.was_reserved[range] == env.reserved[range];
}

static void step_checkpoint(void)
{
    struct xseg_checkpoint *checkpoint = NULL;
    const xseg_status status = xseg_pool_checkpoint(env.pool[0], &checkpoint);

    assert_int_equal(status, env.marks > 0 ? XSEG_ERR_BUSY : XSEG_OK);
    if (status != XSEG_OK)
        return;
    xseg_checkpoint_destroy(env.checkpoint);
    env.checkpoint = checkpoint;
    memcpy(env.was_reserved, env.reserved, sizeof(env.reserved));
    for (unsigned place = 0; place < PLACES; place++)
        env.was_live[place] = is_of_pool(place / GRANULES) && is_live(place);
}

/* The range of the pool that was reserved next after a number; NONE if there is none. */
static unsigned range_after(uint64_t number)
{
    unsigned next = NONE;

    for (unsigned range = 0; range < RANGES; range++)
        if (is_of_pool(range) && env.reserved[range] > number &&
            (next == NONE || env.reserved[range] < env.reserved[next]))
            next = range;
    return next;
}

#define FOR_POOL(range)                                    \
    for (unsigned range = range_after(0); (range) != NONE; \
         (range) = range_after(env.reserved[range]))

/* Whether a granule that leaves can be taken back for the default stream.  The library asks about streams only if it
 * has to. */
static bool can_come_back(unsigned place)
{
    const unsigned batch = env.granule[place].batch;

    if (page_at(place)->places > 1)
        return false;
    if (may_wait(batch, 0))
        ask();
    return !may_wait(batch, 0);
}

static bool can_restore(void)
{
    if (env.marks > 0)
        return false;
    for (unsigned place = 0; place < PLACES; place++)
        if (env.was_live[place] && !is_saved(place))
            return false;
    FOR_POOL(range)
    {
        for (unsigned place = range * GRANULES; place < (range + 1) * GRANULES; place++)
            if (is_saved(place) && !is_live(place) &&
                (env.granule[place].use == XSEG_ELASTIC_EMPTY || !can_come_back(place)))
                return false;
    }
    return true;
}

/* Decommit what is not in the checkpoint; whether there was anything. */
static bool leave_surplus(void)
{
    bool any = false;

    FOR_POOL(range)
    {
        for (unsigned first = 0, count; first < GRANULES; first += count + 1) {
            const unsigned base = range * GRANULES + first;

            for (count = 0;
                 first + count < GRANULES && is_live(base + count) && !is_saved(base + count);)
                count++;
            if (count == 0)
                continue;
            for (unsigned i = 0; i < count; i++)
                env.granule[base + i].use = XSEG_ELASTIC_UNMAPPING;
            add_batch(range, first, count, 0);
            any = true;
        }
    }
    return any;
}

/* Decommit a granule of the checkpoint, which a restore may take back. */
static void give_something_up(void)
{
    for (unsigned tries = 0; tries < 16; tries++) {
        const unsigned place = (unsigned)below(PLACES);

        if (!is_saved(place) || !is_live(place) || page_at(place)->places > 1)
            continue;
        decommit(place / GRANULES, place % GRANULES, 1, (unsigned)below(2));
        return;
    }
}

static void step_restore(void)
{
    if (env.checkpoint == NULL || env.is_paused[0])
        return;
    give_something_up();
    for (unsigned place = 0; place < PLACES; place++)
        if (is_of_pool(place / GRANULES) && is_live(place) && !is_saved(place))
            order(0, place / GRANULES, place % GRANULES, 1);
    const uint64_t creates = xseg_sim_calls("cuMemCreate"), before = waits();
    const xseg_status status = xseg_pool_restore(env.pool[0], env.checkpoint, NULL, NULL);
    const bool can = can_restore();

    assert_int_equal(status, can ? XSEG_OK : XSEG_ERR_BUSY);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(waits(), before);
    tally.restored += can;
    tally.not_restored += !can;
    /* A released range cannot be restored: take a newer checkpoint. */
    if (!can) {
        step_checkpoint();
        return;
    }
    const uint64_t recommits = tally.recommits;
    const bool any = leave_surplus();
    for (unsigned place = 0; place < PLACES; place++)
        if (is_saved(place) && !is_live(place))
            retake(place, 0);
    tally.brought_back += tally.recommits - recommits;
    if (any)
        look();
}

/* --- Streams. --- */

static void step_work(void)
{
    unsigned range, first, count;
    const unsigned stream = (unsigned)below(STREAMS);

    draw_run(&range, &first, &count);
    /* A graph may use held memory after its decommit. */
    if (granule_of(range, first)->holds != 0 && granule_of(range, first)->page != NONE)
        count = 1;
    else if (!cut_run(range, first, &count, XSEG_ELASTIC_ALLOCATED, XSEG_ELASTIC_ALLOCATED))
        return;
    launch(stream, range, first, count);
}

static void step_finish(void)
{
    const unsigned stream = (unsigned)below(STREAMS);
    const uint64_t over = env.over.of[stream], queued = env.behind[stream].of[stream] - over;

    if (queued != 0)
        driver_wait(env.event[stream][(over + 1 + below(queued)) % WORK]);
}

static void step_wait(void)
{
    const unsigned stream = (unsigned)below(STREAMS), other = (unsigned)below(STREAMS);

    if (stream == other)
        return;
    env_stream_wait(env.stream[stream], env.stream[other]);
    wait_for(stream, &env.behind[other]);
}

/* --- The others. --- */

static void step_alloc(void)
{
    const unsigned stream = (unsigned)below(STREAMS);
    void *ptr = NULL;

    if (env.blocks == BLOCKS)
        return;
    const xseg_status status = xseg_alloc(
        env.allocator, 0, 1 + below(below(3) == 0 ? 30 * MIB : 3 * MIB), env.stream[stream], &ptr);
    env.is_known[stream] = true;
    if (status == XSEG_OK)
        env.block[env.blocks++] = ptr;
    else
        assert_true(status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    adopt();
    tally.refused += status != XSEG_OK;
}

static void step_free(void)
{
    if (env.blocks == 0)
        return;
    const unsigned i = (unsigned)below(env.blocks);
    env_free(env.allocator, env.block[i]);
    env.block[i] = env.block[--env.blocks];
    adopt();
}

static void step_trim(void)
{
    struct xseg_trim_options how = {sizeof(how)};
    struct xseg_trim_result done = {sizeof(done)};

    how.wait = below(2) == 0;
    assert_ok(xseg_trim(env.allocator, NULL, &how, &done));
    adopt();
    for (unsigned place = 0; how.wait && env.marks == 0 && place < PLACES; place++)
        assert_true(env.granule[place].use != XSEG_ELASTIC_UNMAPPING ||
                    env.granule[place].holds != 0);
}

static void step_prepare(void)
{
    const unsigned range = (unsigned)below(RANGES);
    const uint64_t bytes = below(6) * MIB, page = kinds[range].page_bytes;
    const uint64_t used = xseg_sim_used(0);
    const xseg_status status = xseg_range_prepare(env.range[range], bytes);
    const struct xseg_range_info info = info_of(range);

    if (status == XSEG_OK)
        assert_true(info.prepared_bytes >= bytes);
    else
        assert_true(status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    assert_true(xseg_sim_used(0) - used <= bytes + page);
    assert_true(info.prepared_bytes % page == 0);
}

static void step_quota(void)
{
    const unsigned range = (unsigned)below(RANGES);
    const uint64_t most =
        kinds[range].limit != 0 ? kinds[range].limit : GRANULES * kinds[range].page_bytes;
    const uint64_t bytes = below(2) == 0 ? 0 : below(below(8) == 0 ? 60 : 16) * MIB;
    const xseg_status status = xseg_range_set_quota(env.range[range], bytes);

    adopt();
    if (bytes > most) {
        assert_int_equal(status, XSEG_ERR_ARGUMENT);
        return;
    }
    if (status == XSEG_OK) {
        env.quota[range] = bytes;
        return;
    }
    assert_true(status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    const uint64_t before = env.quota[range];
    env.quota[range] = bytes;
    assert_true(xseg_sim_used(0) + promised_to_others(range, 0) > env.limit);
    env.quota[range] = before;
}

/* --- Pauses. --- */

static bool is_same_pool(unsigned range, unsigned other)
{
    return env.range[range]->state->pool == env.range[other]->state->pool;
}

static void set_paused(unsigned range, bool is_paused)
{
    for (unsigned i = 0; i < RANGES; i++)
        if (is_same_pool(i, range))
            env.is_paused[i] = is_paused;
}

/* Whether pages of a range's pool are away. */
static bool has_pages(unsigned range)
{
    bool has = false;

    for (unsigned i = 0; i < RANGES; i++)
        has = has || (is_same_pool(i, range) && count_use(i, XSEG_ELASTIC_ALLOCATED) != 0);
    return has;
}

/* Whether a granule is pending unmap, and a poll does not unmap it. */
static bool stays(unsigned place)
{
    const struct granule *granule = &env.granule[place];

    return granule->use == XSEG_ELASTIC_UNMAPPING &&
           (granule->holds != 0 || !has_passed(&env.batch[granule->batch].behind));
}

/* Whether memory of a range's pool leaves, or could be used by work. */
static bool is_in_use(unsigned range)
{
    bool is_used = false;

    for (unsigned i = 0; i < STREAMS; i++)
        is_used = is_used || env.over.of[i] != env.behind[i].of[i];
    for (unsigned place = 0; place < PLACES; place++)
        is_used =
            is_used ||
            (stays(place) && (is_same_pool(place / GRANULES, range) || page_at(place)->places > 1));
    return is_used;
}

/* Whether the library knows that a stream uses a range, since granules were committed for it. */
static bool is_user(unsigned range, unsigned stream)
{
    const struct xseg_range_state *state = env.range[range]->state;
    bool is_known = false;

    for (size_t i = 0; i < state->stream_count; i++)
        is_known = is_known || state->stream[i].stream->handle == env.stream[stream];
    return is_known;
}

/* Whether work uses memory of a range's pool of which the library does not know: the caller has to wait for it. */
static bool has_unknown_work(unsigned range)
{
    bool has = false;

    for (unsigned place = 0; place < PLACES; place++)
        for (unsigned i = 0; i < STREAMS && is_same_pool(place / GRANULES, range); i++)
            has = has ||
                  (env.granule[place].user.of[i] > env.over.of[i] && !is_user(place / GRANULES, i));
    return has;
}

static void finish_all(void)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (env.behind[i].of[i] != env.over.of[i])
            driver_wait(env.event[i][env.behind[i].of[i] % WORK]);
    look_at_streams();
}

static void step_pause(void)
{
    const unsigned range = (unsigned)below(RANGES);

    if (below(4) != 0)
        finish_all();
    const bool is_busy = env.marks > 0 || is_in_use(range);

    if (env.is_paused[range] || has_unknown_work(range))
        return;
    const xseg_status status = xseg_pool_pause(
        env.range[range]->state->pool, env.has_bytes ? XSEG_KEEP_HOST : XSEG_KEEP_NOTHING, NULL);
    adopt();
    if (status != XSEG_OK) {
        assert_int_equal(status, XSEG_ERR_BUSY);
        assert_true(is_busy);
        return;
    }
    tally.pauses += has_pages(range);
    set_paused(range, true);
}

static void step_resume(void)
{
    const unsigned range = (unsigned)below(RANGES);

    if (!env.is_paused[range])
        return;
    const xseg_status status = xseg_pool_resume(env.range[range]->state->pool);
    adopt();
    if (status == XSEG_OK)
        set_paused(range, false);
    else if (status == XSEG_ERR_BUSY)
        assert_true(env.marks > 0);
    else
        assert_true(status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
}

/* The device counts as capturing. */
static void step_mark(void)
{
    if (env.marks == 0 && below(2) == 0) {
        assert_ok(xseg_capture_mark(env.allocator, 0));
        adopt();
        env.marks = 1;
    } else if (env.marks != 0) {
        assert_ok(xseg_capture_unmark(env.allocator, 0));
        env.marks = 0;
        for (unsigned range = 0; range < RANGES; range++) {
            if (env.is_paused[range])
                continue;
            /* A look. */
            assert_ok(xseg_range_decommit(env.range[range], 0, 0, env.stream[0]));
            env.is_known[0] = true;
            look();
            break;
        }
    }
}

static void step_bad_input(void)
{
    unsigned range, first, count;
    const uint64_t calls = xseg_sim_calls(NULL);

    draw_run(&range, &first, &count);
    const unsigned run = count;
    if (!env.is_known[0] || env.is_paused[range] ||
        cut_run(range, first, &count, XSEG_ELASTIC_UNMAPPING, XSEG_ELASTIC_EMPTY) == (count == run))
        return;
    assert_int_equal(xseg_range_commit(env.range[range], offset_of(range, first),
                                       run * kinds[range].page_bytes, env.stream[0]),
                     XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_sim_calls(NULL), calls);
}

static void reserve(unsigned range)
{
    struct xseg_range_options options = {sizeof(options)};
    const struct kind *kind = &kinds[range];

    options.page_bytes = kind->page_bytes;
    options.limit_bytes = kind->limit;
    options.pool = kind->pool == NONE ? NULL : env.pool[kind->pool];
    assert_ok(xseg_range_reserve(env.allocator, 0, GRANULES * kind->page_bytes, &options,
                                 &env.range[range]));
    env.quota[range] = env.recommits[range] = 0;
    env.reserved[range] = ++env.reservations;
}

static void step_again(void)
{
    const unsigned range = (unsigned)below(RANGES);
    const uint64_t live = count_use(range, XSEG_ELASTIC_ALLOCATED),
                   leaving = count_use(range, XSEG_ELASTIC_UNMAPPING);
    bool is_held = false;

    for (unsigned at = 0; at < GRANULES; at++)
        is_held = is_held || granule_of(range, at)->holds != 0;
    const xseg_status status = xseg_range_release(env.range[range]);
    if (env.is_paused[range]) {
        assert_int_equal(status, XSEG_ERR_PAUSED);
        return;
    }
    if (live != 0 || is_held || (leaving != 0 && env.marks > 0)) {
        assert_int_equal(status, XSEG_ERR_BUSY);
        return;
    }
    assert_ok(status);
    assert_int_equal(xseg_range_release(env.range[range]), XSEG_ERR_ARGUMENT);
    reserve(range);
    adopt();
}

/* --- Programs. --- */

struct choice {
    const char *name;
    void (*step)(void);
    unsigned weight;
};

/* clang-format off */
#define CHOICE(step, weight) {#step, step, weight}
/* clang-format on */

static const struct choice choices[] = {
    CHOICE(step_commit, 40),    CHOICE(step_decommit, 30), CHOICE(step_share, 20),
    CHOICE(step_work, 30),      CHOICE(step_finish, 12),   CHOICE(step_wait, 3),
    CHOICE(step_hold, 2),       CHOICE(step_let_go, 6),    CHOICE(step_alloc, 6),
    CHOICE(step_free, 6),       CHOICE(step_trim, 2),      CHOICE(step_prepare, 3),
    CHOICE(step_quota, 3),      CHOICE(step_pause, 4),     CHOICE(step_resume, 12),
    CHOICE(step_checkpoint, 4), CHOICE(step_restore, 8),   CHOICE(step_mark, 2),
    CHOICE(step_bad_input, 2),  CHOICE(step_again, 2),
};

static uint64_t seed_played;
static unsigned step_played;
static char text_played[128];

static void note_step(void)
{
    (void)snprintf(text_played, sizeof(text_played),
                   "in step %u of the programme XSEG_TEST_SEED=%llu XSEG_TEST_SEEDS=1\n",
                   step_played, (unsigned long long)seed_played);
}

/* The simulator and the audits end the process. */
static void report_abort(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, text_played, strlen(text_played));
}

static int report_failure(void **state)
{
    (void)state;
    if (seed_played != 0)
        print_error("%s", text_played);
    seed_played = 0;
    return 0;
}

static unsigned long by_environment(const char *name, unsigned long usual)
{
    const char *value = getenv(name);

    return value != NULL ? strtoul(value, NULL, 10) : usual;
}

static void be_quiet(void *context, enum xseg_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void open_world(uint64_t seed, bool is_low_on_memory, bool has_bytes)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_options options = {sizeof(options)};
    struct xseg_pool_options exportable = {sizeof(exportable)};
    const bool has_limit = seed % 4 >= 2;
    char config[128];

    memset(&env, 0, sizeof(env));
    env.random = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    env.cache = seed % 2 * 16 * MIB;
    env.limit = (is_low_on_memory ? 128 : 1024) * MIB;
    env.has_bytes = has_bytes;
    settings.devices = 2;
    settings.real_bytes = has_bytes;
    settings.single_mapping_calls = seed % 8 == 5;
    settings.memory_bytes = has_limit ? GIB : env.limit;
    assert_ok(xseg_sim_reset(&settings));
    driver_open();
    options.driver = env_driver();
    options.log = be_quiet;
    options.clock = env_clock;
    (void)snprintf(config, sizeof(config), "page_cache_mb:%u,hard_limit_mb:%u",
                   (unsigned)(env.cache / MIB), has_limit ? (unsigned)(env.limit / MIB) : 4096);
    assert_ok(xseg_open(config, &options, &env.allocator));
    exportable.exportable = true;
    assert_ok(xseg_pool_create(env.allocator, 0, NULL, &env.pool[0]));
    assert_ok(xseg_pool_create(env.allocator, 0, &exportable, &env.pool[1]));
    env.device = xseg_allocator_open_device(env.allocator, 0);
    /* The first one is the default stream. */
    for (unsigned i = 1; i < STREAMS; i++)
        env.stream[i] = driver_stream(false);
    for (unsigned range = 0; range < RANGES; range++)
        reserve(range);
    for (unsigned place = 0; place < PLACES; place++)
        env.granule[place].page = env.granule[place].batch = NONE;
}

static void let_go_of_all(unsigned place)
{
    const unsigned range = place / GRANULES;

    for (; env.granule[place].holds != 0; env.granule[place].holds--)
        assert_ok(xseg_range_unhold(env.range[range], offset_of(range, place % GRANULES),
                                    kinds[range].page_bytes, env.stream[0]));
}

/* Decommit and unhold the committed granules of active ranges. */
static void decommit_all(void)
{
    for (unsigned place = 0; place < PLACES; place++) {
        const unsigned range = place / GRANULES;

        let_go_of_all(place);
        if (!is_live(place) || env.is_paused[range])
            continue;
        assert_ok(xseg_range_decommit(env.range[range], offset_of(range, place % GRANULES),
                                      kinds[range].page_bytes, env.stream[0]));
        env.granule[place].use = XSEG_ELASTIC_UNMAPPING;
    }
}

/* Resume all pools, and decommit everything: a pool that has given a page to another one is resumed after it, and finds
 * memory once others have given theirs up. */
static void empty_all(void)
{
    while (env.blocks > 0)
        env_free(env.allocator, env.block[--env.blocks]);
    for (unsigned i = 0; i < RANGES; i++)
        assert_ok(xseg_range_set_quota(env.range[i], 0));
    for (unsigned round = 0; round < RANGES; round++) {
        decommit_all();
        for (unsigned range = 0; range < RANGES; range++)
            if (env.is_paused[range] && xseg_pool_resume(env.range[range]->state->pool) == XSEG_OK)
                set_paused(range, false);
    }
    decommit_all();
}

/* Give everything up, and expect that nothing is left. */
static void close_world(void)
{
    if (env.marks != 0)
        assert_ok(xseg_capture_unmark(env.allocator, 0));
    env.marks = 0;
    for (unsigned stream = 1; stream < STREAMS; stream++)
        env_stream_wait(env.stream[0], env.stream[stream]);
    empty_all();
    for (unsigned range = 0; range < RANGES; range++)
        assert_ok(xseg_range_release(env.range[range]));
    xseg_checkpoint_destroy(env.checkpoint);
    for (unsigned i = 0; i < 2; i++)
        assert_ok(xseg_pool_release(env.pool[i]));
    assert_ok(xseg_close(env.allocator));
    xseg_sim_finish_all();
    look_at_streams();
    for (unsigned i = 1; i < STREAMS; i++)
        driver_stream_destroy(env.stream[i]);
    driver_close();
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

static void take_step(void)
{
    uint64_t sum = 0, at;
    unsigned i = 0;

    for (unsigned k = 0; k < COUNT_OF(choices); k++)
        sum += choices[k].weight;
    for (at = below(sum); at >= choices[i].weight; i++)
        at -= choices[i].weight;
    if (getenv("XSEG_TEST_TRACE") != NULL)
        print_message("# %u %s\n", step_played, choices[i].name);
    choices[i].step();
    look_at_streams();
}

static void play(uint64_t seed, bool is_low_on_memory, bool has_bytes, unsigned steps)
{
    const bool audits = XSEG_CHECKS >= 3 || seed % 16 == 0;

    seed_played = seed;
    step_played = 0;
    note_step();
    open_world(seed, is_low_on_memory, has_bytes);
    for (; step_played < steps; step_played++) {
        note_step();
        take_step();
        check(audits || step_played % 32 == 0);
    }
    close_world();
    seed_played = 0;
}

static void play_all(uint64_t first, bool is_low_on_memory, bool has_bytes)
{
    const uint64_t begin = by_environment("XSEG_TEST_SEED", first);
    const uint64_t seeds = by_environment("XSEG_TEST_SEEDS", XSEG_CHECKS >= 3 ? 15 : 80);
    const unsigned steps = (unsigned)by_environment("XSEG_TEST_STEPS", 400);

    memset(&tally, 0, sizeof(tally));
    for (uint64_t seed = begin; seed < begin + seeds; seed++)
        play(seed, is_low_on_memory, has_bytes, steps);
    print_message("# %llu commits, %llu refusals, %llu granules taken back, %llu shared, %llu "
                  "gone, %llu pages "
                  "that outlived their range's mappings, %llu waits, %llu granules parted from "
                  "others, %llu pauses, "
                  "%llu restores and %llu refused, %llu granules of them "
                  "brought back\n",
                  (unsigned long long)tally.commits, (unsigned long long)tally.refused,
                  (unsigned long long)tally.recommits, (unsigned long long)tally.shares,
                  (unsigned long long)tally.gone, (unsigned long long)tally.outlived,
                  (unsigned long long)tally.waited, (unsigned long long)tally.parted,
                  (unsigned long long)tally.pauses, (unsigned long long)tally.restored,
                  (unsigned long long)tally.not_restored, (unsigned long long)tally.brought_back);
    if (seeds * steps >= 4000) {
        assert_true(tally.recommits > seeds && tally.shares > seeds && tally.gone > seeds);
        assert_true(8 * tally.outlived > seeds && 8 * tally.parted > seeds && tally.pauses > seeds);
        assert_true(tally.restored > seeds && tally.not_restored > seeds);
        assert_true(2 * tally.brought_back > seeds);
        assert_true(!is_low_on_memory || (tally.refused > seeds && tally.waited > seeds));
    }
}

static void with_room(void **state)
{
    (void)state;
    play_all(1, false, false);
}

static void running_short(void **state)
{
    (void)state;
    play_all(1001, true, false);
}

static void contents_stay(void **state)
{
    (void)state;
    play_all(2001, true, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(with_room, report_failure),
        cmocka_unit_test_teardown(running_short, report_failure),
        cmocka_unit_test_teardown(contents_stay, report_failure),
    };

    (void)signal(SIGABRT, report_abort);
    return cmocka_run_group_tests_name("ranges", tests, NULL, NULL);
}
