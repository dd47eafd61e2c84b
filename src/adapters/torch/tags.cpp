/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/tags.h"

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/held.h"
#include "src/adapters/torch/pools.h"

namespace xseg_torch
{

namespace
{

struct Tag {
    DeviceIndex device;
    MempoolId_t id;
    struct xseg_pool *pool;
    unsigned entered = 0; /* by all threads together */
};

struct Tags {
    std::mutex mutex;
    std::map<struct xseg_pool *, std::unique_ptr<Tag>> by_pool;
};

Tags &tags()
{
    static Tags *const the_tags = new Tags;
    return *the_tags;
}

struct Entry {
    Tag *tag;       /* nullptr: the tags before it are suspended */
    uint64_t order; /* among the routes that are begun */
    bool is_label;  /* by label_tag(): the first, if any is */
};

thread_local std::vector<Entry> entered; /* by this thread, the innermost last */

/* A label has no end of its own, so it ends with its thread. */
struct LabelEnd {
    bool is_needed = false;

    ~LabelEnd();
};

thread_local LabelEnd label_end;

/* The tag of a device that the calling thread is in; nullptr: none. */
const Entry *innermost(DeviceIndex device)
{
    for (auto entry = entered.rbegin(); entry != entered.rend() && entry->tag != nullptr; ++entry) {
        if (entry->tag->device == device) {
            return &*entry;
        }
    }
    return nullptr;
}

} // namespace

uint64_t tag_order(DeviceIndex device)
{
    const Entry *entry = innermost(device);
    return entry == nullptr ? 0 : entry->order;
}

static void refuse_fork(const Allocator *allocator)
{
    TORCH_CHECK(!allocator->is_forked(),
                "xseg.torch: tags of the parent process are not available "
                "in a forked child; start child processes with the spawn method");
}

struct xseg_pool *make_tag(Allocator *allocator, DeviceIndex device, const std::string &name,
                           MempoolId_t id, Memory memory)
{
    refuse_fork(allocator);
    Held<std::mutex> lock(tags().mutex);
    auto tag = std::make_unique<Tag>();
    tag->device = device;
    tag->id = id;
    tag->pool = make_named_pool(allocator, device, id, name, memory);
    struct xseg_pool *pool = tag->pool;
    tags().by_pool[pool] = std::move(tag);
    return pool;
}

/*
 * One route serves all threads that are in the tag: the filter asks in the thread that allocates.  Routes of PyTorch's
 * that were begun behind it are asked first, and leave the request to a tag that this thread entered later than they
 * began: so the innermost counts.
 */
static Tag *hold(Allocator *allocator, struct xseg_pool *pool)
{
    Tag *tag = tags().by_pool.at(pool).get();
    if (tag->entered == 0) {
        begin_route(
            allocator, tag->device, tag->id,
            [tag](cudaStream_t) {
                const Entry *entry = innermost(tag->device);
                return entry != nullptr && entry->tag == tag;
            },
            Route::TAG);
    }
    tag->entered++;
    return tag;
}

static void let_go(Allocator *allocator, Tag *tag)
{
    if (--tag->entered == 0) {
        allocator->endAllocateToPool(tag->device, tag->id);
        allocator->releasePool(tag->device, tag->id);
    }
}

void enter_tag(Allocator *allocator, struct xseg_pool *pool)
{
    refuse_fork(allocator);
    Held<std::mutex> lock(tags().mutex);
    entered.push_back({hold(allocator, pool), next_order(), false});
}

void leave_tag(Allocator *allocator)
{
    TORCH_CHECK(!entered.empty() && entered.back().tag != nullptr && !entered.back().is_label,
                "xseg.torch: thread is in no tag, or its tags are suspended; leave "
                "xseg.torch.suspended() first");
    if (allocator->is_forked()) {
        entered.pop_back();
        return;
    }
    Held<std::mutex> lock(tags().mutex);
    Tag *tag = entered.back().tag;
    entered.pop_back();
    let_go(allocator, tag);
}

void label_tag(Allocator *allocator, struct xseg_pool *pool)
{
    bool has_label = !entered.empty() && entered.front().is_label;
    if (pool != nullptr) {
        refuse_fork(allocator);
    }
    if (allocator->is_forked()) {
        entered.erase(entered.begin(), entered.begin() + has_label);
        return;
    }
    Held<std::mutex> lock(tags().mutex);
    if (pool != nullptr) {
        entered.insert(entered.begin() + has_label, {hold(allocator, pool), next_order(), true});
        label_end.is_needed = true;
    }
    if (has_label) {
        Tag *tag = entered.front().tag;
        entered.erase(entered.begin());
        let_go(allocator, tag);
    }
}

LabelEnd::~LabelEnd()
{
    try {
        if (is_needed && installed() != nullptr) {
            label_tag(installed(), nullptr);
        }
    } catch (const std::exception &refusal) {
        TORCH_WARN("xseg.torch: cannot release the tag of an ending thread: ", refusal.what());
    }
}

void suspend_tags(bool is_suspended)
{
    if (is_suspended) {
        entered.push_back({nullptr, 0, false});
    } else {
        TORCH_CHECK(!entered.empty() && entered.back().tag == nullptr,
                    "xseg.torch: tags of this thread are not suspended");
        entered.pop_back();
    }
}

} // namespace xseg_torch
