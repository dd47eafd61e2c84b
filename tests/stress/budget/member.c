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
    pthread_mutex_t lock; /* guards the following members; held during each call */
    uint64_t random;
    xseg_stream stream;
    void *block[SLOTS];
    struct xseg_range *range;
    bool is_committed[GRANULES];
    struct xseg_pool *pool;
    bool is_paused;
    void *pool_block; /* a block of the pool */
};

static struct {
    struct budget_shared *shared;
    struct budget_member *member;
    struct xseg_allocator *allocator;
    struct thread thread[THREADS];
    atomic_bool is_running, is_ending;
    void *block;                      /* of ORDER_ALLOCATE */
    uint64_t budget_requests, served; /* counts of earlier members with this index */
} process;

/* --- Random calls. --- */

/* Whether memory was allocated; the request may be denied. */
static bool is_allocated(xseg_status status)
{
    CHECK(status == XSEG_OK || status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
          status == XSEG_ERR_BUSY);
    (void)atomic_fetch_add(&process.member->requests, 1);
    if (status != XSEG_OK)
        (void)atomic_fetch_add(&process.member->denied, 1);
    return status == XSEG_OK;
}

static uint64_t draw_bytes(struct thread *thread)
{
    const uint64_t kind = below(thread, 10);

    if (kind < 4)
        return 1 + below(thread, MIB);
    return 1 + below(thread, kind < 8 ? 24 * MIB : process.shared->block_max);
}

static void free_block(void **block)
{
    if (*block != NULL)
        CHECK_OK(xseg_free(process.allocator, *block));
    *block = NULL;
}

static void alloc_or_free(struct thread *thread)
{
    void **block = &thread->block[below(thread, SLOTS)];
    const uint64_t bytes = draw_bytes(thread);

    if (*block != NULL) {
        free_block(block);
        return;
    }
    if (!is_allocated(xseg_alloc(process.allocator, 0, bytes, thread->stream, block)))
        *block = NULL;
    else if (below(thread, 2) == 0)
        CHECK_OK(xseg_sim_launch_on(thread->stream, below(thread, 1000000),
                                    (uint64_t)(uintptr_t)*block, bytes));
}

static void free_half(struct thread *thread)
{
    for (unsigned i = 0; i < SLOTS; i++)
        if (below(thread, 2) == 0)
            free_block(&thread->block[i]);
}

static void commit_or_decommit(struct thread *thread)
{
    const unsigned first = (unsigned)below(thread, GRANULES);
    const bool was_committed = thread->is_committed[first];
    unsigned count = 1;

    while (count < 6 && first + count < GRANULES &&
           thread->is_committed[first + count] == was_committed)
        count++;
    if (was_committed)
        CHECK_OK(xseg_range_decommit(thread->range, first * PAGE, count * PAGE, thread->stream));
    else if (!is_allocated(
                 xseg_range_commit(thread->range, first * PAGE, count * PAGE, thread->stream)))
        return;
    else
        (void)atomic_fetch_add(&process.member->commits, 1);
    for (unsigned i = first; i < first + count; i++)
        thread->is_committed[i] = !was_committed;
}

/* Allocate from the pool, free, pause or resume it.  A resume requests memory as an allocation does. */
static void use_pool(struct thread *thread)
{
    const uint64_t bytes = 1 + below(thread, process.shared->block_max);

    if (thread->is_paused) {
        thread->is_paused = !is_allocated(xseg_pool_resume(thread->pool));
    } else if (thread->pool_block == NULL) {
        if (!is_allocated(
                env_try_alloc_in(process.allocator, thread->pool, bytes, &thread->pool_block)))
            thread->pool_block = NULL;
    } else if (below(thread, 3) == 0) {
        free_block(&thread->pool_block);
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

    CHECK_OK(xseg_trim(process.allocator, NULL, &options, NULL));
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
    (void)snprintf(text, sizeof(text), "budget_file:%s", process.shared->budget_file);
    CHECK(xseg_config_set(process.allocator,
                          below(thread, 3) == 0 ? text : texts[below(thread, COUNT_OF(texts))]) ==
          XSEG_OK);
    (void)atomic_fetch_add(&process.member->changes, 1);
}

/* During a capture a member sends no requests to others and releases no memory. */
static void alloc_in_capture(struct thread *thread)
{
    CHECK_OK(xseg_capture_mark(process.allocator, 0));
    alloc_or_free(thread);
    CHECK_OK(xseg_capture_unmark(process.allocator, 0));
}

static void make_call(struct thread *thread)
{
    const uint64_t kind = below(thread, 100);

    if (kind < 40)
        alloc_or_free(thread);
    else if (kind < 45)
        use_pool(thread);
    else if (kind < 65)
        commit_or_decommit(thread);
    else if (kind < 72)
        free_half(thread);
    else if (kind < 76)
        trim(thread);
    else if (kind < 79)
        configure(thread);
    else if (kind < 80)
        alloc_in_capture(thread);
    else if (kind < 95)
        xseg_sim_advance(below(thread, 1000000));
    else
        (void)usleep((useconds_t)below(thread, kind == 99 ? 60000 : 3000));
}

static void *make_calls(void *self)
{
    struct thread *thread = self;

    while (!atomic_load(&process.is_ending)) {
        CHECK(pthread_mutex_lock(&thread->lock) == 0);
        const bool is_running = atomic_load(&process.is_running);
        if (is_running)
            make_call(thread);
        CHECK(pthread_mutex_unlock(&thread->lock) == 0);
        (void)usleep(is_running ? 50 : 1000);
    }
    return NULL;
}

/* --- Orders.  The threads are idle, and the main thread may use their blocks. --- */

static struct xseg_device *device(void)
{
    return xseg_allocator_open_device(process.allocator, 0);
}

static void wait_for_calls(void)
{
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK(pthread_mutex_lock(&process.thread[i].lock) == 0);
        CHECK(pthread_mutex_unlock(&process.thread[i].lock) == 0);
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
        struct thread *thread = &process.thread[i];

        for (unsigned k = 0; k < SLOTS; k++)
            free_block(&thread->block[k]);
        for (unsigned k = 0; k < GRANULES; k++)
            if (thread->is_committed[k])
                CHECK_OK(xseg_range_decommit(thread->range, k * PAGE, PAGE, thread->stream));
        memset(thread->is_committed, 0, sizeof(thread->is_committed));
        /* A retained pool that took part in a capture keeps its memory, because a graph may use it; so replace the pool. */
        free_block(&thread->pool_block);
        CHECK_OK(xseg_pool_release(thread->pool));
        CHECK_OK(xseg_pool_create(process.allocator, 0, NULL, &thread->pool));
        thread->is_paused = false;
    }
    free_block(&process.block);
    xseg_sim_finish_all();
}

