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
    unsigned entry_count = 0; /* entries by all threads */
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
    Tag *tag;       /* nullptr: earlier entries are suspended */
    uint64_t order; /* relative to routes (next_order()) */
    bool is_label;  /* entry of label_tag(), which is the first entry */
};

thread_local std::vector<Entry> entries; /* entries of this thread, the innermost last */

/* Releases the label tag at the end of the thread. */
struct LabelEnd {
    bool is_needed = false;

    ~LabelEnd();
};

thread_local LabelEnd label_end;

/* The innermost tag of the calling thread on a device; nullptr: none. */
const Entry *innermost(DeviceIndex device)
{
    for (auto entry = entries.rbegin(); entry != entries.rend() && entry->tag != nullptr; ++entry) {
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

static void check_not_forked(const Allocator *allocator)
{
    TORCH_CHECK(!allocator->is_forked(),
                "xseg.torch: tags of the parent process are not available "
                "in a forked child; start child processes with the spawn method");
}

struct xseg_pool *make_tag(Allocator *allocator, DeviceIndex device, const std::string &name,
                           MempoolId_t id, Memory memory)
{
    check_not_forked(allocator);
    AdapterLock<std::mutex> lock(tags().mutex);
    auto tag = std::make_unique<Tag>();
    tag->device = device;
    tag->id = id;
    tag->pool = create_named_pool(allocator, device, id, name, memory);
    struct xseg_pool *pool = tag->pool;
    tags().by_pool[pool] = std::move(tag);
    return pool;
}

/*
 * Retain a tag.  One route serves all threads in the tag, because its filter runs in the allocating thread.  Later routes of
 * PyTorch are evaluated first, and reject the request if the thread has entered the tag after the begin of the route.
 * Therefore the innermost of tags and routes serves the request.
 */
static Tag *retain_tag(Allocator *allocator, struct xseg_pool *pool)
{
    Tag *tag = tags().by_pool.at(pool).get();
    if (tag->entry_count == 0) {
        begin_route(
            allocator, tag->device, tag->id,
            [tag](cudaStream_t) {
                const Entry *entry = innermost(tag->device);
                return entry != nullptr && entry->tag == tag;
            },
            Route::TAG);
    }
    tag->entry_count++;
    return tag;
}

static void release_tag(Allocator *allocator, Tag *tag)
{
    if (--tag->entry_count == 0) {
        allocator->endAllocateToPool(tag->device, tag->id);
        allocator->releasePool(tag->device, tag->id);
    }
}

void enter_tag(Allocator *allocator, struct xseg_pool *pool)
{
    check_not_forked(allocator);
    AdapterLock<std::mutex> lock(tags().mutex);
    entries.push_back({retain_tag(allocator, pool), next_order(), false});
}

void leave_tag(Allocator *allocator)
{
    TORCH_CHECK(!entries.empty() && entries.back().tag != nullptr && !entries.back().is_label,
                "xseg.torch: thread is in no tag, or its tags are suspended; leave "
                "xseg.torch.suspended() first");
    if (allocator->is_forked()) {
        entries.pop_back();
        return;
    }
    AdapterLock<std::mutex> lock(tags().mutex);
    Tag *tag = entries.back().tag;
    entries.pop_back();
    release_tag(allocator, tag);
}

void label_tag(Allocator *allocator, struct xseg_pool *pool)
{
    bool has_label = !entries.empty() && entries.front().is_label;
    if (pool != nullptr) {
        check_not_forked(allocator);
    }
    if (allocator->is_forked()) {
        entries.erase(entries.begin(), entries.begin() + has_label);
        return;
    }
    AdapterLock<std::mutex> lock(tags().mutex);
    if (pool != nullptr) {
        entries.insert(entries.begin() + has_label,
                       {retain_tag(allocator, pool), next_order(), true});
        label_end.is_needed = true;
    }
    if (has_label) {
        Tag *tag = entries.front().tag;
        entries.erase(entries.begin());
        release_tag(allocator, tag);
    }
}

LabelEnd::~LabelEnd()
{
    try {
        if (is_needed && installed() != nullptr) {
            label_tag(installed(), nullptr);
        }
    } catch (const std::exception &failure) {
        TORCH_WARN("xseg.torch: cannot release the tag of an ending thread: ", failure.what());
    }
}

void suspend_tags(bool is_suspended)
{
    if (is_suspended) {
        entries.push_back({nullptr, 0, false});
    } else {
        TORCH_CHECK(!entries.empty() && entries.back().tag == nullptr,
                    "xseg.torch: tags of this thread are not suspended");
        entries.pop_back();
    }
}

} // namespace xseg_torch
