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
 * If the library has waited for streams, or may have released memory, the arrays adopt the unmapped granules and check
 * that each was allowed to be unmapped.
 *
 * By hand: XSEG_TEST_SEED=1000 XSEG_TEST_SEEDS=10000 XSEG_TEST_STEPS=1000 build-tests/tests/test-model-ranges
 */
#include <inttypes.h>

#include "src/core/instance/instance.h"
#include "tests/model/range_model.h"
#include "tests/support/driver.h"
#include "tests/support/random_program.h"

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

/* Truncate a run to its first granules with one of two uses; returns false if no granule remains. */
static bool truncate_run(unsigned range, unsigned first, unsigned *count, enum xseg_elastic_use use,
                         enum xseg_elastic_use alternative_use)
{
    unsigned end = first;

    while (end < first + *count &&
           (granule_of(range, end)->use == use || granule_of(range, end)->use == alternative_use))
        end++;
    *count = end - first;
    return *count != 0;
}

static uint64_t offset_of(unsigned range, unsigned at)
{
    return at * kinds[range].page_bytes;
}

static xseg_status call_commit(unsigned range, unsigned first, unsigned count, unsigned stream)
{
    env.is_known[stream] = true;
    return xseg_range_commit(env.range[range], offset_of(range, first),
                             count * kinds[range].page_bytes, env.stream[stream]);
}

static xseg_status call_decommit(unsigned range, unsigned first, unsigned count, unsigned stream)
{
    env.is_known[stream] = true;
    return xseg_range_decommit(env.range[range], offset_of(range, first),
                               count * kinds[range].page_bytes, env.stream[stream]);
}

/* Whether a commit or an unhold on a stream must wait for the other stream of a batch, or may wait for it: the library may
 * not know yet that the batch has completed.  Such a wait is impossible in a capture. */
static bool must_wait(unsigned batch, unsigned stream)
{
    return env.batch[batch].stream != stream && !has_completed(&env.batch[batch].until);
}

static bool may_wait(unsigned batch, unsigned stream)
{
    return env.batch[batch].stream != stream && !env.batch[batch].is_completed;
}

static void wait_for_batch(unsigned stream, struct batch *batch)
{
    if (batch->stream == stream || batch->is_completed)
        return;
    if (!batch->has_event)
        batch->until = env.until[batch->stream];
    batch->has_event = true;
    wait_for(stream, &batch->until);
}

/* Commit a granule that is pending unmap. */
static void recommit(unsigned index, unsigned stream)
{
    struct granule *granule = &env.granule[index];

    wait_for_batch(stream, &env.batch[granule->batch]);
    remove_from_batch(index);
    granule->use = XSEG_ELASTIC_ALLOCATED;
    env.recommits[index / GRANULES]++;
    tally.recommits++;
}

static void map_page(unsigned index)
{
    struct granule *granule = &env.granule[index];

    granule->use = XSEG_ELASTIC_ALLOCATED;
    memset(&granule->uses, 0, sizeof(granule->uses));
    for (granule->page = 0; env.page[granule->page].mappings != 0;)
        granule->page++;
    env.page[granule->page] = (struct page){++env.tag, 1, index / GRANULES};
    for (unsigned word_index = 0; env.has_bytes && word_index < 3; word_index++)
        *word_of(index, word_index) = env.tag;
}

/* Expect that memory is insufficient for `missing` bytes; outside captures all idle memory must have been released. */
static void expect_no_memory(unsigned range, uint64_t missing, uint64_t used_before)
{
    const uint64_t charged = charged_bytes(range), limit = kinds[range].limit;
    const uint64_t used = env.marks > 0 ? used_before : xseg_sim_used(0);

    if (limit != 0 && charged + missing > limit)
        return;
    assert_true(used + missing + unused_quotas(range, missing) > env.limit);
    for (unsigned index = 0; env.marks == 0 && index < ALL_GRANULES; index++)
        assert_true(env.granule[index].use != XSEG_ELASTIC_UNMAPPING ||
                    env.granule[index].holds != 0 || env.granule[index].batch == NONE);
}

