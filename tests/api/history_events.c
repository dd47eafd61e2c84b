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
                         const struct xseg_block_info *block, uint64_t began, uint64_t ended)
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
    assert_in_range(entry->time_ns, began, ended);
}

/* Small blocks, and large ones, some of which are longer than the request. */
static const size_t block_sizes[] = {1, 1000, MIB, MIB + 1, 30 * MIB, 31 * MIB - 100};

TEST_TIMES(events_describe_the_block, COUNT_OF(block_sizes) * COUNT_OF(kinds),
           env_open(kinds[i / COUNT_OF(block_sizes)]))
{
    const xseg_stream stream = env_stream();
    /* The second allocation is a hit. */
    for (unsigned round = 0; round < 2; round++) {
        const uint64_t began = monotonic_ns() - 20 * MS;
        void *ptr = env_alloc(allocator, block_sizes[i % COUNT_OF(block_sizes)], stream);
        const struct xseg_block_info block = env_block(allocator, ptr);
        env_free(allocator, ptr);
        const uint64_t ended = monotonic_ns() + 20 * MS;
        HISTORY_LIST recorded = history_read(allocator, 0);
        assert_int_equal(recorded.count, round == 0 ? 4 : 3);
        for (enum xseg_history_action action = XSEG_HISTORY_ALLOC;
             action <= XSEG_HISTORY_FREE_COMPLETED; action++) {
            const struct xseg_history_entry entry = history_only(&recorded, action);

            expect_block(&entry, &block, began, ended);
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
    env_pass_time(allocator, 30, 10);
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
    /* Later pools get other IDs. */
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

static const size_t both_sizes[] = {1000, 30 * MIB};

TEST_TIMES(restore_records_frees_and_allocations, COUNT_OF(both_sizes), env_open("history:all"))
{
    struct xseg_pool *pool = env_pool(allocator);
    void *live = env_alloc_in(allocator, pool, both_sizes[i], NULL);

    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    history_expect(allocator, "map alloc");
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    const struct xseg_history_entry again = history_single(allocator, XSEG_HISTORY_ALLOC);
    assert_ptr_equal(again.base, live);
    assert_int_equal(again.requested, both_sizes[i]);
    assert_int_equal(again.bytes, env_block(allocator, live).bytes);
    history_expect(allocator, "free done alloc");
    xseg_checkpoint_destroy(checkpoint);
    env_free(allocator, live);
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

static xseg_status try_take(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                            void *user, void **out)
{
    const struct xseg_request request = {sizeof(request), .bytes = bytes, .pool = pool,
                                         .user = user};

    return xseg_alloc_with(allocator, &request, out);
}

static void *take(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                  void *user)
{
    void *ptr = NULL;

    assert_ok(try_take(allocator, pool, bytes, user, &ptr));
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

static void expect_life(struct xseg_allocator *allocator, const void *base, const void *user)
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
        char *ptr = take(allocator, pool, bytes, &value[i]);

        assert_ptr_equal(user_of(allocator, ptr), &value[i]);
        assert_ptr_equal(user_of(allocator, ptr + bytes - 1), &value[i]);
        assert_ok(xseg_for_each_block(allocator, NULL, count_values, &found));
        assert_int_equal(found, i + 1);
        env_free(allocator, ptr);
        expect_life(allocator, ptr, &value[i]);
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
    void *first = take(allocator, NULL, 1000, &value),
         *second = take(allocator, pool, 1000, &value);
    void *again = NULL;

    history_expect(allocator, "map alloc map alloc");
    env_free(allocator, first, second);
    assert_ok(xseg_history_clear(allocator, -1));
    assert_ptr_equal(env_alloc(allocator, 1000, NULL), first);
    assert_null(user_of(allocator, first));
    assert_ok(xseg_alloc_at(pool, 1000, NULL, second, &again));
    assert_null(user_of(allocator, again));
    env_free(allocator, first, again);
    expect_life(allocator, first, NULL);
    first = take(allocator, NULL, 30 * MIB, &value);
    env_free(allocator, first);
    env_empty_cache(allocator);
    for (size_t i = 0; i < COUNT_OF(actions); i++)
        assert_int_equal(expect_events(allocator, actions[i], first, NULL), 1);
}

TEST_ON(pending_block_keeps_its_user_value, env_open("history:all,block_user:True"))
{
    const xseg_stream side = env_stream();
    int value, other;

    for (size_t bytes = 1000; bytes <= 30 * MIB; bytes *= 30 * MIB / 1000) {
        void *ptr = take(allocator, NULL, bytes, &value);

        env_free_in_use(allocator, ptr, side);
        void *neighbor = take(allocator, NULL, bytes, &other);
        assert_ptr_not_equal(neighbor, ptr);
        assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
        assert_ptr_equal(user_of(allocator, ptr), &value);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, ptr, NULL), 0);
        assert_ok(xseg_sim_finish(side));
        env_empty_cache(allocator);
        expect_life(allocator, ptr, &value);
        env_free(allocator, neighbor);
    }
}

TEST_ON(failed_request_reports_its_user_value,
        env_open("history:all,block_user:True,hard_limit_mb:40"))
{
    int value;
    void *ptr = take(allocator, NULL, 1000, &value);

    assert_int_equal(try_take(allocator, NULL, GIB, &allocator, &ptr), XSEG_ERR_LIMIT);
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

static bool free_one(void *context, const struct xseg_oom_info *oom)
{
    struct observer_state *state = context;

    (void)oom;
    if (state->freed == NULL)
        return false;
    env_free(state->allocator, state->freed);
    state->freed = NULL;
    state->nested = take(state->allocator, NULL, 1000, &state->value);
    return true;
}

TEST_ON(nested_requests_have_separate_user_values,
        env_open("history:all,block_user:True,hard_limit_mb:100"))
{
    struct observer_state observed = {.allocator = allocator};
    int value;

    const uint64_t id = env_observe(allocator, .context = &observed, .on_low_memory = free_one);
    void *first = take(allocator, NULL, 1000, NULL);
    observed.freed = env_alloc(allocator, 60 * MIB, NULL);
    assert_ok(xseg_history_clear(allocator, -1));
    void *ptr = take(allocator, NULL, 80 * MIB, &value);
    assert_null(observed.freed);
    assert_ptr_equal(user_of(allocator, ptr), &value);
    assert_ptr_equal(user_of(allocator, observed.nested), &observed.value);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, ptr, &value), 1);
    assert_ok(xseg_observer_remove(allocator, id));
    env_free(allocator, first, ptr, observed.nested);
}

/* Before the restore another block with another value is allocated at its address. */
TEST_TIMES(restored_block_has_its_user_value, COUNT_OF(both_sizes),
           env_open("history:all,block_user:True"))
{
    struct xseg_pool *pool = env_pool(allocator);
    char value[3];
    void *live = take(allocator, pool, both_sizes[i], &value[0]),
         *freed = take(allocator, pool, both_sizes[i], &value[1]),
         *without_user = take(allocator, pool, both_sizes[i], NULL);

    struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
    env_free(allocator, freed, without_user);
    assert_ptr_equal(take(allocator, pool, both_sizes[i], &value[2]), freed);
    assert_ptr_equal(take(allocator, pool, both_sizes[i], &value[2]), without_user);
    assert_ok(xseg_history_clear(allocator, -1));
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    assert_ptr_equal(user_of(allocator, live), &value[0]);
    assert_ptr_equal(user_of(allocator, freed), &value[1]);
    assert_null(user_of(allocator, without_user));
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, freed, &value[2]), 1);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, freed, &value[1]), 1);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, without_user, NULL), 1);
    xseg_checkpoint_destroy(checkpoint);
    env_free(allocator, live, freed, without_user);
}

