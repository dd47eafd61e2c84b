/* SPDX-License-Identifier: MIT */
/*
 * Merging of rings: the order of each ring is kept, sequence numbers ascend independently of the clocks, and times do
 * not decrease.
 *
 * Random traces are created in the order of events: each event is in one of the rings, and some events have a sequence number.
 * The times of the merged events are compared with those of a slow reference, which raises times that decrease.
 */
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/core/history/ring.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

#define RINGS_MAX  12u
#define EVENTS_MAX 400u

/* A trace.  The members of an event that identify it: `base` is its ring, `requested` its index in the ring. */
static struct trace {
    struct xseg_history_event event[RINGS_MAX][EVENTS_MAX];
    uint64_t raised[RINGS_MAX][EVENTS_MAX]; /* the time as raised by the reference */
    size_t count[RINGS_MAX];
    unsigned rings;
} trace, *const t = &trace;

static void add_event(unsigned ring, uint64_t time, uint32_t order)
{
    const size_t at = t->count[ring]++;

    assert_true(ring < t->rings && at < EVENTS_MAX);
    t->event[ring][at] =
        (struct xseg_history_event){.time = time, .base = ring, .requested = at, .order = order};
}

static struct xseg_history_merge begin_merge(void)
{
    struct xseg_history_merge merge;

    xseg_history_merge_init(&merge);
    for (unsigned ring = 0; ring < t->rings; ring++) {
        struct xseg_history_event *copy = malloc((t->count[ring] + 1) * sizeof(*copy));

        assert_non_null(copy);
        memcpy(copy, t->event[ring], t->count[ring] * sizeof(*copy));
        assert_true(xseg_history_merge_add(&merge, copy, NULL, t->count[ring]));
    }
    assert_true(xseg_history_merge_begin(&merge));
    return merge;
}

/* --- The reference. --- */

/* The raised time of the event with the preceding sequence number, or NULL. */
static const uint64_t *predecessor(uint32_t order)
{
    const uint64_t *time = NULL;
    uint32_t best = 0;

    for (unsigned ring = 0; ring < t->rings; ring++)
        for (size_t at = 0; at < t->count[ring]; at++)
            if (t->event[ring][at].order < order && t->event[ring][at].order > best) {
                best = t->event[ring][at].order;
                time = &t->raised[ring][at];
            }
    return time;
}

/* Raise times until no time changes. */
static void raise_by_reference(void)
{
    bool has_changed = true;

    for (unsigned ring = 0; ring < t->rings; ring++)
        for (size_t at = 0; at < t->count[ring]; at++)
            t->raised[ring][at] = t->event[ring][at].time;
    while (has_changed) {
        has_changed = false;
        for (unsigned ring = 0; ring < t->rings; ring++)
            for (size_t at = 0; at < t->count[ring]; at++) {
                const uint32_t order = t->event[ring][at].order;
                const uint64_t *before = order == 0 ? NULL : predecessor(order);
                uint64_t time = t->raised[ring][at];

                time = at == 0 ? time : xseg_max(time, t->raised[ring][at - 1]);
                time = before == NULL ? time : xseg_max(time, *before);
                has_changed = has_changed || time != t->raised[ring][at];
                t->raised[ring][at] = time;
            }
    }
}

/* Merge the rings, and expect the order and the times of the reference. */
static void expect_merged(void)
{
    struct xseg_history_merge merge = begin_merge();
    const struct xseg_history_event *event;
    size_t next[RINGS_MAX] = {0}, merged = 0, expected = 0;
    uint32_t order = 0;
    uint64_t time = 0;

    raise_by_reference();
    for (; (event = xseg_history_merge_next(&merge)) != NULL; merged++) {
        assert_true(event->base < t->rings);
        assert_int_equal(event->requested, next[event->base]++);
        assert_true(event->order == 0 || event->order > order);
        order = event->order == 0 ? order : event->order;
        const uint64_t raised = t->raised[event->base][event->requested];
        assert_true(raised >= time);
        assert_int_equal(event->time, raised);
        time = raised;
    }
    for (unsigned ring = 0; ring < t->rings; ring++)
        expected += t->count[ring];
    assert_int_equal(merged, expected);
    assert_null(xseg_history_merge_next(&merge));
    xseg_history_merge_fini(&merge);
}

/* Expect the rings of the merged events, as digits. */
static void expect_rings(const char *rings)
{
    struct xseg_history_merge merge = begin_merge();
    const struct xseg_history_event *event;
    char actual[64] = "";

    for (size_t i = 0; (event = xseg_history_merge_next(&merge)) != NULL; i++) {
        assert_true(i + 1 < sizeof(actual));
        actual[i] = (char)('0' + event->base);
    }
    assert_string_equal(actual, rings);
    xseg_history_merge_fini(&merge);
    expect_merged();
}

