/* SPDX-License-Identifier: MIT */
/* Concurrent callbacks do not wait for each other. */
#include <pthread.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/ranges.h"
#include "xseg/register.h"

/* --- Two concurrent callbacks, each of which calls the library for the memory of the other callback. --- */

/*
 * A callback, its range of 16 granules, and its registration or observer.  Granules 0 and 2 are committed.  The thread of a
 * side decommits granule 0 or commits granule 4; the callback of the other side decommits granule 2 or commits granule 8.
 */
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
    xseg_status (*call)(struct side *peer);
};

struct env {
    const struct callback_case *callback;
    struct xseg_allocator *allocator;
    struct side side[2];
    pthread_barrier_t barrier;
    bool is_armed;
};

static _Thread_local bool has_called;

/* Wait until both callbacks run, then call the library for the memory of the other side, once in each thread. */
static void call_concurrently(struct side *side)
{
    struct env *env = side->env;

    if (!env->is_armed || has_called)
        return;
    has_called = true;
    (void)pthread_barrier_wait(&env->barrier);
    const xseg_status status = env->callback->call(&env->side[side == &env->side[0]]);
    if (status != XSEG_OK && status != XSEG_ERR_BUSY)
        _exit(1);
}

static bool enter(void *context, struct xseg_registered *run)
{
    struct side *side = context;

    (void)run;
    if (side->env->callback->by_enter)
        call_concurrently(side);
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    struct side *side = context;

    (void)run;
    if (!side->env->callback->by_enter)
        call_concurrently(side);
}

static void on_unmap(void *context, const struct xseg_mapping *mapping)
{
    struct side *side = context;

    if (mapping->base == info(side->range).base)
        call_concurrently(side);
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

static xseg_status commit_peer(struct side *peer)
{
    return xseg_range_commit(peer->range, 8 * PAGE, PAGE, NULL);
}

static xseg_status decommit_peer(struct side *peer)
{
    return xseg_range_decommit(peer->range, 2 * PAGE, PAGE, NULL);
}

static xseg_status unregister_peer(struct side *peer)
{
    const xseg_status status = xseg_unregister(peer->env->allocator, peer->registration);

    if (status == XSEG_OK)
        peer->registration = 0;
    return status;
}

static xseg_status remove_observer_of_peer(struct side *peer)
{
    const xseg_status status = xseg_observer_remove(peer->env->allocator, peer->observer);

    if (status == XSEG_OK)
        peer->observer = 0;
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
    for (unsigned granule = 0; granule < 16; granule++) {
        const xseg_status status = xseg_range_decommit(side->range, granule * PAGE, PAGE, NULL);

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
    assert_int_equal(pthread_barrier_init(&env.barrier, NULL, 2), 0);
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
    (void)pthread_barrier_destroy(&env.barrier);
    env_close(env.allocator);
}

int main(int argc, char **argv)
{
    static const struct callback_case callbacks[] = {
        {"memory_is_mapped_in_two_leaves", .call = commit_peer},
        {"memory_is_mapped_in_two_enters", .by_enter = true, .call = commit_peer},
        {"memory_is_unmapped_in_two_leaves", .call = decommit_peer},
        {"memory_is_unmapped_in_two_enters", .by_enter = true, .call = decommit_peer},
        {"memory_is_mapped_in_two_observers", .observes = true, .call = commit_peer},
        {"registrations_end_in_two_leaves", .call = unregister_peer},
        {"registrations_end_in_two_enters", .by_enter = true, .call = unregister_peer},
        {"observers_end_in_two_observers", .observes = true, .call = remove_observer_of_peer},
    };
    struct child_case cases[COUNT_OF(callbacks)];

    for (size_t i = 0; i < COUNT_OF(cases); i++)
        cases[i] = (struct child_case){callbacks[i].name, run_concurrent_callbacks, &callbacks[i]};
    return child_case_main(argc, argv, cases, COUNT_OF(cases));
}
