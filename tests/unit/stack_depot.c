/* SPDX-License-Identifier: MIT */
/* The depot of call stacks: each stack is stored once, with names that outlive the code. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/stack.h"
#include "src/base/stack_depot.h"
#include "tests/support/audit.h"
#include "tests/support/child.h"
#include "tests/support/failing_memory.h"
#include "tests/support/plugin.h"

/* --- Artificial stacks, whose frames are in no module. --- */

#define ARTIFICIAL_FRAMES 12u

/* Stack n of a family: the innermost two frames are its own, the others are shared. */
static void make_frames(void **frames, uint32_t n)
{
    for (uintptr_t i = 0; i < ARTIFICIAL_FRAMES; i++)
        frames[i] = (void *)(4096 + 16 * i);
    frames[0] = (void *)(uintptr_t)(65536 + n % 1000);
    frames[1] = (void *)(uintptr_t)(131072 + n / 1000);
}

static struct xseg_stack_depot depot;

static uint32_t add_artificial(uint32_t n)
{
    void *frames[ARTIFICIAL_FRAMES];

    make_frames(frames, n);
    return xseg_stack_depot_add(&depot, frames, ARTIFICIAL_FRAMES);
}

static bool is_artificial(uint32_t id, uint32_t n)
{
    void *frames[ARTIFICIAL_FRAMES];
    struct xseg_stack_view view;

    make_frames(frames, n);
    return xseg_stack_depot_get(&depot, id, &view) && view.count == ARTIFICIAL_FRAMES &&
           !view.is_truncated && memcmp(view.frames, frames, sizeof(frames)) == 0;
}

static void expect_depot_audit(const char *tag)
{
    expect_audit(xseg_stack_depot_audit(&depot, &violation), tag);
}

FIXTURE(begin)
{
    assert_true(xseg_stack_depot_init(&depot, 0));
}

FIXTURE(end)
{
    expect_depot_audit(NULL);
    xseg_stack_depot_fini(&depot);
}

/* Enough stacks that some have equal hashes. */
TEST_WITH(each_stack_is_stored_once, begin, end)
{
    enum { STACKS = 200000, ADDS = 1000000 };
    uint64_t random = 1;
    size_t bytes = 0;

    for (uint32_t n = 0; n < STACKS; n++)
        assert_int_equal(add_artificial(n), n + 1);
    bytes = xseg_stack_depot_bytes(&depot);
    for (uint32_t i = 0; i < ADDS; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const uint32_t n = (uint32_t)(random >> 33) % STACKS;

        if (add_artificial(n) != n + 1)
            fail_msg("stack %" PRIu32 " has another ID", n);
    }
    assert_int_equal(xseg_stack_depot_count(&depot), STACKS);
    assert_int_equal(xseg_stack_depot_bytes(&depot), bytes);
    assert_int_equal(xseg_stack_depot_lost(&depot), 0);
    for (uint32_t n = 0; n < STACKS; n++)
        assert_true(is_artificial(n + 1, n));
}

/* A stack and its prefix, and the same stack truncated and complete, are different stacks. */
TEST_WITH(stacks_of_different_lengths_differ, begin, end)
{
    void *frames[XSEG_STACK_FRAMES_MAX + 1];
    struct xseg_stack_view view;

    for (uintptr_t i = 0; i <= XSEG_STACK_FRAMES_MAX; i++)
        frames[i] = (void *)(4096 + i);
    assert_int_equal(xseg_stack_depot_add(&depot, frames, 0), 0);
    assert_int_equal(xseg_stack_depot_add(&depot, frames, XSEG_STACK_TRUNCATED), 0);
    assert_int_equal(xseg_stack_depot_lost(&depot), 0);
    for (uint32_t count = 1; count <= XSEG_STACK_FRAMES_MAX; count += 33) {
        const uint32_t id = xseg_stack_depot_add(&depot, frames, count);
        const uint32_t truncated =
            xseg_stack_depot_add(&depot, frames, count | XSEG_STACK_TRUNCATED);

        assert_int_equal(truncated, id + 1);
        assert_int_equal(xseg_stack_depot_count(&depot), truncated);
        assert_int_equal(xseg_stack_depot_add(&depot, frames, count), id);
        assert_true(xseg_stack_depot_get(&depot, id, &view));
        assert_int_equal(view.count, count);
        assert_false(view.is_truncated);
        assert_true(xseg_stack_depot_get(&depot, truncated, &view));
        assert_int_equal(view.count, count);
        assert_true(view.is_truncated);
        assert_memory_equal(view.frames, frames, count * sizeof(*frames));
    }
    /* A stack that is deeper than the depot stores is truncated. */
    const uint32_t id = xseg_stack_depot_add(&depot, frames, XSEG_STACK_FRAMES_MAX + 1);
    assert_true(xseg_stack_depot_get(&depot, id, &view));
    assert_int_equal(view.count, XSEG_STACK_FRAMES_MAX);
    assert_true(view.is_truncated);
}

