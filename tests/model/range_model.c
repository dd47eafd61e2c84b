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

/* --- Fences. --- */

void wait_for(unsigned stream, const struct fence *fence)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (fence->position[i] > env.until[stream].position[i])
            env.until[stream].position[i] = fence->position[i];
}

bool has_completed(const struct fence *fence)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (fence->position[i] > env.completed.position[i])
            return false;
    return true;
}

void poll_streams(void)
{
    for (unsigned i = 0; i < STREAMS; i++)
        while (env.completed.position[i] < env.until[i].position[i]) {
            xseg_event *event = &env.event[i][(env.completed.position[i] + 1) % WORK];

            if (!driver_event_has_completed(*event))
                break;
            driver_event_destroy(*event);
            env.completed.position[i]++;
        }
}

void wait_for_uses(unsigned stream, unsigned range, unsigned first, unsigned count)
{
    for (unsigned at = first; at < first + count; at++)
        for (unsigned i = 0; i < STREAMS; i++)
            if (granule_of(range, at)->uses.position[i] > env.until[stream].position[i] &&
                i != stream) {
                env_stream_wait(env.stream[stream], env.stream[i]);
                wait_for(stream, &env.until[i]);
            }
}

/* --- Pages. --- */

struct page *page_at(unsigned index)
{
    return &env.page[env.granule[index].page];
}

bool is_allocated(unsigned index)
{
    return env.granule[index].use == XSEG_ELASTIC_ALLOCATED;
}

static bool is_running(unsigned index)
{
    return !env.is_paused[index / GRANULES];
}

/* Whether no granule with a lower index maps the page of a granule, in its range or in all ranges. */
static bool is_first_mapping(unsigned index, bool in_range)
{
    const unsigned first = in_range ? index / GRANULES * GRANULES : 0;

    for (unsigned other = first; other < index; other++)
        if (env.granule[other].page == env.granule[index].page)
            return false;
    return true;
}

static bool is_page_allocated(unsigned page)
{
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        if (env.granule[index].page == page && is_allocated(index))
            return true;
    return false;
}

static void remove_mapping(unsigned index)
{
    const unsigned page = env.granule[index].page, range = index / GRANULES;
    bool is_mapped = false;

    env.granule[index].page = NONE;
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
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        env.granule[index].batch -=
            env.granule[index].batch != NONE && env.granule[index].batch > batch;
}

void remove_from_batch(unsigned index)
{
    const unsigned batch = env.granule[index].batch;

    env.granule[index].batch = NONE;
    if (--env.batch[batch].granules == 0)
        end_batch(batch);
}

