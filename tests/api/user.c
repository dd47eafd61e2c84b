/* SPDX-License-Identifier: MIT */
/* The word of a request: with block_user it comes back with the block and with its events, and without the key not. */
#include <string.h>

#include "tests/support/history_list.h"

static xseg_status try_take(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                            void *user, void **out)
{
    struct xseg_request request = {sizeof(request)};

    request.bytes = bytes;
    request.pool = pool;
    request.user = user;
    return xseg_alloc_with(allocator, &request, out);
}

static void *take(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                  void *user)
{
    void *ptr = NULL;

    assert_int_equal(try_take(allocator, pool, bytes, user, &ptr), XSEG_OK);
    return ptr;
}

static void *user_of(struct xseg_allocator *allocator, const void *address)
{
    return env_block(allocator, address).user;
}

/* Expect the words of all events of an action on a block, or, without one, of all events of the action.  Returns how
 * many there are. */
static unsigned expect_events(struct xseg_allocator *allocator, enum xseg_history_action action,
                              const void *base, const void *user)
{
    struct history_list recorded = history_read(allocator, -1);
    unsigned count = 0;

    for (size_t i = 0; i < recorded.count; i++) {
        if (recorded.entry[i].action != action || recorded.entry[i].base != base)
            continue;
        assert_ptr_equal(recorded.entry[i].user, user);
        count++;
    }
    free(recorded.entry);
    return count;
}

static void expect_life(struct xseg_allocator *allocator, const void *base, const void *user)
{
    for (enum xseg_history_action action = XSEG_HISTORY_ALLOC;
         action <= XSEG_HISTORY_FREE_COMPLETED; action++)
        assert_int_equal(expect_events(allocator, action, base, user), 1);
    assert_int_equal(xseg_history_clear(allocator, -1), XSEG_OK);
}

/* --- What has a word. --- */

static bool find_words(void *context, const struct xseg_block_info *block)
{
    unsigned *found = context;

    *found += block->user != NULL;
    assert_true(block->user == NULL || block->state == XSEG_BLOCK_ALLOCATED ||
                block->state == XSEG_BLOCK_PENDING_FREE);
    return true;
}

static void expect_word(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes)
{
    char word[2];
    unsigned found = 0;

    /* The second is a hit, where there are any. */
    for (unsigned i = 0; i < 2; i++) {
        char *ptr = take(allocator, pool, bytes, &word[i]);

        assert_ptr_equal(user_of(allocator, ptr), &word[i]);
        assert_ptr_equal(user_of(allocator, ptr + bytes - 1), &word[i]);
        assert_int_equal(xseg_for_each_block(allocator, NULL, find_words, &found), XSEG_OK);
        assert_int_equal(found, i + 1);
        env_free(allocator, ptr);
        expect_life(allocator, ptr, &word[i]);
    }
}

static void a_word_comes_back_with_block_and_events(void **state)
{
    static const size_t sizes[] = {1, 1000, MIB, MIB + 1, 30 * MIB, 31 * MIB - 100};
    static const char *const configs[] = {
        "expandable_segments:True",
        "expandable_segments:False",
        "guard_page:True",
        "unmap_on_free:True",
        "debug_fill:True",
        "roundup_power2_divisions:4",
        "idle_ms:100000,history_stacks:all",
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open(configs[i]);
        struct xseg_pool *pool = env_pool(allocator);

        assert_int_equal(xseg_config_set(allocator, "history:all,block_user:True"), XSEG_OK);
        for (size_t k = 0; k < COUNT_OF(sizes); k++) {
            expect_word(allocator, NULL, sizes[k]);
            expect_word(allocator, pool, sizes[k]);
        }
        assert_int_equal(xseg_pool_release(pool), XSEG_OK);
        env_close(allocator);
    }
}

