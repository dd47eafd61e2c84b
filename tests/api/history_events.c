/* SPDX-License-Identifier: MIT */
/* The events of blocks and segments, and their members. */
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/history_list.h"

#define MS UINT64_C(1000000)

static const char *const kinds[] = {
    "history:all,expandable_segments:True",
    "history:all,expandable_segments:False",
};

static struct xseg_allocator *open_on(size_t mib, const char *config)
{
    return env_open_sim_with_clock(config, .memory_bytes = mib * MIB);
}

static uint64_t monotonic_ns(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void expect_block(const struct xseg_history_entry *entry,
                         const struct xseg_block_info *block, uint64_t start, uint64_t end)
{
    assert_ptr_equal(entry->base, block->base);
    assert_int_equal(entry->bytes, block->bytes);
    assert_int_equal(entry->requested, block->requested);
    assert_ptr_equal(entry->stream, block->stream);
    assert_int_equal(entry->device, 0);
    assert_int_equal(entry->pool, 0);
    assert_false(entry->is_fallback);
    assert_int_equal(entry->thread, gettid());
    assert_int_equal(entry->stack, 0);
    assert_int_equal(entry->frames, 0);
    assert_null(entry->label);
    assert_int_equal(entry->order, 0);
    assert_in_range(entry->time_ns, start, end);
}

/* Small blocks, and large ones, some of which are longer than the request. */
static const size_t block_sizes[] = {1, 1000, MIB, MIB + 1, 30 * MIB, 31 * MIB - 100};

TEST_TIMES(events_describe_the_block, COUNT_OF(block_sizes) * COUNT_OF(kinds),
           env_open(kinds[i / COUNT_OF(block_sizes)]))
{
    const xseg_stream stream = env_stream();
    /* The second allocation is a hit. */
    for (unsigned round = 0; round < 2; round++) {
        /* Times are accurate to 20 ms. */
        const uint64_t start = monotonic_ns() - 20 * MS;
        void *ptr = env_alloc(allocator, block_sizes[i % COUNT_OF(block_sizes)], stream);
        const struct xseg_block_info block = env_block(allocator, ptr);
        env_free(allocator, ptr);
        const uint64_t end = monotonic_ns() + 20 * MS;
        HISTORY_LIST recorded = history_read(allocator, 0);
        assert_int_equal(recorded.count, round == 0 ? 4 : 3); /* the first round has a map event */
        for (enum xseg_history_action action = XSEG_HISTORY_ALLOC;
             action <= XSEG_HISTORY_FREE_COMPLETED; action++) {
            const struct xseg_history_entry entry = history_single_in(&recorded, action);

            expect_block(&entry, &block, start, end);
        }
        assert_ok(xseg_history_clear(allocator, 0));
    }
}

TEST_ON(segment_events_are_recorded, env_open("history:all,expandable_segments:True"))
{
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    const struct xseg_history_entry map = history_single(allocator, XSEG_HISTORY_SEGMENT_MAP);
    assert_ptr_equal(map.base, ptr);
    assert_int_equal(map.bytes, 40 * MIB);
    assert_int_equal(map.requested, 40 * MIB);
    assert_int_not_equal(map.order, 0);
    history_expect(allocator, "map alloc");
    env_free(allocator, ptr);
    env_empty_cache(allocator);
    const struct xseg_history_entry trim = history_single(allocator, XSEG_HISTORY_TRIM);
    const struct xseg_history_entry unmap = history_single(allocator, XSEG_HISTORY_SEGMENT_UNMAP);
    assert_ptr_equal(trim.base, ptr);
    assert_ptr_equal(unmap.base, ptr);
    assert_int_equal(trim.bytes, 40 * MIB);
    assert_int_equal(unmap.bytes, 40 * MIB);
    assert_true(unmap.order > trim.order && trim.order > map.order);
    history_expect(allocator, "free done trim unmap");
    assert_ok(xseg_config_set(allocator, "expandable_segments:False"));
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    env_empty_cache(allocator);
    history_expect(allocator, "segment alloc free done trim end");
}

TEST_ON(free_of_a_pending_block_is_completed_later, env_open("history:all"))
{
    const xseg_stream side = env_stream();
    void *ptr = env_alloc(allocator, 5 * MIB, NULL);

    env_free_in_use(allocator, ptr, side);
    history_expect(allocator, "map alloc free");
    assert_ok(xseg_sim_finish(side));
    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    history_expect(allocator, "done alloc free done");
}

TEST_ON(remap_is_followed_by_its_unmaps, open_on(100, "history:all,expandable_segments:True"))
{
    const xseg_stream side = env_stream();

    env_free(allocator, env_alloc(allocator, 80 * MIB, NULL));
    history_expect(allocator, "map alloc free done");
    void *ptr = env_alloc(allocator, 40 * MIB, side);
    const struct xseg_history_entry remap = history_single(allocator, XSEG_HISTORY_REMAP);
    const struct xseg_history_entry unmap = history_single(allocator, XSEG_HISTORY_SEGMENT_UNMAP);
    assert_null(remap.stream);
    assert_null(unmap.stream);
    assert_ptr_equal(remap.base, unmap.base);
    assert_int_equal(remap.bytes, unmap.bytes);
    assert_int_equal(unmap.bytes, 20 * MIB); /* 40 of 100 MiB, 20 of which are free */
    history_expect(allocator, "remap unmap map alloc");
    env_free(allocator, ptr);
}

TEST_ON(oom_event_has_the_requested_size, open_on(100, "history:all,history_stacks:all"))
{
    const xseg_stream side = env_stream();
    void *ptr = NULL;

    assert_int_equal(xseg_alloc(allocator, 0, 120 * MIB + 1, side, &ptr), XSEG_ERR_NO_MEMORY);
    const struct xseg_history_entry oom = history_single(allocator, XSEG_HISTORY_OOM);
    assert_null(oom.base);
    assert_int_equal(oom.bytes, 100 * MIB);
    assert_int_equal(oom.requested, 120 * MIB + 1);
    assert_ptr_equal(oom.stream, side);
    assert_int_not_equal(oom.stack, 0);
    history_expect(allocator, "oom");
}

TEST_ON(fallback_block_is_recorded_with_its_pool, open_on(40, "history:all"))
{
    (void)env_pool(allocator); /* with the ID 1 */
    struct xseg_pool *pool = env_pool_of(allocator, .use_on_oom = true);
    for (unsigned is_fallback = 0; is_fallback < 2; is_fallback++) {
        void *block = is_fallback ? env_alloc(allocator, 20 * MIB, NULL)
                                  : env_alloc_in(allocator, pool, 40 * MIB, NULL);

        env_free(allocator, block);
        HISTORY_LIST recorded = history_read(allocator, 0);
        for (size_t i = 0; i < recorded.count; i++) {
            assert_int_equal(recorded.entry[i].pool, 2);
            assert_int_equal(recorded.entry[i].is_fallback, is_fallback);
            assert_ptr_equal(recorded.entry[i].base, block);
        }
        history_expect(allocator, is_fallback ? "alloc free done" : "map alloc free done");
    }
}

TEST_ON(decay_is_followed_by_its_unmaps, open_on(1000, "history:all,idle_ms:100"))
{
    env_free(allocator, env_alloc(allocator, 20 * MIB, NULL));
    history_expect(allocator, "map alloc free done");
    env_advance_and_trim(allocator, 30, 10);
    history_expect(allocator, "decay unmap");
}

TEST_EACH(pause_and_resume_are_recorded, env_open(config), "history:all,expandable_segments:True",
          "history:all,expandable_segments:False")
{
    struct xseg_pool *pool = env_pool(allocator);
    void *ptr = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    const xseg_status status = xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL);

    history_expect(allocator, i == 0 ? "map alloc pause" : "segment alloc");
    assert_int_equal(status, i == 0 ? XSEG_OK : XSEG_ERR_UNSUPPORTED);
    if (status == XSEG_OK) {
        assert_ok(xseg_pool_resume(pool));
        const struct xseg_history_entry resume = history_single(allocator, XSEG_HISTORY_RESUME);
        assert_ptr_equal(resume.base, ptr);
        assert_int_equal(resume.bytes, 40 * MIB);
        assert_int_equal(resume.pool, 1);
        history_expect(allocator, "resume");
    }
    env_free(allocator, ptr);
}

