/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/pools.h"
#include "src/adapters/torch/share.h"

namespace xseg_torch
{

namespace
{

struct Checkpoint final : public AllocatorState {
    struct xseg_checkpoint *blocks = nullptr;
    MempoolId_t id;

    ~Checkpoint() override
    {
        xseg_checkpoint_destroy(blocks);
    }
};

struct Moved {
    std::vector<void *> freed, live;
};

void note_moved(void *context, void *ptr, bool was_freed)
{
    Moved *moved = static_cast<Moved *>(context);
    (was_freed ? moved->freed : moved->live).push_back(ptr);
}

struct xseg_pool *pool_of(DeviceIndex device, MempoolId_t id)
{
    struct xseg_pool *pool = held_pool(device, id);
    TORCH_CHECK(pool != nullptr, "Could not find pool of id (", id.first, ", ", id.second, ")");
    return pool;
}

} // namespace

std::shared_ptr<AllocatorState> Allocator::getCheckpointState(DeviceIndex device, MempoolId_t id)
{
    auto state = std::make_shared<Checkpoint>();
    state->id = id;
    check(xseg_pool_checkpoint(pool_of(device, id), &state->blocks), "getCheckpointState");
    return state;
}

CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex device,
                                                  std::shared_ptr<AllocatorState> state)
{
    auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
    TORCH_CHECK(checkpoint != nullptr,
                "xseg.torch: setCheckpointPoolState: checkpoint of another allocator");
    Moved moved;
    check(
        xseg_pool_restore(pool_of(device, checkpoint->id), checkpoint->blocks, note_moved, &moved),
        "setCheckpointPoolState");
    CheckpointDelta delta;
    for (void *ptr : moved.freed) {
        warn(forget_share(library(), ptr), "setCheckpointPoolState");
    }
    delta.ptrs_freed = std::move(moved.freed);
    for (void *ptr : moved.live) {
        delta.dataptrs_allocd.emplace_back(ptr, ptr, cached_deleter(),
                                           c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
}

} // namespace xseg_torch
