/* SPDX-License-Identifier: MIT */
#include "tests/model/range_model.h"

#include <string.h>

#include "src/core/block/block.h"
#include "src/core/instance/instance.h"
#include "tests/support/driver.h"
#include "vmm/alias.h"

const struct kind kinds[RANGES] = {
    {2 * MIB, 0, 0}, {2 * MIB, 0, 0}, {4 * MIB, 0, 0}, {2 * MIB, 0, NONE}, {2 * MIB, 24 * MIB, 1},
};

struct env env;
struct tally tally;

/* --- Points. --- */

void wait_for(unsigned stream, const struct point *point)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (point->of[i] > env.until[stream].of[i])
            env.until[stream].of[i] = point->of[i];
}

bool has_completed(const struct point *point)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (point->of[i] > env.completed.of[i])
            return false;
    return true;
}

void poll_streams(void)
{
    for (unsigned i = 0; i < STREAMS; i++)
        while (env.completed.of[i] < env.until[i].of[i]) {
            xseg_event *event = &env.event[i][(env.completed.of[i] + 1) % WORK];

            if (!driver_event_has_completed(*event))
                break;
            driver_event_destroy(*event);
            env.completed.of[i]++;
        }
}

void order(unsigned stream, unsigned range, unsigned first, unsigned count)
{
    for (unsigned at = first; at < first + count; at++)
        for (unsigned i = 0; i < STREAMS; i++)
            if (granule_of(range, at)->user.of[i] > env.until[stream].of[i] && i != stream) {
                env_stream_wait(env.stream[stream], env.stream[i]);
                wait_for(stream, &env.until[i]);
            }
}

/* --- Pages. --- */

struct page *page_at(unsigned place)
{
    return &env.page[env.granule[place].page];
}

bool is_allocated(unsigned place)
{
    return env.granule[place].use == XSEG_ELASTIC_ALLOCATED;
}

static bool is_running(unsigned place)
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

static bool is_page_allocated(unsigned page)
{
    for (unsigned place = 0; place < PLACES; place++)
        if (env.granule[place].page == page && is_allocated(place))
            return true;
    return false;
}

static void remove_mapping(unsigned place)
{
    const unsigned page = env.granule[place].page, range = place / GRANULES;
    bool is_mapped = false;

    env.granule[place].page = NONE;
    env.page[page].mappings--;
    for (unsigned other = range * GRANULES; other < (range + 1) * GRANULES; other++)
        is_mapped = is_mapped || env.granule[other].page == page;
    if (env.page[page].charged != range || is_mapped)
        return;
    env.page[page].charged = NONE;
    tally.outlived += env.page[page].mappings != 0;
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

void leave_batch(unsigned place)
{
    const unsigned batch = env.granule[place].batch;

    env.granule[place].batch = NONE;
    if (--env.batch[batch].left == 0)
        end_batch(batch);
}

void add_batch(unsigned range, unsigned first, unsigned count, unsigned stream)
{
    env.batch[env.batches] = (struct batch){.range = range,
                                            .stream = stream,
                                            .left = count,
                                            .until = env.until[stream],
                                            .has_event = env.marks == 0};
    for (unsigned at = first; at < first + count; at++) {
        granule_of(range, at)->use = XSEG_ELASTIC_UNMAPPING;
        granule_of(range, at)->batch = env.batches;
    }
    env.batches++;
}

void unmap(unsigned first, unsigned count)
{
    for (unsigned place = first; place < first + count; place++) {
        assert_int_equal(env.granule[place].holds, 0);
        remove_mapping(place);
        leave_batch(place);
        env.granule[place].use = XSEG_ELASTIC_EMPTY;
        tally.unmapped++;
    }
}

static bool can_unmap(unsigned place, unsigned batch)
{
    const struct granule *granule = &env.granule[place];

    return granule->use == XSEG_ELASTIC_UNMAPPING && granule->batch == batch && granule->holds == 0;
}

/* Unmap the granules of a batch that are not held; returns whether the batch has ended. */
static bool unmap_batch(unsigned batch)
{
    const unsigned base = env.batch[batch].range * GRANULES;

    for (unsigned first = base, count; first < base + GRANULES; first += count + 1) {
        for (count = 0; first + count < base + GRANULES && can_unmap(first + count, batch);)
            count++;
        const bool is_last = env.batch[batch].left == count;
        if (count != 0)
            unmap(first, count);
        if (is_last)
            return true;
    }
    return false;
}

void poll_batches(void)
{
    bool at_work[STREAMS] = {false};

    for (unsigned i = 0; i < env.batches; i++) {
        struct batch *batch = &env.batch[i];

        if (!batch->has_event && !batch->is_completed)
            batch->until = env.until[batch->stream];
        batch->has_event = true;
    }
    for (unsigned i = 0; i < env.batches; i++) {
        struct batch *batch = &env.batch[i];

        if (batch->is_completed || at_work[batch->stream])
            continue;
        batch->is_completed = has_completed(&batch->until);
        at_work[batch->stream] = !batch->is_completed;
    }
}

void poll_granules(void)
{
    if (env.marks > 0)
        return;
    poll_batches();
    for (unsigned i = 0; i < env.batches;)
        i += env.batch[i].is_completed && unmap_batch(i) ? 0 : 1;
}

/* --- Granules that the library has unmapped in a wait or a release. --- */

const struct xseg_elastic *elastic_of(unsigned range)
{
    return &env.range[range]->state->elastic;
}

void adopt_unmapped(void)
{
    poll_streams();
    for (unsigned place = 0; place < PLACES; place++) {
        const struct granule *granule = &env.granule[place];

        if (granule->use != XSEG_ELASTIC_UNMAPPING ||
            elastic_of(place / GRANULES)->use[place % GRANULES] != XSEG_ELASTIC_EMPTY)
            continue;
        assert_int_equal(env.marks, 0);
        assert_true(has_completed(&env.batch[granule->batch].until));
        unmap(place, 1);
    }
}

uint64_t waits(void)
{
    return xseg_sim_calls("cuEventSynchronize") + xseg_sim_calls("cuStreamSynchronize") +
           xseg_sim_calls("cuCtxSynchronize");
}

/* --- Checks. --- */

uint64_t charged_bytes(unsigned range)
{
    uint64_t charged = 0;

    for (unsigned place = range * GRANULES; place < (range + 1) * GRANULES; place++)
        charged += env.granule[place].page != NONE && page_at(place)->charged == range &&
                   is_first_mapping(place, true);
    return charged * kinds[range].page_bytes;
}

/* Bytes of the pages of a pool: of all, or of those with an allocated granule. */
static uint64_t pool_bytes(const struct xseg_pool *pool, bool live)
{
    uint64_t bytes = 0;

    for (unsigned place = 0; place < PLACES; place++)
        if (env.granule[place].page != NONE && env.range[place / GRANULES]->state->pool == pool &&
            is_first_mapping(place, false) && (!live || is_page_allocated(env.granule[place].page)))
            bytes += kinds[place / GRANULES].page_bytes;
    return bytes;
}

uint64_t unused_quotas(unsigned range, uint64_t more)
{
    uint64_t promised = 0;

    for (unsigned i = 0; i < RANGES; i++) {
        const uint64_t charged = charged_bytes(i) + (i == range ? more : 0);

        promised += env.quota[i] > charged ? env.quota[i] - charged : 0;
    }
    return promised;
}

uint64_t count_use(unsigned range, enum xseg_elastic_use use)
{
    uint64_t count = 0;

    for (unsigned at = 0; at < GRANULES; at++)
        count += granule_of(range, at)->use == use;
    return count * kinds[range].page_bytes;
}

struct xseg_range_info info_of(unsigned range)
{
    struct xseg_range_info info = {sizeof(info)};

    assert_ok(xseg_range_query(env.range[range], &info));
    return info;
}

static struct xseg_statistics stats_of(struct xseg_pool *pool)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope scope = {sizeof(scope), .device = 0, .pool = pool};

    assert_ok(xseg_stats_get(env.allocator, &scope, &stats));
    return stats;
}