/* The unmap events of a destroyed pool have its ID. */
TEST_EACH(pool_keeps_its_id, env_open(config), "history:all,expandable_segments:True",
          "history:all,expandable_segments:False")
{
    (void)env_pool(allocator); /* with the ID 1 */
    struct xseg_pool *second = env_pool(allocator);
    env_free(allocator, env_alloc_in(allocator, second, 40 * MIB, NULL));
    env_free(allocator, env_alloc_in(allocator, second, 1000, NULL));
    assert_ok(xseg_pool_release(second));
    /* Later pools have other IDs. */
    for (unsigned k = 0; k < 10; k++)
        assert_ok(xseg_pool_release(env_pool(allocator)));
    env_empty_cache(allocator);
    HISTORY_LIST recorded = history_read(allocator, 0);
    for (size_t k = 0; k < recorded.count; k++)
        assert_int_equal(recorded.entry[k].pool, 2);
    history_expect(allocator,
                   i == 0 ? "map alloc free done map alloc free done trim unmap trim unmap"
                          : "segment alloc free done segment alloc free done trim end trim end");
}

static const size_t small_and_large[] = {1000, 30 * MIB};

TEST_TIMES(restore_records_frees_and_allocations, COUNT_OF(small_and_large),
           env_open("history:all"))
{
    struct xseg_pool *pool = env_pool(allocator);
    void *allocated = env_alloc_in(allocator, pool, small_and_large[i], NULL);

    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    history_expect(allocator, "map alloc");
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    const struct xseg_history_entry restored = history_single(allocator, XSEG_HISTORY_ALLOC);
    assert_ptr_equal(restored.base, allocated);
    assert_int_equal(restored.requested, small_and_large[i]);
    assert_int_equal(restored.bytes, env_block(allocator, allocated).bytes);
    history_expect(allocator, "free done alloc");
    xseg_checkpoint_destroy(checkpoint);
    env_free(allocator, allocated);
}

TEST_ON(guarded_block_has_a_separate_segment, env_open("history:all,guard_page:True"))
{
    env_free(allocator, env_alloc(allocator, 1000, NULL));
    history_expect(allocator, "map alloc free done unmap");
}

TEST_ON(prewarm_records_a_map_event, env_open("history:all"))
{
    const struct xseg_scope scope = {sizeof(scope)};

    assert_ok(xseg_prewarm(allocator, &scope, 30 * MIB));
    history_expect(allocator, "map");
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    history_expect(allocator, "alloc free done");
}

/* --- The user value of a request: with block_user the block and its events report it. --- */

