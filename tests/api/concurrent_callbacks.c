/* SPDX-License-Identifier: MIT */
/* Concurrent callbacks do not wait for each other, and two threads that register one range see the same memory. */
#include <pthread.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/ranges.h"
#include "xseg/register.h"

/* --- Two concurrent callbacks, each of which calls the library for the memory of the other callback. --- */

struct side {
    struct env *env;
    struct xseg_range *range;
    uint64_t registration, observer;
};

/* A callback, and its call for the other side. */
struct callback_case {
    const char *name;
    bool by_enter; /* the callbacks are `enter`; else `leave` or `on_unmap` */
    bool observes;
    xseg_status (*act)(struct side *other);
};

struct env {
    const struct callback_case *callback;
    struct xseg_allocator *allocator;
    struct side side[2];
    pthread_barrier_t both;
    bool is_armed;
};

static _Thread_local bool has_met;

/* Wait until the other callback runs, and act while it runs. */
static void wait_for_other_callback(struct side *side)
{
    struct env *env = side->env;

    if (!env->is_armed || has_met)
        return;
    has_met = true;
    (void)pthread_barrier_wait(&env->both);
    const xseg_status status = env->callback->act(&env->side[side == &env->side[0]]);
    if (status != XSEG_OK && status != XSEG_ERR_BUSY)
        _exit(1);
}

static bool enter(void *context, struct xseg_registered *run)
{
    struct side *side = context;

    (void)run;
    if (side->env->callback->by_enter)
        wait_for_other_callback(side);
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    struct side *side = context;

    (void)run;
    if (!side->env->callback->by_enter)
        wait_for_other_callback(side);
}

static void on_unmap(void *context, const struct xseg_mapping *mapping)
{
    struct side *side = context;

    if (mapping->base == info(side->range).base)
        wait_for_other_callback(side);
}

static void *commit_side(void *context)
{
    const struct side *side = context;

    commit(side->range, 4, 1, NULL);
    return NULL;
}

static void *decommit_side(void *context)
{
    const struct side *side = context;

    decommit(side->range, 0, 1, NULL);
    return NULL;
}

static xseg_status commit_other(struct side *other)
{
    return xseg_range_commit(other->range, 8 * PAGE, PAGE, NULL);
}

static xseg_status decommit_other(struct side *other)
{
    return xseg_range_decommit(other->range, 2 * PAGE, PAGE, NULL);
}

static xseg_status unregister(struct side *other)
{
    const xseg_status status = xseg_unregister(other->env->allocator, other->registration);

    if (status == XSEG_OK)
        other->registration = 0;
    return status;
}

static xseg_status unobserve(struct side *other)
{
    const xseg_status status = xseg_observer_remove(other->env->allocator, other->observer);

    if (status == XSEG_OK)
        other->observer = 0;
    return status;
}

static void open_side(struct side *side)
{
    struct xseg_allocator *allocator = side->env->allocator;
    const struct xseg_registrar registrar = {sizeof(registrar), .context = side, .enter = enter,
                                             .leave = leave};
    const struct xseg_observer observer = {sizeof(observer), .context = side, .on_unmap = on_unmap};

    assert_ok(xseg_range_reserve(allocator, 0, 16 * PAGE, NULL, &side->range));
    commit(side->range, 0, 1, NULL);
    commit(side->range, 2, 1, NULL);
    if (side->env->callback->observes)
        assert_ok(xseg_observer_add(allocator, &observer, &side->observer));
    else
        assert_ok(xseg_register(allocator, info(side->range).base, 16 * PAGE, &registrar,
                                &side->registration));
}

static void close_side(struct side *side)
{
    struct xseg_allocator *allocator = side->env->allocator;

    if (side->registration != 0)
        assert_ok(xseg_unregister(allocator, side->registration));
    if (side->observer != 0)
        assert_ok(xseg_observer_remove(allocator, side->observer));
    for (unsigned at = 0; at < 16; at++) {
        const xseg_status status = xseg_range_decommit(side->range, at * PAGE, PAGE, NULL);

        assert_true(status == XSEG_OK || status == XSEG_ERR_ARGUMENT);
    }
    release(side->range);
}

static void run_concurrent_callbacks(const void *argument)
{
    static struct env env;
    pthread_t thread[2];

    env.callback = argument;
    env.allocator = env_open("rdma:True");
    assert_int_equal(pthread_barrier_init(&env.both, NULL, 2), 0);
    for (unsigned i = 0; i < 2; i++) {
        env.side[i].env = &env;
        open_side(&env.side[i]);
    }
    env.is_armed = true;
    child_case_begin();
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL,
                                        env.callback->by_enter ? commit_side : decommit_side,
                                        &env.side[i]),
                         0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    env.is_armed = false;
    for (unsigned i = 0; i < 2; i++)
        close_side(&env.side[i]);
    (void)pthread_barrier_destroy(&env.both);
    env_close(env.allocator);
}

int main(int argc, char **argv)
{
    static const struct callback_case callbacks[] = {
        {"memory_is_mapped_in_two_leaves", .act = commit_other},
        {"memory_is_mapped_in_two_enters", .by_enter = true, .act = commit_other},
        {"memory_is_unmapped_in_two_leaves", .act = decommit_other},
        {"memory_is_unmapped_in_two_enters", .by_enter = true, .act = decommit_other},
        {"memory_is_mapped_in_two_observers", .observes = true, .act = commit_other},
        {"registrations_end_in_two_leaves", .act = unregister},
        {"registrations_end_in_two_enters", .by_enter = true, .act = unregister},
        {"observers_end_in_two_observers", .observes = true, .act = unobserve},
    };
    struct child_case cases[COUNT_OF(callbacks)];

    for (size_t i = 0; i < COUNT_OF(cases); i++)
        cases[i] = (struct child_case){callbacks[i].name, run_concurrent_callbacks, &callbacks[i]};
    return child_case_main(argc, argv, cases, COUNT_OF(cases));
}
