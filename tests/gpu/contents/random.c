/* SPDX-License-Identifier: MIT */
/*
 * Random programs: two threads allocate, write, check, pass to each other and free blocks on four streams.
 * Concurrently, memory is trimmed, decays, and is remapped from other streams and pools because of a hard limit.
 *
 * A block is written after its allocation and checked before its free, by kernels that are only queued.  The block's
 * stream orders them.  Another stream uses the block after an event and xseg_record_stream(), or until
 * xseg_free_after().  Many kernels follow a kernel that takes time, so frees, trims and growth happen while work is
 * pending.
 *
 * A workload is one allocator with one configuration, and two threads that use it.  Each thread has its own seed, but the
 * interleaving of their calls depends on the scheduler: a seed repeats the operations of each thread, not their interleaving.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/contents/journal.h"
#include "tests/gpu/contents/section.h"

#define MAX_BLOCKS     400u
#define MIN_OPERATIONS 60u /* of a thread in a workload, on any host */
#define POOLS          2u
#define MAX_BYTES      (200 * MIB)
#define COPIED_BYTES   MIB /* maximum bytes of a block that the host compares */
#define CORRUPT_AFTER  20u /* blocks */

struct block {
    struct buffer buffer;
    unsigned stream; /* index of the stream of the allocation */
};

struct workload {
    struct section_env *env;
    struct xseg_allocator *allocator;
    struct xseg_pool *pool[POOLS];
    uint64_t deadline_ns;
    uint64_t thread_operations; /* of each thread; 0: until the deadline */
    pthread_mutex_t lock;       /* guards the block that a thread passes to the other thread */
    bool has_passed;
    struct block passed;
};

struct worker {
    struct workload *workload;
    unsigned index;
    uint64_t random_state;
    size_t budget, bytes; /* limit and current sum of its blocks */
    unsigned block_count;
    struct block block[MAX_BLOCKS];
    unsigned char *copy; /* COPIED_BYTES */
};

static atomic_uint_fast64_t blocks; /* created so far; the index of the last block */
static atomic_bool has_corrupted;

static uint64_t choose(struct worker *worker, uint64_t below)
{
    return random_below(&worker->random_state, below);
}

static CUstream stream_of(const struct worker *worker, const struct block *block)
{
    return worker->workload->env->stream[block->stream];
}

static CUevent event_of(const struct worker *worker)
{
    return worker->workload->env->event[worker->index];
}

static void *pointer_of(const struct block *block)
{
    return (void *)(uintptr_t)block->buffer.address;
}

static struct block *random_block(struct worker *worker)
{
    return worker->block_count == 0 ? NULL : &worker->block[choose(worker, worker->block_count)];
}

static void delay_stream(struct worker *worker, CUstream stream)
{
    if (choose(worker, 4) == 0)
        kernel_spin(stream, 50 + (unsigned)choose(worker, 1000));
}

static void queue_check(struct worker *worker, const struct block *block, CUstream stream)
{
    kernel_check(worker->workload->env->checks[worker->index], stream, &block->buffer);
}

static void write_new_pattern(struct worker *worker, struct block *block, CUstream stream)
{
    block->buffer.seed = choose(worker, UINT64_MAX);
    kernel_write(stream, &block->buffer);
}

/* The last block of the worker's list replaces the removed block. */
static void remove_block(struct worker *worker, struct block *block)
{
    worker->bytes -= block->buffer.bytes;
    *block = worker->block[--worker->block_count];
}

static void count_busy(enum journal_count kind, CUstream stream)
{
    if (device_is_busy(stream))
        journal_count(kind, 1);
}

/* --- Operations. --- */

static void check_and_free(struct worker *worker, struct block *block)
{
    const CUstream stream = stream_of(worker, block);

    journal_operation("thread %u: check and free %" PRIu64 " on stream %u", worker->index,
                      block->buffer.block, block->stream);
    delay_stream(worker, stream);
    queue_check(worker, block, stream);
    count_busy(COUNT_BUSY_FREES, stream);
    XSEG(free, worker->workload->allocator, pointer_of(block));
    remove_block(worker, block);
}