static xseg_status try_alloc_with_user(struct xseg_allocator *allocator, struct xseg_pool *pool,
                                       size_t bytes, void *user, void **out)
{
    const struct xseg_request request = {sizeof(request), .bytes = bytes, .pool = pool,
                                         .user = user};

    return xseg_alloc_with(allocator, &request, out);
}

static void *alloc_with_user(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                             void *user)
{
    void *ptr = NULL;

    assert_ok(try_alloc_with_user(allocator, pool, bytes, user, &ptr));
    return ptr;
}

static void *user_of(struct xseg_allocator *allocator, const void *address)
{
    return env_block(allocator, address).user;
}

/* Expect the user value in all events of an action on a block.  Returns the number of these events. */
static unsigned expect_events(struct xseg_allocator *allocator, enum xseg_history_action action,
                              const void *base, const void *user)
{
    HISTORY_LIST recorded = history_read(allocator, -1);
    unsigned count = 0;

    for (size_t i = 0; i < recorded.count; i++) {
        if (recorded.entry[i].action != action || recorded.entry[i].base != base)
            continue;
        assert_ptr_equal(recorded.entry[i].user, user);
        count++;
    }
    return count;
}

/* Expect one event of each action on a block, with the user value; then clear the history. */
static void expect_user_in_events(struct xseg_allocator *allocator, const void *base,
                                  const void *user)
{
    for (enum xseg_history_action action = XSEG_HISTORY_ALLOC;
         action <= XSEG_HISTORY_FREE_COMPLETED; action++)
        assert_int_equal(expect_events(allocator, action, base, user), 1);
    assert_ok(xseg_history_clear(allocator, -1));
}

static bool count_values(void *context, const struct xseg_block_info *block)
{
    unsigned *found = context;

    *found += block->user != NULL;
    assert_true(block->user == NULL || block->state == XSEG_BLOCK_ALLOCATED ||
                block->state == XSEG_BLOCK_PENDING_FREE);
    return true;
}

static void expect_user_value(struct xseg_allocator *allocator, struct xseg_pool *pool,
                              size_t bytes)
{
    char value[2];
    unsigned found = 0;

    /* The second allocation is a hit, if the configuration has a fast path. */
    for (unsigned i = 0; i < 2; i++) {
        char *ptr = alloc_with_user(allocator, pool, bytes, &value[i]);

        assert_ptr_equal(user_of(allocator, ptr), &value[i]);
        assert_ptr_equal(user_of(allocator, ptr + bytes - 1), &value[i]);
        assert_ok(xseg_for_each_block(allocator, NULL, count_values, &found));
        assert_int_equal(found, i + 1);
        env_free(allocator, ptr);
        expect_user_in_events(allocator, ptr, &value[i]);
    }
}

TEST_EACH(user_value_is_reported_with_block_and_events, env_open(config),
          "expandable_segments:True", "expandable_segments:False", "guard_page:True",
          "unmap_on_free:True", "debug_fill:True", "roundup_power2_divisions:4",
          "idle_ms:100000,history_stacks:all")
{
    struct xseg_pool *pool = env_pool(allocator);

    assert_ok(xseg_config_set(allocator, "history:all,block_user:True"));
    for (size_t k = 0; k < COUNT_OF(block_sizes); k++) {
        expect_user_value(allocator, NULL, block_sizes[k]);
        expect_user_value(allocator, pool, block_sizes[k]);
    }
}

TEST_IN_POOL(memory_without_a_request_has_no_user_value, env_open("history:all,block_user:True"))
{
    static const enum xseg_history_action actions[] = {XSEG_HISTORY_SEGMENT_MAP, XSEG_HISTORY_TRIM,
                                                       XSEG_HISTORY_SEGMENT_UNMAP};
    int value;
    void *first = alloc_with_user(allocator, NULL, 1000, &value),
         *second = alloc_with_user(allocator, pool, 1000, &value);
    void *at_address = NULL;

    history_expect(allocator, "map alloc map alloc");
    env_free(allocator, first, second);
    assert_ok(xseg_history_clear(allocator, -1));
    assert_ptr_equal(env_alloc(allocator, 1000, NULL), first);
    assert_null(user_of(allocator, first));
    assert_ok(xseg_alloc_at(pool, 1000, NULL, second, &at_address));
    assert_null(user_of(allocator, at_address));
    env_free(allocator, first, at_address);
    expect_user_in_events(allocator, first, NULL);
    first = alloc_with_user(allocator, NULL, 30 * MIB, &value);
    env_free(allocator, first);
    env_empty_cache(allocator);
    for (size_t i = 0; i < COUNT_OF(actions); i++)
        assert_int_equal(expect_events(allocator, actions[i], first, NULL), 1);
}

TEST_ON(pending_block_keeps_its_user_value, env_open("history:all,block_user:True"))
{
    const xseg_stream side = env_stream();
    int value, neighbor_value;

    for (size_t bytes = 1000; bytes <= 30 * MIB; bytes *= 30 * MIB / 1000) {
        void *ptr = alloc_with_user(allocator, NULL, bytes, &value);

        env_free_in_use(allocator, ptr, side);
        void *neighbor = alloc_with_user(allocator, NULL, bytes, &neighbor_value);
        assert_ptr_not_equal(neighbor, ptr);
        assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
        assert_ptr_equal(user_of(allocator, ptr), &value);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, ptr, NULL), 0);
        assert_ok(xseg_sim_finish(side));
        env_empty_cache(allocator);
        expect_user_in_events(allocator, ptr, &value);
        env_free(allocator, neighbor);
    }
}

