/* SPDX-License-Identifier: MIT */
/* Threads register, free and trim concurrently on a device under memory pressure. The callbacks of the registrations
 * register with the simulator, which ends the process if the memory is unmapped; meant for ThreadSanitizer as well. */
#include "tests/stress/stress.h"

#define THREADS 4u
#define BLOCKS  6u
#define ROUNDS  400u

struct worker {
    struct xseg_allocator *allocator;
    struct xseg_pool *pool;
    xseg_stream stream;
    uint64_t random;
    unsigned trims;
    void *block[BLOCKS];
    size_t bytes[BLOCKS];
    uint64_t id[BLOCKS];
};

static bool enter(void *context, struct xseg_registered *run)
{
    uint64_t id = 0;

    (void)context;
    CHECK_OK(xseg_sim_register((uintptr_t)run->base, run->bytes, XSEG_SIM_NCCL, &id));
    run->handle = (void *)(uintptr_t)id;
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    (void)context;
    CHECK_OK(xseg_sim_unregister((uintptr_t)run->handle));
}

/* Register a range that begins with a block, and may extend over adjacent blocks and unmapped blocks. */
static void register_block(struct worker *worker, unsigned i)
{
    const struct xseg_registrar registrar = {sizeof(registrar), .context = worker, .enter = enter,
                                             .leave = leave, .pin = below(worker, 4) == 0};

    if (xseg_register(worker->allocator, worker->block[i],
                      worker->bytes[i] + below(worker, 2) * below(worker, 60 * MIB), &registrar,
                      &worker->id[i]) != XSEG_OK)
        worker->id[i] = 0;
}

static void unregister_block(struct worker *worker, unsigned i)
{
    CHECK(worker->id[i] == 0 || xseg_unregister(worker->allocator, worker->id[i]) == XSEG_OK);
    worker->id[i] = 0;
}

static void change_block(struct worker *worker)
{
    const unsigned i = (unsigned)below(worker, BLOCKS);
    struct xseg_request request = {sizeof(request)};

    if (worker->block[i] == NULL) {
        worker->bytes[i] = request.bytes = 2 * MIB + below(worker, 40 * MIB);
        request.stream = worker->stream;
        request.pool = below(worker, 2) == 0 ? worker->pool : NULL;
        if (xseg_alloc_with(worker->allocator, &request, &worker->block[i]) != XSEG_OK)
            worker->block[i] = NULL;
        else if (worker->id[i] == 0)
            register_block(worker, i);
    } else {
        if (below(worker, 2) == 0)
            unregister_block(worker, i);
        CHECK_OK(xseg_free(worker->allocator, worker->block[i]));
        worker->block[i] = NULL;
    }
    if (below(worker, 8) == 0 && xseg_trim(worker->allocator, NULL, NULL, NULL) == XSEG_OK)
        worker->trims++;
    if (below(worker, 16) == 0)
        unregister_block(worker, (unsigned)below(worker, BLOCKS));
}

static void *change_blocks(void *self)
{
    struct worker *worker = self;

    for (unsigned i = 0; i < ROUNDS; i++)
        change_block(worker);
    for (unsigned i = 0; i < BLOCKS; i++) {
        unregister_block(worker, i);
        CHECK_OK(xseg_free(worker->allocator, worker->block[i]));
    }
    return NULL;
}

TEST(registered_pages_remain_mapped)
{
    struct xseg_allocator *allocator = env_open_mib(600, "expandable_segments:True,rdma:True");
    struct xseg_pool *pool = env_pool_of(allocator, .single_page = true);
    struct worker worker[THREADS];
    pthread_t thread[THREADS];

    for (unsigned i = 0; i < THREADS; i++)
        worker[i] = (struct worker){.allocator = allocator,
                                    .pool = pool,
                                    .stream = i % 2 == 0 ? NULL : env_stream(),
                                    .random = 4711 + i};
    threads_start(thread, change_blocks, worker, THREADS);
    threads_join(thread, THREADS);
    assert_int_equal(xseg_sim_registered(), 0);
    assert_true(xseg_sim_registrations() > ROUNDS / 4);
    assert_true(worker[0].trims > 0);
    assert_int_equal(env_stats(allocator).registered_bytes, 0);
    env_close(allocator, worker[1].stream, worker[3].stream);
}