/* The generations of the memory of some granules. */
static void read_generations(unsigned range, unsigned first, unsigned count, uint64_t *out)
{
    const struct xseg_segment *segment = &env.range[range]->state->extent->segment;

    for (unsigned i = 0; i < count; i++)
        out[i] = xseg_segment_generation(segment, offset_of(range, first + i),
                                         offset_of(range, first + i + 1));
}

/* Unmap pending granules that have lost their page in a commit, and expect that this was allowed. */
static void adopt_lost_aliases(unsigned range, unsigned first, unsigned count,
                               const uint64_t *previous, bool is_committed)
{
    const struct xseg_elastic *elastic = elastic_of(range);
    uint64_t now[GRANULES];

    read_generations(range, first, count, now);
    for (unsigned i = 0; i < count; i++) {
        const unsigned index = range * GRANULES + first + i;
        const bool is_unmapped =
            is_committed ? now[i] != previous[i] : elastic->use[first + i] == XSEG_ELASTIC_EMPTY;

        if (env.granule[index].use != XSEG_ELASTIC_UNMAPPING || !is_unmapped)
            continue;
        assert_int_equal(env.marks, 0);
        assert_true(has_completed(&env.batch[env.granule[index].batch].until));
        unmap(index, 1);
        tally.lost_aliases++;
    }
}

/* Claim granules for a commit, or restore their use. */
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
    unsigned range, first, count, needed = 0, aliased = 0;
    const unsigned stream = (unsigned)below(STREAMS);
    bool makes_no_driver_call = env.is_known[stream], may_fail = false, must_fail = false;

    draw_run(&range, &first, &count);
    while (below(8) != 0 && granule_of(range, first)->use != XSEG_ELASTIC_UNMAPPING)
        draw_run(&range, &first, &count);
    if (!truncate_run(range, first, &count, XSEG_ELASTIC_EMPTY, XSEG_ELASTIC_UNMAPPING))
        return;
    if (env.is_paused[range]) {
        assert_int_equal(call_commit(range, first, count, stream), XSEG_ERR_PAUSED);
        return;
    }
    /* Predict the result from the uses of the granules. */
    for (unsigned index = range * GRANULES + first, i = 0; i < count; i++, index++) {
        const struct granule *granule = &env.granule[index];
        const bool is_pending = granule->use == XSEG_ELASTIC_UNMAPPING;
        const bool is_aliased = is_pending && (page_at(index)->mappings > 1);

        needed += !is_pending || is_aliased;
        aliased += is_aliased;
        /* The call may remove the other mappings of the page; then the granule keeps the page. */
        may_fail = may_fail || is_aliased;
        must_fail = must_fail || (is_aliased && env.marks > 0 && granule->holds > 0);
        makes_no_driver_call = makes_no_driver_call && is_pending && !is_aliased &&
                               env.batch[granule->batch].stream == stream;
        must_fail = must_fail || (env.marks > 0 && is_pending && must_wait(granule->batch, stream));
        may_fail = may_fail || (env.marks > 0 && is_pending && may_wait(granule->batch, stream));
    }
    uint64_t needed_bytes = needed * kinds[range].page_bytes, generation[GRANULES];
    const uint64_t waits_before = wait_calls(), calls_before = xseg_sim_calls(NULL),
                   creates_before = xseg_sim_calls("cuMemCreate");
    const struct xseg_range_info info = info_of(range);
    const uint64_t charged = charged_bytes(range), used = xseg_sim_used(0);
    const bool is_low_on_memory =
        used + needed_bytes + unused_quotas(range, needed_bytes) > env.limit;
    const bool is_within_quota = env.quota[range] >= charged + needed_bytes && env.marks == 0 &&
                                 xseg_sim_used(0) + unused_quotas(range, 0) <= env.limit;
    /* Make the call. */
    read_generations(range, first, count, generation);
    const xseg_status status = call_commit(range, first, count, stream);
    const bool waited = wait_calls() != waits_before || aliased != 0 || status == XSEG_ERR_LIMIT ||
                        status == XSEG_ERR_NO_MEMORY;
    tally.commits++;
    tally.waited += waited;
    /* Read which granules the call has unmapped. */
    if (makes_no_driver_call)
        assert_int_equal(xseg_sim_calls(NULL), calls_before);
    if (aliased != 0) {
        poll_streams();
        adopt_lost_aliases(range, first, count, generation, status == XSEG_OK);
        needed_bytes = 0;
        for (unsigned at = first, i = 0; i < count; i++, at++)
            needed_bytes +=
                granule_of(range, at)->use == XSEG_ELASTIC_EMPTY ? kinds[range].page_bytes : 0;
    }
    /* A poll during the call does not unmap the granules of the commit. */
    claim(range, first, count, true);
    if (needed != 0 && !waited)
        poll_granules();
    if (waited)
        adopt_unmapped();
    claim(range, first, count, false);

    /* Check the result, and update the model. */
    if (status != XSEG_OK) {
        tally.failures++;
        if (status == XSEG_ERR_BUSY) {
            assert_true(may_fail);
            return;
        }
        assert_true(status == XSEG_ERR_LIMIT || status == XSEG_ERR_NO_MEMORY);
        assert_false(is_within_quota);
        claim(range, first, count, true);
        expect_no_memory(range, needed_bytes, used);
        claim(range, first, count, false);
        return;
    }
    assert_false(must_fail);
    if (!waited && !is_low_on_memory)
        assert_true(xseg_sim_calls("cuMemCreate") - creates_before <=
                    needed - xseg_min(needed, info.prepared_bytes / info.page_bytes));
    for (unsigned index = range * GRANULES + first, i = 0; i < count; i++, index++)
        if (env.granule[index].use == XSEG_ELASTIC_UNMAPPING) {
            assert_true(page_at(index)->mappings == 1);
            recommit(index, stream);
        } else {
            map_page(index);
        }
}

