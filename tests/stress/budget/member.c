/* SPDX-License-Identifier: MIT */
#include "tests/stress/budget/member.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "src/core/budget/budget.h"
#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "tests/stress/stress.h"
#include "xseg/pool.h"
#include "xseg/range.h"

#define PAGE     (2 * MIB)
#define THREADS  2u
#define SLOTS    24u
#define GRANULES 16u

struct thread {
    pthread_t thread;
    pthread_mutex_t lock; /* of the following, held in each step */
    uint64_t random;
    xseg_stream stream;
    void *block[SLOTS];
    struct xseg_range *range;
    bool has[GRANULES];
    struct xseg_pool *pool;
    bool is_paused;
    void *pooled; /* a block of the pool */
};

static struct {
    struct budget_shared *shared;
    struct budget_seat *seat;
    struct xseg_allocator *allocator;
    struct thread thread[THREADS];
    atomic_bool plays, ends;
    void *block;                      /* of ORDER_ALLOCATE */
    uint64_t budget_requests, served; /* counts of earlier members of the seat */
} own;

/* --- Steps. --- */

/* Whether memory was allocated; denial is valid. */
static bool is_allocated(xseg_status status)
{
    CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
          status == XSEG_ERR_BUSY);
    (void)atomic_fetch_add(&own.seat->requests, 1);
    if (status != XSEG_OK)
        (void)atomic_fetch_add(&own.seat->denied, 1);
    return status == XSEG_OK;
}

static uint64_t draw_bytes(struct thread *thread)
{
    const uint64_t kind = below(thread, 10);

    if (kind < 4)
        return 1 + below(thread, MIB);
    return 1 + below(thread, kind < 8 ? 24 * MIB : own.shared->block_max);
}

static void free_block(void **block)
{
    if (*block != NULL)
        CHECK_OK(xseg_free(own.allocator, *block));
    *block = NULL;
}

static void change_block(struct thread *thread)
{
    void **block = &thread->block[below(thread, SLOTS)];
    const uint64_t bytes = draw_bytes(thread);

    if (*block != NULL) {
        free_block(block);
        return;
    }
    if (!is_allocated(xseg_alloc(own.allocator, 0, bytes, thread->stream, block)))
        *block = NULL;
    else if (below(thread, 2) == 0)
        CHECK_OK(xseg_sim_launch_on(thread->stream, below(thread, 1000000),
                                    (uint64_t)(uintptr_t)*block, bytes));
}

static void free_many(struct thread *thread)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (below(thread, 2) == 0)
            free_block(&thread->block[i]);
}

static void change_range(struct thread *thread)
{
    const unsigned first = (unsigned)below(thread, GRANULES);
    const bool had = thread->has[first];
    unsigned count = 1;

    while (count < 6 && first + count < GRANULES && thread->has[first + count] == had)
        count++;
    if (had)
        CHECK_OK(xseg_range_decommit(thread->range, first * PAGE, count * PAGE, thread->stream));
    else if (!is_allocated(
                 xseg_range_commit(thread->range, first * PAGE, count * PAGE, thread->stream)))
        return;
    else
        (void)atomic_fetch_add(&own.seat->commits, 1);
    for (unsigned i = first; i < first + count; i++)
        thread->has[i] = !had;
}

/* Resume requests memory as an allocation does. */
static void change_pool(struct thread *thread)
{
    const uint64_t bytes = 1 + below(thread, own.shared->block_max);

    if (thread->is_paused) {
        thread->is_paused = !is_allocated(xseg_pool_resume(thread->pool));
    } else if (thread->pooled == NULL) {
        if (!is_allocated(env_try_alloc_in(own.allocator, thread->pool, bytes, &thread->pooled)))
            thread->pooled = NULL;
    } else if (below(thread, 3) == 0) {
        free_block(&thread->pooled);
    } else {
        const xseg_status status = xseg_pool_pause(thread->pool, XSEG_KEEP_NOTHING, NULL);

        /* Classic segments cannot be paused. */
        CHECK(status == XSEG_OK || status == XSEG_ERR_BUSY || status == XSEG_ERR_UNSUPPORTED);
        thread->is_paused = status == XSEG_OK;
    }
}

