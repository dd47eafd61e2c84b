/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/pools.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <type_traits>

#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/foreign.h"
#include "src/adapters/torch/held.h"
#include "src/adapters/torch/history.h"
#include "src/adapters/torch/share.h"
#include "src/adapters/torch/tags.h"

namespace xseg_torch
{

namespace
{

struct Pool {
    DeviceIndex device;
    MempoolId_t id;
    struct xseg_pool *handle = nullptr;
    int use_count = 0;
    std::shared_ptr<CUDAAllocator> memory; /* a custom allocator of the pool */
    std::function<bool(cudaStream_t)> filter;
    bool is_routed = false;
    Route route = Route::PYTORCH;
    /* From next_order(): the latest route that accepts a stream serves the request. */
    uint64_t route_order = 0;
};

using Key = std::pair<DeviceIndex, MempoolId_t>;

struct Table {
    std::recursive_mutex mutex;
    std::map<Key, std::unique_ptr<Pool>> pools;
    /* Statistics of destroyed pools, by each ID that has had memory.  Other IDs have no statistics in PyTorch. */
    std::map<Key, Groups> past_statistics;
    /* IDs of pools that were destroyed at their release, for count_syncs_of_destroyed_pools(). */
    std::set<Key> destroyed_at_release;
    /* Pools whose custom allocators remain to be destroyed. */
    std::vector<std::unique_ptr<Pool>> destroyed;
};

Table &table()
{
    /* Never destroyed, because destructors of static objects may free tensors. */
    static Table *const the_table = new Table;
    return *the_table;
}

/*
 * Holds the lock of the table.  After the thread has released its last lock, the custom allocators of destroyed pools are
 * destroyed.  This may run Python code, for which other threads may hold the GIL while they wait for the table.
 */
class Lock
{
  public:
    Lock()
    {
        TORCH_CHECK(!installed()->is_forked(),
                    "xseg.torch: memory pools of the parent process are not available in a forked "
                    "child; start child processes with the spawn method");
        lock_.emplace(table().mutex);
    }
    ~Lock()
    {
        std::vector<std::unique_ptr<Pool>> destroyed;
        if (locks_held == 1) {
            destroyed.swap(table().destroyed);
        }
        lock_.reset();
    }
    Lock(const Lock &) = delete;
    Lock &operator=(const Lock &) = delete;

