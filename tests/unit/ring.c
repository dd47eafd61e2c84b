/* SPDX-License-Identifier: MIT */
/* Rings of events, compared with a list; and readers concurrent with a writer. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/core/history/ring.h"
#include "tests/support/audit.h"
#include "tests/support/rng.h"

/* An event in which every word depends on its number. */
static struct xseg_history_event event_of(uint64_t number)
{
    const uint64_t hash = number * UINT64_C(0x9E3779B97F4A7C15) + 1;

    return (struct xseg_history_event){
        .time = number,
        .base = hash,
        .requested = ~hash,
        .stream = hash ^ 0x5555,
        .size = hash & XSEG_HISTORY_SIZE_MASK,
        .order = (uint32_t)hash,
        .pool = (uint32_t)(hash >> 32),
        .stack = (uint32_t)(hash >> 8),
        .frames = (uint32_t)(hash >> 16),
        .label = (uint32_t)~hash,
        .thread = (uint32_t)(~hash >> 32),
        .flags = (uint16_t)(hash >> 40 & ~(uint64_t)XSEG_HISTORY_HAS_USER),
        .action = (uint8_t)(hash >> 48),
    };
}

static uint64_t user_of(uint64_t number)
{
    return event_of(number).base * 3;
}

/* Whether an event has a number; its `user` is 0 in a ring without user values. */
static bool is_event(const struct xseg_history_event *event, uint64_t user, uint64_t number,
                     bool has_users)
{
    const struct xseg_history_event expected = event_of(number);

    return user == (has_users ? user_of(number) : 0) && event->time == expected.time &&
           event->base == expected.base && event->requested == expected.requested &&
           event->stream == expected.stream && event->size == expected.size &&
           event->order == expected.order && event->pool == expected.pool &&
           event->stack == expected.stack && event->frames == expected.frames &&
           event->label == expected.label && event->thread == expected.thread &&
           event->flags == (expected.flags | (has_users ? XSEG_HISTORY_HAS_USER : 0)) &&
           event->action == expected.action;
}

/* Each member has separate bits among the words. */
TEST(event_is_decoded_from_its_words)
{
    static const struct xseg_history_event members[] = {
        {.time = UINT64_MAX},
        {.base = UINT64_MAX},
        {.requested = UINT64_MAX},
        {.stream = UINT64_MAX},
        {.size = XSEG_HISTORY_SIZE_MASK},
        {.order = UINT32_MAX},
        {.pool = UINT32_MAX},
        {.stack = UINT32_MAX},
        {.frames = UINT32_MAX},
        {.label = UINT32_MAX},
        {.thread = UINT32_MAX},
        {.flags = UINT16_MAX},
        {.action = UINT8_MAX},
    };
    atomic_uint_fast64_t words[XSEG_HISTORY_EVENT_WORDS];
    uint64_t copy[XSEG_HISTORY_EVENT_WORDS], used[XSEG_HISTORY_EVENT_WORDS] = {0};

    for (size_t i = 0; i < COUNT_OF(members); i++) {
        uint64_t bits = 0;

        xseg_history_event_write(&members[i], words);
        for (size_t k = 0; k < XSEG_HISTORY_EVENT_WORDS; k++) {
            copy[k] = atomic_load(&words[k]);
            assert_int_equal(copy[k] & used[k], 0);
            used[k] |= copy[k];
            bits += (uint64_t)__builtin_popcountll(copy[k]);
        }
        assert_true(bits >= 8);
        const struct xseg_history_event decoded = xseg_history_event_read(copy);
        assert_memory_equal(&decoded, &members[i], sizeof(decoded));
    }
    for (uint64_t number = 0; number < 1000; number++) {
        const struct xseg_history_event event = event_of(number);

        xseg_history_event_write(&event, words);
        for (size_t k = 0; k < XSEG_HISTORY_EVENT_WORDS; k++)
            copy[k] = atomic_load(&words[k]);
        const struct xseg_history_event decoded = xseg_history_event_read(copy);
        assert_true(is_event(&decoded, 0, number, false));
    }
}

/* Record events with the next numbers. */
static void append(struct xseg_history_ring *ring, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t number = atomic_load(&ring->recorded);
        const struct xseg_history_event event = event_of(number);

        xseg_history_ring_append_with_user(ring, &event, user_of(number));
    }
}

