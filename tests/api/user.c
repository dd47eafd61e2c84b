/* SPDX-License-Identifier: MIT */
/* The word of a request: with block_user it comes back with the block and with its events, and without the key not. */
#include <string.h>

#include "tests/support/history_list.h"

static xseg_status try_take(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes,
                            void *user, void **out)
{
    struct xseg_request request = {sizeof(request), .bytes = bytes, .pool = pool, .user = user};

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
    assert_ok(xseg_history_clear(allocator, -1));
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
        assert_ok(xseg_for_each_block(allocator, NULL, find_words, &found));
        assert_int_equal(found, i + 1);
        env_free(allocator, ptr);
        expect_life(allocator, ptr, &word[i]);
    }
}

TEST(a_word_comes_back_with_block_and_events)
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

    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open(configs[i]);
        struct xseg_pool *pool = env_pool(allocator);

        assert_ok(xseg_config_set(allocator, "history:all,block_user:True"));
        for (size_t k = 0; k < COUNT_OF(sizes); k++) {
            expect_word(allocator, NULL, sizes[k]);
            expect_word(allocator, pool, sizes[k]);
        }
        assert_ok(xseg_pool_release(pool));
        env_close(allocator);
    }
}

/* Memory of segments has no word, and neither has what is allocated without one in the place of what had one. */
TEST(what_has_no_request_has_no_word)
{
    struct xseg_allocator *allocator = env_open("history:all,block_user:True");
    struct xseg_pool *pool = env_pool(allocator);
    int word;
    void *first = take(allocator, NULL, 1000, &word), *second = take(allocator, pool, 1000, &word);
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
    first = take(allocator, NULL, 30 * MIB, &word);
    env_free(allocator, first);
    env_empty_cache(allocator);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_SEGMENT_MAP, first, NULL), 1);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_TRIM, first, NULL), 1);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_SEGMENT_UNMAP, first, NULL), 1);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

TEST(a_pending_block_keeps_its_word)
{
    struct xseg_allocator *allocator = env_open("history:all,block_user:True");
    const xseg_stream side = env_stream();
    int word, other;

    for (size_t bytes = 1000; bytes <= 30 * MIB; bytes *= 30 * MIB / 1000) {
        void *ptr = take(allocator, NULL, bytes, &word), *beside;

        assert_ok(xseg_sim_launch(side, UINT64_MAX));
        assert_ok(xseg_record_stream(allocator, ptr, side));
        env_free(allocator, ptr);
        beside = take(allocator, NULL, bytes, &other);
        assert_ptr_not_equal(beside, ptr);
        assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
        assert_ptr_equal(user_of(allocator, ptr), &word);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, ptr, NULL), 0);
        assert_ok(xseg_sim_finish(side));
        env_empty_cache(allocator);
        expect_life(allocator, ptr, &word);
        env_free(allocator, beside);
    }
    env_close(allocator, side);
}