  private:
    std::optional<AdapterLock<std::recursive_mutex>> lock_;
};

template <class Interface, class = void> struct Marks : std::false_type {
};
template <class Interface>
struct Marks<Interface, std::void_t<decltype(&Interface::markCaptureBegin)>> : std::true_type {
};

#ifdef XSEG_TORCH_WITHOUT_MARKS /* tests: emulates versions of PyTorch without these methods */
constexpr bool HAS_MARKS = false;
#else
constexpr bool HAS_MARKS = Marks<CUDAAllocator>::value;
#endif

Pool *find_pool(DeviceIndex device, MempoolId_t id)
{
    auto found = table().pools.find({device, id});
    return found == table().pools.end() ? nullptr : found->second.get();
}

Pool *find_retained(DeviceIndex device, MempoolId_t id, const char *operation)
{
    Pool *pool = find_pool(device, id);
    TORCH_CHECK(pool != nullptr && pool->use_count > 0, "xseg.torch: ", operation,
                ": no such memory pool, ID (", id.first, ", ", id.second, ") on device ",
                static_cast<int>(device));
    return pool;
}

std::string pool_name(MempoolId_t id)
{
    return "torch (" + std::to_string(id.first) + ", " + std::to_string(id.second) + ")";
}

/* PyTorch counts by ID: a pool continues the statistics of earlier pools with its ID. */
void add_statistics(Groups &sums, const struct xseg_statistics &pool)
{
    for (size_t group = 0; group < sums.size(); group++) {
        const struct xseg_stat &each = pool.reserved_bytes[group];
        sums[group].current += each.current;
        sums[group].peak = std::max(sums[group].peak, each.peak);
        sums[group].allocated += each.allocated;
        sums[group].freed += each.freed;
    }
}

/* Get the statistics of a pool.  If the pool has had memory, its ID has statistics from now on. */
bool read_statistics(struct xseg_allocator *library, const Pool *pool,
                     struct xseg_statistics *statistics)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    scope.pool = pool->handle;
    *statistics = {sizeof(*statistics)};
    if (xseg_stats_get(library, &scope, statistics) != XSEG_OK) {
        return false;
    }
    if (statistics->reserved_bytes[XSEG_STAT_ALL].allocated > 0) {
        table().past_statistics.try_emplace({pool->device, pool->id});
    }
    return true;
}

/* Callback of the library for a destroyed pool.  Destructors must not run inside the library, so they are deferred. */
void on_pool_destroyed(void *context, const struct xseg_statistics *last)
{
    AdapterLock<std::recursive_mutex> lock(table().mutex);
    Pool *pool = static_cast<Pool *>(context);
    Key key{pool->device, pool->id};
    if (last->reserved_bytes[XSEG_STAT_ALL].allocated > 0 ||
        table().past_statistics.count(key) > 0) {
        add_statistics(table().past_statistics[key], *last);
    }
    auto found = table().pools.find(key);
    if (found != table().pools.end() && found->second.get() == pool) {
        table().destroyed.push_back(std::move(found->second));
        table().pools.erase(found);
    }
}

/* Allocators of PyTorch use the current device and stream. */
void *memory_alloc(void *context, size_t bytes, int device, xseg_stream)
{
    try {
        c10::cuda::CUDAGuard guard(static_cast<DeviceIndex>(device));
        return static_cast<CUDAAllocator *>(context)->raw_alloc(bytes);
    } catch (...) {
        store_current_exception();
        return nullptr;
    }
}

void memory_free(void *context, void *ptr, size_t, int, xseg_stream)
{
    try {
        static_cast<CUDAAllocator *>(context)->raw_delete(ptr);
    } catch (const std::exception &failure) {
        TORCH_WARN("xseg.torch: allocator of a memory pool failed to free a block: ",
                   failure.what());
    }
}

Pool *create_pool(Allocator *allocator, DeviceIndex device, MempoolId_t id,
                  std::shared_ptr<CUDAAllocator> memory, const std::string &name, Memory kind)
{
    auto pool = std::make_unique<Pool>();
    pool->device = device;
    pool->id = id;
    pool->memory = std::move(memory);
    struct xseg_pool_options options = {sizeof(options)};
    options.name = name.c_str();
    options.id[0] = id.first;
    options.id[1] = id.second;
    options.on_destroy = on_pool_destroyed;
    options.on_destroy_context = pool.get();
    options.rdma = options.single_page = kind == Memory::REGISTERED;
    if (pool->memory) {
        options.memory = {memory_alloc, memory_free, pool->memory.get()};
    }
    allocator->open_device(device);
    check(xseg_pool_create(allocator->library(), device, &options, &pool->handle),
          "create memory pool");
    table().destroyed_at_release.erase({device, id});
    Pool *created = pool.get();
    table().pools[{device, id}] = std::move(pool);
    return created;
}

/* Destroy a released pool without memory, which the library does in a trim. */
void destroy_if_empty(Allocator *allocator, const Pool *pool)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    scope.pool = pool->handle;
    struct xseg_trim_options options = {sizeof(options)};
    struct xseg_statistics statistics;
    if (read_statistics(allocator->library(), pool, &statistics) &&
        statistics.reserved_bytes[XSEG_STAT_ALL].current == 0) {
        warn(xseg_trim(allocator->library(), &scope, &options, nullptr), "destroy memory pool");
    }
}

Pool *create_or_retain(Allocator *allocator, DeviceIndex device, MempoolId_t id,
                       std::shared_ptr<CUDAAllocator> memory)
{
    allocator->check_device(device);
    Pool *pool = find_pool(device, id);
    if (pool != nullptr && pool->use_count == 0) {
        destroy_if_empty(allocator, pool);
        pool = find_pool(device, id);
    }
    if (pool == nullptr) {
        pool = create_pool(allocator, device, id, std::move(memory), pool_name(id), Memory::PLAIN);
    } else {
        TORCH_CHECK(pool->use_count > 0, "xseg.torch: memory pool was released, ID (", id.first,
                    ", ", id.second, "); create a new MemPool");
        TORCH_CHECK(!memory, "xseg.torch: memory pool exists already, ID (", id.first, ", ",
                    id.second, ")");
    }
    pool->use_count++;
    return pool;
}

/* Release a reference.  The pool may be destroyed afterwards. */
void release_pool(Pool *pool)
{
    if (--pool->use_count == 0) {
        check(xseg_pool_release(pool->handle), "releasePool");
    }
}

bool route_accepts(void *context, xseg_stream stream)
{
    /* The library calls this function, so no exception may propagate.  PyTorch's filter throws if CUDA has failed, which the
     * caller's next call of CUDA reports. */
    try {
        const Pool *pool = static_cast<Pool *>(context);
        /* A tag that the thread has entered later has priority. */
        return (pool->route == Route::TAG || tag_order(pool->device) < pool->route_order) &&
               pool->filter(stream);
    } catch (const std::exception &failure) {
        TORCH_WARN("xseg.torch: filter of a memory pool failed, the allocation is not served from "
                   "the pool: ",
                   failure.what());
        return false;
    }
}

} // namespace

