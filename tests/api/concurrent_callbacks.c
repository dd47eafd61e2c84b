/* SPDX-License-Identifier: MIT */
/*
 * Callbacks of several threads at the same time do not wait for each other, and two threads that register the same
 * range see the same memory.
 */
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/child.h"
#include "tests/support/ranges.h"
#include "xseg/register.h"

/* --- Two callbacks at a time, each of which calls the library about what the other one is called for. --- */

struct side {
    struct env *env;
    struct xseg_range *range;
    uint64_t registration, observer;
};

/* What a callback does with the other thread. */
typedef xseg_status action(struct side *other);

struct env {
    struct xseg_allocator *allocator;
    struct side side[2];
    pthread_barrier_t both;
    bool is_armed;
    bool by_enter; /* the callbacks are `enter`; else `leave` or `on_unmap` */
    action *act;
    unsigned allowed; /* statuses of `act`: bit 0 XSEG_OK, bit 1 XSEG_ERR_BUSY */
};

static _Thread_local bool was_here;

/* Meet the other callback, and act while it is in its function. */
static void meet(struct side *side)
{
    struct env *env = side->env;

    if (!env->is_armed || was_here)
        return;
    was_here = true;
    (void)pthread_barrier_wait(&env->both);
    const xseg_status status = env->act(&env->side[side == &env->side[0]]);
    if ((status != XSEG_OK || (env->allowed & 1) == 0) &&
        (status != XSEG_ERR_BUSY || (env->allowed & 2) == 0))
        _exit(1);
}

static bool enter(void *context, struct xseg_registered *run)
{
    struct side *side = context;

    (void)run;
    if (side->env->by_enter)
        meet(side);
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    struct side *side = context;

    (void)run;
    if (!side->env->by_enter)
        meet(side);
}

static void leaving(void *context, const struct xseg_mapping *mapping)
{
    struct side *side = context;

    if (mapping->base == info(side->range).base)
        meet(side);
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

static xseg_status commit_beneath(struct side *other)
{
    return xseg_range_commit(other->range, 8 * PAGE, PAGE, NULL);
}

static xseg_status decommit_beneath(struct side *other)
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

static void open_side(struct side *side, bool observes)
{
    struct xseg_allocator *allocator = side->env->allocator;
    struct xseg_registrar registrar = {sizeof(registrar)};
    struct xseg_observer observer = {sizeof(observer)};

    assert_ok(xseg_range_reserve(allocator, 0, 16 * PAGE, NULL, &side->range));
    commit(side->range, 0, 1, NULL);
    commit(side->range, 2, 1, NULL);
    observer.context = registrar.context = side;
    observer.on_unmap = leaving;
    registrar.enter = enter;
    registrar.leave = leave;
    if (observes)
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

static void meet_in(bool by_enter, bool observes, action *act, unsigned allowed)
{
    static struct env env;
    pthread_t thread[2];

    env = (struct env){.by_enter = by_enter, .act = act, .allowed = allowed};
    env.allocator = env_open("rdma:True");
    assert_int_equal(pthread_barrier_init(&env.both, NULL, 2), 0);
    for (unsigned i = 0; i < 2; i++) {
        env.side[i].env = &env;
        open_side(&env.side[i], observes);
    }
    env.is_armed = true;
    child_case_begin();
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(
            pthread_create(&thread[i], NULL, by_enter ? commit_side : decommit_side, &env.side[i]),
            0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    env.is_armed = false;
    for (unsigned i = 0; i < 2; i++)
        close_side(&env.side[i]);
    (void)pthread_barrier_destroy(&env.both);
    env_close(env.allocator);
}

static void memory_is_mapped_in_two_leaves(const void *argument)
{
    (void)argument;
    meet_in(false, false, commit_beneath, 3);
}

static void memory_is_mapped_in_two_enters(const void *argument)
{
    (void)argument;
    meet_in(true, false, commit_beneath, 3);
}

static void memory_is_unmapped_in_two_leaves(const void *argument)
{
    (void)argument;
    meet_in(false, false, decommit_beneath, 3);
}

static void memory_is_unmapped_in_two_enters(const void *argument)
{
    (void)argument;
    meet_in(true, false, decommit_beneath, 3);
}

static void memory_is_mapped_in_two_observers(const void *argument)
{
    (void)argument;
    meet_in(false, true, commit_beneath, 3);
}

static void registrations_end_in_two_leaves(const void *argument)
{
    (void)argument;
    meet_in(false, false, unregister, 3);
}

static void registrations_end_in_two_enters(const void *argument)
{
    (void)argument;
    meet_in(true, false, unregister, 3);
}

static void observers_end_in_two_observers(const void *argument)
{
    (void)argument;
    meet_in(false, true, unobserve, 3);
}

#define CASE(name)        \
    {                     \
#name, name, NULL \
    }

int main(int argc, char **argv)
{
    static const struct child_case cases[] = {
        CASE(memory_is_mapped_in_two_leaves),    CASE(memory_is_mapped_in_two_enters),
        CASE(memory_is_unmapped_in_two_leaves),  CASE(memory_is_unmapped_in_two_enters),
        CASE(memory_is_mapped_in_two_observers), CASE(registrations_end_in_two_leaves),
        CASE(registrations_end_in_two_enters),   CASE(observers_end_in_two_observers),
    };

    return child_case_main(argc, argv, cases, COUNT_OF(cases));
}