static void free_random_block(struct worker *worker)
{
    struct block *block = random_block(worker);

    if (block != NULL)
        check_and_free(worker, block);
}

static size_t choose_bytes(struct worker *worker)
{
    const size_t max = worker->budget / 3 < MAX_BYTES ? worker->budget / 3 : MAX_BYTES;
    const uint64_t kind = choose(worker, 16);
    size_t bytes;

    if (kind < 8)
        bytes = (size_t)512 << choose(worker, 11);
    else if (kind < 15)
        bytes = MIB << choose(worker, 5);
    else
        bytes = 20 * MIB + choose(worker, max);
    bytes += choose(worker, bytes);
    /* The size is not a multiple of a word, so the last word is incomplete. */
    return (bytes < max ? bytes : max) - choose(worker, 16);
}

static void corrupt(struct worker *worker, struct block *block)
{
    const uint64_t offset = choose(worker, block->buffer.bytes);
    const uint64_t word = pattern_word(block->buffer.seed, block->buffer.mask, offset / 8);
    const unsigned char byte = (unsigned char)((word >> (offset % 8 * 8)) ^ 0x5a);

    journal_result("corrupted", block->buffer.block, "note", "byte %" PRIu64 " of block %" PRIu64,
                   offset, block->buffer.block);
    CU(MemsetD8Async, block->buffer.address + offset, byte, 1, stream_of(worker, block));
    check_and_free(worker, block);
}

static bool is_rejected_by_limit(xseg_status status)
{
    return status == XSEG_ERR_LIMIT || status == XSEG_ERR_NO_MEMORY;
}

static void allocate(struct worker *worker)
{
    struct workload *workload = worker->workload;
    struct block *block = &worker->block[worker->block_count];
    struct xseg_request request = {sizeof(request)};
    const unsigned stream = (unsigned)choose(worker, STREAMS);
    void *address = NULL;

    request.bytes = choose_bytes(worker);
    request.stream = workload->env->stream[stream];
    request.pool = choose(worker, 6) == 0 ? workload->pool[choose(worker, POOLS)] : NULL;
    while (worker->block_count == MAX_BLOCKS ||
           (worker->block_count > 0 && worker->bytes + request.bytes > worker->budget))
        free_random_block(worker);
    block = &worker->block[worker->block_count];
    *block = (struct block){.stream = stream};
    block->buffer.block = atomic_fetch_add(&blocks, 1) + 1;
    journal_operation("thread %u: allocate %" PRIu64 ", %zu bytes, on stream %u%s", worker->index,
                      block->buffer.block, request.bytes, stream,
                      request.pool != NULL ? ", of a pool" : "");
    const xseg_status status = xseg_alloc_with(workload->allocator, &request, &address);
    if (is_rejected_by_limit(status)) {
        journal_count(COUNT_REJECTED, 1);
        free_random_block(worker);
        return;
    }
    journal_status(status, "xseg_alloc_with");
    journal_count(COUNT_BLOCKS, 1);
    block->buffer.address = (CUdeviceptr)(uintptr_t)address;
    block->buffer.bytes = request.bytes;
    worker->block_count++;
    worker->bytes += request.bytes;
    delay_stream(worker, request.stream);
    write_new_pattern(worker, block, request.stream);
    if (workload->env->corrupts_byte && block->buffer.block >= CORRUPT_AFTER &&
        !atomic_exchange(&has_corrupted, true))
        corrupt(worker, block);
}

static void check_random_block(struct worker *worker)
{
    struct block *block = random_block(worker);

    if (block == NULL)
        return;
    journal_operation("thread %u: check %" PRIu64, worker->index, block->buffer.block);
    queue_check(worker, block, stream_of(worker, block));
}

