/* SPDX-License-Identifier: MIT */
/* Observers: when they are notified, and that no lock is held during a callback. */
#include <malloc.h>

#include "tests/support/history_list.h"
#include "tests/support/trim_due.h"

/* The calls of the callbacks of an observer, and the actions of these callbacks. */
struct recorder {
    struct xseg_allocator *allocator;
    uint64_t id;    /* of the observer */
    void *block[4]; /* each call of on_low_memory() frees one block */
    unsigned low_memory_calls, oom_calls, rejected_calls;
    bool always_retries;   /* on_low_memory() requests a retry even if it frees no block */
    size_t nested_bytes;   /* size of a request of on_low_memory(), which fails */
    uint64_t id_to_remove; /* the observer that on_low_memory() tries to remove */
    xseg_status remove_status;
    struct xseg_oom_info last;
    char message[1024];
    enum xseg_trace_action action[64];
    void *base[64];
    uint64_t bytes[64];
    unsigned entries;
};

/* These calls acquire locks of the library, so they would deadlock if the caller of the callback held one. */
static void call_library(struct recorder *recorder)
{
    assert_true(env_stats(recorder->allocator).device_bytes > 0);
    (void)env_trim(recorder->allocator);
}

static void record(struct recorder *recorder, const struct xseg_oom_info *oom)
{
    recorder->last = *oom;
    (void)strncpy(recorder->message, oom->message, sizeof(recorder->message) - 1);
    call_library(recorder);
}

static bool on_low_memory(void *context, const struct xseg_oom_info *oom)
{
    struct recorder *recorder = context;

    assert_int_equal(oom->attempt, recorder->low_memory_calls);
    recorder->low_memory_calls++;
    record(recorder, oom);
    if (recorder->nested_bytes != 0)
        assert_int_equal(env_try_alloc(recorder->allocator, recorder->nested_bytes, NULL),
                         XSEG_ERR_NO_MEMORY);
    if (recorder->id_to_remove != 0)
        recorder->remove_status = xseg_observer_remove(recorder->allocator, recorder->id_to_remove);
    for (unsigned i = 0; i < COUNT_OF(recorder->block); i++) {
        if (recorder->block[i] == NULL)
            continue;
        env_free(recorder->allocator, recorder->block[i]);
        recorder->block[i] = NULL;
        return true;
    }
    return recorder->always_retries;
}

static void on_out_of_memory(void *context, const struct xseg_oom_info *oom)
{
    struct recorder *recorder = context;

    recorder->oom_calls++;
    record(recorder, oom);
}

static void on_rejected(void *context, const struct xseg_oom_info *oom)
{
    struct recorder *recorder = context;

    recorder->rejected_calls++;
    record(recorder, oom);
}

static void on_trace(void *context, const struct xseg_trace_entry *entry)
{
    struct recorder *recorder = context;

    assert_true(recorder->entries < COUNT_OF(recorder->action));
    recorder->action[recorder->entries] = entry->action;
    recorder->base[recorder->entries] = entry->base;
    recorder->bytes[recorder->entries++] = entry->bytes;
    assert_true(env_stats(recorder->allocator).device_bytes > 0);
}

/* traces: the observer has only on_trace(); otherwise it has the callbacks for failed requests */
static void add_observer(struct recorder *recorder, bool traces)
{
    recorder->id = env_observe(
        recorder->allocator, .context = recorder, .on_low_memory = traces ? NULL : on_low_memory,
        .on_out_of_memory = traces ? NULL : on_out_of_memory,
        .on_rejected = traces ? NULL : on_rejected, .on_trace = traces ? on_trace : NULL);
    assert_true(recorder->id != 0);
}

/* The recorder of the only observer of a test. */
static struct recorder observed;

static void observe_oom(struct xseg_allocator *allocator)
{
    observed = (struct recorder){.allocator = allocator};
    add_observer(&observed, false);
}

static void observe_trace(struct xseg_allocator *allocator)
{
    observed = (struct recorder){.allocator = allocator};
    add_observer(&observed, true);
}