TEST_WITH(unknown_id_is_rejected, begin, end)
{
    static const uint32_t unknown[] = {0, 2, 3, 256, 257, 65536, UINT32_MAX - 1, UINT32_MAX};
    struct xseg_stack_frame frame;
    struct xseg_stack_view view;
    struct xseg_strbuf text;
    char buffer[64];

    assert_false(xseg_stack_depot_get(&depot, 1, &view));
    assert_int_equal(add_artificial(0), 1);
    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        assert_false(xseg_stack_depot_get(&depot, unknown[i], &view));
        assert_false(xseg_stack_depot_frame(&depot, unknown[i], 0, &frame));
        xseg_stack_depot_describe(&depot, unknown[i], 0, 8, &text);
    }
    assert_false(xseg_stack_depot_frame(&depot, 1, ARTIFICIAL_FRAMES, &frame));
    assert_true(xseg_stack_depot_frame(&depot, 1, ARTIFICIAL_FRAMES - 1, &frame));
    xseg_stack_depot_describe(&depot, 1, ARTIFICIAL_FRAMES, 8, &text);
    xseg_stack_depot_describe(&depot, 1, 0, 0, &text);
    assert_int_equal(text.length, 0);
}

/* --- Frames of libraries. --- */

/* A stack that was captured and added to the depot. */
struct capture {
    void *frames[XSEG_STACK_FRAMES];
    uint32_t result, id;
};

static __attribute__((noinline)) void capture_stack(void *context)
{
    struct capture *capture = context;

    capture->result = xseg_stack_capture(capture->frames, XSEG_STACK_FRAMES);
    capture->id = xseg_stack_depot_add(&depot, capture->frames, capture->result);
}

static struct capture capture_in(const struct plugin *plugin)
{
    struct capture capture = {0};

    plugin->call(capture_stack, &capture);
    assert_true(xseg_stack_frames(capture.result) > 3);
    assert_int_not_equal(capture.id, 0);
    return capture;
}

/* Expect the module of the plugin's frames, 1 and 2; frame 0 is in capture_stack(). */
static void assert_module(const struct capture *capture, const struct plugin *plugin,
                          const char *build_id)
{
    struct xseg_stack_frame frame;

    for (uint32_t i = 1; i <= 2; i++) {
        assert_true(xseg_stack_depot_frame(&depot, capture->id, i, &frame));
        assert_ptr_equal(frame.pc, capture->frames[i]);
        assert_string_equal(frame.path, plugin->path);
        assert_int_equal(frame.offset, (const char *)frame.pc - plugin->base);
        if (build_id != NULL)
            assert_string_equal(frame.build_id, build_id);
        else
            assert_null(frame.build_id);
        assert_false(frame.is_resolved);
        assert_null(frame.symbol);
    }
}

/* The text of a stack, from the plugin's hidden function on. */
static void assert_text(const struct capture *capture, const char *file)
{
    struct xseg_stack_frame frame[2];
    char buffer[256], expected[256];
    struct xseg_strbuf text;

    for (uint32_t i = 0; i < 2; i++)
        assert_true(xseg_stack_depot_frame(&depot, capture->id, i + 1, &frame[i]));
    (void)snprintf(expected, sizeof(expected), "%s+%#" PRIx64 " < %s+%#" PRIx64, file,
                   frame[0].offset, file, frame[1].offset);
    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_stack_depot_describe(&depot, capture->id, 1, 2, &text);
    assert_string_equal(buffer, expected);
}

TEST_WITH(modules_outlive_the_code, begin, end)
{
    struct plugin plugin;

    plugin_open(&plugin, "plugin-one");
    const struct capture capture = capture_in(&plugin);
    assert_module(&capture, &plugin, PLUGIN_ONE_ID);
    plugin_close(&plugin);
    for (unsigned i = 0; i < 2; i++) {
        assert_module(&capture, &plugin, PLUGIN_ONE_ID);
        assert_text(&capture, "libplugin-one.so");
        assert_int_not_equal(add_artificial(i), 0); /* the depot scans the modules again */
        expect_depot_audit(NULL);
    }
}