TEST_ON(event_capacity_is_configurable_with_user_values,
        env_open("history:all,block_user:True,history_events:16"))
{
    int value;

    for (unsigned grown = 0; grown < 2; grown++) {
        assert_ok(xseg_config_set(allocator, grown ? "history_events:64" : "history_events:16"));
        for (unsigned i = 0; i < 30; i++)
            env_free(allocator, take(allocator, NULL, 1000, &value));
        HISTORY_LIST recorded = history_read(allocator, -1);
        assert_int_equal(recorded.count, grown ? 64 : 16);
    }
}

/* User values recorded after the checkpoint, or only before it. */
TEST_IN_POOL(checkpoint_restores_its_own_user_values, env_open("history:all"))
{
    int value, other;

    for (unsigned i = 0; i < 2; i++) {
        assert_ok(xseg_config_set(allocator, i == 0 ? "block_user:False" : "block_user:True"));
        void *ptr = take(allocator, pool, 1000, &value);
        struct xseg_checkpoint *checkpoint = env_checkpoint(pool);
        env_free(allocator, ptr);
        assert_ok(xseg_config_set(allocator, i == 0 ? "block_user:True" : "block_user:False"));
        assert_ptr_equal(take(allocator, pool, 1000, &other), ptr);
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
    int value, other;
    void *live = take(allocator, pool, bytes, &other);
    void *inside = take(allocator, pool, bytes, &other);

    env_free(allocator, inside);
    assert_ok(xseg_history_clear(allocator, -1));
    assert_ptr_equal(take(allocator, NULL, bytes, &value), inside);
    assert_ptr_equal(env_block(allocator, inside).fallback_pool, pool);
    assert_ptr_equal(user_of(allocator, inside), &value);
    env_free(allocator, inside);
    expect_life(allocator, inside, &value);
    env_free(allocator, live);
}

TEST_ON(user_value_is_ignored_without_the_key, env_open("history:all"))
{
    int value;
    uint64_t host[2];

    for (unsigned i = 0; i < 2; i++) {
        void *ptr[100];

        for (size_t k = 0; k < COUNT_OF(ptr); k++)
            ptr[k] = take(allocator, NULL, 1000, i == 0 ? NULL : &value);
        host[i] = env_stats(allocator).host_bytes;
        assert_null(user_of(allocator, ptr[0]));
        env_free_all(allocator, ptr, sizeof(ptr));
        expect_life(allocator, ptr[0], NULL);
    }
    /* The events of both rounds fit on the same pages of the ring. */
    assert_in_range(host[1], host[0], host[0] + 32 * KIB);
}

TEST_ON(user_value_needs_the_key_at_the_request, env_open("history:all,history_events:16"))
{
    int value;

    for (size_t bytes = 1000; bytes <= 30 * MIB; bytes *= 30 * MIB / 1000) {
        void *before = take(allocator, NULL, bytes, &value);

        assert_ok(xseg_config_set(allocator, "block_user:True"));
        assert_null(user_of(allocator, before));
        void *with = take(allocator, NULL, bytes, &value);
        assert_ptr_equal(user_of(allocator, with), &value);
        /* Some events of the ring have a value. */
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, before, NULL), 1);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, with, &value), 1);
        assert_ok(xseg_config_set(allocator, "history_events:100"));
        env_free(allocator, before);
        expect_life(allocator, before, NULL);
        assert_ok(xseg_config_set(allocator, "block_user:False"));
        assert_null(user_of(allocator, with));
        env_free(allocator, with);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, with, NULL), 1);
        /* The block with a value is replaced by one whose request has none. */
        assert_ptr_equal(take(allocator, NULL, bytes, &value), before);
        assert_ptr_equal(take(allocator, NULL, bytes, &value), with);
        assert_ok(xseg_config_set(allocator, "block_user:True,history_events:16"));
        assert_null(user_of(allocator, with));
        env_free(allocator, before, with);
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
    void *ptr = take(allocator, NULL, 1000, &value);

    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        assert_ok(xseg_config_set(allocator, configs[i]));
        assert_ptr_equal(user_of(allocator, ptr), &value);
    }
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    /* A value without history:state has no age. */
    void *young = take(allocator, NULL, 2000, &value);
    assert_true(env_block(allocator, young).age_ms == UINT64_MAX);
    assert_ptr_equal(user_of(allocator, young), &value);
    env_free(allocator, young, ptr);
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
    ptr = take(allocator, NULL, 1000, &value);
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