/* Without an out-of-memory error, and without the step that releases all idle memory (num_alloc_retries). */
TEST_ON(memory_freed_by_an_observer_serves_the_request,
        env_open_mib(200, "expandable_segments:True"))
{
    observe_oom(allocator);
    for (unsigned i = 0; i < 4; i++)
        observed.block[i] = env_alloc(allocator, 40 * MIB, NULL);
    assert_int_equal(observed.low_memory_calls, 0);
    void *ptr = env_alloc(allocator, 70 * MIB, NULL);
    /* 40 of 200 MiB are free, and the block that the callback frees has 40 MiB. */
    assert_int_equal(observed.low_memory_calls, 1);
    assert_int_equal(observed.oom_calls, 0);
    assert_int_equal(observed.last.bytes, 70 * MIB);
    assert_int_equal(observed.last.block_bytes, 70 * MIB);
    assert_int_equal(observed.last.segment_bytes, 70 * MIB);
    assert_int_equal(observed.last.status, XSEG_ERR_NO_MEMORY);
    assert_int_equal(observed.last.allowed_bytes, 200 * MIB);
    assert_int_equal(observed.last.free_bytes, 40 * MIB);
    assert_false(observed.last.is_capturing);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    env_free(allocator, ptr);
    for (unsigned i = 1; i < 4; i++)
        env_free(allocator, observed.block[i]);
}

/* Two of four classic segments of 50 MiB are released for a segment of 100 MiB. */
TEST_ON(observer_is_notified_until_the_request_fits, env_open_mib(200, "expandable_segments:False"))
{
    observe_oom(allocator);
    for (unsigned i = 0; i < 4; i++)
        observed.block[i] = env_alloc(allocator, 50 * MIB, NULL);
    void *ptr = env_alloc(allocator, 99 * MIB, NULL);
    assert_int_equal(observed.low_memory_calls, 2);
    env_free(allocator, ptr, observed.block[2], observed.block[3]);
}

/* An observer that always requests a retry is called a bounded number of times. */
TEST_ON(low_memory_calls_are_bounded, env_open_mib(100, NULL))
{
    observe_oom(allocator);
    observed.always_retries = true;
    assert_error(env_try_alloc(allocator, 120 * MIB, NULL), NO_MEMORY,
                 "out of memory on device 0, 120.00 MiB requested");
    assert_int_equal(observed.low_memory_calls, XSEG_LOW_MEMORY_CALLS_MAX);
    assert_int_equal(observed.oom_calls, 1);
    assert_int_equal(env_stats(allocator).num_ooms, 1);
}

