/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/contexts.h"

#include <atomic>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "src/adapters/torch/held.h"

namespace xseg_torch
{

namespace
{

struct Slot {
    std::shared_ptr<GatheredContext> context;
    uint64_t round = 0; /* round of discard_contexts() in which the context was gathered */
};

struct Contexts {
    std::mutex mutex;
    std::vector<Slot> slots; /* the index is the ID minus 1 */
    std::vector<uint32_t> free_indexes;
    uint64_t round = 1;
};

std::atomic<CreateContextFn> the_recorder{nullptr};

Contexts &contexts()
{
    static Contexts *const the_contexts = new Contexts;
    return *the_contexts;
}

uint32_t gather_context(void *)
{
    CreateContextFn recorder = the_recorder.load(std::memory_order_acquire);
    std::shared_ptr<GatheredContext> context;
    if (recorder == nullptr || locks_held != 0) {
        return 0;
    }
    /* The library calls this function, also in frees, so no exception may propagate. */
    try {
        context = recorder();
    } catch (const std::exception &failure) {
        TORCH_WARN_ONCE("xseg.torch: cannot record a call stack: ", failure.what());
    }
    if (context == nullptr) {
        return 0;
    }
    Contexts &all = contexts();
    std::lock_guard<std::mutex> lock(all.mutex);
    uint32_t index;
    if (all.free_indexes.empty()) {
        index = static_cast<uint32_t>(all.slots.size());
        all.slots.emplace_back();
    } else {
        index = all.free_indexes.back();
        all.free_indexes.pop_back();
    }
    all.slots[index] = {std::move(context), all.round};
    return index + 1;
}

/* Contexts are destroyed without the lock, because their destructors may run code of PyTorch. */
void discard_contexts(void *, const uint32_t *kept, size_t count)
{
    std::vector<std::shared_ptr<GatheredContext>> discarded;
    std::unordered_set<uint32_t> used(kept, kept + count);
    Contexts &all = contexts();
    std::unique_lock<std::mutex> lock(all.mutex);
    for (uint32_t index = 0; index < all.slots.size(); index++) {
        Slot &slot = all.slots[index];
        if (slot.context != nullptr && slot.round < all.round && used.count(index + 1) == 0) {
            discarded.push_back(std::move(slot.context));
            slot.context = nullptr;
            all.free_indexes.push_back(index);
        }
    }
    all.round++;
    lock.unlock();
}

} // namespace

void set_recorder(CreateContextFn recorder)
{
    the_recorder.store(recorder, std::memory_order_release);
}

std::shared_ptr<GatheredContext> context_of(uint32_t id)
{
    Contexts &all = contexts();
    std::lock_guard<std::mutex> lock(all.mutex);
    return id == 0 || id > all.slots.size() ? nullptr : all.slots[id - 1].context;
}

struct xseg_history_hook context_hook()
{
    struct xseg_history_hook hook = {sizeof(hook)};
    hook.gather = gather_context;
    hook.discard = discard_contexts;
    return hook;
}

} // namespace xseg_torch