TEST(a_refused_request_has_its_word)
{
    struct xseg_allocator *allocator = env_open("history:all,block_user:True,hard_limit_mb:40");
    int word;
    void *ptr = take(allocator, NULL, 1000, &word);

    assert_int_equal(try_take(allocator, NULL, GIB, &allocator, &ptr), XSEG_ERR_LIMIT);
    assert_int_equal(expect_events(allocator, XSEG_HISTORY_OOM, NULL, &allocator), 1);
    assert_ok(xseg_history_clear(allocator, -1));
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
TEST(each_request_has_its_own_word)
{
    struct sparer sparer = {.allocator = env_open("history:all,block_user:True,hard_limit_mb:100")};
    struct xseg_observer observer = {sizeof(observer), .context = &sparer, .on_low_memory = spare};
    uint64_t id = 0;
    int word;

    assert_ok(xseg_observer_add(sparer.allocator, &observer, &id));
    void *first = take(sparer.allocator, NULL, 1000, NULL);
    sparer.spare = env_alloc(sparer.allocator, 60 * MIB, NULL);
    assert_ok(xseg_history_clear(sparer.allocator, -1));
    void *ptr = take(sparer.allocator, NULL, 80 * MIB, &word);
    assert_null(sparer.spare);
    assert_ptr_equal(user_of(sparer.allocator, ptr), &word);
    assert_ptr_equal(user_of(sparer.allocator, sparer.mine), &sparer.word);
    assert_int_equal(expect_events(sparer.allocator, XSEG_HISTORY_ALLOC, ptr, &word), 1);
    assert_ok(xseg_observer_remove(sparer.allocator, id));
    env_free(sparer.allocator, first, ptr, sparer.mine);
    env_close(sparer.allocator);
}

/* --- Pools. --- */

/* In the place of a saved block another one with another word lives until the restore. */
TEST(a_restored_block_has_its_word_again)
{
    static const size_t sizes[] = {1000, 30 * MIB};
    char word[3];

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct xseg_allocator *allocator = env_open("history:all,block_user:True");
        struct xseg_pool *pool = env_pool(allocator);
        struct xseg_checkpoint *checkpoint = NULL;
        void *stays = take(allocator, pool, sizes[i], &word[0]),
             *goes = take(allocator, pool, sizes[i], &word[1]),
             *plain = take(allocator, pool, sizes[i], NULL);

        assert_ok(xseg_pool_checkpoint(pool, &checkpoint));
        env_free(allocator, goes, plain);
        assert_ptr_equal(take(allocator, pool, sizes[i], &word[2]), goes);
        assert_ptr_equal(take(allocator, pool, sizes[i], &word[2]), plain);
        assert_ok(xseg_history_clear(allocator, -1));
        assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
        assert_ptr_equal(user_of(allocator, stays), &word[0]);
        assert_ptr_equal(user_of(allocator, goes), &word[1]);
        assert_null(user_of(allocator, plain));
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, goes, &word[2]), 1);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, goes, &word[1]), 1);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, plain, NULL), 1);
        xseg_checkpoint_destroy(checkpoint);
        env_free(allocator, stays, goes, plain);
        assert_ok(xseg_pool_release(pool));
        env_close(allocator);
    }
}

/* The number of events that are kept can be changed beside the key, too. */
TEST(events_with_words_are_as_many_as_configured)
{
    struct xseg_allocator *allocator = env_open("history:all,block_user:True,history_events:16");
    int word;

    for (unsigned most = 16; most <= 64; most += 48) {
        char key[32];

        (void)snprintf(key, sizeof(key), "history_events:%u", most);
        assert_ok(xseg_config_set(allocator, key));
        for (unsigned i = 0; i < 30; i++)
            env_free(allocator, take(allocator, NULL, 1000, &word));
        struct history_list recorded = history_read(allocator, -1);
        assert_int_equal(recorded.count, most);
        free(recorded.entry);
    }
    env_close(allocator);
}

/* Words that the key has kept since the checkpoint, or only until then. */
TEST(a_checkpoint_knows_the_words_of_its_time)
{
    struct xseg_allocator *allocator = env_open("history:all");
    struct xseg_pool *pool = env_pool(allocator);
    struct xseg_checkpoint *checkpoint = NULL;
    int word, other;

    for (unsigned i = 0; i < 2; i++) {
        assert_ok(xseg_config_set(allocator, i == 0 ? "block_user:False" : "block_user:True"));
        void *ptr = take(allocator, pool, 1000, &word);
        assert_ok(xseg_pool_checkpoint(pool, &checkpoint));
        env_free(allocator, ptr);
        assert_ok(xseg_config_set(allocator, i == 0 ? "block_user:True" : "block_user:False"));
        assert_ptr_equal(take(allocator, pool, 1000, &other), ptr);
        assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
        assert_null(user_of(allocator, ptr));
        xseg_checkpoint_destroy(checkpoint);
        env_free(allocator, ptr);
    }
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

TEST(a_lent_block_has_its_word)
{
    static const size_t sizes[] = {20 * MIB, 512 * KIB};

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct xseg_sim_settings settings = {sizeof(settings)};
        struct xseg_pool_options options = {sizeof(options)};
        struct xseg_pool *pool = NULL;
        int word, other;

        settings.memory_bytes = sizes[i] > MIB ? 2 * sizes[i] : 2 * MIB;
        struct xseg_allocator *allocator =
            env_open_on(&settings, "expandable_segments:True,history:all,block_user:True");
        options.use_on_oom = true;
        assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
        void *kept = take(allocator, pool, sizes[i], &other),
             *inside = take(allocator, pool, sizes[i], &other);
        env_free(allocator, inside);
        assert_ok(xseg_history_clear(allocator, -1));
        assert_ptr_equal(take(allocator, NULL, sizes[i], &word), inside);
        assert_ptr_equal(env_block(allocator, inside).fallback_pool, pool);
        assert_ptr_equal(user_of(allocator, inside), &word);
        env_free(allocator, inside);
        expect_life(allocator, inside, &word);
        env_free(allocator, kept);
        assert_ok(xseg_pool_release(pool));
        env_close(allocator);
    }
}