/* --- Decommits and holds. --- */

static void decommit(unsigned range, unsigned first, unsigned count, unsigned stream)
{
    if (below(2) == 0)
        launch(stream, range, first, count);
    wait_for_uses(stream, range, first, count);
    assert_ok(call_decommit(range, first, count, stream));
    add_batch(range, first, count, stream);
    poll_granules();
}

static void step_decommit(void)
{
    unsigned range, first, count;
    const unsigned stream = (unsigned)below(STREAMS);

    draw_run(&range, &first, &count);
    if (!truncate_run(range, first, &count, XSEG_ELASTIC_ALLOCATED, XSEG_ELASTIC_ALLOCATED))
        return;
    if (!env.is_paused[range]) {
        decommit(range, first, count, stream);
        return;
    }
    assert_int_equal(call_decommit(range, first, count, stream), XSEG_ERR_PAUSED);
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

/* Whether an unhold releases the last hold of a granule that is pending unmap. */
static bool is_released(unsigned range, unsigned at)
{
    const struct granule *granule = granule_of(range, at);

    return granule->use == XSEG_ELASTIC_UNMAPPING && granule->holds == 1;
}

static void step_unhold(void)
{
    unsigned range, first, count, end;
    const unsigned stream = (unsigned)below(STREAMS);

    draw_run(&range, &first, &count);
    while (count != 0 && granule_of(range, first + count - 1)->holds == 0)
        count--;
    for (end = first; end < first + count && granule_of(range, end)->holds != 0;)
        end++;
    const bool is_held = end == first + count;
    /* In a capture a stream cannot wait for another one, so make no such call. */
    for (unsigned at = first; env.marks > 0 && at < first + count; at++)
        if (is_released(range, at) && may_wait(granule_of(range, at)->batch, stream))
            return;
    wait_for_uses(stream, range, first, count);
    const xseg_status status =
        xseg_range_unhold(env.range[range], offset_of(range, first),
                          count * kinds[range].page_bytes, env.stream[stream]);
    assert_int_equal(status, is_held ? XSEG_OK : XSEG_ERR_ARGUMENT);
    env.is_known[stream] = true;
    for (unsigned at = first, run; is_held && at < end; at += run + 1) {
        for (run = 0; at + run < end && is_released(range, at + run); run++)
            wait_for_batch(stream, &env.batch[granule_of(range, at + run)->batch]);
        for (unsigned i = 0; i < run; i++)
            remove_from_batch(range * GRANULES + at + i);
        if (run != 0)
            add_batch(range, at, run, stream);
    }
    for (unsigned at = first; is_held && at < end; at++)
        granule_of(range, at)->holds--;
    if (is_held)
        poll_granules();
}

/* --- Aliases. --- */

static void step_alias(void)
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
    if (!truncate_run(from, at, &count, XSEG_ELASTIC_ALLOCATED, XSEG_ELASTIC_ALLOCATED) ||
        env.is_paused[from] || env.is_paused[range])
        return;
    const bool is_possible =
        kinds[range].page_bytes == kinds[from].page_bytes &&
        (range == from || (kinds[range].pool == kinds[from].pool && kinds[from].pool != NONE));
    unsigned unmapped_count = count;
    if (is_possible &&
        !truncate_run(range, first, &unmapped_count, XSEG_ELASTIC_EMPTY, XSEG_ELASTIC_EMPTY))
        unmapped_count = 0;
    if (unmapped_count != 0 && is_possible)
        count = unmapped_count;
    const uint64_t used = xseg_sim_used(0), creates = xseg_sim_calls("cuMemCreate");
    const xseg_status status =
        xseg_range_alias(env.range[range], offset_of(range, first), count * kinds[from].page_bytes,
                         env.range[from], offset_of(from, at));
    assert_int_equal(status, !is_possible || unmapped_count == 0 ? XSEG_ERR_ARGUMENT : XSEG_OK);
    assert_int_equal(xseg_sim_used(0), used);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    for (unsigned i = 0; status == XSEG_OK && i < count; i++) {
        struct granule *granule = granule_of(range, first + i);

        granule->page = granule_of(from, at + i)->page;
        granule->use = XSEG_ELASTIC_ALLOCATED;
        memset(&granule->uses, 0, sizeof(granule->uses));
        env.page[granule->page].mappings++;
        tally.aliases++;
    }
}