#define SECOND UINT64_C(1000000000)

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

    for (size_t at = 0; at < COUNT_OF(block); at++) {
        block[at] = env_alloc(allocator, sizes[at % COUNT_OF(sizes)], NULL);
        xseg_sim_advance(SECOND);
    }
    for (size_t at = 0; at < COUNT_OF(block); at++)
        expect_age(allocator, block[at], (COUNT_OF(block) - at) * 1000);
    env_free_all(allocator, block, sizeof(block));
}

/* Also on the fast path. */
TEST_ON(reused_address_has_a_new_age, env_open_with_clock(NULL, "history:state"))
{
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        void *old = env_alloc(allocator, sizes[i], NULL);

        xseg_sim_advance(5 * SECOND);
        expect_age(allocator, old, 5000);
        env_free(allocator, old);
        assert_ptr_equal(env_alloc(allocator, sizes[i], NULL), old);
        expect_age(allocator, old, 0);
        xseg_sim_advance(SECOND);
        expect_age(allocator, old, 1000);
        env_free(allocator, old);
        expect_no_age(allocator, old);
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
    void *before[COUNT_OF(sizes)], *since[COUNT_OF(sizes)];

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        before[i] = env_alloc(allocator, sizes[i], NULL);
    assert_ok(xseg_config_set(allocator, "history:state"));
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        since[i] = env_alloc(allocator, sizes[i], NULL);
    xseg_sim_advance(SECOND);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_no_age(allocator, before[i]);
        expect_age(allocator, since[i], 1000);
    }
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_no_age(allocator, since[i]);
        env_free(allocator, since[i]);
        assert_ptr_equal(env_alloc(allocator, sizes[i], NULL), since[i]);
    }
    assert_ok(xseg_config_set(allocator, "history:state"));
    xseg_sim_advance(SECOND);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_no_age(allocator, since[i]);
        env_free(allocator, since[i], before[i]);
    }
}

