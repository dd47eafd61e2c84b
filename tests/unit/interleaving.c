/* SPDX-License-Identifier: MIT */
/*
 * Interactions of two threads: one thread is blocked where another must wait for it or retry because of it.
 *
 * A thread is parked in a callback or in pthread_mutex_lock(), which the linker redirects (--wrap). The wait of the
 * other thread is detected by the system call in which it waits. unit/instruction_steps parks a thread at any instruction.
 */
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>

#include "src/core/instance/instance.h"
#include "tests/support/allocator.h"
#include "tests/support/wrapped.h"

/* --- Wrapped functions. --- */

static atomic_uint yields;        /* calls of sched_yield() by the library */
static atomic_uint cond_waits;    /* calls of pthread_cond_wait() */
static atomic_uint barriers;      /* membarrier(), private expedited */
static atomic_uint sleeps;        /* futex waits */
static atomic_bool yield_unparks; /* a call of sched_yield() by the library unparks the thread */

/* The mutex at which the calling thread parks once, after it has locked the mutex this many times; whether it is
 * parked, and whether it may continue. */
static _Thread_local const pthread_mutex_t *parks_at;
static _Thread_local unsigned parks_after;
static atomic_bool is_parked, may_continue;

WRAPPED(int, sched_yield, void);
WRAPPED(int, pthread_cond_wait, pthread_cond_t *condition, pthread_mutex_t *mutex);
WRAPPED(int, pthread_mutex_lock, pthread_mutex_t *mutex);
WRAPPED(long, syscall, long number, ...);

int __wrap_sched_yield(void)
{
    atomic_fetch_add(&yields, 1);
    if (atomic_load(&yield_unparks))
        atomic_store(&may_continue, true);
    return __real_sched_yield();
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    atomic_fetch_add(&cond_waits, 1);
    return __real_pthread_cond_wait(condition, mutex);
}

static void park(void)
{
    atomic_store(&is_parked, true);
    while (!atomic_load(&may_continue))
        (void)__real_sched_yield();
    atomic_store(&is_parked, false);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (mutex == parks_at && parks_after-- == 0) {
        parks_at = NULL;
        park();
    }
    return __real_pthread_mutex_lock(mutex);
}

