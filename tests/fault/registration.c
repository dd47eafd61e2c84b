/* SPDX-License-Identifier: MIT */
/*
 * The sweep over registrations: every driver call and host allocation of the probe of rdma, of single pages, of descriptors
 * and of registrations fails once, and pairs of them, and their functions refuse.
 *
 * After a failure nothing is registered or pinned that was not, and no descriptor is open; the same call then works.
 * Memory never goes beneath a registration, which the simulator would report.
 */
#include <unistd.h>

#include "tests/fault/armed.h"

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

static struct xseg_pool *make_pool(struct stage *stage, bool single_page)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    options.rdma = true;
    options.single_page = single_page;
    while (stage_again(stage, xseg_pool_create(stage->allocator, 0, &options, &pool)))
        ;
    return pool;
}

static void end_pool(struct stage *stage, struct xseg_pool *pool)
{
    while (stage_again(stage, xseg_pool_release(pool)))
        ;
    stage_trim(stage, true);
}

static uint64_t add(struct stage *stage, void *address, size_t bytes, bool pin)
{
    struct xseg_registrar registrar = {sizeof(registrar)};
    const uint64_t before = xseg_sim_registered();
    uint64_t id = 0;
    xseg_status status;

    registrar.enter = enter;
    registrar.leave = leave;
    registrar.pin = pin;
    do {
        status = xseg_register(stage->allocator, address, bytes, &registrar, &id);
        if (status != XSEG_OK)
            assert_int_equal(xseg_sim_registered(), before);
    } while (stage_again(stage, status));
    assert_int_not_equal(id, 0);
    return id;
}

static void end(struct stage *stage, uint64_t id)
{
    while (stage_again(stage, xseg_unregister(stage->allocator, id)))
        ;
}

/* Memory comes, goes and comes back beneath a registration; faults strike in growths and trims. */
static void memory_moves(struct stage *stage)
{
    char *block = stage_take(stage, 110 * MIB, NULL);

    armed_begin();
    const uint64_t id = add(stage, block, 190 * MIB, false);
    const uint64_t pinned = add(stage, block, 10 * MIB, true);
    void *more = stage_take(stage, 80 * MIB, NULL);
    stage_give(stage, block);
    stage_trim(stage, false);
    end(stage, pinned);
    stage_trim(stage, false);
    block = stage_take(stage, 60 * MIB, NULL);
    stage_give(stage, block);
    stage_give(stage, more);
    stage_trim(stage, false);
    end(stage, id);
    stage_trim(stage, true);
    assert_int_equal(xseg_sim_registered(), 0);
}

/* The probe, and blocks of one page each. */
static void single_pages(struct stage *stage)
{
    stage_give(stage, stage_take(stage, 1000, NULL));
    armed_begin();
    struct xseg_pool *pool = make_pool(stage, true);
    void *first = stage_take_from(stage, pool, 50 * MIB, NULL);
    void *second = stage_take_from(stage, pool, 30 * MIB, stage->side);

    stage_give(stage, first);
    stage_trim(stage, true);
    first = stage_take_from(stage, pool, 40 * MIB, NULL);
    stage_give(stage, second);
    stage_give(stage, first);
    end_pool(stage, pool);
}

static void descriptors(struct stage *stage)
{
    struct xseg_pool *pool = make_pool(stage, false);
    void *block = stage_take_from(stage, pool, 30 * MIB, NULL);
    uint64_t offset = 0;
    int fd = -1;

    armed_begin();
    while (stage_again(
        stage, xseg_dmabuf_open(stage->allocator, block, 30 * MIB, XSEG_DMABUF_PIN, &fd, &offset)))
        assert_int_equal(fd, -1);
    while (stage_again(stage, xseg_dmabuf_close(stage->allocator, fd)))
        ;
    fd = -1;
    while (stage_again(stage, xseg_dmabuf_open(stage->allocator, block, 30 * MIB, 0, &fd, &offset)))
        assert_int_equal(fd, -1);
    assert_int_equal(close(fd), 0);
    stage_give(stage, block);
    end_pool(stage, pool);
}

int main(void)
{
    static const struct armed_scenario scenarios[] = {
        {"memory_moves", memory_moves, 4, 2},
        {"single_pages", single_pages, 4, 2},
        {"descriptors", descriptors, 4, 1},
    };
    static const struct armed_sweep sweep = {
        .name = "registration",
        .scenarios = scenarios,
        .count = COUNT_OF(scenarios),
        .config = "expandable_segments:True,rdma:True",
        .halfway = memory_moves,
        .least_pairs = 50,
    };

    return armed_run(&sweep);
}
