/* SPDX-License-Identifier: MIT */
/*
 * Registrations: runs of memory enter and leave as it comes and goes.  The functions register with the simulator, which
 * ends the process where memory goes beneath a registration.
 */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/env.h"

/* What a registrar of the tests has seen. */
struct seen {
    struct xseg_allocator *allocator;
    unsigned entered, left,
        refuse_from;             /* refuse_from: refuses the n-th, and those behind; 0: none */
    uint64_t begin[64], end[64]; /* of what is in */
    unsigned in;
    void (*within)(struct seen *seen); /* called in `enter` */
    uint64_t id;
};

static bool enter(void *context, struct xseg_registered *run)
{
    struct seen *seen = context;
    uint64_t id = 0;

    assert_int_equal(run->struct_size, sizeof(*run));
    assert_int_equal(run->device, 0);
    assert_null(run->handle);
    if (seen->refuse_from != 0 && seen->entered + 1 >= seen->refuse_from)
        return false;
    assert_ok(xseg_sim_register((uintptr_t)run->base, run->bytes, XSEG_SIM_NCCL, &id));
    run->handle = (void *)(uintptr_t)id;
    seen->begin[seen->in] = (uintptr_t)run->base;
    seen->end[seen->in++] = (uintptr_t)run->base + run->bytes;
    seen->entered++;
    if (seen->within != NULL)
        seen->within(seen);
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    struct seen *seen = context;
    unsigned at = 0;

    while (at < seen->in && seen->begin[at] != (uintptr_t)run->base)
        at++;
    assert_true(at < seen->in);
    assert_int_equal(seen->end[at], (uintptr_t)run->base + run->bytes);
    assert_ok(xseg_sim_unregister((uintptr_t)run->handle));
    seen->in--;
    seen->begin[at] = seen->begin[seen->in];
    seen->end[at] = seen->end[seen->in];
    seen->left++;
}

static struct xseg_registrar registrar_of(struct seen *seen, bool pin)
{
    struct xseg_registrar registrar = {sizeof(registrar), .context = seen, .enter = enter,
                                       .leave = leave, .pin = pin};

    return registrar;
}

static uint64_t add(struct seen *seen, const void *address, size_t bytes, bool pin)
{
    const struct xseg_registrar registrar = registrar_of(seen, pin);
    uint64_t id = 0;

    assert_ok(xseg_register(seen->allocator, address, bytes, &registrar, &id));
    assert_int_not_equal(id, 0);
    return id;
}

static void expect_error(struct seen *seen, const void *address, size_t bytes, xseg_status status,
                         const char *text)
{
    const struct xseg_registrar registrar = registrar_of(seen, false);
    const unsigned in = seen->in;
    uint64_t id = 77;

    env_expect_error(xseg_register(seen->allocator, address, bytes, &registrar, &id), status, text);
    assert_int_equal(id, 77);
    assert_int_equal(seen->in, in);
}

static struct xseg_allocator *open_seen(struct seen *seen, const char *config)
{
    *seen = (struct seen){.allocator = env_open(config)};
    return seen->allocator;
}

#define EXPANDABLE "expandable_segments:True,rdma:True"

/* --- Memory that is there. --- */

TEST(what_is_there_enters_in_one_run)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    /* Three growths, so pages of several generations, and small ones at the end. */
    char *first = env_alloc(allocator, 50 * MIB, NULL);
    char *second = env_alloc(allocator, 400 * MIB, NULL);

    assert_ptr_equal(second, first + 50 * MIB);
    const uint64_t id = add(&seen, first, 450 * MIB, false);
    assert_int_equal(seen.entered, 1);
    assert_int_equal(seen.begin[0], (uintptr_t)first);
    assert_int_equal(seen.end[0], (uintptr_t)first + 450 * MIB);
    assert_int_equal(xseg_sim_registered(), 450 * MIB);
    assert_int_equal(env_stats(allocator).registered_bytes, 450 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    assert_int_equal(seen.in, 0);
    assert_int_equal(env_stats(allocator).registered_bytes, 0);
    env_expect_error(xseg_unregister(allocator, id), XSEG_ERR_ARGUMENT,
                     "registration does not exist, ID ");
    env_free(allocator, first, second);
    env_close(allocator);
}

