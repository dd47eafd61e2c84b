/* SPDX-License-Identifier: MIT */
/* Registrations with the simulator, which ends the process if their memory is unmapped. */
#include <unistd.h>

#include "tests/stress/exercise/world.h"
#include "tests/support/driver.h"
#include "xseg/sim.h"

/* A run that the simulator's registrar rejects, because its pages were created without rdma, has the handle NULL. */
static bool enter(void *context, struct xseg_registered *run)
{
    struct registration *registration = context;
    uint64_t id = 0;

    atomic_fetch_add(&registration->runs, 1);
    if (xseg_sim_register((uintptr_t)run->base, run->bytes, XSEG_SIM_NCCL, &id) == XSEG_OK)
        run->handle = (void *)(uintptr_t)id;
    return true;
}

static void leave(void *context, const struct xseg_registered *run)
{
    struct registration *registration = context;

    CHECK(atomic_fetch_sub(&registration->runs, 1) > 0);
    if (run->handle != NULL)
        CHECK_OK(xseg_sim_unregister((uintptr_t)run->handle));
}

void step_register(struct worker *worker)
{
    struct registration *registration = &worker->registration[below(worker, WORLD_REGISTRATIONS)];
    struct block *block = any_block(worker);

    if (block == NULL || registration->id != 0)
        return;
    const size_t begin = below(worker, block->bytes);
    const size_t bytes = 1 + below(worker, block->bytes - begin);
    const uint64_t epoch = fault_epoch();
    const struct xseg_registrar registrar = {sizeof(registrar), .context = registration,
                                             .enter = enter, .leave = leave,
                                             .pin = chance(worker, 3)};
    const xseg_status status = CALL(xseg_register, worker->world->allocator, block->ptr + begin,
                                    bytes, &registrar, &registration->id);
    failure_record(worker->number, "register %zu bytes at %p, pin %d: %d", bytes,
                   (void *)(block->ptr + begin), registrar.pin, status);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) ||
          (status == XSEG_ERR_PAUSED && block->pool != NULL));
    CHECK(status == XSEG_OK || atomic_load(&registration->runs) == 0);
    if (status == XSEG_OK && registrar.pin)
        mark_block(block, FEATURE(PIN));
}

void unregister_range(struct worker *worker, struct registration *registration)
{
    CHECK_OK(CALL(xseg_unregister, worker->world->allocator, registration->id));
    CHECK(atomic_load(&registration->runs) == 0);
    registration->id = 0;
}

void step_unregister(struct worker *worker)
{
    struct registration *registration = &worker->registration[below(worker, WORLD_REGISTRATIONS)];

    if (registration->id != 0)
        unregister_range(worker, registration);
}

void step_dmabuf(struct worker *worker)
{
    struct xseg_allocator *allocator = worker->world->allocator;
    struct block *block = any_block(worker);
    const bool is_pinned = chance(worker, 2);
    const uint64_t epoch = fault_epoch();
    uint64_t offset = 0;
    int fd = -1;

    if (block == NULL)
        return;
    const xseg_status status = CALL(xseg_dmabuf_open, allocator, block->ptr, block->bytes,
                                    is_pinned ? XSEG_DMABUF_PIN : 0, &fd, &offset);
    failure_record(worker->number, "dmabuf of %p, pin %d: %d", (void *)block->ptr, is_pinned,
                   status);
    if (status == XSEG_OK && is_pinned)
        CHECK_OK(CALL(xseg_dmabuf_close, allocator, fd));
    else if (status == XSEG_OK)
        CHECK(close(fd) == 0);
    CHECK(status == XSEG_OK || !fault_was_none(epoch) || status == XSEG_ERR_UNSUPPORTED ||
          (status == XSEG_ERR_PAUSED && block->pool != NULL));
}