uint64_t next_order()
{
    static std::atomic<uint64_t> last{0};
    return ++last;
}

struct xseg_pool *create_named_pool(Allocator *allocator, DeviceIndex device, MempoolId_t id,
                                    const std::string &name, Memory memory)
{
    Lock lock;
    allocator->check_device(device);
    TORCH_CHECK(find_pool(device, id) == nullptr, "xseg.torch: memory pool exists already, ID (",
                id.first, ", ", id.second, ")");
    Pool *pool = create_pool(allocator, device, id, nullptr, name, memory);
    pool->use_count++;
    return pool->handle;
}

void free_destroyed_pools()
{
    Lock lock;
}

void count_syncs_of_destroyed_pools(Allocator *allocator, MempoolId_t id)
{
    Lock lock;
    bool is_all = id.first == 0 && id.second == 0;
    for (auto key = table().destroyed_at_release.begin();
         key != table().destroyed_at_release.end();) {
        if (!is_all && key->second == id) {
            allocator->count_sync(key->first);
        }
        key =
            is_all || key->second == id ? table().destroyed_at_release.erase(key) : std::next(key);
    }
}

void trim_released_pools(Allocator *allocator, MempoolId_t id,
                         const struct xseg_trim_options &options)
{
    /* The handle of a released pool is valid until `on_destroy` has returned, which takes the same lock. */
    Lock lock;
    std::vector<Key> keys;
    for (const auto &[key, pool] : table().pools) {
        if (key.second == id && pool->use_count == 0) {
            keys.push_back(key);
        }
    }
    for (const Key &key : keys) {
        const Pool *pool = find_pool(key.first, key.second);
        if (pool != nullptr && pool->use_count == 0) {
            struct xseg_scope scope = XSEG_SCOPE_ALL;
            scope.pool = pool->handle;
            check(xseg_trim(allocator->library(), &scope, &options, nullptr), "empty_cache");
        }
    }
}

struct xseg_pool *retained_pool(DeviceIndex device, MempoolId_t id)
{
    Lock lock;
    Pool *pool = find_pool(device, id);
    return pool != nullptr && pool->use_count > 0 ? pool->handle : nullptr;
}

struct xseg_pool *routed_pool(DeviceIndex device, cudaStream_t stream)
{
    Lock lock;
    const Pool *found = nullptr;
    for (const auto &[key, pool] : table().pools) {
        if (key.first == device && pool->is_routed &&
            (found == nullptr || pool->route_order > found->route_order) &&
            route_accepts(pool.get(), stream)) {
            found = pool.get();
        }
    }
    return found == nullptr ? nullptr : found->handle;
}

MempoolId_t id_of_pool(const struct xseg_pool *handle)
{
    if (handle != nullptr) {
        Lock lock;
        for (const auto &[key, pool] : table().pools) {
            if (pool->handle == handle) {
                return key.second;
            }
        }
    }
    return {0, 0};
}

std::map<MempoolId_t, Groups> pool_statistics(struct xseg_allocator *library, DeviceIndex device)
{
    Lock lock;
    std::map<MempoolId_t, struct xseg_statistics> current;
    for (const auto &[key, pool] : table().pools) {
        struct xseg_statistics statistics;
        if (key.first == device && read_statistics(library, pool.get(), &statistics)) {
            current[key.second] = statistics;
        }
    }
    std::map<MempoolId_t, Groups> found;
    for (const auto &[key, sums] : table().past_statistics) {
        if (key.first == device) {
            Groups &total = found[key.second] = sums;
            if (current.count(key.second) > 0) {
                add_statistics(total, current[key.second]);
            }
        }
    }
    return found;
}

void reset_pool_statistics(struct xseg_allocator *library, DeviceIndex device, unsigned reset)
{
    Lock lock;
    for (const auto &[key, pool] : table().pools) {
        struct xseg_scope scope = XSEG_SCOPE_ALL;
        scope.pool = pool->handle;
        struct xseg_statistics statistics;
        if (key.first == device && read_statistics(library, pool.get(), &statistics)) {
            xseg_status status = xseg_stats_reset(library, &scope, reset);
            if (status != XSEG_ERR_ARGUMENT) {
                check(status, "reset memory pool statistics");
            }
        }
    }
    for (auto &[key, sums] : table().past_statistics) {
        for (struct xseg_stat &stat : sums) {
            if (key.first == device && reset & XSEG_RESET_PEAK) {
                stat.peak = stat.current;
            }
            if (key.first == device && reset & XSEG_RESET_ACCUMULATED) {
                stat.allocated = stat.freed = 0;
            }
        }
    }
}