/* By the system clock; the events of history:all use another clock. */
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

struct sum {
    unsigned known, unknown;
    uint64_t ms;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct sum *sum = context;

    assert_true(block->state == XSEG_BLOCK_ALLOCATED || block->age_ms == UINT64_MAX);
    sum->known += block->age_ms != UINT64_MAX;
    sum->unknown += block->state == XSEG_BLOCK_ALLOCATED && block->age_ms == UINT64_MAX;
    sum->ms += block->age_ms != UINT64_MAX ? block->age_ms : 0;
    return true;
}

static bool add_reason(void *context, const struct xseg_reason *reason)
{
    struct sum *sum = context;

    assert_true(reason->block != NULL || reason->block_age_ms == UINT64_MAX);
    sum->known += reason->block_age_ms != UINT64_MAX;
    sum->unknown += reason->block != NULL && reason->block_age_ms == UINT64_MAX;
    sum->ms += reason->block_age_ms != UINT64_MAX ? reason->block_age_ms : 0;
    /* The page age is unknown without decay. */
    assert_true(reason->age_ms == UINT64_MAX);
    return true;
}

/* One old block among many new ones determines the age of its page. */
static const char *const age_configs[] = {"history:state", "expandable_segments:True"};

TEST_TIMES(iteration_and_explain_report_ages, 2, env_open_with_clock(NULL, age_configs[i]))
{
    void *old = env_alloc(allocator, 3000, NULL), *young[100];
    struct sum blocks = {0}, reasons = {0};

    xseg_sim_advance(60 * SECOND);
    for (unsigned at = 0; at < COUNT_OF(young); at++)
        young[at] = env_alloc(allocator, 2000, NULL);
    xseg_sim_advance(SECOND);
    assert_ok(xseg_for_each_block(allocator, NULL, add_block, &blocks));
    assert_int_equal(blocks.known, i == 0 ? 101 : 0);
    assert_int_equal(blocks.unknown, i == 0 ? 0 : 101);
    /* 61 s, and 100 times 1 s; each up to 20 ms off. */
    assert_in_range(blocks.ms, i == 0 ? 161000 - 101 * 20 : 0, i == 0 ? 161000 + 101 * 20 : 0);
    assert_ok(xseg_explain(allocator, NULL, add_reason, &reasons, NULL));
    assert_int_equal(reasons.known, i == 0);
    assert_int_equal(reasons.unknown, i != 0);
    assert_in_range(reasons.ms, i == 0 ? 60980 : 0, i == 0 ? 61020 : 0);
    env_free_all(allocator, young, sizeof(young));
    env_free(allocator, old);
}