/* --- Checkpoints of the first pool. --- */

static bool is_of_pool(unsigned range)
{
    return kinds[range].pool == 0;
}

/* Whether a granule is in the checkpoint, and its range is still the same. */
static bool is_saved(unsigned index)
{
    const unsigned range = index / GRANULES;

    return env.was_allocated[index] && env.was_reserved[range] == env.reserved[range];
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
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        env.was_allocated[index] = is_of_pool(index / GRANULES) && is_allocated(index);
}

/* The next range of the pool in the order of reservation; NONE if there is none. */
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

/* Whether a pending granule can be committed for the default stream.  The library polls streams only if necessary. */
static bool can_recommit(unsigned index)
{
    const unsigned batch = env.granule[index].batch;

    if (page_at(index)->mappings > 1)
        return false;
    if (may_wait(batch, 0))
        poll_batches();
    return !may_wait(batch, 0);
}

static bool can_restore(void)
{
    if (env.marks > 0)
        return false;
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        if (env.was_allocated[index] && !is_saved(index))
            return false;
    FOR_POOL(range)
    {
        for (unsigned index = range * GRANULES; index < (range + 1) * GRANULES; index++)
            if (is_saved(index) && !is_allocated(index) &&
                (env.granule[index].use == XSEG_ELASTIC_EMPTY || !can_recommit(index)))
                return false;
    }
    return true;
}

/* Decommit granules that are not in the checkpoint; returns false if there are none. */
static bool decommit_surplus(void)
{
    bool has_surplus = false;

    FOR_POOL(range)
    {
        for (unsigned first = 0, count; first < GRANULES; first += count + 1) {
            const unsigned base = range * GRANULES + first;

            for (count = 0;
                 first + count < GRANULES && is_allocated(base + count) && !is_saved(base + count);)
                count++;
            if (count == 0)
                continue;
            add_batch(range, first, count, 0);
            has_surplus = true;
        }
    }
    return has_surplus;
}

/* Decommit a granule of the checkpoint, which a restore may commit again. */
static void decommit_saved(void)
{
    for (unsigned tries = 0; tries < 16; tries++) {
        const unsigned index = (unsigned)below(ALL_GRANULES);

        if (!is_saved(index) || !is_allocated(index) || page_at(index)->mappings > 1)
            continue;
        decommit(index / GRANULES, index % GRANULES, 1, (unsigned)below(2));
        return;
    }
}

