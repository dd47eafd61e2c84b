/* SPDX-License-Identifier: MIT */
/*
 * Interleavings of lock-free operations of two threads: one thread is stopped after each of its instructions in turn, while the
 * other thread runs.
 *
 * The trap flag of the CPU raises a signal after each instruction, and the thread waits in the handler after the selected
 * instruction. Each run stops the thread STRIDE instructions later, until the thread completes without a stop.
 */
#include "src/core/device/device.h"
#include "src/core/reclaim/reclaim.h"
#include "tests/support/env.h"

/* ThreadSanitizer delivers no signal between instructions, and replaces locks by mutexes. */
#if defined(__x86_64__) && !XSEG_BIASED_LOCK_IS_ATOMIC

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <ucontext.h>

/* A sanitizer expands one memory access to many instructions, between which the program has no other effects. */
#if defined(__SANITIZE_ADDRESS__)
#define STRIDE 16
#else
#define STRIDE 1
#endif

/* --- A thread that is stopped. --- */

#define TRAP_FLAG ((greg_t)0x100)

/* In the thread that is stopped: whether instructions are counted, and the number of instructions until the stop. */
static _Thread_local volatile bool is_counting;
static _Thread_local volatile unsigned instructions_left;

static atomic_bool is_stopped, may_resume, has_ended;

static void wait_in_handler(void)
{
    const struct timespec delay = {0, 1000};

    atomic_store(&is_stopped, true);
    while (!atomic_load(&may_resume))
        (void)nanosleep(&delay, NULL);
    atomic_store(&is_stopped, false);
}