long __wrap_syscall(long number, ...)
{
    long argument[6];
    va_list list;

    va_start(list, number);
    for (unsigned i = 0; i < COUNT_OF(argument); i++)
        argument[i] = va_arg(list, long);
    va_end(list);
    if (number == __NR_membarrier && argument[0] == MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        atomic_fetch_add(&barriers, 1);
    if (number == __NR_futex && argument[1] == FUTEX_WAIT_PRIVATE)
        atomic_fetch_add(&sleeps, 1);
    return __real_syscall(number, argument[0], argument[1], argument[2], argument[3], argument[4],
                          argument[5]);
}

static void reset(void)
{
    atomic_store(&is_parked, false);
    atomic_store(&may_continue, false);
    atomic_store(&yield_unparks, false);
}

static void wait_until(atomic_bool *flag)
{
    while (!atomic_load(flag))
        (void)__real_sched_yield();
}

/* --- Routes. --- */

static bool park_and_accept(void *context, xseg_stream stream)
{
    (void)context, (void)stream;
    park();
    return true;
}

struct request {
    const pthread_mutex_t *parks_at;
    void *ptr;
    size_t bytes;
    unsigned parks_after;
};

static void *make_request(void *self)
{
    struct request *request = self;

    parks_at = request->parks_at;
    parks_after = request->parks_after;
    request->ptr = env_alloc(allocator, request->bytes, NULL);
    return NULL;
}

static pthread_t requester;

/* Make a request in another thread, and wait until that thread parks. */
static void park_request(struct request *request)
{
    reset();
    assert_int_equal(pthread_create(&requester, NULL, make_request, request), 0);
    wait_until(&is_parked);
}

static void finish_request(void)
{
    atomic_store(&may_continue, true);
    assert_int_equal(pthread_join(requester, NULL), 0);
}

struct route_end {
    struct xseg_pool *pool;
    atomic_bool has_returned;
};

static void *end_route(void *self)
{
    struct route_end *route_end = self;

    assert_ok(xseg_route_end(route_end->pool));
    atomic_store(&route_end->has_returned, true);
    return NULL;
}

ALLOCATOR_TEST(route_removal_waits_for_its_predicate)
{
    struct request request = {NULL, NULL, KIB, 0};
    struct route_end route_end = {env_pool(allocator), false};
    pthread_t ending_thread;

    assert_ok(xseg_route_begin(route_end.pool, park_and_accept, NULL));
    park_request(&request);
    const unsigned before = atomic_load(&yields);
    assert_int_equal(pthread_create(&ending_thread, NULL, end_route, &route_end), 0);
    while (atomic_load(&yields) == before && !atomic_load(&route_end.has_returned))
        (void)__real_sched_yield();
    assert_false(atomic_load(&route_end.has_returned));
    finish_request();
    assert_int_equal(pthread_join(ending_thread, NULL), 0);
    env_free(allocator, request.ptr);
    assert_ok(xseg_pool_release(route_end.pool));
}

/* A request is about to use its cached stream lookup when a route begins: the lookup would bypass the route. */
ALLOCATOR_TEST(cached_stream_lookup_respects_a_new_route)
{
    struct xseg_pool *pool = env_pool(allocator);
    struct request request = {&allocator->stream_cache.lock->os, NULL, KIB, 0};

    /* The first request creates the arena; later requests may use the cached lookup. */
    env_free(allocator, env_alloc(allocator, KIB, NULL));
    xseg_stream_cache_drop_all(&allocator->stream_cache, -1);
    park_request(&request);
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    finish_request();
    void *ptr = env_alloc(allocator, KIB, NULL);
    assert_ptr_equal(env_block(allocator, ptr).pool, pool);
    assert_ok(xseg_route_end(pool));
    env_free(allocator, ptr, request.ptr);
    assert_ok(xseg_pool_release(pool));
}

/* --- Labels. --- */

static void *annotate(void *unused)
{
    parks_at = &xseg_allocator_open_device(allocator, 0)->memory_lock.os;
    parks_after = 0;
    assert_ok(xseg_history_annotate(allocator, 0, "an annotation"));
    return unused;
}

static bool record_text(void *context, const struct xseg_history_entry *entry)
{
    if (entry->action == XSEG_HISTORY_ANNOTATION)
        (void)strcpy(context, entry->label);
    return true;
}

/* No event has the label yet, but a sweep must not drop a label that a thread is about to record. */
TEST(label_is_kept_until_it_is_recorded)
{
    allocator = env_open("history:all");
    char text[XSEG_HISTORY_LABEL_BYTES] = "";
    pthread_t annotator;

    reset();
    env_free(allocator, env_alloc(allocator, 1000, NULL));
    assert_int_equal(pthread_create(&annotator, NULL, annotate, NULL), 0);
    wait_until(&is_parked);
    xseg_history_sweep(allocator);
    /* A new label would reuse the record of a dropped label. */
    assert_ok(xseg_history_label(allocator, "another", NULL));
    atomic_store(&may_continue, true);
    assert_int_equal(pthread_join(annotator, NULL), 0);
    assert_ok(xseg_for_each_event(allocator, 0, record_text, text, NULL));
    assert_string_equal(text, "an annotation");
    env_close(allocator);
}

/* --- Streams. --- */

/* Two threads look up a new stream concurrently: the second lookup finds the entry of the first. */
ALLOCATOR_TEST(concurrent_lookups_create_one_stream_entry)
{
    struct xseg_pool *pool = env_pool(allocator); /* opens the device */
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    /* The table is searched twice before an entry is created, the second time under the same lock. */
    struct request request = {&device->table_lock.os, NULL, KIB, 1};

    const uint64_t count = atomic_load(&device->streams.count);
    park_request(&request);
    void *ptr = env_alloc(allocator, KIB, NULL);
    finish_request();
    assert_int_equal(atomic_load(&device->streams.count), count + 1);
    env_free(allocator, ptr, request.ptr);
    assert_ok(xseg_pool_release(pool));
}

/* --- Observers. --- */

/* An observer of trace events whose first call parks. */
struct watched {
    uint64_t id;
    atomic_uint calls;
    atomic_bool has_ended;
};

static void park_first(void *context, const struct xseg_trace_entry *entry)
{
    struct watched *watched = context;

    (void)entry;
    if (atomic_fetch_add(&watched->calls, 1) == 0)
        park();
}

static void *remove_observer(void *self)
{
    struct watched *watched = self;

    assert_ok(xseg_observer_remove(allocator, watched->id));
    atomic_store(&watched->has_ended, true);
    return NULL;
}

ALLOCATOR_TEST(observer_removal_waits_for_active_callbacks)
{
    struct watched watched = {0};
    struct request request = {NULL, NULL, KIB, 0};
    pthread_t remover;

    watched.id = env_observe(allocator, .context = &watched, .on_trace = park_first);
    park_request(&request);
    const unsigned before = atomic_load(&cond_waits), calls = atomic_load(&watched.calls);
    assert_int_equal(pthread_create(&remover, NULL, remove_observer, &watched), 0);
    while (atomic_load(&cond_waits) == before && !atomic_load(&watched.has_ended))
        (void)__real_sched_yield();
    assert_false(atomic_load(&watched.has_ended));
    finish_request();
    assert_int_equal(pthread_join(remover, NULL), 0);
    /* Events of the same request after the removal are not reported. */
    assert_int_equal(atomic_load(&watched.calls), calls);
    env_free(allocator, request.ptr);
}

/* --- A miss. --- */

/* After a miss a thread waits for the device memory lock; a fitting block is freed before it acquires the lock. */
TEST(miss_retries_after_a_concurrent_free)
{
    /* Growth of an expandable segment would start with the cached memory anyway. */
    allocator = env_open("expandable_segments:False");

    void *first = env_alloc(allocator, 20 * MIB, NULL);
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    struct request request = {&device->memory_lock.os, NULL, 20 * MIB, 0};
    park_request(&request);
    env_free(allocator, first);
    finish_request();
    assert_ptr_equal(request.ptr, first);
    assert_int_equal(env_stats(allocator).num_device_alloc, 1);
    env_free(allocator, request.ptr);
    env_close(allocator);
}

#if !XSEG_BIASED_LOCK_IS_ATOMIC

/* --- Locks: not under ThreadSanitizer, where they are mutexes. --- */

struct owned {
    struct xseg_biased_lock lock;
    atomic_bool is_owned;
    atomic_uint inside, collisions;
};

static void lock_once(struct owned *owned)
{
    xseg_biased_lock_lock(&owned->lock);
    if (atomic_fetch_add_explicit(&owned->inside, 1, memory_order_relaxed) != 0)
        atomic_fetch_add(&owned->collisions, 1);
    atomic_fetch_sub_explicit(&owned->inside, 1, memory_order_relaxed);
    xseg_biased_lock_unlock(&owned->lock);
}

static void *lock_twice(void *self)
{
    struct owned *owned = self;

    lock_once(owned);
    lock_once(owned);
    return NULL;
}

TEST(biased_lock_is_revoked_after_a_barrier)
{
    struct owned owned = {.is_owned = false};
    pthread_t owner;

    xseg_biased_lock_init(&owned.lock, XSEG_RANK_ARENA);
    if (!owned.lock.has_membarrier)
        return;
    assert_int_equal(pthread_create(&owner, NULL, lock_twice, &owned), 0);
    assert_int_equal(pthread_join(owner, NULL), 0);
    const unsigned before = atomic_load(&barriers);
    atomic_store(&owned.lock.owner, xseg_biased_lock_self() ^ 64); /* not the ID of this thread */
    lock_once(&owned);
    assert_int_equal(atomic_load(&barriers), before + 1);
    lock_once(&owned);
    assert_int_equal(atomic_load(&barriers), before + 1);
    xseg_biased_lock_fini(&owned.lock);
}

static void *run_lock_once(void *self)
{
    lock_once(self);
    return NULL;
}

TEST(thread_sleeps_on_a_revoked_biased_lock)
{
    struct owned owned = {.is_owned = false};
    pthread_t sleeper;

    xseg_biased_lock_init(&owned.lock, XSEG_RANK_ARENA);
    if (!owned.lock.has_membarrier)
        return;
    atomic_store(&owned.lock.owner, XSEG_BIASED_LOCK_REVOKED);
    xseg_biased_lock_lock(&owned.lock);
    const unsigned before = atomic_load(&barriers), slept = atomic_load(&sleeps);
    assert_int_equal(pthread_create(&sleeper, NULL, run_lock_once, &owned), 0);
    while (atomic_load(&sleeps) == slept)
        (void)__real_sched_yield();
    assert_int_equal(atomic_load(&barriers), before + 1);
    xseg_biased_lock_unlock(&owned.lock);
    assert_int_equal(pthread_join(sleeper, NULL), 0);
    assert_int_equal(owned.collisions, 0);
    xseg_biased_lock_fini(&owned.lock);
}

/* The owner parks inside the lock until the waiting thread releases it. */
static void *hold_as_owner(void *self)
{
    struct owned *owned = self;

    lock_once(owned);
    lock_once(owned);
    xseg_biased_lock_lock(&owned->lock);
    atomic_fetch_add(&owned->inside, 1);
    atomic_store(&owned->is_owned, true);
    park();
    atomic_fetch_sub(&owned->inside, 1);
    xseg_biased_lock_unlock(&owned->lock);
    return NULL;
}

TEST(held_biased_lock_is_not_revoked)
{
    struct owned owned = {.is_owned = false};
    pthread_t owner;

    reset();
    xseg_biased_lock_init(&owned.lock, XSEG_RANK_ARENA);
    if (!owned.lock.has_membarrier)
        return;
    assert_int_equal(pthread_create(&owner, NULL, hold_as_owner, &owned), 0);
    wait_until(&owned.is_owned);
    atomic_store(&yield_unparks, true);
    lock_once(&owned);
    atomic_store(&yield_unparks, false);
    assert_int_equal(owned.collisions, 0);
    atomic_store(&may_continue, true);
    assert_int_equal(pthread_join(owner, NULL), 0);
    xseg_biased_lock_fini(&owned.lock);
}

#endif
