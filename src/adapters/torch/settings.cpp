/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/settings.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/held.h"

namespace xseg_torch {

namespace {

using Config = caching::CUDAAllocatorConfig;

struct KeyValue {
    std::string value;
    bool is_named;
};
using Keys = std::map<std::string, KeyValue>;

std::mutex the_mutex;
struct xseg_allocator *the_library;  /* once it is open */
std::vector<std::string> set_before; /* strings that were set before that; the library was opened without them */
std::atomic<double> the_fraction{1}; /* of devices that are not open, as the string says */

bool note_key(void *context, const struct xseg_key *key)
{
    (*static_cast<Keys *>(context))[key->name] = {key->value, key->is_named};
    return true;
}

/* The keys of a string, or of the environment. */
Keys read_keys(const char *config, const char **source)
{
    Keys keys;
    xseg_status status = xseg_keys(config, source, note_key, &keys);
    TORCH_CHECK_VALUE(status == XSEG_OK, "xseg: ", error_text(status));
    return keys;
}

/* Keys of the device's memory that PyTorch knows as well; those of its pinned memory are its own business. */
constexpr const char *shared_keys[] = {
    "large_segment_size_mb",        "max_split_size_mb",         "max_non_split_rounding_mb",
    "garbage_collection_threshold", "roundup_power2_divisions",  "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",  "throw_on_cudamalloc_oom",
};

bool is_known_to_pytorch([[maybe_unused]] const char *key)
{
#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG
    return c10::CachingAllocator::AcceleratorAllocatorConfig::getKeys().count(key) > 0;
#else
    return std::strcmp(key, "large_segment_size_mb") != 0 && std::strcmp(key, "per_process_memory_fraction") != 0 &&
           std::strcmp(key, "graph_capture_record_stream_reuse") != 0 && std::strcmp(key, "throw_on_cudamalloc_oom") != 0;
#endif
}

template <class Any>
std::string last_settings()
{
    if constexpr (requires { Any::last_allocator_settings(); }) {
        return Any::last_allocator_settings();
    } else {
        return "";
    }
}

std::string configuration(struct xseg_allocator *library)
{
    size_t needed = 0;
    check(xseg_configuration(library, nullptr, 0, &needed), "the configuration cannot be read");
    std::vector<char> text(needed + 256); /* room for what another thread changes meanwhile */
    check(xseg_configuration(library, text.data(), text.size(), nullptr), "the configuration cannot be read");
    return text.data();
}

/* A string without per_process_memory_fraction, which PyTorch reads when CUDA is initialised and not again. */
std::string without_fraction(const std::string &settings)
{
    std::string kept;
    int depth = 0;
    size_t begin = 0;
    for (size_t at = 0; at <= settings.size(); at++) {
        char mark = at < settings.size() ? settings[at] : ',';
        depth += (mark == '[') - (mark == ']');
        if (mark != ',' || (depth != 0 && at < settings.size())) {
            continue;
        }
        std::string part = settings.substr(begin, at - begin);
        begin = at + 1;
        if (part.find("per_process_memory_fraction") == std::string::npos) {
            kept += (kept.empty() ? "" : ",") + part;
        }
    }
    return kept;
}

/*
 * PyTorch sets these back at each change, the library keeps what is not named.  A string that names
 * large_segment_size_mb sets max_non_split_rounding_mb, so its present value does what PyTorch's default does.
 */
std::string with_resets(const std::string &settings, const std::string &large_segment)
{
    std::string resets = "large_segment_size_mb:" + large_segment +
                         ",max_split_size_mb:17592186044416,roundup_power2_divisions:[16384:0,>:0],"
                         "garbage_collection_threshold:off";
    return settings.empty() ? resets : resets + "," + settings;
}

void configure(struct xseg_allocator *library, const std::string &settings)
{
    xseg_status status = xseg_configure(library, settings.c_str());
    TORCH_CHECK_VALUE(status == XSEG_OK, "xseg: ", error_text(status));
}

std::string large_segment_of(struct xseg_allocator *library)
{
    return read_keys(configuration(library).c_str(), nullptr).at("large_segment_size_mb").value;
}

/* PyTorch's parser demands that the name of the allocator is the one after `backend:`; xseg stands in for the default. */
thread_local bool is_parsing;

class Parsing {
  public:
    Parsing() {
        is_parsing = true;
    }
    ~Parsing() {
        is_parsing = false;
    }
    Parsing(const Parsing &) = delete;
    Parsing &operator=(const Parsing &) = delete;
};

/* Of settings that only CUDA has, such as those of pinned memory. */
template <class Any>
std::function<void(const std::string &)> parser_of_pytorch()
{
    if constexpr (requires { Any::getConfigParserHook(); }) {
        return Any::getConfigParserHook();
    } else {
        return [](const std::string &) {};
    }
}

/* Config is inline: where the adapter's compiler makes no unique symbols (Clang), the one that is seen here is a copy. */
void hear_of_changes()
{
#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG
    using Any = c10::CachingAllocator::AcceleratorAllocatorConfig;
    Any::registerDeviceConfigParserHook(
        [parse = parser_of_pytorch<Any>()](const std::string &settings) {
            {
                Parsing parsing;
                parse(settings);
                Config::instance().parseArgs(settings);
            }
            follow_settings(settings);
        },
        {});
#endif
}

/* Values that PyTorch has no word for: they are its defaults. */
bool is_default_without_a_word(const std::string &value)
{
    return value == "off" || value == "unlimited";
}

/* What an XSEG_ALLOC_CONF says of keys that PyTorch knows, in PyTorch's words. */
std::string for_pytorch(const Keys &keys, bool is_own_string)
{
    std::string settings = is_own_string ? "" : last_settings<Config>();
    for (const char *key : shared_keys) {
        auto found = keys.find(key);
        if (is_own_string && found != keys.end() && found->second.is_named && is_known_to_pytorch(key) &&
            !is_default_without_a_word(found->second.value)) {
            settings += (settings.empty() ? "" : ",") + std::string(key) + ":" + found->second.value;
        }
    }
    return settings + (settings.empty() ? "" : ",") + "expandable_segments:" + keys.at("expandable_segments").value;
}

void note_fraction(const Keys &keys)
{
    the_fraction.store(std::strtod(keys.at("per_process_memory_fraction").value.c_str(), nullptr));
}

/*
 * Memory is exportable and within reach of network cards, or not, from its beginning.  So that is asked for even while
 * segments are classic: they may become expandable.  The keys are named while they are expandable, since they would be
 * called ones without effect otherwise.
 */
void add_keys(struct xseg_allocator *library, const std::string &keys)
{
    bool is_expandable = read_keys(configuration(library).c_str(), nullptr).at("expandable_segments").value == "True";
    configure(library, "expandable_segments:True" + keys);
    if (!is_expandable) {
        configure(library, "expandable_segments:False");
    }
}

} // namespace

std::string added_keys()
{
    const char *value = std::getenv("TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC");
    bool is_shared = value == nullptr || std::strcmp(value, "0") != 0;
    Keys keys = read_keys(nullptr, nullptr);
    std::string added = is_shared && !keys.at("exportable").is_named ? ",exportable:True" : "";
    return added + (keys.at("rdma").is_named ? "" : ",rdma:True");
}

void agree_on_settings()
{
    const char *source = "";
    Keys keys = read_keys(nullptr, &source);
    bool is_own_string = std::strcmp(source, "XSEG_ALLOC_CONF") == 0;
    bool is_expandable = keys.at("expandable_segments").value == "True";
    /* PyTorch reads its variable here at the latest, while its own allocator has the name that `backend:` gives. */
    (void)Config::instance();
    bool is_other = is_own_string || Config::expandable_segments() != is_expandable;
    caching::setAllocatorSettings(is_other ? for_pytorch(keys, is_own_string) : last_settings<Config>());
    note_fraction(keys);
    hear_of_changes();
}

void apply_settings(struct xseg_allocator *library)
{
    std::string keys = added_keys();
    if (!keys.empty()) {
        add_keys(library, keys);
    }
    Held<std::mutex> lock(the_mutex);
    for (const std::string &settings : set_before) {
        configure(library, with_resets(settings, large_segment_of(library)));
    }
    note_fraction(read_keys(configuration(library).c_str(), nullptr));
    the_library = library;
}

void stop_following()
{
    Held<std::mutex> lock(the_mutex);
    the_library = nullptr;
}

std::string Allocator::name()
{
    return is_parsing ? "native" : "xseg";
}

void set_settings(const std::string &settings)
{
    {
        Parsing parsing;
        caching::setAllocatorSettings(settings);
    }
    follow_settings(settings);
}

void follow_settings(const std::string &settings)
{
    Held<std::mutex> lock(the_mutex);
    if (the_library != nullptr) {
        /* As PyTorch does once CUDA is initialised: the fraction stays what it is. */
        configure(the_library, with_resets(without_fraction(settings), large_segment_of(the_library)));
        return;
    }
    read_keys(settings.c_str(), nullptr);
    set_before.push_back(settings);
}

/* Bounds of pinned memory, which PyTorch 2.15 keeps beside the settings of any accelerator. */
template <class Any, class Info>
static void set_pinned_bounds([[maybe_unused]] Info &info)
{
    if constexpr (requires { info.max_cached_size = Any::pinned_max_cached_size(); }) {
        info.max_cached_size = Any::pinned_max_cached_size();
    }
    if constexpr (requires { info.max_round_threshold = Any::pinned_max_round_threshold(); }) {
        info.max_round_threshold = Any::pinned_max_round_threshold();
    }
}

template <class Any, class Info>
static void set_newer(Info &info)
{
    if constexpr (requires { info.graph_capture_record_stream_reuse = Any::graph_capture_record_stream_reuse(); }) {
        info.graph_capture_record_stream_reuse = Any::graph_capture_record_stream_reuse();
    }
}

caching::AllocatorConfigInfo config_info()
{
    caching::AllocatorConfigInfo info{};
    info.garbage_collection_threshold = Config::garbage_collection_threshold();
    info.max_split_size = Config::max_split_size();
    info.pinned_num_register_threads = Config::pinned_num_register_threads();
    info.expandable_segments = Config::expandable_segments();
    info.release_lock_on_malloc = Config::release_lock_on_cudamalloc();
    info.pinned_use_host_register = Config::pinned_use_cuda_host_register();
    info.last_allocator_settings = last_settings<Config>();
    info.roundup_power2_divisions = Config::roundup_power2_divisions();
    set_newer<Config>(info);
#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG
    set_pinned_bounds<c10::CachingAllocator::AcceleratorAllocatorConfig>(info);
#endif
    return info;
}

/* PyTorch keeps the limit in bytes, and answers with the fraction that these are. */
static double whole_bytes(struct xseg_allocator *library, const struct xseg_where &where, double fraction)
{
    struct xseg_statistics now = XSEG_STATISTICS_INIT;
    check(xseg_stats(library, &where, &now), "getMemoryFraction");
    double total = static_cast<double>(now.device_bytes);
    return static_cast<double>(static_cast<uint64_t>(fraction * total)) / total;
}

double Allocator::getMemoryFraction(DeviceIndex device)
{
    check_device(device);
    if (!is_open(device)) {
        return the_fraction.load();
    }
    struct xseg_where where = XSEG_WHERE_ANY;
    where.device = device;
    struct xseg_limit_values limits = XSEG_LIMIT_VALUES_INIT;
    check(xseg_limits(library_, &where, nullptr, &limits), "getMemoryFraction");
    return limits.fraction == 1 ? 1 : whole_bytes(library_, where, limits.fraction);
}

/* In place of the string's fraction: garbage is collected by it, and it may rise above that. */
void Allocator::setMemoryFraction(double fraction, DeviceIndex device)
{
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
    open_device(device);
    struct xseg_where where = XSEG_WHERE_ANY;
    where.device = device;
    struct xseg_limit_values limits = XSEG_LIMIT_VALUES_INIT;
    check(xseg_limits(library_, &where, nullptr, &limits), "setMemoryFraction");
    limits.fraction = fraction;
    limits.has_fraction = true;
    check(xseg_limits(library_, &where, &limits, nullptr), "setMemoryFraction");
}

} // namespace xseg_torch