/* Expect that a reader can read exactly the events from `first` up to `end`. */
static void expect_kept(const struct xseg_history_ring *ring, uint64_t first, uint64_t end,
                        uint64_t lost)
{
    struct xseg_history_event event;
    uint64_t actual_first = UINT64_MAX, actual_end = UINT64_MAX, user = 0;

    xseg_history_ring_range(ring, &actual_first, &actual_end);
    assert_int_equal(actual_first, first);
    assert_int_equal(actual_end, end);
    for (uint64_t number = first; number < end; number++) {
        assert_true(xseg_history_ring_read_with_user(ring, number, &event, &user));
        assert_true(is_event(&event, user, number, ring->users != NULL));
    }
    assert_int_equal(xseg_history_ring_lost(ring, first), lost);
    expect_audit(xseg_history_ring_audit(ring, &violation), NULL);
}

static struct xseg_history_ring *create_ring(uint64_t capacity, bool has_users)
{
    struct xseg_history_ring *ring = xseg_history_ring_create(capacity);

    assert_non_null(ring);
    assert_true(!has_users || xseg_history_ring_add_users(ring));
    return ring;
}

TEST(newest_events_are_kept)
{
    static const uint64_t capacities[] = {1, 2, 3, 16, 1000, 5000};
    static const uint64_t counts[] = {0, 1, 2, 3, 4, 15, 16, 17, 18, 999, 1001, 4097, 12345};

    for (size_t i = 0; i < COUNT_OF(capacities); i++)
        for (size_t k = 0; k < 2 * COUNT_OF(counts); k++) {
            const uint64_t count = counts[k / 2], kept = xseg_min(count, capacities[i]);
            struct xseg_history_ring *ring = create_ring(capacities[i], k % 2 != 0);

            append(ring, count);
            expect_kept(ring, count - kept, count, count - kept);
            xseg_history_ring_destroy(ring);
        }
}

/* An overwritten event is not read, and neither is the one in the slot that is written next. */
TEST(overwritten_events_are_not_read)
{
    struct xseg_history_ring *ring = xseg_history_ring_create(4);
    struct xseg_history_event event;

    append(ring, 5);
    assert_false(xseg_history_ring_read(ring, 0, &event));
    for (uint64_t number = 1; number < 5; number++)
        assert_true(xseg_history_ring_read(ring, number, &event));
    append(ring, 6);
    for (uint64_t number = 0; number < 7; number++)
        assert_false(xseg_history_ring_read(ring, number, &event));
    for (uint64_t number = 7; number < 11; number++)
        assert_true(xseg_history_ring_read(ring, number, &event) &&
                    is_event(&event, 0, number, false));
    xseg_history_ring_destroy(ring);
}

TEST(cleared_events_are_not_counted_as_lost)
{
    struct xseg_history_ring *ring = xseg_history_ring_create(10);

    append(ring, 25);
    expect_kept(ring, 15, 25, 15);
    xseg_history_ring_clear(ring, 20);
    expect_kept(ring, 20, 25, 0);
    /* A clear of fewer events changes nothing. */
    xseg_history_ring_clear(ring, 3);
    expect_kept(ring, 20, 25, 0);
    append(ring, 5);
    expect_kept(ring, 20, 30, 0);
    append(ring, 3);
    expect_kept(ring, 23, 33, 3);
    xseg_history_ring_clear(ring, 33);
    expect_kept(ring, 33, 33, 0);
    append(ring, 1);
    expect_kept(ring, 33, 34, 0);
    xseg_history_ring_destroy(ring);
}