TEST_ON(failed_request_reports_its_user_value,
        env_open("history:all,block_user:True,hard_limit_mb:40"))
{
    int value;
    void *ptr = alloc_with_user(allocator, NULL, 1000, &value);

    assert_int_equal(try_alloc_with_user(allocator, NULL, GIB, &allocator, &ptr), XSEG_ERR_LIMIT);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_OOM, NULL, &allocator), 1);
    assert_ok(xseg_history_clear(allocator, -1));
    assert_int_equal(xseg_alloc(allocator, 0, GIB, NULL, &ptr), XSEG_ERR_LIMIT);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_OOM, NULL, NULL), 1);
    env_free(allocator, ptr);
}

struct observer_state {
    struct xseg_allocator *allocator;
    void *freed, *nested;
    int value;
};

static bool free_and_alloc_on_low_memory(void *context, const struct xseg_oom_info *oom)
{
    struct observer_state *state = context;

    (void)oom;
    if (state->freed == NULL)
        return false;
    env_free(state->allocator, state->freed);
    state->freed = NULL;
    state->nested = alloc_with_user(state->allocator, NULL, 1000, &state->value);
    return true;
}

TEST_ON(nested_requests_have_separate_user_values,
        env_open("history:all,block_user:True,hard_limit_mb:100"))
{
    struct observer_state state = {.allocator = allocator};
    int value;

    const uint64_t id =
        env_observe(allocator, .context = &state, .on_low_memory = free_and_alloc_on_low_memory);
    void *first = alloc_with_user(allocator, NULL, 1000, NULL);
    state.freed = env_alloc(allocator, 60 * MIB, NULL);
    assert_ok(xseg_history_clear(allocator, -1));
    void *ptr = alloc_with_user(allocator, NULL, 80 * MIB, &value);
    assert_null(state.freed);
    assert_ptr_equal(user_of(allocator, ptr), &value);
    assert_ptr_equal(user_of(allocator, state.nested), &state.value);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, ptr, &value), 1);
    assert_ok(xseg_observer_remove(allocator, id));
    env_free(allocator, first, ptr, state.nested);
}

/* Before the restore another block with another value is allocated at its address. */
TEST_TIMES(restored_block_has_its_user_value, COUNT_OF(small_and_large),
           env_open("history:all,block_user:True"))
{
    struct xseg_pool *pool = env_pool(allocator);
    char value[3];
    void *allocated = alloc_with_user(allocator, pool, small_and_large[i], &value[0]),
         *freed = alloc_with_user(allocator, pool, small_and_large[i], &value[1]),
         *without_user = alloc_with_user(allocator, pool, small_and_large[i], NULL);

    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    env_free(allocator, freed, without_user);
    assert_ptr_equal(alloc_with_user(allocator, pool, small_and_large[i], &value[2]), freed);
    assert_ptr_equal(alloc_with_user(allocator, pool, small_and_large[i], &value[2]), without_user);
    assert_ok(xseg_history_clear(allocator, -1));
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    assert_ptr_equal(user_of(allocator, allocated), &value[0]);
    assert_ptr_equal(user_of(allocator, freed), &value[1]);
    assert_null(user_of(allocator, without_user));
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, freed, &value[2]), 1);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, freed, &value[1]), 1);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, without_user, NULL), 1);
    xseg_checkpoint_destroy(checkpoint);
    env_free(allocator, allocated, freed, without_user);
}

TEST_ON(event_capacity_is_configurable_with_user_values,
        env_open("history:all,block_user:True,history_events:16"))
{
    int value;

    for (unsigned is_large = 0; is_large < 2; is_large++) {
        assert_ok(xseg_config_set(allocator, is_large ? "history_events:64" : "history_events:16"));
        for (unsigned i = 0; i < 30; i++)
            env_free(allocator, alloc_with_user(allocator, NULL, 1000, &value));
        HISTORY_LIST recorded = history_read(allocator, -1);
        assert_int_equal(recorded.count, is_large ? 64 : 16);
    }
}

/* User values are recorded only after the checkpoint (i is 0), or only before it. */
TEST_IN_POOL(checkpoint_restores_its_own_user_values, env_open("history:all"))
{
    int value, later_value;

    for (unsigned i = 0; i < 2; i++) {
        assert_ok(xseg_config_set(allocator, i == 0 ? "block_user:False" : "block_user:True"));
        void *ptr = alloc_with_user(allocator, pool, 1000, &value);
        struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
        env_free(allocator, ptr);
        assert_ok(xseg_config_set(allocator, i == 0 ? "block_user:True" : "block_user:False"));
        assert_ptr_equal(alloc_with_user(allocator, pool, 1000, &later_value), ptr);
        assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
        assert_null(user_of(allocator, ptr));
        xseg_checkpoint_destroy(checkpoint);
        env_free(allocator, ptr);
    }
}

/* A large block, and a small one, on a device with memory for two of them. */
TEST_TIMES(fallback_block_has_its_user_value, 2,
           env_open_mib(i == 0 ? 40 : 2, "expandable_segments:True,history:all,block_user:True"))
{
    const size_t bytes = i == 0 ? 20 * MIB : 512 * KIB;
    struct xseg_pool *pool = env_pool_of(allocator, .use_on_oom = true);
    int value, pool_value;
    void *allocated = alloc_with_user(allocator, pool, bytes, &pool_value);
    void *freed = alloc_with_user(allocator, pool, bytes, &pool_value);

    env_free(allocator, freed);
    assert_ok(xseg_history_clear(allocator, -1));
    assert_ptr_equal(alloc_with_user(allocator, NULL, bytes, &value), freed);
    assert_ptr_equal(env_block(allocator, freed).fallback_pool, pool);
    assert_ptr_equal(user_of(allocator, freed), &value);
    env_free(allocator, freed);
    expect_user_in_events(allocator, freed, &value);
    env_free(allocator, allocated);
}