/* --- Collection of labels: unused labels are collected, labels in use keep their text. --- */

#define MANY 100000u /* labels: enough for several sweeps */

/* The text of a request: 119 bytes with `is_long`. */
static const char *text_of(unsigned number, bool is_long)
{
    static _Thread_local char text[120];

    (void)snprintf(text, sizeof(text), "request %08u%103s", number, "");
    text[is_long ? 119 : 16] = '\0';
    return text;
}

static void label(struct xseg_allocator *allocator, const char *text)
{
    assert_ok(xseg_history_label(allocator, text, NULL));
}

/* Requests, each with a label, a block, and nested scopes. */
static void serve(struct xseg_allocator *allocator, unsigned first, unsigned count)
{
    for (unsigned i = first; i < first + count; i++) {
        const char *outer = "not set", *inner = NULL;

        assert_ok(xseg_history_label(allocator, text_of(i, false), &outer));
        void *ptr = env_alloc(allocator, 1000, NULL);
        assert_ok(xseg_history_label(allocator, "phase", &inner));
        assert_string_equal(inner, text_of(i, false));
        env_free(allocator, ptr);
        label(allocator, inner);
        label(allocator, outer);
    }
}

TEST_ON(million_labels_use_bounded_memory, env_open("history:all,history_events:1000"))
{
    const unsigned count = ENV_IS_SANITIZED ? 300000 : 1000000;

    serve(allocator, 0, MANY);
    const uint64_t before = env_resident_bytes();
    serve(allocator, MANY, count - MANY);
    assert_true(ENV_IS_SANITIZED || env_resident_bytes() < before + 16 * MIB);
}

static const char *label_of(struct xseg_allocator *allocator, void *ptr)
{
    return env_block(allocator, ptr).label;
}

/* Labels of allocated blocks, recorded events, threads and scopes, while other labels become unused. */
TEST_EACH(labels_in_use_are_kept, env_open(config), "history:all,history_events:20000",
          "history:all,history_events:20000,expandable_segments:False")
{
    enum { BLOCKS = 3000, DEPTH = 31 };
    static void *small[BLOCKS], *large[8];
    const char *before[DEPTH];
    xseg_stream side = env_stream();
    char text[32];

    for (unsigned at = 0; at < BLOCKS; at++) {
        label(allocator, text_of(at, false));
        small[at] = env_alloc(allocator, 600, NULL);
        if (at < COUNT_OF(large))
            large[at] = env_alloc(allocator, 3 * MIB, side);
    }
    assert_ok(xseg_history_annotate(allocator, 0, "an annotation"));
    label(allocator, "scope 0");
    for (unsigned at = 0; at < DEPTH; at++) {
        (void)snprintf(text, sizeof(text), "scope %u", at + 1);
        assert_ok(xseg_history_label(allocator, text, &before[at]));
    }
    for (unsigned at = 0; at < MANY; at++) {
        const char *inner = NULL;

        assert_ok(xseg_history_label(allocator, text_of(BLOCKS + at, false), &inner));
        label(allocator, inner);
        if (at % 1000 == 0)
            env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    }
    for (unsigned at = 0; at < BLOCKS; at++) {
        assert_string_equal(label_of(allocator, small[at]), text_of(at, false));
        if (at < COUNT_OF(large))
            assert_string_equal(label_of(allocator, large[at]), text_of(at, false));
    }
    for (unsigned at = DEPTH; at-- > 0;) {
        (void)snprintf(text, sizeof(text), "scope %u", at);
        assert_string_equal(before[at], text);
        label(allocator, before[at]);
    }
    HISTORY_LIST recorded = history_read(allocator, 0);
    unsigned found = 0, texts = 0;
    for (size_t at = 0; at < recorded.count; at++) {
        if (recorded.entry[at].requested == 600)
            assert_string_equal(recorded.entry[at].label, text_of(found++, false));
        texts += recorded.entry[at].action == XSEG_HISTORY_ANNOTATION &&
                 strcmp(recorded.entry[at].label, "an annotation") == 0;
    }
    assert_int_equal(found, BLOCKS);
    assert_int_equal(texts, 1);
    env_free_all(allocator, small, sizeof(small));
    env_free_all(allocator, large, sizeof(large));
}

