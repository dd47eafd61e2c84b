/* SPDX-License-Identifier: MIT */
/* Observers: who is asked or told when, and that nobody holds a lock meanwhile. */
#include "tests/support/env.h"
#include "tests/support/history_list.h"

#include <malloc.h>
#include <string.h>

/* What an observer has seen, and what it does. */
struct witness {
    struct xseg_allocator *allocator;
    void *spare[4]; /* freed one by one when memory is short */
    unsigned asked, told, rejected;
    bool always;       /* answers "try again" even without anything to free */
    size_t nested;     /* bytes that it asks for itself, in vain */
    uint64_t ends;     /* the observer that it tries to end */
    xseg_status ended; /* what came of that */
    struct xseg_oom_info last;
    char text[1024];
    enum xseg_trace_action action[64];
    void *base[64];
    uint64_t bytes[64];
    unsigned entries;
};

/* Whatever the library locks can be taken here. */
static void use_the_library(struct witness *witness)
{
    struct xseg_trim_result done = {sizeof(done)};

    assert_true(env_stats(witness->allocator).device_bytes > 0);
    assert_ok(xseg_trim(witness->allocator, NULL, NULL, &done));
}

static void note(struct witness *witness, const struct xseg_oom_info *shortage)
{
    witness->last = *shortage;
    (void)strncpy(witness->text, shortage->message, sizeof(witness->text) - 1);
    use_the_library(witness);
}

static bool spare(void *context, const struct xseg_oom_info *shortage)
{
    struct witness *witness = context;
    void *ptr = NULL;

    assert_int_equal(shortage->attempt, witness->asked);
    witness->asked++;
    note(witness, shortage);
    if (witness->nested != 0)
        assert_int_equal(xseg_alloc(witness->allocator, 0, witness->nested, NULL, &ptr),
                         XSEG_ERR_NO_MEMORY);
    if (witness->ends != 0)
        witness->ended = xseg_observer_remove(witness->allocator, witness->ends);
    for (unsigned i = 0; i < COUNT_OF(witness->spare); i++) {
        if (witness->spare[i] == NULL)
            continue;
        env_free(witness->allocator, witness->spare[i]);
        witness->spare[i] = NULL;
        return true;
    }
    return witness->always;
}

static void tell(void *context, const struct xseg_oom_info *shortage)
{
    struct witness *witness = context;

    witness->told++;
    note(witness, shortage);
}

static void reject(void *context, const struct xseg_oom_info *shortage)
{
    struct witness *witness = context;

    witness->rejected++;
    note(witness, shortage);
}

static void trace(void *context, const struct xseg_trace_entry *entry)
{
    struct witness *witness = context;

    assert_true(witness->entries < COUNT_OF(witness->action));
    witness->action[witness->entries] = entry->action;
    witness->base[witness->entries] = entry->base;
    witness->bytes[witness->entries++] = entry->bytes;
    assert_true(env_stats(witness->allocator).device_bytes > 0);
}

static uint64_t observe(struct witness *witness, bool traces)
{
    struct xseg_observer observer = {sizeof(observer),
                                     .context = witness,
                                     .on_low_memory = traces ? NULL : spare,
                                     .on_out_of_memory = traces ? NULL : tell,
                                     .on_rejected = traces ? NULL : reject,
                                     .on_trace = traces ? trace : NULL};
    uint64_t id = 0;

    assert_ok(xseg_observer_add(witness->allocator, &observer, &id));
    assert_true(id != 0);
    return id;
}

/* --- Memory is short. --- */

/* What is spared serves the request: no retry, no flush, no out-of-memory. */
TEST(what_is_spared_serves_the_request)
{
    struct witness witness = {.allocator = env_open_mib(200, "expandable_segments:True")};
    void *ptr;

    (void)observe(&witness, false);
    for (unsigned i = 0; i < 4; i++)
        witness.spare[i] = env_alloc(witness.allocator, 40 * MIB, NULL);
    assert_int_equal(witness.asked, 0);
    ptr = env_alloc(witness.allocator, 70 * MIB, NULL);
    /* 40 MiB are free; one spared block makes 80. */
    assert_int_equal(witness.asked, 1);
    assert_int_equal(witness.told, 0);
    assert_int_equal(witness.last.bytes, 70 * MIB);
    assert_int_equal(witness.last.block_bytes, 70 * MIB);
    assert_int_equal(witness.last.segment_bytes, 70 * MIB);
    assert_int_equal(witness.last.status, XSEG_ERR_NO_MEMORY);
    assert_int_equal(witness.last.allowed_bytes, 200 * MIB);
    assert_int_equal(witness.last.free_bytes, 40 * MIB);
    assert_false(witness.last.is_capturing);
    assert_int_equal(env_stats(witness.allocator).num_alloc_retries, 0);
    env_free(witness.allocator, ptr);
    for (unsigned i = 1; i < 4; i++)
        env_free(witness.allocator, witness.spare[i]);
    env_close(witness.allocator);
}