static _Noreturn void end_member(void)
{
    atomic_store(&process.is_ending, true);
    free_all();
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK(pthread_join(process.thread[i].thread, NULL) == 0);
        CHECK_OK(xseg_range_release(process.thread[i].range));
        CHECK_OK(xseg_pool_release(process.thread[i].pool));
    }
    CHECK_OK(xseg_close(process.allocator));
    CHECK(xseg_sim_used(0) == 0);
    _exit(0);
}

static void execute_order(void)
{
    struct budget_member *member = process.member;

    if (member->order == ORDER_RUN) {
        atomic_store(&process.is_running, true);
        return;
    }
    atomic_store(&process.is_running, false);
    wait_for_calls();
    if (member->order == ORDER_END)
        end_member();
    if (member->order == ORDER_IDLE)
        CHECK_OK(xseg_config_set(process.allocator, member->text));
    if (member->order == ORDER_FREE)
        free_all();
    if (member->order == ORDER_FREE_BLOCK)
        free_block(&process.block);
    if (member->order == ORDER_ALLOCATE) {
        member->status = xseg_alloc(process.allocator, 0, member->bytes, NULL, &process.block);
        (void)xseg_error_message(member->text, sizeof(member->text));
    }
    audit();
    member->bytes = xseg_device_physical(device());
}

/* Publish the counts that a kill would lose. */
static void publish_counts(void)
{
    atomic_store(&process.member->budget_requests,
                 process.budget_requests + device()->budget->requests);
    atomic_store(&process.member->served, process.served + device()->budget->served);
}

/* Open the allocator on the shared device; with classic segments in one of three members. */
static void open_member(uint64_t seed)
{
    const struct xseg_options options = {sizeof(options), .driver = env_driver(),
                                         .log = env_no_log};
    char config[256];

    process.shared->sim.shared = process.shared->sim_name;
    CHECK_OK(xseg_sim_reset(&process.shared->sim));
    (void)snprintf(config, sizeof(config),
                   "budget_file:%s,budget_wait_ms:150,expandable_segments:%s",
                   process.shared->budget_file, seed % 3 == 0 ? "False" : "True");
    CHECK_OK(xseg_open(config, &options, &process.allocator));
    for (unsigned i = 0; i < THREADS; i++) {
        struct thread *thread = &process.thread[i];

        thread->random = (seed * THREADS + i) * UINT64_C(88172645463325252) | 1;
        CHECK_OK(xseg_range_reserve(process.allocator, 0, GRANULES * PAGE, NULL, &thread->range));
        CHECK_OK(xseg_pool_create(process.allocator, 0, NULL, &thread->pool));
        thread->stream = env_stream();
        CHECK(pthread_mutex_init(&thread->lock, NULL) == 0);
        CHECK(pthread_create(&thread->thread, NULL, make_calls, thread) == 0);
    }
}

_Noreturn void budget_member_run(struct budget_shared *shared, unsigned member, uint64_t seed)
{
    /* No member outlives the parent. */
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    process.shared = shared;
    process.member = &shared->member[member];
    process.budget_requests = process.member->budget_requests;
    process.served = process.member->served;
    open_member(seed);
    for (;;) {
        const unsigned last_order = atomic_load(&process.member->last_order);

        if (last_order != atomic_load(&process.member->completed_order)) {
            execute_order();
            atomic_store(&process.member->completed_order, last_order);
        }
        publish_counts();
        (void)usleep(500);
    }
}