TEST(what_comes_enters_before_anybody_has_it)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    char *first = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = add(&seen, first, 200 * MIB, false);

    assert_int_equal(seen.entered, 1);
    char *second = env_alloc(allocator, 100 * MIB, NULL);
    assert_ptr_equal(second, first + 40 * MIB);
    assert_int_equal(seen.entered, 2);
    assert_int_equal(seen.begin[1], (uintptr_t)second);
    /* What lies outside of the range is not told. */
    char *third = env_alloc(allocator, 100 * MIB, NULL);
    assert_int_equal(seen.entered, 3);
    assert_int_equal(seen.end[2], (uintptr_t)first + 200 * MIB);
    env_free(allocator, first, second, third);
    env_empty_cache(allocator);
    assert_int_equal(seen.in, 0);
    /* The addresses are held, so that memory can come back to them. */
    first = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(seen.in, 1);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, first);
    env_close(allocator);
}

TEST(what_stays_of_a_run_enters_again)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    char *block[3];

    for (unsigned i = 0; i < 3; i++)
        block[i] = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = add(&seen, block[0], 120 * MIB, false);
    env_free(allocator, block[1]);
    env_empty_cache(allocator);
    assert_int_equal(seen.left, 1);
    assert_int_equal(seen.entered, 3);
    assert_int_equal(seen.in, 2);
    assert_int_equal(xseg_sim_registered(), 80 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block[0], block[2]);
    env_close(allocator);
}

TEST(a_pause_and_a_resume_are_told)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    struct xseg_pool *pool = NULL;

    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    char *block = env_alloc_in(allocator, pool, 100 * MIB, NULL);
    const uint64_t id = add(&seen, block, 100 * MIB, false);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(seen.in, 0);
    assert_int_equal(seen.left, 1);
    expect_error(&seen, block, 10 * MIB, XSEG_ERR_PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(xseg_sim_registered(), 100 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block);
    env_close(allocator);
}

TEST(a_classic_segment_takes_its_addresses_along)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, "expandable_segments:False");
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = add(&seen, block, 40 * MIB, false);

    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_int_equal(seen.in, 0);
    block = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(seen.in, 0);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block);
    env_close(allocator);
}

/* The scene of a capture that begins when memory is about to be unmapped. */
struct capturing {
    struct xseg_pool *pool;
    xseg_stream stream;
};

static void capture_once(void *context, const struct xseg_mapping *mapping)
{
    struct capturing *capturing = context;

    (void)mapping;
    if (capturing->pool != NULL)
        env_capture_begin(capturing->pool, capturing->stream);
    capturing->pool = NULL;
}

TEST(a_classic_segment_that_stays_enters_again)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, "expandable_segments:False");
    struct capturing capturing = {env_pool(allocator), env_stream()};
    struct xseg_pool *pool = capturing.pool;
    struct xseg_observer observer = {sizeof(observer), .context = &capturing,
                                     .on_unmap = capture_once};
    struct xseg_trim_result done = {sizeof(done)};
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = add(&seen, block, 40 * MIB, false);
    uint64_t observed = 0;

    assert_ok(xseg_observer_add(allocator, &observer, &observed));
    env_free(allocator, block);
    assert_ok(xseg_trim(allocator, NULL, NULL, &done));
    assert_int_equal(done.kept_capture, 40 * MIB);
    assert_int_equal(seen.left, 1);
    assert_int_equal(seen.in, 1);
    assert_int_equal(xseg_sim_registered(), 40 * MIB);
    env_capture_end(pool, capturing.stream);
    env_empty_cache(allocator);
    assert_int_equal(seen.in, 0);
    /* Other memory at the same addresses is not registered. */
    block = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(seen.in, 0);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, block);
    env_close(allocator, capturing.stream);
}

/* --- Pins. --- */

static bool find_registered(void *context, const struct xseg_reason *reason)
{
    uint64_t *bytes = context;

    *bytes += reason->kind == XSEG_REASON_REGISTERED ? reason->registered_bytes : 0;
    return true;
}