static void step_restore(void)
{
    if (env.checkpoint == NULL || env.is_paused[0])
        return;
    decommit_saved();
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        if (is_of_pool(index / GRANULES) && is_allocated(index) && !is_saved(index))
            wait_for_uses(0, index / GRANULES, index % GRANULES, 1);
    const uint64_t creates = xseg_sim_calls("cuMemCreate"), waits_before = wait_calls();
    const xseg_status status = xseg_pool_restore(env.pool[0], env.checkpoint, NULL, NULL);
    const bool can_be_restored = can_restore();

    assert_int_equal(status, can_be_restored ? XSEG_OK : XSEG_ERR_BUSY);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(wait_calls(), waits_before);
    tally.restored += can_be_restored;
    tally.not_restored += !can_be_restored;
    /* If a range was released, the checkpoint cannot be restored any more, so create a new one. */
    if (!can_be_restored) {
        step_checkpoint();
        return;
    }
    const uint64_t recommits = tally.recommits;
    const bool has_surplus = decommit_surplus();
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        if (is_saved(index) && !is_allocated(index))
            recommit(index, 0);
    tally.restored_granules += tally.recommits - recommits;
    if (has_surplus)
        poll_granules();
}

/* --- Streams. --- */

static void step_work(void)
{
    unsigned range, first, count;
    const unsigned stream = (unsigned)below(STREAMS);

    draw_run(&range, &first, &count);
    /* Held memory may be used after its decommit, as by a graph. */
    if (granule_of(range, first)->holds != 0 && granule_of(range, first)->page != NONE)
        count = 1;
    else if (!truncate_run(range, first, &count, XSEG_ELASTIC_ALLOCATED, XSEG_ELASTIC_ALLOCATED))
        return;
    launch(stream, range, first, count);
}

static void step_finish(void)
{
    const unsigned stream = (unsigned)below(STREAMS);
    const uint64_t completed = env.completed.position[stream],
                   queued = env.until[stream].position[stream] - completed;

    if (queued != 0)
        driver_event_synchronize(0, env.event[stream][(completed + 1 + below(queued)) % WORK]);
}

static void step_wait(void)
{
    const unsigned stream = (unsigned)below(STREAMS), other = (unsigned)below(STREAMS);

    if (stream == other)
        return;
    env_stream_wait(env.stream[stream], env.stream[other]);
    wait_for(stream, &env.until[other]);
}

/* --- Blocks, trims, quotas. --- */

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
    adopt_unmapped();
    tally.failures += status != XSEG_OK;
}

static void step_free(void)
{
    if (env.blocks == 0)
        return;
    const unsigned i = (unsigned)below(env.blocks);
    env_free(env.allocator, env.block[i]);
    env.block[i] = env.block[--env.blocks];
    adopt_unmapped();
}

static void step_trim(void)
{
    const struct xseg_trim_options options = {sizeof(options), .wait = below(2) == 0};

    assert_ok(xseg_trim(env.allocator, NULL, &options, NULL));
    adopt_unmapped();
    for (unsigned index = 0; options.wait && env.marks == 0 && index < ALL_GRANULES; index++)
        assert_true(env.granule[index].use != XSEG_ELASTIC_UNMAPPING ||
                    env.granule[index].holds != 0);
}