/* Calls of one line of the test have the same stack if the library is loaded again at the same address. */
TEST_WITH(reloaded_library_keeps_its_stacks, begin, end)
{
    struct capture first = {0};

    for (unsigned i = 0; i < 20; i++) {
        struct plugin plugin;

        plugin_open(&plugin, "plugin-one");
        const struct capture capture = capture_in(&plugin);
        assert_module(&capture, &plugin, PLUGIN_ONE_ID);
        if (i == 0)
            first = capture;
        const bool is_same = first.result == capture.result &&
                             memcmp(first.frames, capture.frames, sizeof(first.frames)) == 0;
        assert_int_equal(is_same, first.id == capture.id);
        plugin_close(&plugin);
        assert_int_not_equal(add_artificial(i), 0);
    }
}

/* The loader maps a library of the same size to the addresses that have just become free. */
TEST_WITH(another_library_in_its_place_has_its_own_names, begin, end)
{
    static const char *const name[] = {"plugin-one", "plugin-two"};
    static const char *const build_id[] = {PLUGIN_ONE_ID, NULL};
    struct capture capture[6];
    struct plugin plugin[6];
    unsigned replaced = 0;

    for (unsigned i = 0; i < 6; i++) {
        plugin_open(&plugin[i], name[i % 2]);
        /* The depot gets a new stack in the meantime, as in a running program. */
        assert_int_not_equal(add_artificial(i), 0);
        capture[i] = capture_in(&plugin[i]);
        plugin_close(&plugin[i]);
        replaced +=
            i > 0 && memcmp(capture[i].frames, capture[i - 1].frames, 3 * sizeof(void *)) == 0;
        for (unsigned j = 0; j <= i; j++)
            assert_module(&capture[j], &plugin[j], build_id[j % 2]);
        expect_depot_audit(NULL);
    }
    if (replaced == 0)
        print_message("# the loader mapped no library to the addresses of another\n");
}

/* A return address past the last byte of a module belongs to a call in it; one at its first byte does not. */
TEST_WITH(frame_is_located_by_its_call, begin, end)
{
    struct xseg_stack_frame frame;
    struct plugin plugin;

    plugin_open(&plugin, "plugin-one");
    const struct capture capture = capture_in(&plugin);
    const struct xseg_module_mapping *mapping = depot.modules.mappings;
    while (mapping != NULL && (const char *)mapping->start != plugin.base)
        mapping = mapping->next;
    assert_non_null(mapping);
    for (unsigned is_end = 0; is_end < 2; is_end++) {
        void *frames[] = {(char *)(is_end ? mapping->end : mapping->start), capture.frames[2]};
        const uint32_t id = xseg_stack_depot_add(&depot, frames, 2);

        assert_true(xseg_stack_depot_frame(&depot, id, 0, &frame));
        assert_int_equal(frame.path != NULL && strcmp(frame.path, plugin.path) == 0, is_end);
        assert_ptr_equal(frame.pc, frames[0]);
    }
    plugin_close(&plugin);
}

TEST_WITH(frames_in_no_module_are_addresses, begin, end)
{
    struct xseg_stack_frame frame;
    struct xseg_strbuf text;
    char buffer[64];

    const uint32_t id = add_artificial(5);
    assert_true(xseg_stack_depot_frame(&depot, id, 0, &frame));
    assert_int_equal((uintptr_t)frame.pc, 65536 + 5);
    assert_null(frame.path);
    assert_null(frame.build_id);
    assert_null(frame.symbol);
    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    xseg_stack_depot_describe(&depot, id, 0, 2, &text);
    assert_string_equal(buffer, "0x10005 < 0x20000");
}

static __attribute__((noinline)) void descend(unsigned depth, struct capture *capture)
{
    if (depth == 0)
        capture_stack(capture);
    else
        descend(depth - 1, capture);
    __asm__ volatile("" : : : "memory");
}

/* Real stacks that differ in depth only. */
TEST_WITH(deep_stacks_are_truncated, begin, end)
{
    struct capture capture = {0};
    struct xseg_stack_view view;
    uint32_t truncated = 0;

    (void)xseg_stack_prepare();
    for (unsigned depth = 0; depth <= 1000; depth += 10) {
        descend(depth, &capture);
        assert_true(xseg_stack_depot_get(&depot, capture.id, &view));
        assert_int_equal(view.is_truncated, xseg_stack_is_truncated(capture.result));
        assert_int_equal(view.count, xseg_stack_frames(capture.result));
        if (depth <= XSEG_STACK_FRAMES)
            continue;
        assert_true(view.is_truncated);
        assert_true(truncated == 0 || capture.id == truncated); /* with the same innermost frames */
        truncated = capture.id;
    }
    assert_int_not_equal(truncated, 0);
}