TEST(with_a_pin_memory_stays)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    struct xseg_explain_result sums = {sizeof(sums)};
    struct xseg_pool *pool = NULL;
    uint64_t registered = 0;

    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    char *block = env_alloc_in(allocator, pool, 60 * MIB, NULL);
    const uint64_t id = add(&seen, block, 200 * MIB, true);
    assert_int_equal(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL), XSEG_ERR_BUSY);
    /* What comes later is pinned as well. */
    char *more = env_alloc_in(allocator, pool, 60 * MIB, NULL);
    assert_ptr_equal(more, block + 60 * MIB);
    env_free(allocator, block, more);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(seen.left, 0);
    assert_int_equal(xseg_sim_registered(), 120 * MIB);
    assert_ok(xseg_explain(allocator, NULL, find_registered, &registered, &sums));
    assert_int_equal(registered, 120 * MIB);
    assert_int_equal(sums.registered, 120 * MIB);
    assert_int_equal(sums.reserved, 120 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
    env_close(allocator);
}

/* --- Several registrations. --- */

TEST(registrations_may_overlap)
{
    struct seen seen, other;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    char *block = env_alloc(allocator, 40 * MIB, NULL);

    other = seen;
    const uint64_t id = add(&seen, block, 40 * MIB, false);
    const uint64_t again = add(&seen, block, 40 * MIB, false);
    assert_int_not_equal(again, id);
    assert_int_equal(seen.entered, 2);
    const uint64_t part = add(&other, block + 10 * MIB, 20 * MIB, false);
    assert_int_not_equal(part, id);
    assert_int_equal(env_stats(allocator).registered_bytes, 100 * MIB);
    assert_ok(xseg_unregister(allocator, id));
    assert_int_equal(seen.in, 1);
    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_int_equal(seen.in + other.in, 0);
    assert_ok(xseg_unregister(allocator, again));
    assert_ok(xseg_unregister(allocator, part));
    env_close(allocator);
}

/* --- Functions that refuse, and that call the library. --- */

TEST(a_refusal_undoes_what_had_entered)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    char *block[3];

    for (unsigned i = 0; i < 3; i++)
        block[i] = env_alloc(allocator, 40 * MIB, NULL);
    env_free(allocator, block[1]);
    env_empty_cache(allocator);
    seen.refuse_from = 2;
    expect_error(&seen, block[0], 120 * MIB, XSEG_ERR_UNSUPPORTED,
                 "callback enter rejected a run of memory");
    assert_int_equal(seen.left, 1);
    /* A run that is refused as it comes does not leave. */
    seen.refuse_from = 0;
    const uint64_t id = add(&seen, block[0], 120 * MIB, false);
    seen.refuse_from = 1;
    block[1] = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(seen.in, 2);
    seen.refuse_from = 0;
    assert_ok(xseg_unregister(allocator, id));
    for (unsigned i = 0; i < 3; i++)
        env_free(allocator, block[i]);
    env_close(allocator);
}

static void trim_and_end(struct seen *seen)
{
    void *block = env_alloc(seen->allocator, 300 * MIB, NULL);

    env_free(seen->allocator, block);
    env_empty_cache(seen->allocator);
    if (seen->id != 0)
        env_expect_error(xseg_unregister(seen->allocator, seen->id), XSEG_ERR_BUSY,
                         "in its own callback");
}

TEST(its_functions_may_move_memory)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    char *next = env_alloc(allocator, 40 * MIB, NULL);

    env_free(allocator, next);
    seen.within = trim_and_end;
    seen.id = add(&seen, block, 400 * MIB, false);
    /* The page beside the block went within `enter`, after it had entered: the run had to stay meanwhile. */
    next = env_alloc(allocator, 40 * MIB, NULL);
    env_free(allocator, next);
    env_empty_cache(allocator);
    seen.within = NULL;
    assert_ok(xseg_unregister(allocator, seen.id));
    assert_int_equal(xseg_sim_registered(), 0);
    env_free(allocator, block);
    env_close(allocator);
}

static void trim_all(struct seen *seen)
{
    env_empty_cache(seen->allocator);
}