static void rewrite_random_block(struct worker *worker)
{
    struct block *block = random_block(worker);

    if (block == NULL)
        return;
    journal_operation("thread %u: check and write %" PRIu64 " again", worker->index,
                      block->buffer.block);
    queue_check(worker, block, stream_of(worker, block));
    delay_stream(worker, stream_of(worker, block));
    write_new_pattern(worker, block, stream_of(worker, block));
}

/* Choose a stream other than that of the block, and make it wait for the stream of the block. */
static CUstream order_other_stream(struct worker *worker, const struct block *block,
                                   unsigned *index)
{
    const CUstream *stream = worker->workload->env->stream;

    *index = (block->stream + 1 + (unsigned)choose(worker, STREAMS - 1)) % STREAMS;
    device_order(stream[*index], stream[block->stream], event_of(worker));
    return stream[*index];
}

static void check_and_write(struct worker *worker, struct block *block, CUstream stream)
{
    delay_stream(worker, stream);
    queue_check(worker, block, stream);
    if (choose(worker, 2) == 0) {
        write_new_pattern(worker, block, stream);
        queue_check(worker, block, stream);
    }
}

/* Another stream uses a block, which then remains allocated or is freed. */
static void use_on_other_stream(struct worker *worker)
{
    struct block *block = random_block(worker);
    unsigned stream_index;

    if (block == NULL)
        return;
    const bool is_last = choose(worker, 2) == 0;
    const CUstream stream = order_other_stream(worker, block, &stream_index);
    journal_operation("thread %u: stream %u uses %" PRIu64 "%s", worker->index, stream_index,
                      block->buffer.block, is_last ? ", which is freed" : "");
    XSEG(record_stream, worker->workload->allocator, pointer_of(block), stream);
    check_and_write(worker, block, stream);
    if (!is_last) {
        device_order(stream_of(worker, block), stream, event_of(worker));
        return;
    }
    count_busy(COUNT_BUSY_FREES, stream);
    XSEG(free, worker->workload->allocator, pointer_of(block));
    remove_block(worker, block);
}

static void free_after(struct worker *worker)
{
    struct block *block = random_block(worker);
    const xseg_event event = event_of(worker);
    unsigned stream_index;

    if (block == NULL)
        return;
    const CUstream stream = order_other_stream(worker, block, &stream_index);
    journal_operation("thread %u: free %" PRIu64 " after an event of stream %u", worker->index,
                      block->buffer.block, stream_index);
    check_and_write(worker, block, stream);
    CU(EventRecord, event, stream);
    count_busy(COUNT_BUSY_FREES, stream);
    XSEG(free_after, worker->workload->allocator, pointer_of(block), &event, 1);
    remove_block(worker, block);
}

static void pass_or_receive(struct worker *worker)
{
    struct workload *workload = worker->workload;
    struct block *block = random_block(worker);

    (void)pthread_mutex_lock(&workload->lock);
    if (workload->has_passed && worker->block_count < MAX_BLOCKS) {
        journal_operation("thread %u: receive %" PRIu64, worker->index,
                          workload->passed.buffer.block);
        worker->block[worker->block_count++] = workload->passed;
        worker->bytes += workload->passed.buffer.bytes;
        workload->has_passed = false;
    } else if (!workload->has_passed && block != NULL) {
        journal_operation("thread %u: pass %" PRIu64, worker->index, block->buffer.block);
        workload->passed = *block;
        workload->has_passed = true;
        remove_block(worker, block);
    }
    (void)pthread_mutex_unlock(&workload->lock);
}

static void compare_on_host(struct worker *worker)
{
    const struct block *block = random_block(worker);

    if (block == NULL)
        return;
    struct buffer buffer = block->buffer;
    buffer.bytes = buffer.bytes < COPIED_BYTES ? buffer.bytes : COPIED_BYTES;
    journal_operation("thread %u: compare %zu bytes of %" PRIu64 " by the host", worker->index,
                      buffer.bytes, buffer.block);
    CU(MemcpyDtoHAsync, worker->copy, buffer.address, buffer.bytes, stream_of(worker, block));
    CU(StreamSynchronize, stream_of(worker, block));
    const struct pattern_report report =
        pattern_check(worker->copy, buffer.bytes, buffer.seed, buffer.mask);
    kernel_report(&buffer, &report);
    journal_count(COUNT_CHECKED, buffer.bytes);
}