/* --- Limits, and host allocation failures. --- */

TEST(full_depot_counts_lost_stacks)
{
    uint32_t count = 0;

    assert_true(xseg_stack_depot_init(&depot, 1)); /* becomes the minimum */
    while (add_artificial(count) != 0)
        assert_int_equal(xseg_stack_depot_count(&depot), ++count);
    assert_true(count > 100);
    assert_true(xseg_stack_depot_bytes(&depot) <= XSEG_STACK_DEPOT_MIN_BYTES);
    assert_int_equal(xseg_stack_depot_lost(&depot), 1);
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(add_artificial(count + i), 0);
    assert_int_equal(xseg_stack_depot_lost(&depot), 101);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(add_artificial(i), i + 1);
        assert_true(is_artificial(i + 1, i));
    }
    assert_int_equal(xseg_stack_depot_count(&depot), count);
    assert_int_equal(xseg_stack_depot_lost(&depot), 101);
    (void)end(NULL);
}

/* The depot may be full at a stack, a set, a name or a table. */
TEST(depot_may_be_full_at_any_step)
{
    struct plugin plugin;

    plugin_open(&plugin, "plugin-one");
    for (size_t remaining = 0; remaining < 24000; remaining += 152) {
        struct capture capture = {0};

        assert_true(xseg_stack_depot_init(&depot, 1));
        assert_non_null(
            xseg_bump_alloc(&depot.memory, xseg_bump_remaining(&depot.memory) - remaining - 8));
        plugin.call(capture_stack, &capture);
        assert_int_equal(xseg_stack_depot_count(&depot), capture.id);
        assert_int_equal(xseg_stack_depot_lost(&depot), capture.id == 0);
        if (capture.id != 0)
            assert_module(&capture, &plugin, PLUGIN_ONE_ID);
        (void)end(NULL);
    }
    plugin_close(&plugin);
}

/* The n-th host call and all later ones fail: initialization fails, or stacks are lost. */
TEST(without_host_memory_stacks_are_lost)
{
    bool has_lost = false, has_all = false;

    for (int n = 0; !has_all; n++) {
        uint32_t count = 0;

        memory_calls_until_failure = n;
        if (!xseg_stack_depot_init(&depot, 0)) {
            memory_calls_until_failure = -1;
            continue;
        }
        while (count < 20000 && add_artificial(count) != 0)
            count++;
        memory_calls_until_failure = -1;
        has_all = count == 20000;
        has_lost = has_lost || !has_all;
        assert_int_equal(xseg_stack_depot_lost(&depot), !has_all);
        expect_depot_audit(NULL);
        /* Once host memory is available, stacks are added again. */
        assert_int_equal(add_artificial(count), count + 1);
        (void)end(NULL);
    }
    assert_true(has_lost);
}

/* --- Threads and forks. --- */

enum { COMMON = 3000, OWN = 1000, THREADS = 4 };

struct adder {
    uint32_t number;
    uint32_t common[COMMON], own[OWN];
    bool has_read;
};

static void *add_many(void *self)
{
    struct adder *adder = self;
    struct capture capture = {0};

    adder->has_read = true;
    for (uint32_t i = 0; i < COMMON; i++) {
        /* Each thread begins at another stack, so that each adds some stacks first. */
        const uint32_t n = (i + adder->number * (COMMON / THREADS)) % COMMON;

        adder->common[n] = add_artificial(n);
        if (!is_artificial(adder->common[n], n))
            adder->has_read = false;
        if (i % (COMMON / OWN) == 0) {
            const uint32_t own = i / (COMMON / OWN);

            adder->own[own] = add_artificial(COMMON + adder->number * OWN + own);
            capture_stack(&capture);
        }
    }
    return NULL;
}