static void trim(struct thread *thread)
{
    const struct xseg_trim_options options = {sizeof(options), .wait = below(thread, 2) == 0};

    CHECK_OK(xseg_trim(own.allocator, NULL, &options, NULL));
}

static void configure(struct thread *thread)
{
    static const char *const texts[] = {
        "budget_share:0",     "budget_share:0.2",   "budget_share:0.7", "budget_min_mb:0",
        "budget_min_mb:40",   "budget_wait_ms:40",  "idle_ms:20",       "page_cache_mb:0",
        "page_cache_mb:32",   "budget_file:none",   "budget_file:none", "background_thread:True",
        "budget_wait_ms:150", "budget_wait_ms:400",
    };
    char text[256];

    /* A member that has left the shared budget file rejoins soon. */
    (void)snprintf(text, sizeof(text), "budget_file:%s", own.shared->budget_file);
    CHECK(xseg_config_set(own.allocator,
                          below(thread, 3) == 0 ? text : texts[below(thread, COUNT_OF(texts))]) ==
          XSEG_OK);
    (void)atomic_fetch_add(&own.seat->changes, 1);
}

/* A capture on the device sends no requests and releases no memory. */
static void capture(struct thread *thread)
{
    CHECK_OK(xseg_capture_mark(own.allocator, 0));
    change_block(thread);
    CHECK_OK(xseg_capture_unmark(own.allocator, 0));
}

static void step(struct thread *thread)
{
    const uint64_t kind = below(thread, 100);

    if (kind < 40)
        change_block(thread);
    else if (kind < 45)
        change_pool(thread);
    else if (kind < 65)
        change_range(thread);
    else if (kind < 72)
        free_many(thread);
    else if (kind < 76)
        trim(thread);
    else if (kind < 79)
        configure(thread);
    else if (kind < 80)
        capture(thread);
    else if (kind < 95)
        xseg_sim_advance(below(thread, 1000000));
    else
        (void)usleep((useconds_t)below(thread, kind == 99 ? 60000 : 3000));
}

static void *play(void *self)
{
    struct thread *thread = self;

    while (!atomic_load(&own.ends)) {
        CHECK(pthread_mutex_lock(&thread->lock) == 0);
        const bool plays = atomic_load(&own.plays);
        if (plays)
            step(thread);
        CHECK(pthread_mutex_unlock(&thread->lock) == 0);
        (void)usleep(plays ? 50 : 1000);
    }
    return NULL;
}

/* --- Orders.  The threads are idle, and the main thread may use their blocks. --- */

static struct xseg_device *device(void)
{
    return xseg_allocator_open_device(own.allocator, 0);
}

static void wait_for_steps(void)
{
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK(pthread_mutex_lock(&own.thread[i].lock) == 0);
        CHECK(pthread_mutex_unlock(&own.thread[i].lock) == 0);
    }
    xseg_sim_finish_all();
}

static void audit(void)
{
    struct xseg_violation violation = {0};

    if (!xseg_device_audit(device(), &violation)) {
        (void)fprintf(stderr, "%s: %s\n", violation.tag, violation.text);
        abort();
    }
}

static void free_all(void)
{
    for (unsigned i = 0; i < THREADS; i++) {
        struct thread *thread = &own.thread[i];

        for (unsigned at = 0; at < SLOTS; at++)
            free_block(&thread->block[at]);
        for (unsigned at = 0; at < GRANULES; at++)
            if (thread->has[at])
                CHECK_OK(xseg_range_decommit(thread->range, at * PAGE, PAGE, thread->stream));
        memset(thread->has, 0, sizeof(thread->has));
        /* A retained pool keeps its memory, because a graph may use it: the next capture begins without a block. */
        free_block(&thread->pooled);
        CHECK_OK(xseg_pool_release(thread->pool));
        CHECK_OK(xseg_pool_create(own.allocator, 0, NULL, &thread->pool));
        thread->is_paused = false;
    }
    free_block(&own.block);
    xseg_sim_finish_all();
}