static void trim(struct worker *worker)
{
    struct xseg_trim_options options = {sizeof(options)};
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    const struct workload *workload = worker->workload;
    const unsigned stream = (unsigned)choose(worker, STREAMS);

    options.wait = choose(worker, 2) == 0;
    scope.one_stream = choose(worker, 3) == 0;
    scope.stream = scope.one_stream ? workload->env->stream[stream] : NULL;
    if (scope.one_stream)
        scope.device = 0;
    else if (choose(worker, 3) == 0)
        scope.pool = workload->pool[choose(worker, POOLS)];
    journal_operation("thread %u: trim%s%s", worker->index, options.wait ? ", waiting" : "",
                      scope.one_stream     ? ", one stream"
                      : scope.pool != NULL ? ", one pool"
                                           : "");
    count_busy(COUNT_BUSY_TRIMS, workload->env->stream[stream]);
    XSEG(trim, workload->allocator, &scope, &options, NULL);
}

static void decay(struct worker *worker)
{
    const unsigned milliseconds = 10 + (unsigned)choose(worker, 400);

    journal_operation("thread %u: %u ms pass", worker->index, milliseconds);
    section_advance_clock(milliseconds);
    count_busy(COUNT_BUSY_TRIMS, worker->workload->env->stream[choose(worker, STREAMS)]);
    const struct xseg_trim_options due = {
        .struct_size = sizeof(due), .due_only = true, .max_us = 2000};
    XSEG(trim, worker->workload->allocator, NULL, &due, NULL);
}

/* Free nearly all memory of the worker, so that other streams use the cached memory. */
static void free_most(struct worker *worker)
{
    const unsigned remaining = worker->block_count / 8;

    while (worker->block_count > remaining)
        free_random_block(worker);
}

static const struct {
    unsigned weight;
    void (*run)(struct worker *);
} operations[] = {
    {40, allocate},
    {14, free_random_block},
    {10, check_random_block},
    {8, rewrite_random_block},
    {14, use_on_other_stream},
    {4, free_after},
    {4, pass_or_receive},
    {2, compare_on_host},
    {3, trim},
    {4, decay},
    {1, free_most},
};

static void run_operation(struct worker *worker)
{
    unsigned sum = 0;

    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
        sum += operations[i].weight;
    uint64_t offset = choose(worker, sum);
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
        if (offset < operations[i].weight) {
            operations[i].run(worker);
            break;
        }
        offset -= operations[i].weight;
    }
    if (device.is_simulated)
        sim.advance(choose(worker, 20000));
}

/* --- A workload. --- */

/* The number of operations of a thread does not depend on the speed of the other thread. */
static bool has_operations(const struct workload *workload, uint64_t count)
{
    struct section_env deadline = {.deadline_ns = workload->deadline_ns};

    if (count < MIN_OPERATIONS)
        return true;
    return workload->thread_operations > 0 ? count < workload->thread_operations
                                           : section_has_time(&deadline);
}

static void *run_worker(void *argument)
{
    struct worker *worker = argument;

    device_enter();
    for (uint64_t i = 0; has_operations(worker->workload, i); i++)
        run_operation(worker);
    while (worker->block_count > 0)
        check_and_free(worker, &worker->block[worker->block_count - 1]);
    checks_wait(worker->workload->env->checks[worker->index]);
    device_leave();
    return NULL;
}

static struct worker *new_worker(struct workload *workload, unsigned index, uint64_t random_state)
{
    struct worker *worker = calloc(1, sizeof(*worker));
    unsigned char *copy = malloc(COPIED_BYTES);

