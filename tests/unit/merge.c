/* SPDX-License-Identifier: MIT */
/*
 * Merging of rings: the order of each ring is kept, sequence numbers ascend independently of the clocks, and times do
 * not decrease.
 *
 * Random traces are created in the order of events: each event is in some ring, and some events have a sequence number.
 * The merged events are compared with times that a slow reference has raised.
 */
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/core/history/ring.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

#define RINGS_MOST  12u
#define EVENTS_MOST 400u

/* An event as recorded, and its identity: `base` is its ring, `requested` its index there. */
static struct program {
    struct xseg_history_event event[RINGS_MOST][EVENTS_MOST];
    uint64_t raised[RINGS_MOST][EVENTS_MOST]; /* the time as raised by the reference */
    size_t count[RINGS_MOST];
    unsigned rings;
} program, *const p = &program;

static void put(unsigned ring, uint64_t time, uint32_t order)
{
    const size_t at = p->count[ring]++;

    assert_true(ring < p->rings && at < EVENTS_MOST);
    p->event[ring][at] =
        (struct xseg_history_event){.time = time, .base = ring, .requested = at, .order = order};
}

static struct xseg_history_merge begin(void)
{
    struct xseg_history_merge merge;

    xseg_history_merge_init(&merge);
    for (unsigned ring = 0; ring < p->rings; ring++) {
        struct xseg_history_event *copy = malloc((p->count[ring] + 1) * sizeof(*copy));

        assert_non_null(copy);
        memcpy(copy, p->event[ring], p->count[ring] * sizeof(*copy));
        assert_true(xseg_history_merge_add(&merge, copy, NULL, p->count[ring]));
    }
    assert_true(xseg_history_merge_begin(&merge));
    return merge;
}

/* --- The reference. --- */

/* The event with the preceding sequence number, or NULL. */
static const uint64_t *predecessor(uint32_t order)
{
    const uint64_t *time = NULL;
    uint32_t best = 0;

    for (unsigned ring = 0; ring < p->rings; ring++)
        for (size_t at = 0; at < p->count[ring]; at++)
            if (p->event[ring][at].order < order && p->event[ring][at].order > best) {
                best = p->event[ring][at].order;
                time = &p->raised[ring][at];
            }
    return time;
}

/* Raise times until no time changes. */
static void raise_by_reference(void)
{
    bool has_changed = true;

    for (unsigned ring = 0; ring < p->rings; ring++)
        for (size_t at = 0; at < p->count[ring]; at++)
            p->raised[ring][at] = p->event[ring][at].time;
    while (has_changed) {
        has_changed = false;
        for (unsigned ring = 0; ring < p->rings; ring++)
            for (size_t at = 0; at < p->count[ring]; at++) {
                const uint32_t order = p->event[ring][at].order;
                const uint64_t *before = order == 0 ? NULL : predecessor(order);
                uint64_t time = p->raised[ring][at];

                time = at == 0 ? time : xseg_max(time, p->raised[ring][at - 1]);
                time = before == NULL ? time : xseg_max(time, *before);
                has_changed = has_changed || time != p->raised[ring][at];
                p->raised[ring][at] = time;
            }
    }
}

/* Merge, and check the invariants of every merge. */
static void expect_merged(void)
{
    struct xseg_history_merge merge = begin();
    const struct xseg_history_event *event;
    size_t next[RINGS_MOST] = {0}, merged = 0, expected = 0;
    uint32_t order = 0;
    uint64_t time = 0;

    raise_by_reference();
    for (; (event = xseg_history_merge_next(&merge)) != NULL; merged++) {
        assert_true(event->base < p->rings);
        assert_int_equal(event->requested, next[event->base]++);
        assert_true(event->order == 0 || event->order > order);
        order = event->order == 0 ? order : event->order;
        const uint64_t raised = p->raised[event->base][event->requested];
        assert_true(raised >= time);
        assert_int_equal(event->time, raised);
        time = raised;
    }
    for (unsigned ring = 0; ring < p->rings; ring++)
        expected += p->count[ring];
    assert_int_equal(merged, expected);
    assert_null(xseg_history_merge_next(&merge));
    xseg_history_merge_fini(&merge);
}

/* Expect the rings of the merged events, as digits. */
static void expect_rings(const char *rings)
{
    struct xseg_history_merge merge = begin();
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
    /* With a constant clock an event follows the sequence numbers that its ring has had. */
    {"110010", 2, 6, {{0, 5, 2}, {0, 5, 0}, {1, 5, 1}, {1, 5, 0}, {1, 5, 3}, {0, 5, 4}}},
    /* An event without a sequence number has the last number of its ring, even at an earlier time. */
    {"1010", 2, 4, {{0, 5, 9}, {0, 10, 0}, {1, 5, 3}, {1, 10, 0}}},
    /* A ring with decreasing times keeps its order. */
    {"10010", 2, 5, {{0, 50, 0}, {0, 10, 0}, {0, 60, 0}, {1, 20, 0}, {1, 55, 0}}},
};

TEST(sequence_numbers_and_times_order_events)
{
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        memset(p, 0, sizeof(*p));
        p->rings = cases[i].rings;
        for (unsigned k = 0; k < cases[i].count; k++)
            put(cases[i].event[k].ring, cases[i].event[k].time, cases[i].event[k].order);
        expect_rings(cases[i].merged);
    }
}

/* --- Random traces. --- */

struct kind {
    unsigned numbered; /* of 16 events, with a sequence number */
    unsigned skew;     /* maximum difference between clocks of rings */
    unsigned step;     /* the clock advances by less than this; 1: it is constant */
    unsigned lost;     /* of 4 rings, without their first events */
};

static void make_trace(const struct kind *kind, uint64_t *random)
{
    uint64_t skew[RINGS_MOST], time = 1000;
    uint32_t order = (uint32_t)(rng_next(random) % 5);
    const unsigned events = (unsigned)(rng_next(random) % EVENTS_MOST);

    memset(p, 0, sizeof(*p));
    p->rings = 1 + (unsigned)(rng_next(random) % RINGS_MOST);
    for (unsigned ring = 0; ring < p->rings; ring++)
        skew[ring] = rng_next(random) % (kind->skew + 1);
    for (unsigned i = 0; i < events; i++) {
        const unsigned ring = (unsigned)(rng_next(random) % p->rings);

        time += rng_next(random) % kind->step;
        put(ring, time + skew[ring], rng_next(random) % 16 < kind->numbered ? ++order : 0);
    }
    for (unsigned ring = 0; ring < p->rings; ring++) {
        const size_t lost =
            rng_next(random) % 4 < kind->lost ? rng_next(random) % (p->count[ring] + 1) : 0;

        p->count[ring] -= lost;
        memmove(p->event[ring], p->event[ring] + lost, p->count[ring] * sizeof(p->event[0][0]));
        for (size_t at = 0; at < p->count[ring]; at++)
            p->event[ring][at].requested = at;
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
        struct xseg_history_merge merge = begin();
        const struct xseg_history_event *event;
        uint64_t time = 0;
        while ((event = xseg_history_merge_next(&merge)) != NULL) {
            assert_int_equal(event->time, p->event[event->base][event->requested].time);
            assert_true(event->time >= time);
            time = event->time;
        }
        xseg_history_merge_fini(&merge);
    }
}