static _Noreturn void end(void)
{
    atomic_store(&own.ends, true);
    free_all();
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK(pthread_join(own.thread[i].thread, NULL) == 0);
        CHECK_OK(xseg_range_release(own.thread[i].range));
        CHECK_OK(xseg_pool_release(own.thread[i].pool));
    }
    CHECK_OK(xseg_close(own.allocator));
    CHECK(xseg_sim_used(0) == 0);
    _exit(0);
}

static void execute_order(void)
{
    struct budget_seat *seat = own.seat;

    if (seat->order == ORDER_PLAY) {
        atomic_store(&own.plays, true);
        return;
    }
    atomic_store(&own.plays, false);
    wait_for_steps();
    if (seat->order == ORDER_END)
        end();
    if (seat->order == ORDER_IDLE)
        CHECK_OK(xseg_config_set(own.allocator, seat->text));
    if (seat->order == ORDER_FREE)
        free_all();
    if (seat->order == ORDER_FREE_BLOCK)
        free_block(&own.block);
    if (seat->order == ORDER_ALLOCATE) {
        seat->status = xseg_alloc(own.allocator, 0, seat->bytes, NULL, &own.block);
        (void)xseg_error_message(seat->text, sizeof(seat->text));
    }
    audit();
    seat->bytes = xseg_device_physical(device());
}

/* Publish the counts that a kill would lose. */
static void publish_counts(void)
{
    atomic_store(&own.seat->budget_requests, own.budget_requests + device()->budget->requests);
    atomic_store(&own.seat->served, own.served + device()->budget->served);
}

/* Open the allocator on the shared device; with classic segments in one of three members. */
static void open_member(uint64_t seed)
{
    const struct xseg_options options = {sizeof(options), .driver = env_driver(),
                                         .log = env_no_log};
    char config[256];

    own.shared->sim.shared = own.shared->sim_name;
    CHECK_OK(xseg_sim_reset(&own.shared->sim));
    (void)snprintf(config, sizeof(config),
                   "budget_file:%s,budget_wait_ms:150,expandable_segments:%s",
                   own.shared->budget_file, seed % 3 == 0 ? "False" : "True");
    CHECK_OK(xseg_open(config, &options, &own.allocator));
    for (unsigned i = 0; i < THREADS; i++) {
        struct thread *thread = &own.thread[i];

        thread->random = (seed * THREADS + i) * UINT64_C(88172645463325252) | 1;
        CHECK_OK(xseg_range_reserve(own.allocator, 0, GRANULES * PAGE, NULL, &thread->range));
        CHECK_OK(xseg_pool_create(own.allocator, 0, NULL, &thread->pool));
        thread->stream = env_stream();
        CHECK(pthread_mutex_init(&thread->lock, NULL) == 0);
        CHECK(pthread_create(&thread->thread, NULL, play, thread) == 0);
    }
}

_Noreturn void budget_member(struct budget_shared *shared, unsigned seat, uint64_t seed)
{
    /* No member outlives the parent. */
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    own.shared = shared;
    own.seat = &shared->seat[seat];
    own.budget_requests = own.seat->budget_requests;
    own.served = own.seat->served;
    open_member(seed);
    for (;;) {
        const unsigned ordered = atomic_load(&own.seat->ordered);

        if (ordered != atomic_load(&own.seat->done)) {
            execute_order();
            atomic_store(&own.seat->done, ordered);
        }
        publish_counts();
        (void)usleep(500);
    }
}