/* The observer is asked again as long as it spares something and that is not enough. */
TEST(it_is_asked_until_there_is_enough)
{
    struct witness witness = {.allocator = env_open_mib(200, "expandable_segments:False")};
    void *ptr;

    (void)observe(&witness, false);
    for (unsigned i = 0; i < 4; i++)
        witness.spare[i] = env_alloc(witness.allocator, 50 * MIB, NULL);
    ptr = env_alloc(witness.allocator, 99 * MIB, NULL);
    assert_int_equal(witness.asked, 2);
    env_free(witness.allocator, ptr, witness.spare[2], witness.spare[3]);
    env_close(witness.allocator);
}

/* "Try again" without an end does not go on for ever. */
TEST(asking_is_bounded)
{
    struct witness witness = {.allocator = env_open_mib(100, NULL), .always = true};
    void *ptr = NULL;

    (void)observe(&witness, false);
    env_expect_error(xseg_alloc(witness.allocator, 0, 120 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY,
                     "out of memory on device 0, 120.00 MiB requested");
    assert_int_equal(witness.asked, XSEG_LOW_MEMORY_CALLS_MAX);
    assert_int_equal(witness.told, 1);
    assert_int_equal(env_stats(witness.allocator).num_ooms, 1);
    env_close(witness.allocator);
}

/* The text is the error's, whatever the observer did in between. */
TEST(a_refusal_is_told_with_its_text)
{
    struct witness witness = {.allocator = env_open_mib(200, NULL)};
    char text[1024];
    void *live = env_alloc(witness.allocator, 150 * MIB, NULL), *ptr = NULL;

    (void)observe(&witness, false);
    assert_int_equal(xseg_alloc(witness.allocator, 0, 60 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    assert_true(xseg_error_message(text, sizeof(text)) > 0);
    assert_int_equal(witness.asked, 1);
    assert_int_equal(witness.told, 1);
    assert_string_equal(witness.text, text);
    assert_non_null(strstr(text, "150.00 MiB allocated"));
    env_free(witness.allocator, live);
    env_close(witness.allocator);
}

/* A request from within an observer asks and tells nobody. */
TEST(a_request_from_within_tells_nobody)
{
    struct witness witness = {.allocator = env_open_mib(100, NULL), .nested = 300 * MIB};
    void *ptr = NULL;

    (void)observe(&witness, false);
    assert_int_equal(xseg_alloc(witness.allocator, 0, 200 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    assert_int_equal(witness.asked, 1);
    assert_int_equal(witness.told, 1);
    assert_int_equal(witness.last.bytes, 200 * MIB);
    assert_int_equal(env_stats(witness.allocator).num_ooms, 2);
    env_close(witness.allocator);
}

/* What is refused at once is told as that, and nobody is asked. */
TEST(a_rejection_is_told_apart)
{
    struct witness witness = {.allocator = env_open_mib(100, "throw_on_cudamalloc_oom:True")};
    void *ptr = NULL;

    (void)observe(&witness, false);
    assert_int_equal(xseg_alloc(witness.allocator, 0, 120 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    assert_int_equal(witness.rejected, 1);
    assert_int_equal(witness.asked + witness.told, 0);
    assert_int_equal(env_stats(witness.allocator).num_oom_rejections, 1);
    assert_int_equal(env_stats(witness.allocator).num_ooms, 0);
    env_close(witness.allocator);
}

/* As PyTorch does, traces and the history have an out-of-memory only for what num_ooms counts. */
TEST(a_rejection_is_no_entry)
{
    struct witness witness = {.allocator =
                                  env_open_mib(100, "throw_on_cudamalloc_oom:True,history:all")};
    void *ptr = NULL;

    (void)observe(&witness, true);
    assert_int_equal(xseg_alloc(witness.allocator, 0, 120 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    assert_int_equal(witness.entries, 0);
    history_expect(witness.allocator, "");
    env_close(witness.allocator);
}

/* During a capture it is asked, too, and told so; the capture is not spoilt. */
TEST(it_is_asked_during_a_capture)
{
    struct witness witness = {.allocator = env_open_mib(100, NULL)};
    struct xseg_pool *pool = env_pool(witness.allocator);
    const xseg_stream stream = env_stream();
    void *ptr = NULL;

    (void)observe(&witness, false);
    env_capture_begin(pool, stream);
    assert_int_equal(xseg_alloc(witness.allocator, 0, 120 * MIB, stream, &ptr), XSEG_ERR_NO_MEMORY);
    assert_int_equal(witness.asked, 1);
    assert_true(witness.last.is_capturing);
    assert_ptr_equal(witness.last.pool, pool);
    assert_ptr_equal(witness.last.stream, stream);
    env_capture_end(pool, stream);
    assert_ok(xseg_pool_release(pool));
    env_close(witness.allocator, stream);
}

/* --- Coming and going. --- */

TEST(one_that_has_ended_is_not_called)
{
    struct witness first = {.allocator = env_open_mib(100, NULL)}, second = first;
    const uint64_t ended = observe(&first, false);
    void *ptr = NULL;

    (void)observe(&second, false);
    assert_ok(xseg_observer_remove(first.allocator, ended));
    assert_int_equal(xseg_alloc(first.allocator, 0, 120 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    assert_int_equal(first.asked + first.told, 0);
    assert_int_equal(second.told, 1);
    env_expect_error(xseg_observer_remove(first.allocator, ended), XSEG_ERR_ARGUMENT,
                     "observer does not exist");
    env_close(first.allocator);
}

/* Ending itself would be waiting for itself; one observer may end another. */
TEST(one_cannot_end_from_within)
{
    struct witness first = {.allocator = env_open_mib(100, NULL)}, second = first;
    void *ptr = NULL;

    first.ends = observe(&first, false);
    assert_int_equal(xseg_alloc(first.allocator, 0, 120 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    assert_int_equal(first.ended, XSEG_ERR_BUSY);
    first.asked = 0;
    first.ends = observe(&second, false);
    assert_int_equal(xseg_alloc(first.allocator, 0, 120 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY);
    assert_ok(first.ended);
    assert_int_equal(second.asked, 0);
    env_close(first.allocator);
}

TEST(wrong_observers_are_refused)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_observer observer = {sizeof(observer)};
    uint64_t id = 0;

    env_expect_error(xseg_observer_add(allocator, &observer, &id), XSEG_ERR_ARGUMENT,
                     "callbacks of the observer are NULL");
    observer.on_trace = trace;
    observer.struct_size = 3;
    env_expect_error(xseg_observer_add(allocator, &observer, &id), XSEG_ERR_ARGUMENT, "is unknown");
    env_expect_error(xseg_observer_add(allocator, NULL, &id), XSEG_ERR_ARGUMENT, "NULL");
    observer.struct_size = sizeof(observer);
    env_expect_error(xseg_observer_add(allocator, &observer, NULL), XSEG_ERR_ARGUMENT, "NULL");
    assert_int_equal(xseg_observer_add(NULL, &observer, &id), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_observer_remove(NULL, 1), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_observer_remove(allocator, 0), XSEG_ERR_ARGUMENT);
    assert_int_equal(id, 0);
    env_close(allocator);
}

/* --- Tracing. --- */

/* Entries `from` on are these actions about this block. */
static void expect_entries(const struct witness *witness, unsigned from, const char *actions)
{
    static const char letter[] = "afcSFmuo";

    assert_int_equal(witness->entries, from + strlen(actions));
    for (unsigned i = 0; actions[i] != '\0'; i++)
        assert_int_equal(letter[witness->action[from + i]], actions[i]);
}

TEST(everything_is_traced_in_order)
{
    struct witness witness = {.allocator = env_open_mib(100, "expandable_segments:True")};
    void *ptr, *none = NULL;

    const uint64_t id = observe(&witness, true);
    ptr = env_alloc(witness.allocator, 5 * MIB, NULL);
    expect_entries(&witness, 0, "ma");
    assert_int_equal(witness.bytes[0], 20 * MIB);
    assert_ptr_equal(witness.base[1], ptr);
    assert_int_equal(witness.bytes[1], 5 * MIB);
    env_free(witness.allocator, ptr);
    expect_entries(&witness, 2, "fc");
    assert_ptr_equal(witness.base[3], ptr);
    env_empty_cache(witness.allocator);
    expect_entries(&witness, 4, "u");
    assert_int_equal(witness.bytes[4], 20 * MIB);
    assert_int_equal(xseg_alloc(witness.allocator, 0, GIB, NULL, &none), XSEG_ERR_NO_MEMORY);
    expect_entries(&witness, 5, "o");
    assert_ok(xseg_config_set(witness.allocator, "expandable_segments:False"));
    ptr = env_alloc(witness.allocator, 5 * MIB, NULL);
    env_free(witness.allocator, ptr);
    env_empty_cache(witness.allocator);
    expect_entries(&witness, 6, "SafcF");
    assert_ok(xseg_observer_remove(witness.allocator, id));
    env_free(witness.allocator, env_alloc(witness.allocator, 5 * MIB, NULL));
    assert_int_equal(witness.entries, 11);
    env_close(witness.allocator);
}

/* A free that waits for another stream is completed later. */
TEST(a_pending_free_is_completed_later)
{
    struct witness witness = {.allocator = env_open("expandable_segments:True")};
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(witness.allocator, 1000, NULL), *other;

    (void)observe(&witness, true);
    assert_ok(xseg_record_stream(witness.allocator, ptr, stream));
    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    env_free(witness.allocator, ptr);
    expect_entries(&witness, 0, "f");
    assert_ok(xseg_sim_finish(stream));
    other = env_alloc(witness.allocator, 2000, NULL);
    expect_entries(&witness, 1, "ca");
    assert_ptr_equal(witness.base[1], ptr);
    assert_int_equal(witness.bytes[1], 1000);
    env_free(witness.allocator, other);
    env_close(witness.allocator, stream);
}

/* Notices as entries of the same witness: these segments came or leave. */
static void come(void *context, const struct xseg_mapping *mapping)
{
    struct witness *witness = context;

    witness->action[witness->entries] = XSEG_TRACE_SEGMENT_MAP;
    witness->base[witness->entries++] = mapping->base;
}

static void leave(void *context, const struct xseg_mapping *mapping)
{
    struct witness *witness = context;

    witness->action[witness->entries] = XSEG_TRACE_SEGMENT_UNMAP;
    witness->base[witness->entries++] = mapping->base;
}

/* `on_trace` reports the events of a block before `on_unmap` reports the memory under it, and before `on_map`
 * reports memory that is mapped later. */
TEST(blocks_are_told_of_before_their_memory)
{
    struct witness witness = {.allocator = env_open("expandable_segments:False")};
    struct xseg_observer observer = {sizeof(observer), .on_trace = trace, .on_map = come,
                                     .on_unmap = leave};
    struct xseg_trim_options options = {sizeof(options)};
    const xseg_stream stream = env_stream();
    void *first = env_alloc(witness.allocator, 30 * MIB, NULL);
    uint64_t id;

    observer.context = &witness;
    assert_ok(xseg_observer_add(witness.allocator, &observer, &id));
    assert_ok(xseg_record_stream(witness.allocator, first, stream));
    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    env_free(witness.allocator, first);
    assert_ok(xseg_sim_finish(stream));
    void *second = env_alloc(witness.allocator, 40 * MIB, NULL);
    expect_entries(&witness, 0, "fcmSa");
    assert_ok(xseg_record_stream(witness.allocator, second, stream));
    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    env_free(witness.allocator, second);
    options.wait = true;
    assert_ok(xseg_trim(witness.allocator, NULL, &options, NULL));
    expect_entries(&witness, 5, "fcuuFF");
    assert_ok(xseg_observer_remove(witness.allocator, id));
    env_close(witness.allocator, stream);
}

/* With the keys that take frees another way, too. */
TEST(frees_are_traced_whatever_the_keys)
{
    static const char *const config[] = {"debug_fill:True", "history:all", "unmap_on_free:True"};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        struct witness witness = {.allocator = env_open(config[i])};

        (void)observe(&witness, true);
        env_free(witness.allocator, env_alloc(witness.allocator, 3 * MIB, NULL));
        expect_entries(&witness, 0, i == 2 ? "mafcu" : "mafc");
        env_close(witness.allocator);
    }
}

static void trace_nothing(void *context, const struct xseg_trace_entry *entry)
{
    (void)context;
    (void)entry;
}

/* Each makes a configuration that notes what happens, and one that does not, and so do others that change it
 * to and fro: there are as many as say different things. */
TEST(observers_that_come_and_go_leave_nothing)
{
    struct xseg_allocator *allocator = env_open_mib(64, NULL);
    struct xseg_observer observer = {sizeof(observer), .on_trace = trace_nothing};
    size_t before = 0;

    observer.context = &observer;
    for (unsigned i = 0; i < 2000; i++) {
        uint64_t id = 0;

        assert_ok(xseg_observer_add(allocator, &observer, &id));
        env_free(allocator, env_alloc(allocator, 100, NULL));
        assert_ok(xseg_observer_remove(allocator, id));
        assert_ok(xseg_config_set(allocator, i % 2 == 0 ? "idle_ms:100" : "idle_ms:200"));
        if (i == 1000)
            before = mallinfo2().uordblks;
    }
    /* A version has more than a thousand bytes.  Some sanitizers do not count. */
    assert_in_range(mallinfo2().uordblks, 0, before + 16384);
    env_close(allocator);
}