/* What stays of a run is idle as well, and a trim within its `enter` may not take it. */
TEST(what_enters_again_stays_meanwhile)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    struct xseg_trim_options some = {sizeof(some)};
    char *block = env_alloc(allocator, 120 * MIB, NULL);
    const uint64_t id = add(&seen, block, 120 * MIB, false);

    env_free(allocator, block);
    seen.within = trim_all;
    some.target_bytes = 80 * MIB;
    assert_ok(xseg_trim(allocator, NULL, &some, NULL));
    assert_int_equal(seen.in, 1);
    assert_int_equal(xseg_sim_registered(), 80 * MIB);
    seen.within = NULL;
    assert_ok(xseg_unregister(allocator, id));
    env_close(allocator);
}

/* Single pages of other sizes give their addresses back, those of a registered range do not. */
TEST(a_registration_holds_its_addresses)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    struct xseg_pool_options options = {sizeof(options), .single_page = true};
    struct xseg_scope where = XSEG_SCOPE_ALL;

    assert_ok(xseg_pool_create(allocator, 0, &options, &where.pool));
    char *block = env_alloc_in(allocator, where.pool, 40 * MIB, NULL);
    const uint64_t id = add(&seen, block, 40 * MIB, false);
    env_free(allocator, block);
    assert_ok(xseg_trim(allocator, &where, NULL, NULL));
    assert_int_equal(seen.in, 0);
    void *other = env_alloc_in(allocator, where.pool, 80 * MIB, NULL);
    assert_ptr_equal(env_alloc_in(allocator, where.pool, 40 * MIB, NULL), block);
    assert_int_equal(seen.in, 1);
    assert_ok(xseg_unregister(allocator, id));
    env_free(allocator, other, block);
    env_close(allocator);
}

/* --- Bad input, and the end. --- */

/* The functions are the parent's: nothing of the child's is registered. */
TEST(a_forked_child_is_refused)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    const uint64_t id = add(&seen, block, 40 * MIB, true);
    const struct xseg_registrar registrar = registrar_of(&seen, false);
    uint64_t other = 0;
    int result = 0;

    const pid_t child = fork();
    if (child == 0)
        _exit(xseg_register(allocator, block, MIB, &registrar, &other) == XSEG_ERR_FORKED &&
                      xseg_unregister(allocator, id) == XSEG_ERR_FORKED && seen.entered == 1 &&
                      seen.left == 0
                  ? 0
                  : 1);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_int_equal(seen.in, 1);
    assert_ok(xseg_unregister(allocator, id));
    env_close(allocator);
}

TEST(bad_input_is_refused_in_words)
{
    struct seen seen;
    struct xseg_allocator *allocator = open_seen(&seen, EXPANDABLE);
    struct xseg_registrar registrar = registrar_of(&seen, false);
    char *block = env_alloc(allocator, 40 * MIB, NULL);
    uint64_t id = 0;
    char host[64];

    expect_error(&seen, NULL, 10, XSEG_ERR_ARGUMENT, "NULL");
    expect_error(&seen, block, 0, XSEG_ERR_ARGUMENT, "bytes is 0");
    expect_error(&seen, block, SIZE_MAX, XSEG_ERR_ARGUMENT, "exceeds the address space");
    expect_error(&seen, block, 1000000 * GIB, XSEG_ERR_ARGUMENT, "size exceeds the segment");
    expect_error(&seen, host, sizeof(host), XSEG_ERR_NOT_ALLOCATED,
                 "not in memory of this allocator");
    expect_error(&seen, block + GIB, 40 * MIB, XSEG_ERR_NOT_ALLOCATED,
                 "address range has no mapped memory");
    env_expect_error(xseg_register(allocator, block, 10, NULL, &id), XSEG_ERR_ARGUMENT,
                     "registrar is NULL");
    registrar.leave = NULL;
    env_expect_error(xseg_register(allocator, block, 10, &registrar, &id), XSEG_ERR_ARGUMENT,
                     "leave is NULL");
    registrar.struct_size = 3;
    env_expect_error(xseg_register(allocator, block, 10, &registrar, &id), XSEG_ERR_ARGUMENT,
                     "struct_size is unknown, 3");
    id = add(&seen, block, 40 * MIB, false);
    env_free(allocator, block);
    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY,
                     "memory is registered, 1 registration, one with ID ");
    assert_ok(xseg_unregister(allocator, id));
    env_close(allocator);
}