static void handle_trap(int signal, siginfo_t *info, void *context)
{
    greg_t *flags = &((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL];

    (void)signal, (void)info;
    if (is_counting && instructions_left-- == 0) {
        is_counting = false;
        wait_in_handler();
    }
    *flags = is_counting ? *flags | TRAP_FLAG : *flags & ~TRAP_FLAG;
}

struct run {
    void (*prepare)(void *self); /* called before the thread is created */
    void (*work)(void *self); /* called twice by the thread, which is stopped in the second call */
    void (*interleaved)(void *self); /* called by the test while the thread is stopped */
    void *self;
    unsigned instructions;
    pthread_t thread;
};

static void *run_thread(void *self)
{
    const struct run *run = self;

    run->work(run->self);
    instructions_left = run->instructions;
    is_counting = true;
    (void)raise(SIGTRAP);
    run->work(run->self);
    is_counting = false;
    atomic_store(&has_ended, true);
    return NULL;
}

/* Begin a run.  Returns false if the thread completes without a stop. */
static bool run_to_stop(struct run *run)
{
    atomic_store(&may_resume, false);
    atomic_store(&has_ended, false);
    run->prepare(run->self);
    assert_int_equal(pthread_create(&run->thread, NULL, run_thread, run), 0);
    while (!atomic_load(&is_stopped) && !atomic_load(&has_ended))
        (void)sched_yield();
    return atomic_load(&is_stopped);
}

static void resume_thread(void)
{
    atomic_store(&may_resume, true);
}

static void stop_everywhere(struct run *run)
{
    struct sigaction action = {.sa_sigaction = handle_trap, .sa_flags = SA_SIGINFO};

    assert_int_equal(sigaction(SIGTRAP, &action, NULL), 0);
    for (run->instructions = 0; run_to_stop(run); run->instructions += STRIDE) {
        run->interleaved(run->self);
        resume_thread();
        assert_int_equal(pthread_join(run->thread, NULL), 0);
    }
    assert_int_equal(pthread_join(run->thread, NULL), 0);
    print_message("# stopped at %u instructions\n", run->instructions);
    assert_true(run->instructions > 20);
}

/* --- Locks. --- */

struct guarded {
    struct xseg_biased_lock lock;
    atomic_bool is_revoker_inside, has_collided;
};

/* The next thread that locks becomes the owner. */
static void disown(void *self)
{
    struct guarded *guarded = self;

    atomic_store(&guarded->lock.owner, 0);
}

static void lock_and_unlock(void *self)
{
    struct guarded *guarded = self;

    xseg_biased_lock_lock(&guarded->lock);
    if (atomic_load_explicit(&guarded->is_revoker_inside, memory_order_relaxed))
        atomic_store(&guarded->has_collided, true);
    xseg_biased_lock_unlock(&guarded->lock);
}

/* Revoke the bias while the owner is stopped. The resumed owner must then wait for the lock, unless it had already unlocked. */
static void revoke_from_owner(void *self)
{
    struct guarded *guarded = self;

    if (!xseg_biased_lock_is_free(&guarded->lock))
        return;
    xseg_biased_lock_lock(&guarded->lock);
    atomic_store(&guarded->is_revoker_inside, true);
    resume_thread();
    while (atomic_load(&guarded->lock.waiters) == 0 && !atomic_load(&has_ended))
        (void)sched_yield();
    atomic_store(&guarded->is_revoker_inside, false);
    xseg_biased_lock_unlock(&guarded->lock);
    assert_false(atomic_load(&guarded->has_collided));
}

TEST(owner_rechecks_the_ownership_of_the_biased_lock)
{
    /* Static, because the owner may continue after the test has failed. */
    static struct guarded guarded;
    struct run run = {disown, lock_and_unlock, revoke_from_owner, &guarded, 0, 0};

    xseg_biased_lock_init(&guarded.lock, XSEG_RANK_ARENA);
    if (!guarded.lock.has_membarrier)
        return;
    stop_everywhere(&run);
    xseg_biased_lock_fini(&guarded.lock);
}

/* --- Routes. --- */

struct reader {
    struct xseg_routes *routes;
    struct xseg_known_stream *stream;
    struct xseg_pool *first, *second;
    atomic_bool is_inside, may_return;
};

static atomic_bool *set_by_yield; /* a flag that each yield of the library sets; or NULL */

/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_sched_yield(void);
int __wrap_sched_yield(void);
/* NOLINTEND(bugprone-reserved-identifier) */

int __wrap_sched_yield(void)
{
    if (set_by_yield != NULL)
        atomic_store(set_by_yield, true);
    return __real_sched_yield();
}

static void begin_first_route(void *self)
{
    struct reader *reader = self;
    const xseg_status status = xseg_route_begin(reader->first, NULL, NULL);

    /* The route remains from the last run, unless that run ended it. */
    assert_true(status == XSEG_OK || status == XSEG_ERR_BUSY);
}

static void find_route(void *self)
{
    struct reader *reader = self;
    struct xseg_pool *pool = NULL;

    assert_ok(xseg_routes_find(reader->routes, reader->stream, &pool));
    if (pool != NULL)
        (void)xseg_release_pool(pool);
}

static bool wait_in_predicate(void *context, xseg_stream stream)
{
    struct reader *reader = context;

    (void)stream;
    atomic_store(&reader->is_inside, true);
    while (!atomic_load(&reader->may_return))
        (void)__real_sched_yield();
    atomic_store(&reader->is_inside, false);
    return true;
}

/* Before the reader registers, the first route ends and a second route begins. The second route ends while the reader is in its
 * predicate, so xseg_route_end() must wait for the reader and yields. */
static void change_routes(void *self)
{
    struct reader *reader = self;

    if (atomic_load(&reader->routes->readers[0]) + atomic_load(&reader->routes->readers[1]) != 0)
        return;
    atomic_store(&reader->may_return, false);
    assert_ok(xseg_route_end(reader->first));
    assert_ok(xseg_route_begin(reader->second, wait_in_predicate, reader));
    resume_thread();
    while (!atomic_load(&reader->is_inside) && !atomic_load(&has_ended))
        (void)__real_sched_yield();
    set_by_yield = &reader->may_return;
    assert_ok(xseg_route_end(reader->second));
    set_by_yield = NULL;
    const bool is_inside = atomic_load(&reader->is_inside);
    atomic_store(&reader->may_return, true);
    assert_false(is_inside);
}

TEST(late_reader_of_routes_retries)
{
    /* Static, because the reader may continue after the test has failed. */
    static struct reader reader;
    struct xseg_allocator *allocator = env_open(NULL);
    struct run run = {begin_first_route, find_route, change_routes, &reader, 0, 0};

    reader.first = env_pool(allocator);
    reader.second = env_pool(allocator);
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    reader.routes = &device->routes;
    assert_ok(xseg_streams_find_or_add(&device->streams, NULL, &reader.stream));
    stop_everywhere(&run);
    assert_ok(xseg_route_end(reader.first));
    assert_ok(xseg_pool_release(reader.first));
    assert_ok(xseg_pool_release(reader.second));
    env_close(allocator);
}

#else

/* The linker redirects the sanitizer's calls as well. */
int __real_sched_yield(void);
int __wrap_sched_yield(void);

int __wrap_sched_yield(void)
{
    return __real_sched_yield();
}

#include <stdio.h>

int main(void)
{
    (void)puts(
        "1..0 # SKIP no thread can be stopped at any instruction: not x86-64, or ThreadSanitizer");
    return 0;
}

#endif