TEST_ON(user_value_is_ignored_without_the_key, env_open("history:all"))
{
    int value;
    uint64_t host_bytes[2];

    for (unsigned i = 0; i < 2; i++) {
        void *ptr[100];

        for (size_t k = 0; k < COUNT_OF(ptr); k++)
            ptr[k] = alloc_with_user(allocator, NULL, 1000, i == 0 ? NULL : &value);
        host_bytes[i] = env_stats(allocator).host_bytes;
        assert_null(user_of(allocator, ptr[0]));
        env_free_all(allocator, ptr, sizeof(ptr));
        expect_user_in_events(allocator, ptr[0], NULL);
    }
    /* The events of both rounds fit on the same pages of the ring. */
    assert_in_range(host_bytes[1], host_bytes[0], host_bytes[0] + 32 * KIB);
}

TEST_ON(user_value_needs_the_key_at_the_request, env_open("history:all,history_events:16"))
{
    int value;

    for (size_t bytes = 1000; bytes <= 30 * MIB; bytes *= 30 * MIB / 1000) {
        void *without_key = alloc_with_user(allocator, NULL, bytes, &value);

        assert_ok(xseg_config_set(allocator, "block_user:True"));
        assert_null(user_of(allocator, without_key));
        void *with_key = alloc_with_user(allocator, NULL, bytes, &value);
        assert_ptr_equal(user_of(allocator, with_key), &value);
        /* The ring has events with and without a value. */
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, without_key, NULL), 1);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, with_key, &value), 1);
        assert_ok(xseg_config_set(allocator, "history_events:100"));
        env_free(allocator, without_key);
        expect_user_in_events(allocator, without_key, NULL);
        assert_ok(xseg_config_set(allocator, "block_user:False"));
        assert_null(user_of(allocator, with_key));
        env_free(allocator, with_key);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, with_key, NULL), 1);
        /* New blocks without a recorded value are allocated at both addresses. */
        assert_ptr_equal(alloc_with_user(allocator, NULL, bytes, &value), without_key);
        assert_ptr_equal(alloc_with_user(allocator, NULL, bytes, &value), with_key);
        assert_ok(xseg_config_set(allocator, "block_user:True,history_events:16"));
        assert_null(user_of(allocator, with_key));
        env_free(allocator, without_key, with_key);
        assert_ok(xseg_config_set(allocator, "block_user:False"));
        assert_ok(xseg_history_clear(allocator, -1));
    }
}

TEST_ON(other_keys_do_not_change_user_values, env_open("block_user:True"))
{
    static const char *const configs[] = {"history:state",       "history:nothing",
                                          "history_stacks:none", "expandable_segments:False",
                                          "block_user:True",     "history:all"};
    int value;
    void *first = alloc_with_user(allocator, NULL, 1000, &value);

    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        assert_ok(xseg_config_set(allocator, configs[i]));
        assert_ptr_equal(user_of(allocator, first), &value);
    }
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    /* A block with a user value has no age unless history:state is set. */
    void *second = alloc_with_user(allocator, NULL, 2000, &value);
    assert_true(env_block(allocator, second).age_ms == UINT64_MAX);
    assert_ptr_equal(user_of(allocator, second), &value);
    env_free(allocator, second, first);
}

TEST_ON(older_callers_receive_known_members_only, env_open("history:all,block_user:True"))
{
    struct xseg_request request = {sizeof(request), .bytes = 1000, .zeroed = true};
    struct xseg_block_info info = {sizeof(info)};
    void *ptr = NULL;
    int value;

    request.struct_size = offsetof(struct xseg_request, user);
    memset(&request.user, 0xA5, sizeof(request.user));
    assert_ok(xseg_alloc_with(allocator, &request, &ptr));
    assert_null(user_of(allocator, ptr));
    env_free(allocator, ptr);
    request.struct_size = offsetof(struct xseg_request, user) + 1;
    assert_error(xseg_alloc_with(allocator, &request, &ptr), ARGUMENT, "is unknown");
    ptr = alloc_with_user(allocator, NULL, 1000, &value);
    info.struct_size = offsetof(struct xseg_block_info, user);
    info.user = &info;
    assert_ok(xseg_block_query(allocator, ptr, &info));
    assert_ptr_equal(info.base, ptr);
    assert_ptr_equal(info.user, &info);
    info.struct_size = offsetof(struct xseg_block_info, age_ms);
    info.age_ms = 77;
    assert_ok(xseg_block_query(allocator, ptr, &info));
    assert_ptr_equal(info.base, ptr);
    assert_int_equal(info.age_ms, 77);
    env_free(allocator, ptr);
}

/* --- Ages: with history:state each allocated block has an age. --- */

#define SECOND UINT64_C(1000000000) /* in nanoseconds */

static void expect_age(struct xseg_allocator *allocator, const void *block, uint64_t ms)
{
    const uint64_t age = env_block(allocator, block).age_ms;

    assert_in_range(age, ms < 20 ? 0 : ms - 20, ms + 20);
}