static void check_range(unsigned range)
{
    const struct xseg_range_info info = info_of(range);
    const uint64_t live = count_use(range, XSEG_ELASTIC_ALLOCATED),
                   pending = count_use(range, XSEG_ELASTIC_UNMAPPING);

    assert_int_equal(info.committed_bytes, live);
    assert_int_equal(info.pending_unmap_bytes, pending);
    assert_int_equal(info.mapped_bytes, env.is_paused[range] ? 0 : live + pending);
    assert_int_equal(info.physical_bytes, (env.is_paused[range] ? 0 : charged_bytes(range)));
    assert_int_equal(info.quota_bytes, env.quota[range]);
    assert_int_equal(info.recommits, env.recommits[range]);
}

static void check_pool(struct xseg_pool *pool)
{
    const struct xseg_statistics stats = stats_of(pool);
    const uint64_t charged = pool_bytes(pool, false), live = pool_bytes(pool, true);
    bool is_paused = false;

    for (unsigned range = 0; range < RANGES; range++)
        if (env.range[range]->state->pool == pool)
            is_paused = env.is_paused[range];
    assert_int_equal(stats.reserved_bytes[0].current, is_paused ? 0 : charged);
    assert_int_equal(stats.active_bytes[0].current, charged);
    assert_int_equal(stats.allocated_bytes[0].current, live);
    assert_int_equal(stats.physical_bytes, is_paused ? 0 : charged);
}

uint64_t *word_of(unsigned place, unsigned which)
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
    const bool has_others = page_at(place)->mappings > 1;
    if (xseg_alias_exists(segment, place % GRANULES) != has_others)
        fail_msg("granule %u of range %u has a page with %u mappings", place % GRANULES,
                 place / GRANULES, page_at(place)->mappings);
    for (unsigned which = 0; env.has_bytes && is_running(place) && which < 3; which++)
        if (*word_of(place, which) != page_at(place)->tag)
            fail_msg("granule %u of range %u contains something else", place % GRANULES,
                     place / GRANULES);
}

/* A run of adjacent granules in the same use is one block to xseg_block_query(). */
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
    uint64_t prepared = 0;

    for (unsigned range = 0; range < RANGES; range++)
        prepared += info_of(range).prepared_bytes;
    assert_int_equal(stats.physical_bytes, xseg_sim_used(0));
    assert_true(xseg_sim_used(0) <= env.limit);
    assert_true(stats.idle_page_bytes >= prepared);
    assert_true(stats.idle_page_bytes - prepared <= env.cache);
    assert_int_equal(env.device->unused_quota, unused_quotas(0, 0));
    if (audits && !xseg_device_audit(env.device, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

void check(bool audits)
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

void launch(unsigned stream, unsigned range, unsigned first, unsigned count)
{
    if (env.until[stream].of[stream] - env.completed.of[stream] >= WORK - 1 || env.is_paused[range])
        return;
    const uint64_t number = ++env.until[stream].of[stream];
    driver_work(0, env.stream[stream], UINT64_MAX, word_of(range * GRANULES + first, 0),
                count * kinds[range].page_bytes);
    env.event[stream][number % WORK] = driver_event(0, env.stream[stream]);
    for (unsigned at = first; at < first + count; at++)
        granule_of(range, at)->user.of[stream] = number;
}