/* The adapter counts the capture before the library does, and until after the library has ended it, so that no import is
 * closed in between. */
static xseg_status begin_capture(struct xseg_allocator *library, DeviceIndex device)
{
    count_capture(device, true);
    xseg_status status = xseg_capture_mark(library, device);
    if (status != XSEG_OK) {
        count_capture(device, false);
    }
    return status;
}

static void end_capture(struct xseg_allocator *library, DeviceIndex device)
{
    check(xseg_capture_unmark(library, device), "markCaptureEnd");
    count_capture(device, false);
    close_deferred_imports();
    free_deferred(library);
}

/* End a route.  Returns whether a capture ends with it. */
static bool end_route(DeviceIndex device, MempoolId_t id)
{
    Lock lock;
    Pool *pool = find_pool(device, id);
    TORCH_CHECK(pool != nullptr && pool->is_routed,
                "endAllocatePool: not currently recording to mempool_id");
    check(xseg_route_end(pool->handle), "endAllocateToPool");
    pool->is_routed = false;
    pool->filter = nullptr;
    return counts_as_capture(pool->route, HAS_MARKS);
}

void begin_route(Allocator *allocator, DeviceIndex device, MempoolId_t id,
                 std::function<bool(cudaStream_t)> filter, Route route)
{
    Lock lock;
    Pool *pool = create_or_retain(allocator, device, id, nullptr);
    bool was_routed = pool->is_routed;
    xseg_status status = XSEG_ERR_BUSY;
    if (!was_routed) {
        pool->filter = std::move(filter);
        pool->route = route;
        pool->route_order = next_order();
        status = xseg_route_begin(pool->handle, route_accepts, pool);
    }
    if (status == XSEG_OK && counts_as_capture(route, HAS_MARKS)) {
        status = begin_capture(allocator->library(), device);
        if (status != XSEG_OK) {
            warn(xseg_route_end(pool->handle), "beginAllocateToPool");
        }
    }
    if (status != XSEG_OK) {
        std::string text = error_message(status);
        release_pool(pool);
        TORCH_CHECK(!was_routed, "beginAllocateToPool: already recording to mempool_id (", id.first,
                    ", ", id.second, ")");
        TORCH_CHECK(false, "xseg.torch: beginAllocateToPool: ", text);
    }
    pool->is_routed = true;
}

void Allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t id,
                                    std::function<bool(cudaStream_t)> filter)
{
    begin_route(this, device, id, std::move(filter), Route::PYTORCH);
}

void Allocator::endAllocateToPool(DeviceIndex device, MempoolId_t id)
{
    if (!is_forked() && end_route(device, id)) {
        end_capture(library_, device);
    }
}

void Allocator::markCaptureBegin(DeviceIndex device)
{
    open_device(device);
    check(begin_capture(library_, device), "markCaptureBegin");
}

void Allocator::markCaptureEnd(DeviceIndex device)
{
    if (!is_forked()) {
        end_capture(library_, device);
    }
}

void Allocator::releasePool(DeviceIndex device, MempoolId_t id)
{
    if (is_forked()) {
        return;
    }
    Lock lock;
    release_pool(find_retained(device, id, "releasePool"));
    if (find_pool(device, id) == nullptr) {
        table().destroyed_at_release.insert({device, id});
    }
}

int Allocator::getPoolUseCount(DeviceIndex device, MempoolId_t id)
{
    if (is_forked()) {
        return 1; /* the destructor of a MemPool requires that this is the only reference */
    }
    Lock lock;
    const Pool *pool = find_pool(device, id);
    return pool == nullptr ? 0 : pool->use_count;
}

void Allocator::ensureExistsAndIncrefPool(DeviceIndex device, MempoolId_t id)
{
    createOrIncrefPool(device, id, std::shared_ptr<CUDAAllocator>());
}

/* PyTorch passes a plain pointer if it keeps the allocator alive as long as the pool. */
void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t id, CUDAAllocator *memory)
{
    createOrIncrefPool(device, id, std::shared_ptr<CUDAAllocator>(memory, [](CUDAAllocator *) {}));
}

void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t id,
                                   std::shared_ptr<CUDAAllocator> memory)
{
    Lock lock;
    create_or_retain(this, device, id, std::move(memory));
}