/* Memory of segments has no word, and neither has what is allocated without one in the place of what had one. */
static void what_has_no_request_has_no_word(void **state)
{
    struct xseg_allocator *allocator = env_open("history:all,block_user:True");
    struct xseg_pool *pool = env_pool(allocator);
    int word;
    void *first = take(allocator, NULL, 1000, &word), *second = take(allocator, pool, 1000, &word);
    void *again = NULL;

    (void)state;
    history_expect(allocator, "map alloc map alloc");
    env_free(allocator, first);
    env_free(allocator, second);
    assert_int_equal(xseg_history_clear(allocator, -1), XSEG_OK);
    assert_ptr_equal(env_alloc(allocator, 1000, NULL), first);
    assert_null(user_of(allocator, first));
    assert_int_equal(xseg_alloc_at(pool, 1000, NULL, second, &again), XSEG_OK);
    assert_null(user_of(allocator, again));
    env_free(allocator, first);
    env_free(allocator, again);
    expect_life(allocator, first, NULL);
    first = take(allocator, NULL, 30 * MIB, &word);
    env_free(allocator, first);
    env_empty_cache(allocator);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_SEGMENT_MAP, first, NULL), 1);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_TRIM, first, NULL), 1);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_SEGMENT_UNMAP, first, NULL), 1);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    env_close(allocator);
}

static void a_pending_block_keeps_its_word(void **state)
{
    struct xseg_allocator *allocator = env_open("history:all,block_user:True");
    const xseg_stream side = env_stream();
    int word, other;

    (void)state;
    for (size_t bytes = 1000; bytes <= 30 * MIB; bytes *= 30 * MIB / 1000) {
        void *ptr = take(allocator, NULL, bytes, &word), *beside;

        assert_int_equal(xseg_sim_launch(side, UINT64_MAX), XSEG_OK);
        assert_int_equal(xseg_record_stream(allocator, ptr, side), XSEG_OK);
        env_free(allocator, ptr);
        beside = take(allocator, NULL, bytes, &other);
        assert_ptr_not_equal(beside, ptr);
        assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
        assert_ptr_equal(user_of(allocator, ptr), &word);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, ptr, NULL), 0);
        assert_int_equal(xseg_sim_finish(side), XSEG_OK);
        env_empty_cache(allocator);
        expect_life(allocator, ptr, &word);
        env_free(allocator, beside);
    }
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(side);
}

static void a_refused_request_has_its_word(void **state)
{
    struct xseg_allocator *allocator = env_open("history:all,block_user:True,hard_limit_mb:40");
    int word;
    void *ptr = take(allocator, NULL, 1000, &word);

    (void)state;
    assert_int_equal(try_take(allocator, NULL, GIB, &allocator, &ptr), XSEG_ERR_LIMIT);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_OOM, NULL, &allocator), 1);
    assert_int_equal(xseg_history_clear(allocator, -1), XSEG_OK);
    assert_int_equal(xseg_alloc(allocator, 0, GIB, NULL, &ptr), XSEG_ERR_LIMIT);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_OOM, NULL, NULL), 1);
    env_free(allocator, ptr);
    env_close(allocator);
}

/* --- Calls within calls. --- */

struct sparer {
    struct xseg_allocator *allocator;
    void *spare, *mine;
    int word;
};

static bool spare(void *context, const struct xseg_oom_info *shortage)
{
    struct sparer *sparer = context;

    (void)shortage;
    if (sparer->spare == NULL)
        return false;
    env_free(sparer->allocator, sparer->spare);
    sparer->spare = NULL;
    sparer->mine = take(sparer->allocator, NULL, 1000, &sparer->word);
    return true;
}