TEST(a_ring_grows_and_shrinks)
{
    for (int has_users = 0; has_users < 2; has_users++) {
        struct xseg_history_event event;
        struct xseg_history_ring *ring = create_ring(8, has_users != 0);

        append(ring, 20);
        assert_true(xseg_history_ring_resize(ring, 100));
        assert_int_equal(ring->capacity, 100);
        expect_kept(ring, 12, 20, 12);
        append(ring, 92);
        expect_kept(ring, 12, 112, 12);
        append(ring, 1);
        expect_kept(ring, 13, 113, 13);
        /* Events that do not fit into a smaller ring are lost, and remain lost when the ring grows again. */
        assert_true(xseg_history_ring_resize(ring, 3));
        expect_kept(ring, 110, 113, 110);
        assert_true(xseg_history_ring_resize(ring, 50));
        expect_kept(ring, 110, 113, 110);
        /* A reader may still have an earlier number. */
        assert_false(xseg_history_ring_read(ring, 109, &event));
        assert_true(xseg_history_ring_read(ring, 110, &event));
        assert_true(xseg_history_ring_resize(ring, 1));
        expect_kept(ring, 112, 113, 112);
        append(ring, 7);
        expect_kept(ring, 119, 120, 119);
        assert_int_equal(ring->users != NULL, has_users);
        xseg_history_ring_destroy(ring);
    }
}

/* Earlier events have no `user`; events without one do not inherit that of an earlier event in their slot. */
TEST(user_values_are_those_of_later_events)
{
    struct xseg_history_ring *ring = create_ring(9, false);
    struct xseg_history_event event;
    uint64_t user = 0;

    append(ring, 5);
    assert_true(xseg_history_ring_add_users(ring));
    append(ring, 4);
    for (unsigned round = 0; round < 2; round++) {
        for (uint64_t number = round == 0 ? 0 : 3; number < 9; number++) {
            assert_true(xseg_history_ring_read_with_user(ring, number, &event, &user));
            assert_true(is_event(&event, user, number, number >= 5));
        }
        assert_true(xseg_history_ring_resize(ring, 6));
    }
    for (uint64_t number = 9; number < 30; number++) {
        event = event_of(number);
        if (number % 2 != 0)
            xseg_history_ring_append_with_user(ring, &event, 0);
        else
            xseg_history_ring_append(ring, &event);
        assert_true(xseg_history_ring_read_with_user(ring, number, &event, &user));
        assert_true(is_event(&event, user, number, false));
    }
    xseg_history_ring_destroy(ring);
}

TEST(random_sequences_keep_the_newest_events)
{
    uint64_t random = 20261;

    for (unsigned round = 0; round < 200; round++) {
        struct xseg_history_ring *ring = create_ring(1 + rng_next(&random) % 40, round % 2 != 0);
        uint64_t first = 0, cleared = 0;

        for (unsigned step = 0; step < 60; step++) {
            switch (rng_next(&random) % 4) {
            case 0:
                assert_true(xseg_history_ring_resize(ring, 1 + rng_next(&random) % 80));
                break;
            case 1:
                cleared += rng_next(&random) % (atomic_load(&ring->recorded) - cleared + 1);
                xseg_history_ring_clear(ring, cleared);
                break;
            default:
                append(ring, rng_next(&random) % 30);
                break;
            }
            const uint64_t recorded = atomic_load(&ring->recorded);
            first = xseg_max(first, recorded - xseg_min(recorded, ring->capacity));
            first = xseg_max(first, cleared);
            expect_kept(ring, first, recorded, first - cleared);
        }
        xseg_history_ring_destroy(ring);
    }
}

TEST(memory_is_allocated_as_events_are_recorded)
{
    struct xseg_history_ring *ring = xseg_history_ring_create(UINT64_C(1) << 24);

    assert_non_null(ring);
    append(ring, 100);
    expect_kept(ring, 0, 100, 0);
    const uint64_t bytes = xseg_history_ring_host_bytes(ring);
    assert_in_range(bytes, 100 * 64, 1 << 20);
    xseg_history_ring_clear(ring, 100);
    assert_true(xseg_history_ring_add_users(ring));
    append(ring, 100);
    expect_kept(ring, 100, 200, 0);
    assert_in_range(xseg_history_ring_host_bytes(ring), bytes + 100 * sizeof(uint64_t), 1 << 20);
    xseg_history_ring_destroy(ring);
    xseg_history_ring_destroy(NULL);
}

/* --- Readers concurrent with a writer. --- */

struct shared {
    struct xseg_history_ring *ring;
    pthread_mutex_t history; /* as the lock HISTORY */
    bool resizes;
    atomic_bool stop;
    uint64_t reads, misses, passes;
    uint64_t torn;      /* events that were read in part; and failed resizes */
    uint64_t too_early; /* events that were overwritten while the ring must keep them */
};

