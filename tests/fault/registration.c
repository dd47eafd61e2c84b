/* SPDX-License-Identifier: MIT */
/*
 * Fault sweep over registrations, the rdma probe, single pages and descriptors.  After a failure no registration, pin or
 * descriptor is added; the same call then succeeds.  The simulator reports an unmap of registered memory.
 */
#include <unistd.h>

#include "tests/fault/fault_env.h"

static bool enter(void *context, struct xseg_registered *run)
{
    uint64_t id = 0;

    (void)context;
    if (xseg_sim_register((uintptr_t)run->base, run->bytes, XSEG_SIM_NCCL, &id) != XSEG_OK)
        return false;
    run->handle = (void *)(uintptr_t)id;
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    (void)context;
    assert_int_equal(xseg_sim_unregister((uintptr_t)run->handle), XSEG_OK);
}

static uint64_t register_memory(struct fault_env *env, void *address, size_t bytes, bool pin)
{
    struct xseg_registrar registrar = {sizeof(registrar), .enter = enter, .leave = leave,
                                       .pin = pin};
    const uint64_t before = xseg_sim_registered();
    uint64_t id = 0;
    xseg_status status;

    do {
        status = xseg_register(env->allocator, address, bytes, &registrar, &id);
        if (status != XSEG_OK)
            assert_int_equal(xseg_sim_registered(), before);
    } while (fault_retry(env, status));
    assert_int_not_equal(id, 0);
    return id;
}

static void unregister_memory(struct fault_env *env, uint64_t id)
{
    FAULT_RETRY(env, xseg_unregister(env->allocator, id));
}

/* Memory of a registration is allocated, released and allocated again; faults occur in growths and trims. */
static void memory_moves(struct fault_env *env)
{
    char *block = fault_alloc(env, 110 * MIB, NULL);

    faults_begin();
    const uint64_t id = register_memory(env, block, 190 * MIB, false),
                   pinned = register_memory(env, block, 10 * MIB, true);
    void *more = fault_alloc(env, 80 * MIB, NULL);
    fault_free(env, block);
    fault_trim(env, false);
    unregister_memory(env, pinned);
    fault_trim(env, false);
    block = fault_alloc(env, 60 * MIB, NULL);
    fault_free(env, block, more);
    fault_trim(env, false);
    unregister_memory(env, id);
    fault_trim(env, true);
    assert_int_equal(xseg_sim_registered(), 0);
}

/* The rdma probe, and blocks of one page each. */
static void single_pages(struct fault_env *env)
{
    fault_free(env, fault_alloc(env, 1000, NULL));
    faults_begin();
    struct xseg_pool *pool = fault_pool_of(env, .rdma = true, .single_page = true);
    void *first = fault_alloc_in(env, pool, 50 * MIB, NULL);
    void *second = fault_alloc_in(env, pool, 30 * MIB, env->side);

    fault_free_and_trim(env, first);
    first = fault_alloc_in(env, pool, 40 * MIB, NULL);
    fault_free(env, second, first);
    fault_pool_end(env, pool);
}

static void descriptors(struct fault_env *env)
{
    struct xseg_pool *pool = fault_pool_of(env, .rdma = true);
    void *block = fault_alloc_in(env, pool, 30 * MIB, NULL);
    uint64_t offset = 0;
    int fd = -1;

    faults_begin();
    while (fault_retry(
        env, xseg_dmabuf_open(env->allocator, block, 30 * MIB, XSEG_DMABUF_PIN, &fd, &offset)))
        assert_int_equal(fd, -1);
    FAULT_RETRY(env, xseg_dmabuf_close(env->allocator, fd));
    fd = -1;
    while (fault_retry(env, xseg_dmabuf_open(env->allocator, block, 30 * MIB, 0, &fd, &offset)))
        assert_int_equal(fd, -1);
    assert_int_equal(close(fd), 0);
    fault_free(env, block);
    fault_pool_end(env, pool);
}

int main(void)
{
    static const struct fault_suite_scenario scenarios[] = {
        {"memory_moves", memory_moves, 4, 2},
        {"single_pages", single_pages, 4, 2},
        {"descriptors", descriptors, 4, 1},
    };
    static const struct fault_suite sweep = {
        .name = "registration",
        .scenarios = scenarios,
        .count = COUNT_OF(scenarios),
        .config = "expandable_segments:True,rdma:True",
        .batch_scenario = memory_moves,
        .min_pairs = 50,
    };

    return fault_suite_run(&sweep);
}