/* An observer that frees and allocates in the middle of a request. */
static void each_request_has_its_own_word(void **state)
{
    struct sparer sparer = {.allocator = env_open("history:all,block_user:True,hard_limit_mb:100")};
    struct xseg_observer observer = {sizeof(observer)};
    uint64_t id = 0;
    int word;

    (void)state;
    observer.context = &sparer;
    observer.on_low_memory = spare;
    assert_int_equal(xseg_observer_add(sparer.allocator, &observer, &id), XSEG_OK);
    void *first = take(sparer.allocator, NULL, 1000, NULL);
    sparer.spare = env_alloc(sparer.allocator, 60 * MIB, NULL);
    assert_int_equal(xseg_history_clear(sparer.allocator, -1), XSEG_OK);
    void *ptr = take(sparer.allocator, NULL, 80 * MIB, &word);
    assert_null(sparer.spare);
    assert_ptr_equal(user_of(sparer.allocator, ptr), &word);
    assert_ptr_equal(user_of(sparer.allocator, sparer.mine), &sparer.word);
    assert_int_equal(expect_events(sparer.allocator, XSEG_HISTORY_ALLOC, ptr, &word), 1);
    assert_int_equal(xseg_observer_remove(sparer.allocator, id), XSEG_OK);
    env_free(sparer.allocator, first);
    env_free(sparer.allocator, ptr);
    env_free(sparer.allocator, sparer.mine);
    env_close(sparer.allocator);
}

/* --- Pools. --- */

/* In the place of a saved block another one with another word lives until the restore. */
static void a_restored_block_has_its_word_again(void **state)
{
    static const size_t sizes[] = {1000, 30 * MIB};
    char word[3];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct xseg_allocator *allocator = env_open("history:all,block_user:True");
        struct xseg_pool *pool = env_pool(allocator);
        struct xseg_checkpoint *checkpoint = NULL;
        void *stays = take(allocator, pool, sizes[i], &word[0]),
             *goes = take(allocator, pool, sizes[i], &word[1]),
             *plain = take(allocator, pool, sizes[i], NULL);

        assert_int_equal(xseg_pool_checkpoint(pool, &checkpoint), XSEG_OK);
        env_free(allocator, goes);
        env_free(allocator, plain);
        assert_ptr_equal(take(allocator, pool, sizes[i], &word[2]), goes);
        assert_ptr_equal(take(allocator, pool, sizes[i], &word[2]), plain);
        assert_int_equal(xseg_history_clear(allocator, -1), XSEG_OK);
        assert_int_equal(xseg_pool_restore(pool, checkpoint, NULL, NULL), XSEG_OK);
        assert_ptr_equal(user_of(allocator, stays), &word[0]);
        assert_ptr_equal(user_of(allocator, goes), &word[1]);
        assert_null(user_of(allocator, plain));
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, goes, &word[2]), 1);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, goes, &word[1]), 1);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, plain, NULL), 1);
        xseg_checkpoint_destroy(checkpoint);
        env_free(allocator, stays);
        env_free(allocator, goes);
        env_free(allocator, plain);
        assert_int_equal(xseg_pool_release(pool), XSEG_OK);
        env_close(allocator);
    }
}

/* The number of events that are kept can be changed beside the key, too. */
static void events_with_words_are_as_many_as_configured(void **state)
{
    struct xseg_allocator *allocator = env_open("history:all,block_user:True,history_events:16");
    int word;

    (void)state;
    for (unsigned most = 16; most <= 64; most += 48) {
        char key[32];

        (void)snprintf(key, sizeof(key), "history_events:%u", most);
        assert_int_equal(xseg_config_set(allocator, key), XSEG_OK);
        for (unsigned i = 0; i < 30; i++)
            env_free(allocator, take(allocator, NULL, 1000, &word));
        struct history_list recorded = history_read(allocator, -1);
        assert_int_equal(recorded.count, most);
        free(recorded.entry);
    }
    env_close(allocator);
}