static void *append_until_stopped(void *self)
{
    struct shared *shared = self;
    uint64_t random = 7;

    for (uint64_t number = 0; !atomic_load(&shared->stop); number++) {
        const struct xseg_history_event event = event_of(number);

        if (shared->resizes && number % 1024 == 0) {
            (void)pthread_mutex_lock(&shared->history);
            if (!xseg_history_ring_resize(shared->ring, 1 + rng_next(&random) % 300))
                shared->torn++;
            (void)pthread_mutex_unlock(&shared->history);
        }
        xseg_history_ring_append_with_user(shared->ring, &event, user_of(number));
    }
    return NULL;
}

/* Read all available events once. */
static void read_all(struct shared *shared)
{
    struct xseg_history_event event;
    uint64_t first = 0, end = 0, user = 0;

    (void)pthread_mutex_lock(&shared->history);
    xseg_history_ring_range(shared->ring, &first, &end);
    for (uint64_t number = first; number < end; number++) {
        if (xseg_history_ring_read_with_user(shared->ring, number, &event, &user)) {
            shared->reads++;
            shared->torn += !is_event(&event, user, number, shared->ring->users != NULL);
        } else {
            shared->misses++;
            /* An event may be overwritten only after as many later events as the capacity. */
            shared->too_early +=
                atomic_load(&shared->ring->recorded) - number <= shared->ring->capacity;
        }
    }
    shared->passes++;
    (void)pthread_mutex_unlock(&shared->history);
}

static void read_concurrently(uint64_t capacity, bool resizes, bool has_users)
{
    struct shared shared = {.ring = create_ring(capacity, has_users), .resizes = resizes};
    pthread_t writer;

    (void)pthread_mutex_init(&shared.history, NULL);
    assert_int_equal(pthread_create(&writer, NULL, append_until_stopped, &shared), 0);
    /* The writer may overtake the reader, which then misses all events of a pass. */
    while (shared.reads + shared.misses < 100000 || atomic_load(&shared.ring->recorded) < 500000)
        read_all(&shared);
    atomic_store(&shared.stop, true);
    assert_int_equal(pthread_join(writer, NULL), 0);
    assert_int_equal(shared.torn, 0);
    assert_int_equal(shared.too_early, 0);
    const uint64_t recorded = atomic_load(&shared.ring->recorded);
    uint64_t first = 0, end = 0;
    xseg_history_ring_range(shared.ring, &first, &end);
    assert_int_equal(end, recorded);
    assert_true(end - first <= shared.ring->capacity);
    if (!resizes)
        assert_int_equal(end - first, xseg_min(recorded, capacity));
    expect_kept(shared.ring, first, end, first);
    print_message("# %llu read, %llu overwritten concurrently, in %llu passes\n",
                  (unsigned long long)shared.reads, (unsigned long long)shared.misses,
                  (unsigned long long)shared.passes);
    (void)pthread_mutex_destroy(&shared.history);
    xseg_history_ring_destroy(shared.ring);
}

TEST(no_event_is_read_in_part)
{
    static const uint64_t capacities[] = {1, 2, 16, 500};

    for (size_t i = 0; i < 2 * COUNT_OF(capacities); i++)
        read_concurrently(capacities[i / 2], false, i % 2 != 0);
}

TEST(ring_is_resized_with_concurrent_readers)
{
    read_concurrently(16, true, false);
    read_concurrently(16, true, true);
}

/* --- The audit. --- */

static void expect_ring_audit(const struct xseg_history_ring *ring, const char *tag)
{
    expect_audit(xseg_history_ring_audit(ring, &violation), tag);
}

TEST(audit_reports_the_violated_invariant)
{
    struct xseg_history_ring *ring = xseg_history_ring_create(8);
    struct xseg_history_event earlier = event_of(3);

    append(ring, 6);
    WITH_VALUE(ring->cleared, 7, expect_ring_audit(ring, "RING-1"));
    WITH_VALUE(ring->dropped, 7, expect_ring_audit(ring, "RING-1"));
    xseg_history_ring_append(ring, &earlier);
    expect_ring_audit(ring, "RING-2");
    /* An empty ring has no order. */
    xseg_history_ring_clear(ring, 7);
    expect_kept(ring, 7, 7, 0);
    xseg_history_ring_destroy(ring);
}