    if (worker == NULL || copy == NULL)
        journal_stop("out of host memory");
    worker->workload = workload;
    worker->index = index;
    worker->random_state = random_state;
    /* The other quarter of the memory is for blocks that are pending free. */
    worker->budget = workload->env->memory / 4 * 3 / MAX_THREADS;
    worker->copy = copy;
    return worker;
}

static void free_passed(struct workload *workload)
{
    if (!workload->has_passed)
        return;
    kernel_check(workload->env->checks[0], workload->env->stream[workload->passed.stream],
                 &workload->passed.buffer);
    XSEG(free, workload->allocator, pointer_of(&workload->passed));
}

static void report_statistics(const struct workload *workload, const char *config)
{
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope scope = XSEG_SCOPE_ALL;

    scope.device = 0;
    XSEG(stats_get, workload->allocator, &scope, &stats);
    journal_result("memory_taken", stats.num_device_alloc, "note",
                   "allocations from the driver, with %s", config);
    journal_result("memory_given_back", stats.num_device_free, "note",
                   "releases to the driver, with %s", config);
    journal_result("memory_short", stats.num_alloc_retries, "note",
                   "allocations that succeeded after cached memory was released, with %s", config);
}

static void run_workload(struct section_env *env, const char *config, uint64_t random_state,
                         uint64_t deadline_ns, uint64_t thread_operations)
{
    struct workload workload = {.env = env,
                                .deadline_ns = deadline_ns,
                                .thread_operations = thread_operations,
                                .lock = PTHREAD_MUTEX_INITIALIZER};
    struct xseg_pool_options fallback_options = {sizeof(fallback_options)};
    struct worker *worker[MAX_THREADS];
    pthread_t thread[MAX_THREADS];

    workload.allocator = section_open_allocator(config);
    XSEG(pool_create, workload.allocator, 0, NULL, &workload.pool[0]);
    fallback_options.use_on_oom = true;
    XSEG(pool_create, workload.allocator, 0, &fallback_options, &workload.pool[1]);
    for (unsigned i = 0; i < MAX_THREADS; i++) {
        worker[i] = new_worker(&workload, i, random_state + (uint64_t)i * (UINT64_C(1) << 40));
        if (pthread_create(&thread[i], NULL, run_worker, worker[i]) != 0)
            journal_stop("cannot create a thread");
    }
    for (unsigned i = 0; i < MAX_THREADS; i++) {
        (void)pthread_join(thread[i], NULL);
        free(worker[i]->copy);
        free(worker[i]);
    }
    free_passed(&workload);
    report_statistics(&workload, config);
    for (unsigned i = 0; i < POOLS; i++)
        XSEG(pool_release, workload.pool[i]);
    section_close_allocator(workload.allocator);
    section_synchronize(env);
}

void run_random(struct section_env *env)
{
    static const char *const configs[] = {
        "expandable_segments:False",
        "expandable_segments:True",
        "expandable_segments:True,page_size:auto",
        "expandable_segments:True,page_size:small,page_cache_mb:64",
    };
    const unsigned workloads = env->is_classic ? 1 : sizeof(configs) / sizeof(configs[0]);
    const uint64_t threads = (uint64_t)workloads * MAX_THREADS;
    const uint64_t workload_ns = (uint64_t)env->seconds * 1000000000 / workloads;
    const uint64_t start_ns = env->deadline_ns - (uint64_t)env->seconds * 1000000000;

    for (unsigned i = 0; i < workloads; i++) {
        char config[200];

        (void)snprintf(config, sizeof(config),
                       "%s,idle_ms:300,reclaim_us_per_s:1000000,hard_limit_mb:%zu", configs[i],
                       env->memory / 8 * 7 / MIB);
        run_workload(env, config, env->seed + ((uint64_t)i << 50), start_ns + (i + 1) * workload_ns,
                     (env->operations + threads - 1) / threads);
    }
}