/* --- The key. --- */

TEST(without_the_key_a_word_is_ignored)
{
    struct xseg_allocator *allocator = env_open("history:all");
    int word;
    uint64_t host[2];

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

TEST(a_word_is_of_the_time_of_its_request)
{
    struct xseg_allocator *allocator = env_open("history:all,history_events:16");
    int word;

    for (size_t bytes = 1000; bytes <= 30 * MIB; bytes *= 30 * MIB / 1000) {
        void *before = take(allocator, NULL, bytes, &word);

        assert_ok(xseg_config_set(allocator, "block_user:True"));
        assert_null(user_of(allocator, before));
        void *with = take(allocator, NULL, bytes, &word);
        assert_ptr_equal(user_of(allocator, with), &word);
        /* In the same ring some events have words and some not. */
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, before, NULL), 1);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_ALLOC, with, &word), 1);
        assert_ok(xseg_config_set(allocator, "history_events:100"));
        env_free(allocator, before);
        expect_life(allocator, before, NULL);
        assert_ok(xseg_config_set(allocator, "block_user:False"));
        assert_null(user_of(allocator, with));
        env_free(allocator, with);
        assert_int_equal(expect_events(allocator, XSEG_HISTORY_FREE_COMPLETED, with, NULL), 1);
        /* In the place of a block with a word comes one whose request nobody asks about. */
        assert_ptr_equal(take(allocator, NULL, bytes, &word), before);
        assert_ptr_equal(take(allocator, NULL, bytes, &word), with);
        assert_ok(xseg_config_set(allocator, "block_user:True,history_events:16"));
        assert_null(user_of(allocator, with));
        env_free(allocator, before, with);
        assert_ok(xseg_config_set(allocator, "block_user:False"));
        assert_ok(xseg_history_clear(allocator, -1));
    }
    env_close(allocator);
}

/* Other keys of the history come and go: words stay. */
TEST(other_keys_leave_words_alone)
{
    static const char *const configs[] = {"history:state",       "history:nothing",
                                          "history_stacks:none", "expandable_segments:False",
                                          "block_user:True",     "history:all"};
    struct xseg_allocator *allocator = env_open("block_user:True");
    int word;
    void *ptr = take(allocator, NULL, 1000, &word);

    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        assert_ok(xseg_config_set(allocator, configs[i]));
        assert_ptr_equal(user_of(allocator, ptr), &word);
    }
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    /* A word alone tells no age. */
    void *young = take(allocator, NULL, 2000, &word);
    assert_true(env_block(allocator, young).age_ms == UINT64_MAX);
    assert_ptr_equal(user_of(allocator, young), &word);
    env_free(allocator, young, ptr);
    env_close(allocator);
}

/* --- Callers of older headers. --- */

TEST(an_older_caller_has_no_word)
{
    struct xseg_allocator *allocator = env_open("history:all,block_user:True");
    struct xseg_request request = {sizeof(request), .bytes = 1000, .zeroed = true};
    struct xseg_block_info info = {sizeof(info)};
    void *ptr = NULL;
    int word;

    request.struct_size = offsetof(struct xseg_request, user);
    memset(&request.user, 0xA5, sizeof(request.user));
    assert_ok(xseg_alloc_with(allocator, &request, &ptr));
    assert_null(user_of(allocator, ptr));
    env_free(allocator, ptr);
    request.struct_size = offsetof(struct xseg_request, user) + 1;
    env_expect_error(xseg_alloc_with(allocator, &request, &ptr), XSEG_ERR_ARGUMENT, "is unknown");
    ptr = take(allocator, NULL, 1000, &word);
    info.struct_size = offsetof(struct xseg_block_info, user);
    info.user = &info;
    assert_ok(xseg_block_query(allocator, ptr, &info));
    assert_ptr_equal(info.base, ptr);
    assert_ptr_equal(info.user, &info);
    env_free(allocator, ptr);
    env_close(allocator);
}