static void expect_no_age(struct xseg_allocator *allocator, const void *block)
{
    assert_true(env_block(allocator, block).age_ms == UINT64_MAX);
}

static const size_t sizes[] = {1, 512, 3000, 200 * KIB, MIB, MIB + 1, 9 * MIB, 50 * MIB};

/* Every size, in every kind of segment. */
TEST_EACH(blocks_have_ages, env_open_with_clock(NULL, config), "history:state",
          "history:state,expandable_segments:False", "history:state,guard_page:True",
          "history:state,idle_ms:100000", "history:state,roundup_power2_divisions:4")
{
    void *block[2 * COUNT_OF(sizes)];

    for (size_t k = 0; k < COUNT_OF(block); k++) {
        block[k] = env_alloc(allocator, sizes[k % COUNT_OF(sizes)], NULL);
        xseg_sim_advance(SECOND);
    }
    for (size_t k = 0; k < COUNT_OF(block); k++)
        expect_age(allocator, block[k], (COUNT_OF(block) - k) * 1000);
    env_free_all(allocator, block, sizeof(block));
}

TEST_ON(reused_address_has_a_new_age, env_open_with_clock(NULL, "history:state"))
{
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        void *block = env_alloc(allocator, sizes[i], NULL);

        xseg_sim_advance(5 * SECOND);
        expect_age(allocator, block, 5000);
        env_free(allocator, block);
        assert_ptr_equal(env_alloc(allocator, sizes[i], NULL), block);
        expect_age(allocator, block, 0);
        xseg_sim_advance(SECOND);
        expect_age(allocator, block, 1000);
        env_free(allocator, block);
        expect_no_age(allocator, block);
    }
}

/* The age continues during a pause, and begins again at a restore. */
TEST_IN_POOL(blocks_of_pools_have_ages, env_open_with_clock(NULL, "history:state"))
{
    void *block[2];

    for (size_t i = 0; i < 2; i++) {
        block[i] = env_alloc_in(allocator, pool, i == 0 ? 3000 : 5 * MIB, NULL);
        xseg_sim_advance(3 * SECOND);
    }
    expect_age(allocator, block[0], 6000);
    expect_age(allocator, block[1], 3000);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    expect_age(allocator, block[0], 6000);
    assert_ok(xseg_pool_resume(pool));
    expect_age(allocator, block[1], 3000);

    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    env_free(allocator, block[0], block[1]);
    xseg_sim_advance(3 * SECOND);
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    xseg_sim_advance(SECOND);
    for (size_t i = 0; i < 2; i++) {
        expect_age(allocator, block[i], 1000);
        env_free(allocator, block[i]);
    }
    xseg_checkpoint_destroy(checkpoint);
}

/* A block allocated before the key was set has no age. */
TEST_ON(ages_follow_configuration_changes, env_open_with_clock(NULL, "expandable_segments:True"))
{
    void *without_age[COUNT_OF(sizes)], *with_age[COUNT_OF(sizes)];

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        without_age[i] = env_alloc(allocator, sizes[i], NULL);
    assert_ok(xseg_config_set(allocator, "history:state"));
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        with_age[i] = env_alloc(allocator, sizes[i], NULL);
    xseg_sim_advance(SECOND);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_no_age(allocator, without_age[i]);
        expect_age(allocator, with_age[i], 1000);
    }
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_no_age(allocator, with_age[i]);
        env_free(allocator, with_age[i]);
        assert_ptr_equal(env_alloc(allocator, sizes[i], NULL), with_age[i]);
    }
    assert_ok(xseg_config_set(allocator, "history:state"));
    xseg_sim_advance(SECOND);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_no_age(allocator, with_age[i]);
        env_free(allocator, with_age[i], without_age[i]);
    }
}

/* The system clock measures the ages; with history:all the times of events are those of another clock. */
TEST_TIMES(ages_are_ordered_by_allocation, 2, env_open(i == 0 ? "history:all" : "history:state"))
{
    void *old = env_alloc(allocator, 1000, NULL);

    assert_true(env_block(allocator, old).age_ms < 60000);
    while (env_block(allocator, old).age_ms < 60)
        continue;
    void *young = env_alloc(allocator, 1000, NULL);
    const uint64_t age = env_block(allocator, young).age_ms;
    assert_true(age + 30 <= env_block(allocator, old).age_ms);
    env_free(allocator, young, old);
}

TEST_ON(pending_block_has_its_age, env_open_with_clock(NULL, "history:state"))
{
    const xseg_stream stream = env_stream();
    void *block = env_alloc(allocator, 5 * MIB, NULL);

    xseg_sim_advance(2 * SECOND);
    env_free_in_use(allocator, block, stream);
    assert_int_equal(env_block(allocator, block).state, XSEG_BLOCK_PENDING_FREE);
    expect_age(allocator, block, 2000);
    xseg_sim_finish_all();
}

/* The number of blocks or reasons with and without an age, and the sum of the ages. */
struct age_sums {
    unsigned known, unknown;
    uint64_t ms;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct age_sums *sums = context;

    assert_true(block->state == XSEG_BLOCK_ALLOCATED || block->age_ms == UINT64_MAX);
    sums->known += block->age_ms != UINT64_MAX;
    sums->unknown += block->state == XSEG_BLOCK_ALLOCATED && block->age_ms == UINT64_MAX;
    sums->ms += block->age_ms != UINT64_MAX ? block->age_ms : 0;
    return true;
}