void Allocator::setUseOnOOM(DeviceIndex device, MempoolId_t id)
{
    setUseOnOOM(device, id, true);
}

void Allocator::setUseOnOOM(DeviceIndex device, MempoolId_t id, bool use_on_oom)
{
    if (is_forked()) {
        return;
    }
    Lock lock;
    check(xseg_pool_set(find_retained(device, id, "setUseOnOOM")->handle, XSEG_POOL_USE_ON_OOM,
                        use_on_oom),
          "setUseOnOOM");
}

void Allocator::setNoSplit(DeviceIndex device, MempoolId_t id)
{
    if (is_forked()) {
        return;
    }
    Lock lock;
    check(xseg_pool_set(find_retained(device, id, "setNoSplit")->handle, XSEG_POOL_NO_SPLIT, true),
          "setNoSplit");
}

bool Allocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id,
                                         const std::unordered_set<void *> &expected)
{
    Lock lock;
    std::vector<void *> blocks(expected.begin(), expected.end());
    bool is_equal = false;
    const Pool *pool = find_pool(device, id);
    TORCH_CHECK(pool != nullptr, "Could not find pool of id (", id.first, ", ", id.second,
                ") on device ", static_cast<int>(device));
    check(xseg_pool_check_live(pool->handle, blocks.data(), blocks.size(), &is_equal),
          "checkPoolLiveAllocations");
    return is_equal;
}

c10::DataPtr Allocator::allocateWithAddress(size_t bytes, void *address)
{
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
    struct xseg_pool *pool = routed_pool(device, stream);
    TORCH_CHECK(pool != nullptr, "xseg.torch: allocateWithAddress: no private pool is in use; call "
                                 "it within torch.cuda.use_mem_pool()");
    constexpr size_t UNIT = 512; /* kMinBlockSize */
    TORCH_CHECK(reinterpret_cast<size_t>(address) % UNIT == 0,
                "mallocWithAddress: addr must be aligned to kMinBlockSize (", UNIT, " bytes), got ",
                address);
    void *ptr = nullptr;
    xseg_status status;
    {
        InternalMetadata metadata(this, "mallocWithAddress");
        status = xseg_alloc_at(pool, bytes, stream, address, &ptr);
    }
    if (status != XSEG_OK) {
        Failure failed = failure_of(library_, status, device, bytes);
        TORCH_CHECK(status == XSEG_ERR_FORKED || failed.exception.has_value(),
                    "Could not allocate CUDA storage at exact address ", address, ": ",
                    failed.text);
        raise(failed);
    }
    report_allocation(ptr, device);
    return {ptr, ptr, cached_deleter(), c10::Device(c10::DeviceType::CUDA, device)};
}

/* --- Checkpoints. --- */

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

struct RestoredBlocks {
    std::vector<void *> freed, allocated;
};

void add_restored_block(void *context, void *ptr, bool was_freed)
{
    RestoredBlocks *blocks = static_cast<RestoredBlocks *>(context);
    (was_freed ? blocks->freed : blocks->allocated).push_back(ptr);
}

struct xseg_pool *require_pool(DeviceIndex device, MempoolId_t id)
{
    struct xseg_pool *pool = retained_pool(device, id);
    TORCH_CHECK(pool != nullptr, "Could not find pool of id (", id.first, ", ", id.second, ")");
    return pool;
}

} // namespace

std::shared_ptr<AllocatorState> Allocator::getCheckpointState(DeviceIndex device, MempoolId_t id)
{
    auto state = std::make_shared<Checkpoint>();
    state->id = id;
    check(xseg_pool_checkpoint(require_pool(device, id), &state->blocks), "getCheckpointState");
    return state;
}

CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex device,
                                                  std::shared_ptr<AllocatorState> state)
{
    auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
    TORCH_CHECK(
        checkpoint != nullptr,
        "xseg.torch: setCheckpointPoolState: checkpoint of another allocator; pass a checkpoint "
        "that getCheckpointState() of xseg returned");
    RestoredBlocks blocks;
    check(xseg_pool_restore(require_pool(device, checkpoint->id), checkpoint->blocks,
                            add_restored_block, &blocks),
          "setCheckpointPoolState");
    CheckpointDelta delta;
    for (void *ptr : blocks.freed) {
        warn(close_export_if_any(library(), ptr), "setCheckpointPoolState");
    }
    delta.ptrs_freed = std::move(blocks.freed);
    for (void *ptr : blocks.allocated) {
        delta.dataptrs_allocd.emplace_back(ptr, ptr, cached_deleter(),
                                           c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
}

} // namespace xseg_torch