void add_batch(unsigned range, unsigned first, unsigned count, unsigned stream)
{
    env.batch[env.batches] = (struct batch){.range = range,
                                            .stream = stream,
                                            .granules = count,
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
    for (unsigned index = first; index < first + count; index++) {
        assert_int_equal(env.granule[index].holds, 0);
        remove_mapping(index);
        remove_from_batch(index);
        env.granule[index].use = XSEG_ELASTIC_EMPTY;
        tally.unmapped++;
    }
}

static bool can_unmap(unsigned index, unsigned batch)
{
    const struct granule *granule = &env.granule[index];

    return granule->use == XSEG_ELASTIC_UNMAPPING && granule->batch == batch && granule->holds == 0;
}

/* Unmap the granules of a batch that are not held; returns whether the batch has ended. */
static bool unmap_batch(unsigned batch)
{
    const unsigned base = env.batch[batch].range * GRANULES;

    for (unsigned first = base, count; first < base + GRANULES; first += count + 1) {
        for (count = 0; first + count < base + GRANULES && can_unmap(first + count, batch);)
            count++;
        const bool is_last = env.batch[batch].granules == count;
        if (count != 0)
            unmap(first, count);
        if (is_last)
            return true;
    }
    return false;
}

void poll_batches(void)
{
    bool is_blocked[STREAMS] = {false};

    for (unsigned i = 0; i < env.batches; i++) {
        struct batch *batch = &env.batch[i];

        if (!batch->has_event && !batch->is_completed)
            batch->until = env.until[batch->stream];
        batch->has_event = true;
    }
    for (unsigned i = 0; i < env.batches; i++) {
        struct batch *batch = &env.batch[i];

        if (batch->is_completed || is_blocked[batch->stream])
            continue;
        batch->is_completed = has_completed(&batch->until);
        is_blocked[batch->stream] = !batch->is_completed;
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

/* --- Granules that the library has unmapped after a wait or under memory pressure. --- */

const struct xseg_elastic *elastic_of(unsigned range)
{
    return &env.range[range]->state->elastic;
}

void adopt_unmapped(void)
{
    poll_streams();
    for (unsigned index = 0; index < ALL_GRANULES; index++) {
        const struct granule *granule = &env.granule[index];

        if (granule->use != XSEG_ELASTIC_UNMAPPING ||
            elastic_of(index / GRANULES)->use[index % GRANULES] != XSEG_ELASTIC_EMPTY)
            continue;
        assert_int_equal(env.marks, 0);
        assert_true(has_completed(&env.batch[granule->batch].until));
        unmap(index, 1);
    }
}

uint64_t wait_calls(void)
{
    return xseg_sim_calls("cuEventSynchronize") + xseg_sim_calls("cuStreamSynchronize") +
           xseg_sim_calls("cuCtxSynchronize");
}

/* --- Checks. --- */

uint64_t charged_bytes(unsigned range)
{
    uint64_t charged = 0;

    for (unsigned index = range * GRANULES; index < (range + 1) * GRANULES; index++)
        charged += env.granule[index].page != NONE && page_at(index)->charged == range &&
                   is_first_mapping(index, true);
    return charged * kinds[range].page_bytes;
}

/* Bytes of the pages of a pool; allocated: only pages with a committed granule. */
static uint64_t pool_bytes(const struct xseg_pool *pool, bool allocated)
{
    uint64_t bytes = 0;

    for (unsigned index = 0; index < ALL_GRANULES; index++)
        if (env.granule[index].page != NONE && env.range[index / GRANULES]->state->pool == pool &&
            is_first_mapping(index, false) &&
            (!allocated || is_page_allocated(env.granule[index].page)))
            bytes += kinds[index / GRANULES].page_bytes;
    return bytes;
}

uint64_t unused_quotas(unsigned range, uint64_t additional_bytes)
{
    uint64_t unused = 0;

    for (unsigned i = 0; i < RANGES; i++) {
        const uint64_t charged = charged_bytes(i) + (i == range ? additional_bytes : 0);

        unused += env.quota[i] > charged ? env.quota[i] - charged : 0;
    }
    return unused;
}

uint64_t bytes_with_use(unsigned range, enum xseg_elastic_use use)
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
    const uint64_t allocated = bytes_with_use(range, XSEG_ELASTIC_ALLOCATED),
                   pending = bytes_with_use(range, XSEG_ELASTIC_UNMAPPING);

    assert_int_equal(info.committed_bytes, allocated);
    assert_int_equal(info.pending_unmap_bytes, pending);
    assert_int_equal(info.mapped_bytes, env.is_paused[range] ? 0 : allocated + pending);
    assert_int_equal(info.physical_bytes, (env.is_paused[range] ? 0 : charged_bytes(range)));
    assert_int_equal(info.quota_bytes, env.quota[range]);
    assert_int_equal(info.recommits, env.recommits[range]);
}

static void check_pool(struct xseg_pool *pool)
{
    const struct xseg_statistics stats = stats_of(pool);
    const uint64_t charged = pool_bytes(pool, false), allocated = pool_bytes(pool, true);
    bool is_paused = false;

    for (unsigned range = 0; range < RANGES; range++)
        if (env.range[range]->state->pool == pool)
            is_paused = env.is_paused[range];
    assert_int_equal(stats.reserved_bytes[0].current, is_paused ? 0 : charged);
    assert_int_equal(stats.active_bytes[0].current, charged);
    assert_int_equal(stats.allocated_bytes[0].current, allocated);
    assert_int_equal(stats.physical_bytes, is_paused ? 0 : charged);
}

uint64_t *word_of(unsigned index, unsigned word_index)
{
    const struct xseg_segment *segment = &env.range[index / GRANULES]->state->extent->segment;
    const uint64_t at = segment->base + (index % GRANULES) * segment->granule_bytes;

    /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
    return (uint64_t *)(uintptr_t)(at +
                                   word_index * (segment->granule_bytes / 2 - sizeof(uint64_t)));
}

static void check_granule(unsigned index)
{
    const struct granule *granule = &env.granule[index];
    const struct xseg_elastic *elastic = elastic_of(index / GRANULES);

    if (granule->use != elastic->use[index % GRANULES])
        fail_msg("granule %u of range %u has the use %d instead of %d", index % GRANULES,
                 index / GRANULES, elastic->use[index % GRANULES], granule->use);
    if (granule->page == NONE)
        return;
    const struct xseg_segment *segment = &env.range[index / GRANULES]->state->extent->segment;
    const bool has_others = page_at(index)->mappings > 1;
    if (xseg_alias_exists(segment, index % GRANULES) != has_others)
        fail_msg("granule %u of range %u has a page with %u mappings", index % GRANULES,
                 index / GRANULES, page_at(index)->mappings);
    for (unsigned word_index = 0; env.has_bytes && is_running(index) && word_index < 3;
         word_index++)
        if (*word_of(index, word_index) != page_at(index)->tag)
            fail_msg("granule %u of range %u has other contents", index % GRANULES,
                     index / GRANULES);
}

/* A run of adjacent granules in the same use is one block to xseg_block_query(). */
static void check_block(unsigned index)
{
    const unsigned range = index / GRANULES;
    const enum xseg_elastic_use use = env.granule[index].use;
    unsigned first = index, end = index + 1;

    if (use == XSEG_ELASTIC_EMPTY)
        return;
    while (first > range * GRANULES && env.granule[first - 1].use == use)
        first--;
    while (end < (range + 1) * GRANULES && env.granule[end].use == use)
        end++;
    const struct xseg_segment *segment = &env.range[range]->state->extent->segment;
    const uint64_t base = segment->base + (first % GRANULES) * segment->granule_bytes;
    const struct xseg_block_info info = env_block(env.allocator, word_of(index, 1));
    assert_int_equal((uintptr_t)info.base, base);
    assert_int_equal(info.bytes, (end - first) * segment->granule_bytes);
    assert_int_equal(info.state, use == XSEG_ELASTIC_ALLOCATED ? XSEG_BLOCK_ALLOCATED
                                                               : XSEG_BLOCK_PENDING_FREE);
}

static void check_device(bool with_audits)
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
    if (with_audits && !xseg_device_audit(env.device, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

void check_all(bool with_audits)
{
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        check_granule(index);
    for (unsigned range = 0; range < RANGES; range++) {
        check_range(range);
        check_pool(env.range[range]->state->pool);
    }
    check_block((unsigned)below(ALL_GRANULES));
    check_device(with_audits);
}

/* --- Work. --- */

void launch(unsigned stream, unsigned range, unsigned first, unsigned count)
{
    if (env.until[stream].position[stream] - env.completed.position[stream] >= WORK - 1 ||
        env.is_paused[range])
        return;
    const uint64_t number = ++env.until[stream].position[stream];
    driver_work(0, env.stream[stream], UINT64_MAX, word_of(range * GRANULES + first, 0),
                count * kinds[range].page_bytes);
    env.event[stream][number % WORK] = driver_event(0, env.stream[stream]);
    for (unsigned at = first; at < first + count; at++)
        granule_of(range, at)->uses.position[stream] = number;
}