/* on_out_of_memory() receives the error message of the request, although on_low_memory() has called the library. */
TEST_ON(out_of_memory_is_notified_with_its_message, env_open_mib(200, NULL))
{
    char message[1024];
    void *allocated = env_alloc(allocator, 150 * MIB, NULL);

    observe_oom(allocator);
    assert_int_equal(env_try_alloc(allocator, 60 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_true(xseg_error_message(message, sizeof(message)) > 0);
    assert_int_equal(observed.low_memory_calls, 1);
    assert_int_equal(observed.oom_calls, 1);
    assert_string_equal(observed.message, message);
    assert_non_null(strstr(message, "150.00 MiB allocated"));
    env_free(allocator, allocated);
}

/* Both failed requests count as num_ooms. */
TEST_ON(nested_request_notifies_no_observer, env_open_mib(100, NULL))
{
    observe_oom(allocator);
    observed.nested_bytes = 300 * MIB;
    assert_int_equal(env_try_alloc(allocator, 200 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(observed.low_memory_calls, 1);
    assert_int_equal(observed.oom_calls, 1);
    assert_int_equal(observed.last.bytes, 200 * MIB);
    assert_int_equal(env_stats(allocator).num_ooms, 2);
}

TEST_ON(rejection_is_notified_separately, env_open_mib(100, "throw_on_cudamalloc_oom:True"))
{
    observe_oom(allocator);
    assert_int_equal(env_try_alloc(allocator, 120 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(observed.rejected_calls, 1);
    assert_int_equal(observed.low_memory_calls + observed.oom_calls, 0);
    assert_int_equal(env_stats(allocator).num_oom_rejections, 1);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
}

/* As in PyTorch, traces and the history have an out-of-memory entry only for errors that num_ooms counts. */
TEST_ON(rejection_is_not_traced, env_open_mib(100, "throw_on_cudamalloc_oom:True,history:all"))
{
    observe_trace(allocator);
    assert_int_equal(env_try_alloc(allocator, 120 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(observed.entries, 0);
    history_expect(allocator, "");
}

/* The notification reports the capture, which stays valid. */
TEST_IN_POOL(observer_is_notified_during_a_capture, env_open_mib(100, NULL))
{
    const xseg_stream stream = env_stream();

    observe_oom(allocator);
    env_capture_begin(pool, stream);
    assert_int_equal(env_try_alloc(allocator, 120 * MIB, stream), XSEG_ERR_NO_MEMORY);
    assert_int_equal(observed.low_memory_calls, 1);
    assert_true(observed.last.is_capturing);
    assert_ptr_equal(observed.last.pool, pool);
    assert_ptr_equal(observed.last.stream, stream);
    env_capture_end(pool, stream);
}

TEST(removed_observer_is_not_called)
{
    struct recorder first = {.allocator = env_open_mib(100, NULL)}, second = first;

    add_observer(&first, false);
    add_observer(&second, false);
    assert_ok(xseg_observer_remove(first.allocator, first.id));
    assert_int_equal(env_try_alloc(first.allocator, 120 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(first.low_memory_calls + first.oom_calls, 0);
    assert_int_equal(second.oom_calls, 1);
    assert_error(xseg_observer_remove(first.allocator, first.id), ARGUMENT,
                 "observer does not exist");
    env_close(first.allocator);
}

/* A callback cannot remove its own observer, since the removal waits for the callback.  It can remove another observer. */
TEST(observer_cannot_remove_itself)
{
    struct recorder first = {.allocator = env_open_mib(100, NULL)}, second = first;

    add_observer(&first, false);
    first.id_to_remove = first.id;
    assert_int_equal(env_try_alloc(first.allocator, 120 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_int_equal(first.remove_status, XSEG_ERR_BUSY);
    first.low_memory_calls = 0;
    add_observer(&second, false);
    first.id_to_remove = second.id;
    assert_int_equal(env_try_alloc(first.allocator, 120 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    assert_ok(first.remove_status);
    assert_int_equal(second.low_memory_calls, 0);
    env_close(first.allocator);
}

TEST_ON(invalid_observers_are_rejected, env_open(NULL))
{
    struct xseg_observer observer = {sizeof(observer)};
    uint64_t id = 0;

    assert_error(xseg_observer_add(allocator, &observer, &id), ARGUMENT,
                 "callbacks of the observer are NULL");
    observer.on_trace = on_trace;
    observer.struct_size = 3;
    assert_error(xseg_observer_add(allocator, &observer, &id), ARGUMENT, "is unknown");
    assert_error(xseg_observer_add(allocator, NULL, &id), ARGUMENT, "NULL");
    observer.struct_size = sizeof(observer);
    assert_error(xseg_observer_add(allocator, &observer, NULL), ARGUMENT, "NULL");
    assert_int_equal(xseg_observer_add(NULL, &observer, &id), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_observer_remove(NULL, 1), XSEG_ERR_ARGUMENT);
    assert_int_equal(xseg_observer_remove(allocator, 0), XSEG_ERR_ARGUMENT);
    assert_int_equal(id, 0);
}

/* Expect that the entries from an index on are exactly these actions, one letter for each. */
static void expect_entries(const struct recorder *recorder, unsigned first, const char *actions)
{
    static const char letter[] = {
        [XSEG_TRACE_ALLOC] = 'a',          [XSEG_TRACE_FREE_REQUESTED] = 'f',
        [XSEG_TRACE_FREE_COMPLETED] = 'c', [XSEG_TRACE_SEGMENT_ALLOC] = 'S',
        [XSEG_TRACE_SEGMENT_FREE] = 'F',   [XSEG_TRACE_SEGMENT_MAP] = 'm',
        [XSEG_TRACE_SEGMENT_UNMAP] = 'u',  [XSEG_TRACE_OOM] = 'o',
    };

    assert_int_equal(recorder->entries, first + strlen(actions));
    for (unsigned i = 0; actions[i] != '\0'; i++)
        assert_int_equal(letter[recorder->action[first + i]], actions[i]);
}

TEST_ON(actions_are_traced_in_order, env_open_mib(100, "expandable_segments:True"))
{
    observe_trace(allocator);
    void *ptr = env_alloc(allocator, 5 * MIB, NULL);
    /* A request of 5 MiB maps one page of 20 MiB. */
    expect_entries(&observed, 0, "ma");
    assert_int_equal(observed.bytes[0], 20 * MIB);
    assert_ptr_equal(observed.base[1], ptr);
    assert_int_equal(observed.bytes[1], 5 * MIB);
    env_free(allocator, ptr);
    expect_entries(&observed, 2, "fc");
    assert_ptr_equal(observed.base[3], ptr);
    env_empty_cache(allocator);
    expect_entries(&observed, 4, "u");
    assert_int_equal(observed.bytes[4], 20 * MIB);
    assert_int_equal(env_try_alloc(allocator, GIB, NULL), XSEG_ERR_NO_MEMORY);
    expect_entries(&observed, 5, "o");

    assert_ok(xseg_config_set(allocator, "expandable_segments:False"));
    ptr = env_alloc(allocator, 5 * MIB, NULL);
    env_free(allocator, ptr);
    env_empty_cache(allocator);
    expect_entries(&observed, 6, "SafcF");

    assert_ok(xseg_observer_remove(allocator, observed.id));
    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    assert_int_equal(observed.entries, 11);
}

/* The free of a block that another stream uses is traced as requested, and after the poll of its event as completed. */
TEST_ON(completion_of_a_pending_free_is_traced, env_open("expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    void *pending = env_alloc(allocator, 1000, NULL);

    observe_trace(allocator);
    env_free_in_use(allocator, pending, stream);
    expect_entries(&observed, 0, "f");
    assert_ok(xseg_sim_finish(stream));
    void *ptr = env_alloc(allocator, 2000, NULL);
    expect_entries(&observed, 1, "ca");
    assert_ptr_equal(observed.base[1], pending);
    assert_int_equal(observed.bytes[1], 1000);
    env_free(allocator, ptr);
}

/* Record mapping notifications in the list of trace entries. */
static void record_map(void *context, const struct xseg_mapping *mapping)
{
    struct recorder *recorder = context;

    recorder->action[recorder->entries] = XSEG_TRACE_SEGMENT_MAP;
    recorder->base[recorder->entries++] = mapping->base;
}

static void record_unmap(void *context, const struct xseg_mapping *mapping)
{
    struct recorder *recorder = context;

    recorder->action[recorder->entries] = XSEG_TRACE_SEGMENT_UNMAP;
    recorder->base[recorder->entries++] = mapping->base;
}

/* A call that completes a pending free and then maps or releases a segment notifies in this order.  "m" and "u" are the
 * mapping notifications, since the trace of a classic segment is "S" or "F". */
TEST_ON(completed_frees_are_traced_before_changes_of_mappings,
        env_open("expandable_segments:False"))
{
    struct recorder recorder = {.allocator = allocator};
    const xseg_stream stream = env_stream();
    void *first = env_alloc(allocator, 30 * MIB, NULL);

    const uint64_t id = env_observe(allocator, .on_trace = on_trace, .on_map = record_map,
                                    .on_unmap = record_unmap, .context = &recorder);
    /* The next request polls the free of the first block. */
    env_free_in_use(allocator, first, stream);
    assert_ok(xseg_sim_finish(stream));
    void *second = env_alloc(allocator, 40 * MIB, NULL);
    expect_entries(&recorder, 0, "fcmSa");
    /* The trim waits for the free of the second block, and releases both segments. */
    env_free_in_use(allocator, second, stream);
    (void)env_trim_with(allocator, NULL, .wait = true);
    expect_entries(&recorder, 5, "fcuuFF");
    assert_ok(xseg_observer_remove(allocator, id));
}

/* With these keys a free takes the slow path.  With unmap_on_free it also unmaps the block. */
TEST_EACH(frees_are_traced_with_every_configuration, env_open(config), "debug_fill:True",
          "history:all", "unmap_on_free:True")
{
    observe_trace(allocator);
    env_free(allocator, env_alloc(allocator, 3 * MIB, NULL));
    expect_entries(&observed, 0, i == 2 ? "mafcu" : "mafc");
}

static void ignore_trace(void *context, const struct xseg_trace_entry *entry)
{
    (void)context, (void)entry;
}

/* There is one function table for each distinct combination of configurations with and without recording. */
TEST_ON(removed_observers_leave_no_memory, env_open_mib(64, NULL))
{
    struct xseg_observer observer = {sizeof(observer), .on_trace = ignore_trace};
    size_t bytes_before = 0;

    observer.context = &observer;
    for (unsigned i = 0; i < 2000; i++) {
        uint64_t id = 0;

        assert_ok(xseg_observer_add(allocator, &observer, &id));
        env_free(allocator, env_alloc(allocator, 100, NULL));
        assert_ok(xseg_observer_remove(allocator, id));
        assert_ok(xseg_config_set(allocator, i % 2 == 0 ? "idle_ms:100" : "idle_ms:200"));
        if (i == 1000)
            bytes_before = mallinfo2().uordblks;
    }
    /* A table has more than 1,000 bytes, so 999 leaked tables exceed the bound.  Some sanitizers do not count. */
    assert_in_range(mallinfo2().uordblks, 0, bytes_before + 16384);
}

/* --- Mapping notifications: after memory is mapped, and before it is unmapped. --- */

#define GRANULE  (2 * MIB)
#define GRANULES ((size_t)1 << 16)

/* The generation of each mapped granule according to the notifications, as a NIC driver would record it. */
struct mirror {
    struct xseg_allocator *allocator;
    uintptr_t base; /* of the first granule: the first notified address, rounded down to 1 GiB */
    uint64_t generation[GRANULES]; /* 0: unmapped */
    unsigned maps, unmaps;         /* number of notifications */
    struct xseg_mapping last;      /* the last notification */
    /* An action that the next notification runs once, and its parameters. */
    void (*action)(struct mirror *mirror);
    struct xseg_pool *pool;
    xseg_stream stream;
    void *ptr; /* a block that the action allocates or uses */
};

/* Marks a granule that a walk has visited. */
#define VISITED (UINT64_C(1) << 63)

static size_t granule_of(struct mirror *mirror, const void *address)
{
    if (mirror->base == 0)
        mirror->base = (uintptr_t)address / GIB * GIB;
    assert_true((uintptr_t)address >= mirror->base);
    const size_t granule = ((uintptr_t)address - mirror->base) / GRANULE;
    assert_true(granule < GRANULES);
    return granule;
}

static size_t granules_in(const struct xseg_mapping *mapping)
{
    return (mapping->bytes + GRANULE - 1) / GRANULE;
}

static void run_action(struct mirror *mirror)
{
    void (*action)(struct mirror *) = mirror->action;

    mirror->action = NULL;
    if (action != NULL)
        action(mirror);
}

static void on_unmap(void *context, const struct xseg_mapping *mapping)
{
    struct mirror *mirror = context;
    const size_t first = granule_of(mirror, mapping->base);

    mirror->last = *mapping;
    mirror->unmaps++;
    for (size_t i = 0; i < granules_in(mapping); i++) {
        assert_int_equal(mirror->generation[first + i], mapping->generation);
        mirror->generation[first + i] = 0;
    }
    if (mapping->is_expandable)
        assert_int_equal(env_access_at(mapping->base, 0), ENV_READ_WRITE); /* still mapped */
    run_action(mirror);
}

static void on_map(void *context, const struct xseg_mapping *mapping)
{
    struct mirror *mirror = context;
    const size_t first = granule_of(mirror, mapping->base);

    mirror->last = *mapping;
    mirror->maps++;
    for (size_t i = 0; i < granules_in(mapping); i++) {
        assert_int_equal(mirror->generation[first + i], 0);
        mirror->generation[first + i] = mapping->generation;
    }
    if (mapping->is_expandable)
        assert_int_equal(env_access_at(mapping->base, 0), ENV_READ_WRITE);
    run_action(mirror);
}

static struct mirror *observe_mappings(struct xseg_allocator *allocator)
{
    static struct mirror mirror;

    mirror = (struct mirror){.allocator = allocator};
    (void)env_observe(allocator, .context = &mirror, .on_unmap = on_unmap, .on_map = on_map);
    return &mirror;
}

static bool compare_mapping(void *context, const struct xseg_mapping *mapping)
{
    struct mirror *mirror = context;
    const size_t first = granule_of(mirror, mapping->base);

    for (size_t i = 0; i < granules_in(mapping); i++) {
        assert_int_equal(mirror->generation[first + i], mapping->generation);
        mirror->generation[first + i] |= VISITED;
    }
    return true;
}

/* Expect that the library has exactly the mapped granules of the mirror, with the same generations. */
static void expect_same_mappings(struct mirror *mirror)
{
    assert_ok(xseg_for_each_mapping(mirror->allocator, NULL, compare_mapping, mirror));
    for (size_t i = 0; i < GRANULES; i++) {
        assert_true(mirror->generation[i] == 0 || (mirror->generation[i] & VISITED) != 0);
        mirror->generation[i] &= ~VISITED;
    }
}

TEST(growth_and_trim_are_notified)
{
    static const char *const config[] = {"expandable_segments:True", "expandable_segments:False",
                                         "unmap_on_free:True"};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        struct xseg_allocator *allocator = env_open(config[i]);
        struct mirror *mirror = observe_mappings(allocator);
        void *ptr = env_alloc(allocator, 50 * MIB, NULL), *small = env_alloc(allocator, 100, NULL);

        /* A large and a small run are mapped. */
        assert_int_equal(mirror->maps, 2);
        assert_int_equal(mirror->unmaps, 0);
        expect_same_mappings(mirror);
        env_free(allocator, ptr);
        env_empty_cache(allocator);
        assert_int_equal(mirror->unmaps, 1);
        expect_same_mappings(mirror);
        env_free(allocator, small);
        env_close(allocator); /* unmaps all memory */
        assert_int_equal(mirror->unmaps, 2);
    }
}

/* During a notification the notified memory is claimed, and no lock is held, so the library can be called. */
static void allocate_in_notification(struct mirror *mirror)
{
    struct xseg_block_info info = {sizeof(info)};
    const struct xseg_mapping mapping = mirror->last;

    assert_ok(xseg_block_query(mirror->allocator, mapping.base, &info));
    assert_int_equal(info.state, XSEG_BLOCK_CLAIMED);
    mirror->ptr = env_alloc(mirror->allocator, 70 * MIB, NULL);
    env_empty_cache(mirror->allocator);
    (void)env_stats(mirror->allocator);
}

TEST_ON(observers_can_call_the_library, env_open(NULL))
{
    struct mirror *mirror = observe_mappings(allocator);

    mirror->action = allocate_in_notification;
    void *ptr = env_alloc(allocator, 50 * MIB, NULL);
    assert_non_null(mirror->ptr);
    assert_ptr_not_equal(mirror->ptr, ptr);
    void *first = mirror->ptr;
    expect_same_mappings(mirror);
    /* The same calls in an unmap notification. */
    env_free(allocator, ptr);
    mirror->action = allocate_in_notification;
    env_empty_cache(allocator);
    expect_same_mappings(mirror);
    env_free(allocator, first, mirror->ptr);
}

TEST_ON(failed_unmap_is_notified_as_mapped, env_open(NULL))
{
    struct mirror *mirror = observe_mappings(allocator);

    env_free(allocator, env_alloc(allocator, 50 * MIB, NULL));
    const uint64_t generation = mirror->last.generation;
    env_fail_every("cuMemUnmap", 999);
    env_empty_cache(allocator);
    assert_ok(xseg_sim_fault_set(0, NULL));
    assert_int_equal(mirror->unmaps, 1);
    assert_int_equal(mirror->maps, 2);
    assert_int_equal(mirror->last.generation, generation);
    expect_same_mappings(mirror);
}

static void allocate_70_mib(struct mirror *mirror)
{
    mirror->ptr = env_alloc(mirror->allocator, 70 * MIB, NULL);
}

static void allocate_in_the_next_notification(struct mirror *mirror)
{
    mirror->action = allocate_70_mib;
}

/* A trim fails to unmap one of three pages.  Pages are mapped in the segment while observers are notified that this page
 * stays mapped. */
TEST_ON(growth_in_a_notification_is_counted, env_open(NULL))
{
    struct mirror *mirror = observe_mappings(allocator);

    env_free(allocator, env_alloc(allocator, 60 * MIB, NULL));
    /* The first call, for all pages, fails.  Of the calls for single pages, the one for the third page fails. */
    env_fault(0, .call = "cuMemUnmap", .every = 3, .error = 999);
    mirror->action = allocate_in_the_next_notification;
    env_empty_cache(allocator);
    assert_ok(xseg_sim_fault_set(0, NULL));
    assert_non_null(mirror->ptr);
    expect_same_mappings(mirror);
    assert_int_equal(env_reserved(allocator), xseg_sim_used(0));
    env_free(allocator, mirror->ptr);
}

static void begin_capture(struct mirror *mirror)
{
    env_capture_begin(mirror->pool, mirror->stream);
}

TEST_ON(capture_during_a_notification_stops_a_trim, env_open(NULL))
{
    struct mirror *mirror = observe_mappings(allocator);

    mirror->pool = env_pool(allocator);
    mirror->stream = env_stream();
    env_free(allocator, env_alloc(allocator, 50 * MIB, NULL));
    mirror->action = begin_capture;
    const struct xseg_trim_result result = env_trim(allocator);
    assert_int_equal(result.released, 0);
    assert_int_equal(result.kept_capture, 60 * MIB); /* the three pages of 50 MiB */
    assert_int_equal(mirror->maps, 2); /* by the request, and because the pages stay mapped */
    expect_same_mappings(mirror);
    env_capture_end(mirror->pool, mirror->stream);
}

/* The first unmap notification begins a capture, and frees a block that another stream used. */
static void free_in_a_capture(void *context, const struct xseg_mapping *mapping)
{
    struct mirror *mirror = context;

    (void)mapping;
    if (mirror->unmaps++ != 0)
        return;
    begin_capture(mirror);
    mirror->ptr = env_alloc(mirror->allocator, 1000, mirror->stream);
    assert_ok(xseg_record_stream(mirror->allocator, mirror->ptr, NULL));
    env_free(mirror->allocator, mirror->ptr);
}

/* The fallback chain does not wait for a block that was freed in the capture, since it is pending until the capture ends. */
TEST_ON(capture_during_a_notification_stops_the_fallback_chain,
        env_open("expandable_segments:True,hard_limit_mb:70"))
{
    struct mirror mirror = {.allocator = allocator, .pool = env_pool(allocator)};
    const xseg_stream side = env_stream();

    mirror.stream = env_stream();
    (void)env_observe(allocator, .context = &mirror, .on_unmap = free_in_a_capture);
    env_free(allocator, env_alloc(allocator, 50 * MIB, NULL));
    assert_int_equal(env_try_alloc(allocator, 50 * MIB, side), XSEG_ERR_LIMIT);
    assert_true(mirror.unmaps > 0);
    assert_int_equal(env_block(allocator, mirror.ptr).state, XSEG_BLOCK_PENDING_FREE);
    env_capture_end(mirror.pool, mirror.stream);
    env_free(allocator, env_alloc(allocator, 50 * MIB, side));
}

static void launch_kernel(struct mirror *mirror)
{
    env_launch(mirror->allocator, mirror->stream, mirror->ptr);
}

TEST_ON(pauses_are_notified, env_open(NULL))
{
    struct mirror *mirror = observe_mappings(allocator);

    mirror->pool = env_pool(allocator);
    mirror->ptr = env_alloc_in(allocator, mirror->pool, 50 * MIB, NULL);
    const uint64_t generation = mirror->last.generation;
    assert_ok(xseg_pool_pause(mirror->pool, XSEG_KEEP_HOST, NULL));
    assert_int_equal(mirror->unmaps, 1);
    expect_same_mappings(mirror);
    assert_ok(xseg_pool_resume(mirror->pool));
    assert_int_equal(mirror->maps, 2);
    assert_true(mirror->last.generation > generation);
    expect_same_mappings(mirror);
    /* Work that is queued during the pause blocks it, and observers are notified that the memory stays mapped. */
    mirror->action = launch_kernel;
    assert_error(xseg_pool_pause(mirror->pool, XSEG_KEEP_NOTHING, NULL), BUSY, "work");
    assert_int_equal(mirror->unmaps, 2);
    assert_int_equal(mirror->maps, 3);
    expect_same_mappings(mirror);
    xseg_sim_finish_all();
    env_free(allocator, mirror->ptr);
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* Random allocations, frees, trims, pauses and resumes. */
TEST_EACH(mapping_notifications_match_the_mappings, env_open_sim(config, .memory_bytes = 600 * MIB),
          "expandable_segments:True", "expandable_segments:True,idle_ms:0",
          "expandable_segments:False", "expandable_segments:True,page_cache_mb:64",
          ("expandable_segments:True,per_process_memory_fraction:0.8,"
           "garbage_collection_threshold:0.6"))
{
    void *block[24] = {NULL};
    uint64_t seed = 7 + i;

    struct mirror *mirror = observe_mappings(allocator);
    const xseg_stream stream[2] = {NULL, env_stream()};
    mirror->pool = env_pool(allocator);
    for (unsigned step = 0; step < 600; step++) {
        const uint64_t action = next_random(&seed) % 20;
        void **slot = &block[next_random(&seed) % COUNT_OF(block)];
        struct xseg_request request = {sizeof(request)};

        request.bytes = next_random(&seed) % 4 == 0 ? next_random(&seed) % MIB + 1
                                                    : next_random(&seed) % (80 * MIB) + 1;
        request.stream = stream[next_random(&seed) % 2];
        request.pool = next_random(&seed) % 4 == 0 ? mirror->pool : NULL;
        if (action == 0)
            env_empty_cache(allocator);
        else if (action == 1)
            assert_ok(trim_due(allocator, 1000));
        else if (action == 2 && xseg_pool_pause(mirror->pool, XSEG_KEEP_NOTHING, NULL) == XSEG_OK)
            expect_same_mappings(mirror);
        else if (action == 3)
            (void)!xseg_pool_resume(mirror->pool);
        else if (*slot == NULL)
            (void)!xseg_alloc_with(allocator, &request, slot);
        else {
            env_free(allocator, *slot);
            *slot = NULL;
        }
        if (step % 10 == 0)
            expect_same_mappings(mirror);
    }
    expect_same_mappings(mirror);
    assert_true(mirror->unmaps > 10);
    (void)!xseg_pool_resume(mirror->pool);
    env_free_all(allocator, block, sizeof(block));
}