/* Words that the key has kept since the checkpoint, or only until then. */
static void a_checkpoint_knows_the_words_of_its_time(void **state)
{
    struct xseg_allocator *allocator = env_open("history:all");
    struct xseg_pool *pool = env_pool(allocator);
    struct xseg_checkpoint *checkpoint = NULL;
    int word, other;

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(
            xseg_config_set(allocator, i == 0 ? "block_user:False" : "block_user:True"), XSEG_OK);
        void *ptr = take(allocator, pool, 1000, &word);
        assert_int_equal(xseg_pool_checkpoint(pool, &checkpoint), XSEG_OK);
        env_free(allocator, ptr);
        assert_int_equal(
            xseg_config_set(allocator, i == 0 ? "block_user:True" : "block_user:False"), XSEG_OK);
        assert_ptr_equal(take(allocator, pool, 1000, &other), ptr);
        assert_int_equal(xseg_pool_restore(pool, checkpoint, NULL, NULL), XSEG_OK);
        assert_null(user_of(allocator, ptr));
        xseg_checkpoint_destroy(checkpoint);
        env_free(allocator, ptr);
    }
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    env_close(allocator);
}

static void a_lent_block_has_its_word(void **state)
{
    static const size_t sizes[] = {20 * MIB, 512 * KIB};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct xseg_sim_settings settings = {sizeof(settings)};
        struct xseg_pool_options options = {sizeof(options)};
        struct xseg_pool *pool = NULL;
        int word, other;

        settings.memory_bytes = sizes[i] > MIB ? 2 * sizes[i] : 2 * MIB;
        struct xseg_allocator *allocator =
            env_open_on(&settings, "expandable_segments:True,history:all,block_user:True");
        options.use_on_oom = true;
        assert_int_equal(xseg_pool_create(allocator, 0, &options, &pool), XSEG_OK);
        void *kept = take(allocator, pool, sizes[i], &other),
             *inside = take(allocator, pool, sizes[i], &other);
        env_free(allocator, inside);
        assert_int_equal(xseg_history_clear(allocator, -1), XSEG_OK);
        assert_ptr_equal(take(allocator, NULL, sizes[i], &word), inside);
        assert_ptr_equal(env_block(allocator, inside).fallback_pool, pool);
        assert_ptr_equal(user_of(allocator, inside), &word);
        env_free(allocator, inside);
        expect_life(allocator, inside, &word);
        env_free(allocator, kept);
        assert_int_equal(xseg_pool_release(pool), XSEG_OK);
        env_close(allocator);
    }
}

/* --- The key. --- */

static void without_the_key_a_word_is_ignored(void **state)
{
    struct xseg_allocator *allocator = env_open("history:all");
    int word;
    uint64_t host[2];

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        void *ptr[100];

        for (size_t k = 0; k < COUNT_OF(ptr); k++)
            ptr[k] = take(allocator, NULL, 1000, i == 0 ? NULL : &word);
        host[i] = env_stats(allocator).host_bytes;
        assert_null(user_of(allocator, ptr[0]));
        for (size_t k = 0; k < COUNT_OF(ptr); k++)
            env_free(allocator, ptr[k]);
        expect_life(allocator, ptr[0], NULL);
    }
    /* The ring has the same pages the second time: the events of both fit on them. */
    assert_in_range(host[1], host[0], host[0] + 32 * KIB);
    env_close(allocator);
}

static void a_word_is_of_the_time_of_its_request(void **state)
{
    struct xseg_allocator *allocator = env_open("history:all,history_events:16");
    int word;

    (void)state;
    for (size_t bytes = 1000; bytes <= 30 * MIB; bytes *= 30 * MIB / 1000) {
        void *before = take(allocator, NULL, bytes, &word);

        assert_int_equal(xseg_config_set(allocator, "block_user:True"), XSEG_OK);
        assert_null(user_of(allocator, before));
        void *with = take(allocator, NULL, bytes, &word);
        assert_ptr_equal(user_of(allocator, with), &word);
        /* In the same ring some events have words and some not. */
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, before, NULL), 1);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, with, &word), 1);
        assert_int_equal(xseg_config_set(allocator, "history_events:100"), XSEG_OK);
        env_free(allocator, before);
        expect_life(allocator, before, NULL);
        assert_int_equal(xseg_config_set(allocator, "block_user:False"), XSEG_OK);
        assert_null(user_of(allocator, with));
        env_free(allocator, with);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, with, NULL), 1);
        /* In the place of a block with a word comes one whose request nobody asks about. */
        assert_ptr_equal(take(allocator, NULL, bytes, &word), before);
        assert_ptr_equal(take(allocator, NULL, bytes, &word), with);
        assert_int_equal(xseg_config_set(allocator, "block_user:True,history_events:16"), XSEG_OK);
        assert_null(user_of(allocator, with));
        env_free(allocator, before);
        env_free(allocator, with);
        assert_int_equal(xseg_config_set(allocator, "block_user:False"), XSEG_OK);
        assert_int_equal(xseg_history_clear(allocator, -1), XSEG_OK);
    }
    env_close(allocator);
}