static bool add_reason(void *context, const struct xseg_reason *reason)
{
    struct age_sums *sums = context;

    assert_true(reason->block != NULL || reason->block_age_ms == UINT64_MAX);
    sums->known += reason->block_age_ms != UINT64_MAX;
    sums->unknown += reason->block != NULL && reason->block_age_ms == UINT64_MAX;
    sums->ms += reason->block_age_ms != UINT64_MAX ? reason->block_age_ms : 0;
    /* The page age is unknown without decay. */
    assert_true(reason->age_ms == UINT64_MAX);
    return true;
}

/* One old block among many new ones determines the age of its page. */
static const char *const age_configs[] = {"history:state", "expandable_segments:True"};

TEST_TIMES(iteration_and_explain_report_ages, 2, env_open_with_clock(NULL, age_configs[i]))
{
    void *old = env_alloc(allocator, 3000, NULL), *young[100];
    struct age_sums blocks = {0}, reasons = {0};

    xseg_sim_advance(60 * SECOND);
    for (unsigned k = 0; k < COUNT_OF(young); k++)
        young[k] = env_alloc(allocator, 2000, NULL);
    xseg_sim_advance(SECOND);
    assert_ok(xseg_for_each_block(allocator, NULL, add_block, &blocks));
    assert_int_equal(blocks.known, i == 0 ? 101 : 0);
    assert_int_equal(blocks.unknown, i == 0 ? 0 : 101);
    /* 61 s, and 100 times 1 s; each is accurate to 20 ms. */
    assert_in_range(blocks.ms, i == 0 ? 161000 - 101 * 20 : 0, i == 0 ? 161000 + 101 * 20 : 0);
    assert_ok(xseg_explain(allocator, NULL, add_reason, &reasons, NULL));
    assert_int_equal(reasons.known, i == 0);
    assert_int_equal(reasons.unknown, i != 0);
    assert_in_range(reasons.ms, i == 0 ? 61000 - 20 : 0, i == 0 ? 61000 + 20 : 0);
    env_free_all(allocator, young, sizeof(young));
    env_free(allocator, old);
}

/* --- Collection of labels: unused labels are collected, labels in use keep their text. --- */

#define MANY_LABELS 100000u /* enough for several sweeps */

/* The label of a request: 119 bytes with `is_long`. */
static const char *request_label(unsigned number, bool is_long)
{
    static _Thread_local char text[120];

    (void)snprintf(text, sizeof(text), "request %08u%103s", number, "");
    text[is_long ? 119 : 16] = '\0';
    return text;
}

static void set_label(struct xseg_allocator *allocator, const char *text)
{
    assert_ok(xseg_history_label(allocator, text, NULL));
}

/* Requests, each with a label, a block, and nested scopes. */
static void serve_requests(struct xseg_allocator *allocator, unsigned first, unsigned count)
{
    for (unsigned i = first; i < first + count; i++) {
        const char *outer = "not set", *inner = NULL;

        assert_ok(xseg_history_label(allocator, request_label(i, false), &outer));
        void *ptr = env_alloc(allocator, 1000, NULL);
        assert_ok(xseg_history_label(allocator, "phase", &inner));
        assert_string_equal(inner, request_label(i, false));
        env_free(allocator, ptr);
        set_label(allocator, inner);
        set_label(allocator, outer);
    }
}

TEST_ON(million_labels_use_bounded_memory, env_open("history:all,history_events:1000"))
{
    const unsigned count = ENV_IS_SANITIZED ? 300000 : 1000000;

    serve_requests(allocator, 0, MANY_LABELS);
    const uint64_t before = env_resident_bytes();
    serve_requests(allocator, MANY_LABELS, count - MANY_LABELS);
    assert_true(ENV_IS_SANITIZED || env_resident_bytes() < before + 16 * MIB);
}

static const char *label_of(struct xseg_allocator *allocator, void *ptr)
{
    return env_block(allocator, ptr).label;
}

/* Labels of allocated blocks, recorded events, threads and scopes are kept while other labels become unused. */
TEST_EACH(labels_in_use_are_kept, env_open(config), "history:all,history_events:20000",
          "history:all,history_events:20000,expandable_segments:False")
{
    enum { BLOCKS = 3000, DEPTH = 31 };
    static void *small[BLOCKS], *large[8];
    const char *before[DEPTH];
    xseg_stream side = env_stream();
    char text[32];

    for (unsigned k = 0; k < BLOCKS; k++) {
        set_label(allocator, request_label(k, false));
        small[k] = env_alloc(allocator, 600, NULL);
        if (k < COUNT_OF(large))
            large[k] = env_alloc(allocator, 3 * MIB, side);
    }
    assert_ok(xseg_history_annotate(allocator, 0, "an annotation"));
    set_label(allocator, "scope 0");
    for (unsigned k = 0; k < DEPTH; k++) {
        (void)snprintf(text, sizeof(text), "scope %u", k + 1);
        assert_ok(xseg_history_label(allocator, text, &before[k]));
    }
    for (unsigned k = 0; k < MANY_LABELS; k++) {
        const char *inner = NULL;

        assert_ok(xseg_history_label(allocator, request_label(BLOCKS + k, false), &inner));
        set_label(allocator, inner);
        if (k % 1000 == 0)
            env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    }
    for (unsigned k = 0; k < BLOCKS; k++) {
        assert_string_equal(label_of(allocator, small[k]), request_label(k, false));
        if (k < COUNT_OF(large))
            assert_string_equal(label_of(allocator, large[k]), request_label(k, false));
    }
    for (unsigned k = DEPTH; k-- > 0;) {
        (void)snprintf(text, sizeof(text), "scope %u", k);
        assert_string_equal(before[k], text);
        set_label(allocator, before[k]);
    }
    HISTORY_LIST recorded = history_read(allocator, 0);
    unsigned blocks = 0, annotations = 0;
    for (size_t k = 0; k < recorded.count; k++) {
        if (recorded.entry[k].requested == 600)
            assert_string_equal(recorded.entry[k].label, request_label(blocks++, false));
        annotations += recorded.entry[k].action == XSEG_HISTORY_ANNOTATION &&
                       strcmp(recorded.entry[k].label, "an annotation") == 0;
    }
    assert_int_equal(blocks, BLOCKS);
    assert_int_equal(annotations, 1);
    env_free_all(allocator, small, sizeof(small));
    env_free_all(allocator, large, sizeof(large));
}