/* --- Fixed cases. --- */

/* Events of rings, each with its time and its sequence number or 0. */
static const struct {
    const char *merged;
    unsigned rings, count;
    struct {
        unsigned ring;
        uint64_t time;
        uint32_t order;
    } event[6];
} cases[] = {
    {"", 0, 0, {{0}}},
    {"", 3, 0, {{0}}},
    /* Times order events without sequence numbers. */
    {"01201", 3, 5, {{0, 10, 0}, {0, 40, 0}, {1, 20, 0}, {1, 50, 0}, {2, 30, 0}}},
    /* Memory moves from ring 1 to ring 0, where a slow CPU records an earlier time: sequence numbers override times. */
    {"121002", 3, 6, {{1, 100, 0}, {1, 110, 7}, {0, 90, 8}, {0, 95, 0}, {2, 105, 0}, {2, 120, 0}}},
    /* With a constant clock, an event without a sequence number follows the last number of its ring. */
    {"110010", 2, 6, {{0, 5, 2}, {0, 5, 0}, {1, 5, 1}, {1, 5, 0}, {1, 5, 3}, {0, 5, 4}}},
    /* An event without a sequence number has the last number of its ring, even at an earlier time. */
    {"1010", 2, 4, {{0, 5, 9}, {0, 10, 0}, {1, 5, 3}, {1, 10, 0}}},
    /* A ring with decreasing times keeps its order. */
    {"10010", 2, 5, {{0, 50, 0}, {0, 10, 0}, {0, 60, 0}, {1, 20, 0}, {1, 55, 0}}},
};

TEST(sequence_numbers_and_times_order_events)
{
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        memset(t, 0, sizeof(*t));
        t->rings = cases[i].rings;
        for (unsigned k = 0; k < cases[i].count; k++)
            add_event(cases[i].event[k].ring, cases[i].event[k].time, cases[i].event[k].order);
        expect_rings(cases[i].merged);
    }
}

/* --- Random traces. --- */

struct kind {
    unsigned numbered; /* of 16 events, this many have a sequence number */
    unsigned skew;     /* maximum difference between clocks of rings */
    unsigned step;     /* the clock advances by less than this; 1: it is constant */
    unsigned lost;     /* of 4 rings, this many lack their first events */
};

static void make_trace(const struct kind *kind, uint64_t *random)
{
    uint64_t skew[RINGS_MAX], time = 1000;
    uint32_t order = (uint32_t)(rng_next(random) % 5);
    const unsigned events = (unsigned)(rng_next(random) % EVENTS_MAX);

    memset(t, 0, sizeof(*t));
    t->rings = 1 + (unsigned)(rng_next(random) % RINGS_MAX);
    for (unsigned ring = 0; ring < t->rings; ring++)
        skew[ring] = rng_next(random) % (kind->skew + 1);
    for (unsigned i = 0; i < events; i++) {
        const unsigned ring = (unsigned)(rng_next(random) % t->rings);

        time += rng_next(random) % kind->step;
        add_event(ring, time + skew[ring], rng_next(random) % 16 < kind->numbered ? ++order : 0);
    }
    for (unsigned ring = 0; ring < t->rings; ring++) {
        const size_t lost =
            rng_next(random) % 4 < kind->lost ? rng_next(random) % (t->count[ring] + 1) : 0;

        t->count[ring] -= lost;
        memmove(t->event[ring], t->event[ring] + lost, t->count[ring] * sizeof(t->event[0][0]));
        for (size_t at = 0; at < t->count[ring]; at++)
            t->event[ring][at].requested = at;
    }
}

TEST(random_traces_are_merged_in_order)
{
    static const struct kind kinds[] = {
        {0, 0, 10, 0}, {4, 0, 10, 0}, {4, 0, 1, 0}, {4, 100, 10, 0}, {1, 1000, 3, 1},
        {8, 50, 2, 2}, {16, 5, 2, 3}, {3, 0, 2, 4}, {2, 20, 1, 1},
    };
    uint64_t random = 42;

    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        for (unsigned round = 0; round < 12; round++) {
            make_trace(&kinds[i], &random);
            expect_merged();
        }
}

TEST(correct_times_are_kept)
{
    uint64_t random = 4711;

    for (unsigned round = 0; round < 50; round++) {
        make_trace(&(struct kind){round % 17, 0, 1 + round % 3 * 5, round % 5}, &random);
        struct xseg_history_merge merge = begin_merge();
        const struct xseg_history_event *event;
        uint64_t time = 0;
        while ((event = xseg_history_merge_next(&merge)) != NULL) {
            assert_int_equal(event->time, t->event[event->base][event->requested].time);
            assert_true(event->time >= time);
            time = event->time;
        }
        xseg_history_merge_fini(&merge);
    }
}