/* Other keys of the history come and go: words stay. */
static void other_keys_leave_words_alone(void **state)
{
    static const char *const configs[] = {"history:state",       "history:nothing",
                                          "history_stacks:none", "expandable_segments:False",
                                          "block_user:True",     "history:all"};
    struct xseg_allocator *allocator = env_open("block_user:True");
    int word;
    void *ptr = take(allocator, NULL, 1000, &word);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        assert_int_equal(xseg_config_set(allocator, configs[i]), XSEG_OK);
        assert_ptr_equal(user_of(allocator, ptr), &word);
    }
    assert_int_equal(xseg_config_set(allocator, "history:nothing"), XSEG_OK);
    /* A word alone tells no age. */
    void *young = take(allocator, NULL, 2000, &word);
    assert_true(env_block(allocator, young).age_ms == UINT64_MAX);
    assert_ptr_equal(user_of(allocator, young), &word);
    env_free(allocator, young);
    env_free(allocator, ptr);
    env_close(allocator);
}

/* --- Callers of older headers. --- */

static void an_older_caller_has_no_word(void **state)
{
    struct xseg_allocator *allocator = env_open("history:all,block_user:True");
    struct xseg_request request = {sizeof(request)};
    struct xseg_block_info info = {sizeof(info)};
    void *ptr = NULL;
    int word;

    (void)state;
    request.struct_size = offsetof(struct xseg_request, user);
    request.bytes = 1000;
    request.zeroed = true;
    memset(&request.user, 0xA5, sizeof(request.user));
    assert_int_equal(xseg_alloc_with(allocator, &request, &ptr), XSEG_OK);
    assert_null(user_of(allocator, ptr));
    env_free(allocator, ptr);
    request.struct_size = offsetof(struct xseg_request, user) + 1;
    env_expect_error(xseg_alloc_with(allocator, &request, &ptr), XSEG_ERR_ARGUMENT, "is unknown");
    ptr = take(allocator, NULL, 1000, &word);
    info.struct_size = offsetof(struct xseg_block_info, user);
    info.user = &info;
    assert_int_equal(xseg_block_query(allocator, ptr, &info), XSEG_OK);
    assert_ptr_equal(info.base, ptr);
    assert_ptr_equal(info.user, &info);
    env_free(allocator, ptr);
    env_close(allocator);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_word_comes_back_with_block_and_events),
        cmocka_unit_test(what_has_no_request_has_no_word),
        cmocka_unit_test(a_pending_block_keeps_its_word),
        cmocka_unit_test(a_refused_request_has_its_word),
        cmocka_unit_test(each_request_has_its_own_word),
        cmocka_unit_test(a_restored_block_has_its_word_again),
        cmocka_unit_test(a_checkpoint_knows_the_words_of_its_time),
        cmocka_unit_test(events_with_words_are_as_many_as_configured),
        cmocka_unit_test(a_lent_block_has_its_word),
        cmocka_unit_test(without_the_key_a_word_is_ignored),
        cmocka_unit_test(a_word_is_of_the_time_of_its_request),
        cmocka_unit_test(other_keys_leave_words_alone),
        cmocka_unit_test(an_older_caller_has_no_word),
    };

    return cmocka_run_group_tests_name("user", tests, NULL, NULL);
}