/* Labels of allocated blocks fill nearly 16 MiB, unused labels are added, then labels of blocks until a label does not fit.
 * New labels fit as soon as the blocks are freed. */
TEST_ON(label_is_other_only_while_all_are_in_use, env_open("history:state"))
{
    enum { FIT = (16 << 20) / 120 }; /* labels of 120 bytes in 16 MiB */
    void **ptr = calloc(FIT + 1, sizeof(*ptr));
    unsigned count = 0;

    assert_non_null(ptr);
    for (unsigned round = 0; round < 2; round++) {
        for (count = 0; count < FIT - 100; count++) {
            set_label(allocator, request_label(round * MANY_LABELS * 10 + count, true));
            ptr[count] = env_alloc(allocator, 512, NULL);
        }
        for (unsigned i = 0; i < 300; i++)
            set_label(allocator, request_label(MANY_LABELS * 100 + i, true));
        for (; count <= FIT; count++) {
            set_label(allocator, request_label(round * MANY_LABELS * 10 + count, true));
            ptr[count] = env_alloc(allocator, 512, NULL);
            if (strcmp(label_of(allocator, ptr[count]), "(other)") == 0)
                break;
        }
        assert_in_range(count, FIT - 1, FIT);
        for (unsigned i = 0; i < count; i += 997)
            assert_string_equal(label_of(allocator, ptr[i]),
                                request_label(round * MANY_LABELS * 10 + i, true));
        for (unsigned i = 0; i <= count; i++)
            env_free(allocator, ptr[i]);
        set_label(allocator, request_label(MANY_LABELS * 200 + round, true));
        ptr[0] = env_alloc(allocator, 512, NULL);
        assert_string_equal(label_of(allocator, ptr[0]),
                            request_label(MANY_LABELS * 200 + round, true));
        env_free(allocator, ptr[0]);
    }
    free(ptr);
}

/* The first visit clears the history and creates labels; its own label stays valid. */
struct visit {
    struct xseg_allocator *allocator;
    unsigned count;
    char copy[32];     /* of the first label */
    const char *label; /* the first label */
};

static bool visit_alloc_event(void *context, const struct xseg_history_entry *entry)
{
    struct visit *visit = context;

    if (entry->action != XSEG_HISTORY_ALLOC)
        return true;
    if (visit->count++ == 0) {
        (void)strcpy(visit->copy, entry->label);
        visit->label = entry->label;
        assert_ok(xseg_history_clear(visit->allocator, -1));
        for (unsigned i = 0; i < MANY_LABELS; i++)
            set_label(visit->allocator, request_label(MANY_LABELS + i, false));
    }
    assert_string_equal(visit->label, visit->copy);
    return visit->count < 100;
}

TEST_ON(iteration_keeps_the_labels_of_its_events, env_open("history:all"))
{
    struct visit visit = {.allocator = allocator};

    serve_requests(allocator, 0, 200);
    assert_ok(xseg_for_each_event(allocator, -1, visit_alloc_event, &visit, NULL));
    assert_int_equal(visit.count, 100);
    serve_requests(allocator, 5 * MANY_LABELS, MANY_LABELS);
}

/* A thread that exits inside 100 nested scopes. */
static void *label_and_exit(void *context)
{
    const char *before = NULL;

    for (unsigned i = 0; i < 100; i++)
        assert_ok(xseg_history_label(context, request_label(i, true), &before));
    return NULL;
}

static pthread_key_t key;

/* A destructor of thread-specific data, which may run before or after the destructor of the library. */
static void label_at_exit(void *context)
{
    const xseg_status status = xseg_history_label(context, "the end", NULL);
    void *ptr = env_alloc(context, 1000, NULL);
    const char *label = label_of(context, ptr);

    assert_true(status == XSEG_OK || status == XSEG_ERR_HOST_MEMORY);
    assert_true(label == NULL ? status != XSEG_OK : strcmp(label, "the end") == 0);
    env_free(context, ptr);
    assert_ok(xseg_history_label(context, NULL, NULL));
}

static void *label_until_exit(void *context)
{
    assert_int_equal(pthread_setspecific(key, context), 0);
    return label_and_exit(context);
}

TEST_ON(labels_of_exited_threads_are_collected, env_open("history:all,history_events:100"))
{
    assert_int_equal(pthread_key_create(&key, label_at_exit), 0);
    for (unsigned i = 0; i < 50; i++)
        (void)env_run_thread(i % 2 == 0 ? label_and_exit : label_until_exit, allocator);
    serve_requests(allocator, 0, MANY_LABELS);
    assert_int_equal(pthread_key_delete(key), 0);
}