static void step_prepare(void)
{
    const unsigned range = (unsigned)below(RANGES);
    const uint64_t bytes = below(6) * MIB, page = kinds[range].page_bytes, used = xseg_sim_used(0);
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
    const uint64_t max_bytes =
        kinds[range].limit != 0 ? kinds[range].limit : GRANULES * kinds[range].page_bytes;
    const uint64_t bytes = below(2) == 0 ? 0 : below(below(8) == 0 ? 60 : 16) * MIB;
    const xseg_status status = xseg_range_set_quota(env.range[range], bytes);

    adopt_unmapped();
    if (bytes > max_bytes) {
        assert_int_equal(status, XSEG_ERR_ARGUMENT);
        return;
    }
    if (status == XSEG_OK) {
        env.quota[range] = bytes;
        return;
    }
    assert_true(status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
    const uint64_t previous = env.quota[range];
    env.quota[range] = bytes;
    assert_true(xseg_sim_used(0) + unused_quotas(range, 0) > env.limit);
    env.quota[range] = previous;
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

/* Whether a range's pool has allocated granules. */
static bool has_pages(unsigned range)
{
    bool has_granules = false;

    for (unsigned i = 0; i < RANGES; i++)
        has_granules = has_granules ||
                       (is_same_pool(i, range) && bytes_with_use(i, XSEG_ELASTIC_ALLOCATED) != 0);
    return has_granules;
}

/* Whether a granule is pending unmap, and a poll does not unmap it. */
static bool remains_pending(unsigned index)
{
    const struct granule *granule = &env.granule[index];

    return granule->use == XSEG_ELASTIC_UNMAPPING &&
           (granule->holds != 0 || !has_completed(&env.batch[granule->batch].until));
}

/* Whether a pause of a range's pool must fail: work is queued, or memory of the pool remains pending unmap. */
static bool is_in_use(unsigned range)
{
    bool is_used = false;

    for (unsigned i = 0; i < STREAMS; i++)
        is_used = is_used || env.completed.position[i] != env.until[i].position[i];
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        is_used = is_used || (remains_pending(index) && (is_same_pool(index / GRANULES, range) ||
                                                         page_at(index)->mappings > 1));
    return is_used;
}

/* Whether the library knows that a stream uses a range: granules were committed for it. */
static bool is_user(unsigned range, unsigned stream)
{
    const struct xseg_range_state *state = env.range[range]->state;
    bool is_known = false;

    for (size_t i = 0; i < state->stream_count; i++)
        is_known = is_known || state->stream[i].stream->handle == env.stream[stream];
    return is_known;
}

/* Whether work of a stream for which no granule was committed uses memory of a range's pool.  The library does not know of
 * such work, so the program must wait for it before a pause. */
static bool has_unknown_work(unsigned range)
{
    bool has_work = false;

    for (unsigned index = 0; index < ALL_GRANULES; index++)
        for (unsigned i = 0; i < STREAMS && is_same_pool(index / GRANULES, range); i++)
            has_work =
                has_work || (env.granule[index].uses.position[i] > env.completed.position[i] &&
                             !is_user(index / GRANULES, i));
    return has_work;
}

static void finish_all(void)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (env.until[i].position[i] != env.completed.position[i])
            driver_event_synchronize(0, env.event[i][env.until[i].position[i] % WORK]);
    poll_streams();
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
    adopt_unmapped();
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
    adopt_unmapped();
    if (status == XSEG_OK)
        set_paused(range, false);
    else if (status == XSEG_ERR_BUSY)
        assert_true(env.marks > 0);
    else
        assert_true(status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT);
}

/* Mark the device as capturing, or unmark it. */
static void step_mark(void)
{
    if (env.marks == 0 && below(2) == 0) {
        assert_ok(xseg_capture_mark(env.allocator, 0));
        adopt_unmapped();
        env.marks = 1;
    } else if (env.marks != 0) {
        assert_ok(xseg_capture_unmark(env.allocator, 0));
        env.marks = 0;
        for (unsigned range = 0; range < RANGES; range++) {
            if (env.is_paused[range])
                continue;
            /* An empty decommit polls. */
            assert_ok(call_decommit(range, 0, 0, 0));
            poll_granules();
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
        truncate_run(range, first, &count, XSEG_ELASTIC_UNMAPPING, XSEG_ELASTIC_EMPTY) ==
            (count == run))
        return;
    assert_int_equal(call_commit(range, first, run, 0), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_sim_calls(NULL), calls);
}

static void reserve(unsigned range)
{
    const struct kind *kind = &kinds[range];
    const struct xseg_range_options options = {
        sizeof(options),
        .page_bytes = kind->page_bytes,
        .limit_bytes = kind->limit,
        .pool = kind->pool == NONE ? NULL : env.pool[kind->pool],
    };

    assert_ok(xseg_range_reserve(env.allocator, 0, GRANULES * kind->page_bytes, &options,
                                 &env.range[range]));
    env.quota[range] = env.recommits[range] = 0;
    env.reserved[range] = ++env.reservations;
}

static void step_release(void)
{
    const unsigned range = (unsigned)below(RANGES);
    const uint64_t allocated = bytes_with_use(range, XSEG_ELASTIC_ALLOCATED),
                   pending = bytes_with_use(range, XSEG_ELASTIC_UNMAPPING);
    bool is_held = false;

    for (unsigned at = 0; at < GRANULES; at++)
        is_held = is_held || granule_of(range, at)->holds != 0;
    const xseg_status status = xseg_range_release(env.range[range]);
    if (env.is_paused[range]) {
        assert_int_equal(status, XSEG_ERR_PAUSED);
        return;
    }
    if (allocated != 0 || is_held || (pending != 0 && env.marks > 0)) {
        assert_int_equal(status, XSEG_ERR_BUSY);
        return;
    }
    assert_ok(status);
    assert_int_equal(xseg_range_release(env.range[range]), XSEG_ERR_ARGUMENT);
    reserve(range);
    adopt_unmapped();
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
    CHOICE(step_commit, 40),    CHOICE(step_decommit, 30), CHOICE(step_alias, 20),
    CHOICE(step_work, 30),      CHOICE(step_finish, 12),   CHOICE(step_wait, 3),
    CHOICE(step_hold, 2),       CHOICE(step_unhold, 6),    CHOICE(step_alloc, 6),
    CHOICE(step_free, 6),       CHOICE(step_trim, 2),      CHOICE(step_prepare, 3),
    CHOICE(step_quota, 3),      CHOICE(step_pause, 4),     CHOICE(step_resume, 12),
    CHOICE(step_checkpoint, 4), CHOICE(step_restore, 8),   CHOICE(step_mark, 2),
    CHOICE(step_bad_input, 2),  CHOICE(step_release, 2),
};

static void open_env(uint64_t seed, bool is_low_on_memory, bool has_bytes)
{
    const struct xseg_pool_options exportable = {sizeof(exportable), .exportable = true};
    /* Without other users of the device, a minimum of free memory is an equivalent limit. */
    const bool has_hard_limit = seed % 4 == 2, has_free_min = seed % 4 == 3;
    char config[128];

    memset(&env, 0, sizeof(env));
    env.random = program_random_state(seed);
    env.cache = seed % 2 * 16 * MIB;
    env.limit = (is_low_on_memory ? 128 : 1024) * MIB;
    env.has_bytes = has_bytes;
    const struct xseg_sim_settings settings = {
        sizeof(settings),
        .devices = 2,
        .memory_bytes = has_hard_limit || has_free_min ? GIB : env.limit,
        .real_bytes = has_bytes,
        .single_mapping_calls = seed % 8 == 5,
    };
    (void)snprintf(config, sizeof(config),
                   "page_cache_mb:%u,hard_limit_mb:%u,device_free_min_mb:%u",
                   (unsigned)(env.cache / MIB), has_hard_limit ? (unsigned)(env.limit / MIB) : 4096,
                   has_free_min ? (unsigned)((GIB - env.limit) / MIB) : 0);
    env.allocator = env_open_quietly(&settings, config);
    driver_open(2, NULL);
    env.pool[0] = env_pool(env.allocator);
    env.pool[1] = env_pool_with(env.allocator, &exportable);
    env.device = xseg_allocator_open_device(env.allocator, 0);
    /* Stream 0 is the default stream. */
    for (unsigned i = 1; i < STREAMS; i++)
        env.stream[i] = driver_stream(0, false);
    for (unsigned range = 0; range < RANGES; range++)
        reserve(range);
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        env.granule[index].page = env.granule[index].batch = NONE;
}

static void unhold_all(unsigned index)
{
    const unsigned range = index / GRANULES;

    for (; env.granule[index].holds != 0; env.granule[index].holds--)
        assert_ok(xseg_range_unhold(env.range[range], offset_of(range, index % GRANULES),
                                    kinds[range].page_bytes, env.stream[0]));
}

/* Release all holds, and decommit the committed granules of ranges that are not paused. */
static void decommit_all(void)
{
    for (unsigned index = 0; index < ALL_GRANULES; index++) {
        const unsigned range = index / GRANULES;

        unhold_all(index);
        if (!is_allocated(index) || env.is_paused[range])
            continue;
        assert_ok(call_decommit(range, index % GRANULES, 1, 0));
        env.granule[index].use = XSEG_ELASTIC_UNMAPPING;
    }
}

/* Resume all pools and decommit everything: a pool may find memory only after others have released theirs. */
static void release_memory(void)
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

/* Release everything, and expect that nothing leaks. */
static void close_env(void)
{
    if (env.marks != 0)
        assert_ok(xseg_capture_unmark(env.allocator, 0));
    env.marks = 0;
    for (unsigned stream = 1; stream < STREAMS; stream++)
        env_stream_wait(env.stream[0], env.stream[stream]);
    release_memory();
    for (unsigned range = 0; range < RANGES; range++)
        assert_ok(xseg_range_release(env.range[range]));
    xseg_checkpoint_destroy(env.checkpoint);
    for (unsigned i = 0; i < 2; i++)
        assert_ok(xseg_pool_release(env.pool[i]));
    assert_ok(xseg_close(env.allocator));
    xseg_sim_finish_all();
    poll_streams();
    for (unsigned i = 1; i < STREAMS; i++)
        driver_stream_destroy(0, env.stream[i]);
    driver_close();
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

static void take_step(void)
{
    const struct choice *choice = &choices[program_draw(rng_next(&env.random), &choices[0].weight,
                                                        sizeof(choices[0]), COUNT_OF(choices))];

    program_trace(choice->name);
    choice->step();
    poll_streams();
}

static void run_program(uint64_t seed, bool is_low_on_memory, bool has_bytes, unsigned steps)
{
    const bool with_audits = XSEG_CHECKS >= 3 || seed % 16 == 0;

    program.seed = seed;
    program.step = 0;
    open_env(seed, is_low_on_memory, has_bytes);
    for (; program.step < steps; program.step++) {
        take_step();
        check_all(with_audits || program.step % 32 == 0);
    }
    close_env();
    program.seed = 0;
}

static void run_programs(uint64_t first, bool is_low_on_memory, bool has_bytes)
{
    const uint64_t begin = program_number("XSEG_TEST_SEED", first);
    const uint64_t seeds = program_number("XSEG_TEST_SEEDS", XSEG_CHECKS >= 3 ? 15 : 80);
    const unsigned steps = (unsigned)program_number("XSEG_TEST_STEPS", 400);

    memset(&tally, 0, sizeof(tally));
    for (uint64_t seed = begin; seed < begin + seeds; seed++)
        run_program(seed, is_low_on_memory, has_bytes, steps);
    print_message("# %" PRIu64 " commits, %" PRIu64 " failures, %" PRIu64 " recommits, %" PRIu64
                  " aliases, %" PRIu64 " unmapped, %" PRIu64
                  " pages that outlived the mappings of their range, %" PRIu64 " waits, %" PRIu64
                  " granules that lost an aliased page, %" PRIu64 " pauses, %" PRIu64
                  " restores, %" PRIu64 " rejected restores, %" PRIu64
                  " granules recommitted by restores\n",
                  tally.commits, tally.failures, tally.recommits, tally.aliases, tally.unmapped,
                  tally.outlived, tally.waited, tally.lost_aliases, tally.pauses, tally.restored,
                  tally.not_restored, tally.restored_granules);
    if (seeds * steps >= 4000) {
        assert_true(tally.recommits > seeds && tally.aliases > seeds && tally.unmapped > seeds);
        assert_true(8 * tally.outlived > seeds && 8 * tally.lost_aliases > seeds &&
                    tally.pauses > seeds);
        assert_true(tally.restored > seeds && tally.not_restored > seeds);
        assert_true(2 * tally.restored_granules > seeds);
        assert_true(!is_low_on_memory || (tally.failures > seeds && tally.waited > seeds));
    }
}

TEST_PROGRAM(ranges_match_the_model)
{
    run_programs(1, false, false);
}

TEST_PROGRAM(ranges_with_little_memory_match_the_model)
{
    run_programs(1001, true, false);
}

TEST_PROGRAM(committed_granules_keep_their_contents)
{
    run_programs(2001, true, true);
}