/* Labels of allocated blocks fill nearly 16 MiB, and then more.  New labels fit as soon as the blocks are freed. */
TEST_ON(label_is_other_only_while_all_are_in_use, env_open("history:state"))
{
    enum { FIT = (16 << 20) / 120 };
    void **ptr = calloc(FIT + 1, sizeof(*ptr));
    unsigned count = 0;

    assert_non_null(ptr);
    for (unsigned round = 0; round < 2; round++) {
        for (count = 0; count < FIT - 100; count++) {
            label(allocator, text_of(round * MANY * 10 + count, true));
            ptr[count] = env_alloc(allocator, 512, NULL);
        }
        for (unsigned i = 0; i < 300; i++)
            label(allocator, text_of(MANY * 100 + i, true));
        for (; count <= FIT; count++) {
            label(allocator, text_of(round * MANY * 10 + count, true));
            ptr[count] = env_alloc(allocator, 512, NULL);
            if (strcmp(label_of(allocator, ptr[count]), "(other)") == 0)
                break;
        }
        assert_in_range(count, FIT - 1, FIT);
        for (unsigned i = 0; i < count; i += 997)
            assert_string_equal(label_of(allocator, ptr[i]), text_of(round * MANY * 10 + i, true));
        for (unsigned i = 0; i <= count; i++)
            env_free(allocator, ptr[i]);
        label(allocator, text_of(MANY * 200 + round, true));
        ptr[0] = env_alloc(allocator, 512, NULL);
        assert_string_equal(label_of(allocator, ptr[0]), text_of(MANY * 200 + round, true));
        env_free(allocator, ptr[0]);
    }
    free(ptr);
}

/* Also while the visitor creates labels. */
struct visit {
    struct xseg_allocator *allocator;
    unsigned seen;
    char first[32];
    const char *text;
};

static bool visit_one(void *context, const struct xseg_history_entry *entry)
{
    struct visit *visit = context;

    if (entry->action != XSEG_HISTORY_ALLOC)
        return true;
    if (visit->seen++ == 0) {
        (void)strcpy(visit->first, entry->label);
        visit->text = entry->label;
        assert_ok(xseg_history_clear(visit->allocator, -1));
        for (unsigned i = 0; i < MANY; i++)
            label(visit->allocator, text_of(MANY + i, false));
    }
    assert_string_equal(visit->text, visit->first);
    return visit->seen < 100;
}

TEST_ON(iteration_keeps_the_labels_of_its_events, env_open("history:all"))
{
    struct visit visit = {.allocator = allocator};

    serve(allocator, 0, 200);
    assert_ok(xseg_for_each_event(allocator, -1, visit_one, &visit, NULL));
    assert_int_equal(visit.seen, 100);
    serve(allocator, 5 * MANY, MANY);
}

/* A thread that exits within 100 scopes. */
static void *label_and_exit(void *context)
{
    const char *before = NULL;

    for (unsigned i = 0; i < 100; i++)
        assert_ok(xseg_history_label(context, text_of(i, true), &before));
    return NULL;
}

static pthread_key_t key;

/* Runs after the library's destructor in one order of the keys, and before it in the other. */
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
    serve(allocator, 0, MANY);
    assert_int_equal(pthread_key_delete(key), 0);
}