TEST_WITH(threads_share_a_depot, begin, end)
{
    static struct adder adder[THREADS];
    pthread_t thread[THREADS];

    (void)xseg_stack_prepare();
    for (uint32_t i = 0; i < THREADS; i++) {
        adder[i].number = i;
        assert_int_equal(pthread_create(&thread[i], NULL, add_many, &adder[i]), 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_true(adder[i].has_read);
        assert_memory_equal(adder[i].common, adder[0].common, sizeof(adder[0].common));
        for (uint32_t own = 0; own < OWN; own++)
            assert_true(is_artificial(adder[i].own[own], COMMON + i * OWN + own));
    }
    /* The stack of capture_stack() in add_many(), which may differ by thread. */
    const uint32_t artificial = COMMON + THREADS * OWN;
    assert_true(xseg_stack_depot_count(&depot) > artificial);
    assert_true(xseg_stack_depot_count(&depot) <= artificial + THREADS);
    assert_int_equal(xseg_stack_depot_lost(&depot), 0);
}

static atomic_bool must_stop;

static void *load_and_unload(void *unused)
{
    struct capture capture = {0};

    (void)unused;
    while (!atomic_load(&must_stop)) {
        struct plugin plugin;

        plugin_open(&plugin, "plugin-one");
        plugin.call(capture_stack, &capture);
        plugin_close(&plugin);
    }
    return NULL;
}

TEST_WITH(libraries_are_loaded_and_unloaded_concurrently, begin, end)
{
    pthread_t thread;

    atomic_store(&must_stop, false);
    assert_int_equal(pthread_create(&thread, NULL, load_and_unload, NULL), 0);
    for (uint32_t n = 0; n < 3000; n++) {
        assert_true(is_artificial(add_artificial(n), n));
        if (n % 100 == 0)
            expect_depot_audit(NULL);
    }
    atomic_store(&must_stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void use_in_a_child(void)
{
    struct xseg_stack_frame frame;

    if (!is_artificial(1, 7) || add_artificial(7) != 1 ||
        !xseg_stack_depot_frame(&depot, 1, 0, &frame) || add_artificial(8) != 0 ||
        xseg_stack_depot_lost(&depot) != 1 || xseg_stack_depot_count(&depot) != 1)
        _exit(1);
}

/* Another thread holds the lock at the fork, and does not exist in the child to unlock it. */
TEST_WITH(forked_child_reads_and_adds_no_stacks, begin, end)
{
    char output[1024];

    assert_int_equal(add_artificial(7), 1);
    xseg_mutex_lock(&depot.lock);
    const int status = child_run_without_argument(use_in_a_child, output, sizeof(output));
    xseg_mutex_unlock(&depot.lock);
    assert_int_equal(status, 0);
    assert_int_equal(add_artificial(8), 2);
    assert_int_equal(xseg_stack_depot_lost(&depot), 0);
}

TEST_WITH(depot_may_be_used_under_other_locks, begin, end)
{
    struct xseg_mutex arena, observers;

    xseg_mutex_init(&arena, XSEG_RANK_ARENA);
    xseg_mutex_init(&observers, XSEG_RANK_OBSERVERS);
    xseg_mutex_lock(&arena);
    xseg_mutex_lock(&observers);
    assert_int_equal(add_artificial(1), 1);
    xseg_mutex_unlock(&observers);
    xseg_mutex_unlock(&arena);
    xseg_mutex_fini(&observers);
    xseg_mutex_fini(&arena);
}

/* --- The audit. --- */

static void *first_record(const struct xseg_intern_table *table)
{
    const struct xseg_intern_slots *slots = table->slots;

    for (uint32_t i = 0; i <= slots->mask; i++)
        if (slots->slot[i] != 0)
            return xseg_bump_at(&depot.memory, (uint32_t)slots->slot[i]);
    return NULL;
}

TEST(audit_reports_the_violated_invariant)
{
    struct xseg_intern_table empty;

    (void)begin(NULL);
    assert_int_equal(add_artificial(1), 1);
    uint32_t *id = first_record(&depot.stacks); /* a stack begins with its ID */
    WITH_VALUE(*id, 2, expect_depot_audit("DEPOT-1"));
    expect_depot_audit(NULL);
    assert_true(xseg_intern_table_init(&empty, &depot.memory));
    WITH_VALUE(depot.stacks, empty, expect_depot_audit("DEPOT-2"));
    WITH_VALUE(depot.frames.frames, empty, expect_depot_audit("DEPOT-3"));
    expect_depot_audit(NULL);
    /* A mapping that is in the set of loaded modules, and is not loaded. */
    struct capture capture = {0};
    capture_stack(&capture);
    struct xseg_module_mapping *mapping = depot.modules.mappings;
    for (; mapping != NULL; mapping = mapping->next)
        atomic_store(&mapping->is_loaded, false);
    depot.modules.loaded_count = 0;
    expect_depot_audit("DEPOT-4");
    xseg_stack_depot_fini(&depot);
}
