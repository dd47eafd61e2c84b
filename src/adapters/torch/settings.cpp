/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/settings.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iomanip>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <vector>

#include "src/adapters/torch/allocator.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/held.h"
#include "src/adapters/torch/share.h"

namespace xseg_torch
{

namespace
{

using Config = caching::CUDAAllocatorConfig;

struct KeyValue {
    std::string value;
    bool is_set;
};
using Keys = std::map<std::string, KeyValue>;

std::mutex the_mutex;
struct xseg_allocator *the_library;     /* NULL until it is open */
std::vector<std::string> early_strings; /* strings that were set before the library was opened */
std::string acknowledged;               /* acknowledged_settings() */
std::atomic<double> the_fraction{1};    /* memory fraction of devices that are not open */
std::atomic<double> the_rejection_fraction{
    -1}; /* fraction of a string after the library was opened; -1: none */

bool add_key(void *context, const struct xseg_config_key *key)
{
    (*static_cast<Keys *>(context))[key->name] = {key->value, key->is_set};
    return true;
}

/* The keys of a string, or of the environment if it is NULL. */
Keys read_keys(const char *config, const char **source)
{
    Keys keys;
    xseg_status status = xseg_config_keys(config, source, add_key, &keys);
    TORCH_CHECK_VALUE(status == XSEG_OK, "xseg.torch: ", error_message(status));
    return keys;
}

/* Keys of device memory that PyTorch also has.  Keys of pinned memory only concern PyTorch. */
constexpr const char *shared_keys[] = {
    "large_segment_size_mb",        "max_split_size_mb",        "max_non_split_rounding_mb",
    "garbage_collection_threshold", "roundup_power2_divisions", "graph_capture_record_stream_reuse",
    "per_process_memory_fraction",  "throw_on_cudamalloc_oom",
};

bool is_known_to_pytorch([[maybe_unused]] const char *key)
{
#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG
    return c10::CachingAllocator::AcceleratorAllocatorConfig::getKeys().count(key) > 0;
#else
    return std::strcmp(key, "large_segment_size_mb") != 0 &&
           std::strcmp(key, "per_process_memory_fraction") != 0 &&
           std::strcmp(key, "graph_capture_record_stream_reuse") != 0 &&
           std::strcmp(key, "throw_on_cudamalloc_oom") != 0;
#endif
}

template <class Any> std::string last_settings()
{
    if constexpr (requires { Any::last_allocator_settings(); }) {
        return Any::last_allocator_settings();
    } else {
        return "";
    }
}

std::string get_configuration(struct xseg_allocator *library)
{
    size_t length = 0;
    check(xseg_config_get(library, nullptr, 0, &length), "configuration");
    std::vector<char> buffer(length + 256); /* another thread may change the configuration */
    check(xseg_config_get(library, buffer.data(), buffer.size(), nullptr), "configuration");
    return buffer.data();
}

/*
 * Get a string without per_process_memory_fraction, which PyTorch only applies when CUDA is initialized.  Blanks replace the
 * key, so that the columns of error messages match the original string.
 */
std::string without_fraction(const std::string &settings)
{
    std::string result = settings;
    int depth = 0;
    size_t begin = 0;
    for (size_t at = 0; at <= settings.size(); at++) {
        char character = at < settings.size() ? settings[at] : ',';
        depth += (character == '[') - (character == ']');
        if (character != ',' || (depth != 0 && at < settings.size())) {
            continue;
        }
        size_t end = std::min(at + 1, settings.size());
        if (settings.substr(begin, at - begin).find("per_process_memory_fraction") !=
            std::string::npos) {
            result.replace(begin, end - begin, end - begin, ' ');
        }
        begin = end;
    }
    return result;
}

/*
 * PyTorch resets these keys at each change; the library keeps keys that a string does not name.  The user's string comes
 * first, so that the columns of error messages match it.
 */
std::string with_resets(const std::string &settings, const std::string &large_segment)
{
    Keys keys = read_keys(settings.c_str(), nullptr);
    std::string result = settings.substr(0, settings.find_last_not_of(", \t\n\v\f\r") + 1);
    auto reset = [&](const char *key, const std::string &value) {
        if (!keys.at(key).is_set) {
            result += (result.empty() ? "" : ",") + std::string(key) + ":" + value;
        }
    };
    reset("max_split_size_mb", "-1");
    reset("roundup_power2_divisions", "[16384:0,>:0]");
    reset("garbage_collection_threshold", "off");
    /* A string that names large_segment_size_mb alone sets this key in the library. */
    if (!keys.at("large_segment_size_mb").is_set) {
        reset("max_non_split_rounding_mb", large_segment);
    }
    return result;
}

void configure(struct xseg_allocator *library, const std::string &settings)
{
    xseg_status status = xseg_config_set(library, settings.c_str());
    TORCH_CHECK_VALUE(status == XSEG_OK, "xseg.torch: ", error_message(status));
}

std::string large_segment_of(struct xseg_allocator *library)
{
    return read_keys(get_configuration(library).c_str(), nullptr).at("large_segment_size_mb").value;
}

/* Get whether expandable_segments:False is ignored.  Before the library is opened, a string is part of its initial
 * configuration, so it is not ignored. */
bool ignores_classic_segments()
{
    const char *value = std::getenv("XSEG_TORCH_KEEP_EXPANDABLE");
    AdapterLock<std::mutex> lock(the_mutex);
    if (value == nullptr || std::strcmp(value, "1") != 0 || the_library == nullptr ||
        !serves_ipc()) {
        return false;
    }
    Keys keys = read_keys(get_configuration(the_library).c_str(), nullptr);
    return keys.at("expandable_segments").value == "True" && keys.at("exportable").value == "True";
}

/* Get a string with expandable_segments:True instead of False. */
std::string with_expandable(const std::string &settings)
{
    static const std::string blanks = " \t\n\v\f\r", key = "expandable_segments",
                             disabled = "False";
    std::string result;
    size_t begin = 0, end;
    do {
        end = std::min(settings.find(',', begin), settings.size());
        std::string entry = settings.substr(begin, end - begin);
        size_t name = entry.find_first_not_of(blanks), colon = entry.find(':');
        size_t value =
            colon == std::string::npos ? colon : entry.find_first_not_of(blanks, colon + 1);
        if (value != std::string::npos && name < colon &&
            entry.substr(name, entry.find_last_not_of(blanks, colon - 1) + 1 - name) == key &&
            entry.substr(value, entry.find_last_not_of(blanks) + 1 - value) == disabled) {
            entry.replace(value, disabled.size(), "True");
        }
        result += entry + (end < settings.size() ? "," : "");
        begin = end + 1;
    } while (end < settings.size());
    return result;
}

/* Get the string to apply instead of a string of the program. */
std::string effective_settings(const std::string &settings)
{
    std::string expandable = with_expandable(settings);
    return expandable != settings && ignores_classic_segments() ? expandable : settings;
}

void acknowledge(const std::string &settings, const std::string &effective)
{
    AdapterLock<std::mutex> lock(the_mutex);
    acknowledged = settings == effective ? "" : settings;
}

/* PyTorch's parser requires that the name of the allocator is the value of `backend:`.  While it parses, xseg has the name of
 * the default backend. */
thread_local bool is_parsing;

class Parsing
{
  public:
    Parsing()
    {
        is_parsing = true;
    }
    ~Parsing()
    {
        is_parsing = false;
    }
    Parsing(const Parsing &) = delete;
    Parsing &operator=(const Parsing &) = delete;
};

/* The parser of settings that only CUDA has, such as those of pinned memory. */
template <class Any> std::function<void(const std::string &)> parser_of_pytorch()
{
    if constexpr (requires { Any::getConfigParserHook(); }) {
        return Any::getConfigParserHook();
    } else {
        return [](const std::string &) {};
    }
}

/* PyTorch's settings: the last string, and the values of keys that a later string does not reset.  A value that no string can
 * express is "". */
struct SettingValues {
    std::map<std::string, std::string> values;
    std::string last;
};
SettingValues accepted; /* after the last string that PyTorch and the library accepted */

#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG

std::string text_of_bytes(size_t bytes)
{
    return bytes == SIZE_MAX ? "-1" : std::to_string(bytes >> 20);
}

std::string text_of_bool(bool value)
{
    return value ? "True" : "False";
}

template <class Any, class Own>
void add_newer_values([[maybe_unused]] std::map<std::string, std::string> &values)
{
    if constexpr (requires { Any::large_segment_size(); }) {
        values["large_segment_size_mb"] = text_of_bytes(Any::large_segment_size());
    }
    if constexpr (requires {
                      Any::pinned_max_round_threshold();
                      Any::pinned_max_cached_size();
                  }) {
        values["pinned_max_round_threshold_mb"] = text_of_bytes(Any::pinned_max_round_threshold());
        values["pinned_max_cached_size_mb"] = text_of_bytes(Any::pinned_max_cached_size());
    }
    if constexpr (requires { Own::graph_capture_record_stream_reuse(); }) {
        values["graph_capture_record_stream_reuse"] =
            text_of_bool(Own::graph_capture_record_stream_reuse());
    }
    if constexpr (requires { Own::per_process_memory_fraction(); }) {
        std::ostringstream text;
        text << std::setprecision(17) << Own::per_process_memory_fraction();
        values["per_process_memory_fraction"] = text.str();
    }
    if constexpr (requires { Own::throw_on_cudamalloc_oom(); }) {
        values["throw_on_cudamalloc_oom"] = text_of_bool(Own::throw_on_cudamalloc_oom());
    }
    if constexpr (requires { Own::pinned_free_catch_all(); }) {
        values["pinned_free_catch_all"] = text_of_bool(Own::pinned_free_catch_all());
    }
    if constexpr (requires { Own::pinned_reserve_segment_size_mb(); }) {
        size_t mib = Own::pinned_reserve_segment_size_mb();
        values["pinned_reserve_segment_size_mb"] = mib == 0 ? "" : std::to_string(mib);
    }
}

SettingValues current_values()
{
    using Any = c10::CachingAllocator::AcceleratorAllocatorConfig;
    SettingValues current{{}, last_settings<Config>()};
    current.values["max_non_split_rounding_mb"] = text_of_bytes(Any::max_non_split_rounding_size());
    current.values["expandable_segments"] = text_of_bool(Config::expandable_segments());
    current.values["pinned_use_background_threads"] =
        text_of_bool(Any::pinned_use_background_threads());
    current.values["release_lock_on_cudamalloc"] =
        text_of_bool(Config::release_lock_on_cudamalloc());
    current.values["pinned_use_cuda_host_register"] =
        text_of_bool(Config::pinned_use_cuda_host_register());
    current.values["pinned_num_register_threads"] =
        std::to_string(Config::pinned_num_register_threads());
    add_newer_values<Any, Config>(current.values);
    return current;
}

#else

SettingValues current_values()
{
    return {};
}

#endif

void record_accepted()
{
    SettingValues current = current_values();
    AdapterLock<std::mutex> lock(the_mutex);
    accepted = std::move(current);
}

#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG

std::function<void(const std::string &)> the_parser; /* PyTorch's, of settings that only CUDA has */

/* Config is inline: with a compiler without unique symbols (Clang), the adapter has a separate copy. */
void parse_own(const std::string &settings)
{
    Parsing parsing;
    the_parser(settings);
    Config::instance().parseArgs(settings);
}
#endif

void register_settings_hook()
{
#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG
    using Any = c10::CachingAllocator::AcceleratorAllocatorConfig;
    the_parser = parser_of_pytorch<Any>();
    Any::registerDeviceConfigParserHook(
        [](const std::string &settings) {
            std::string effective = effective_settings(settings);
            try {
                if (effective != settings) {
                    Any::instance().parseArgs(effective);
                }
                parse_own(effective);
                follow_settings(effective);
            } catch (...) {
                restore_settings();
                throw;
            }
            acknowledge(settings, effective);
            record_accepted();
        },
        {});
#endif
}

/* Defaults of PyTorch that its strings cannot express. */
bool is_unnamed_default(const std::string &value)
{
    return value == "off" || value == "unlimited";
}

/* Get the string for PyTorch: the keys of XSEG_ALLOC_CONF that PyTorch has, and expandable_segments. */
std::string pytorch_settings(const Keys &keys, bool is_own_string)
{
    std::string settings = is_own_string ? "" : last_settings<Config>();
    for (const char *key : shared_keys) {
        auto found = keys.find(key);
        if (is_own_string && found != keys.end() && found->second.is_set &&
            is_known_to_pytorch(key) && !is_unnamed_default(found->second.value)) {
            settings +=
                (settings.empty() ? "" : ",") + std::string(key) + ":" + found->second.value;
        }
    }
    return settings + (settings.empty() ? "" : ",") +
           "expandable_segments:" + keys.at("expandable_segments").value;
}

void record_fraction(const Keys &keys)
{
    the_fraction.store(std::strtod(keys.at("per_process_memory_fraction").value.c_str(), nullptr));
}

void set_rejection(struct xseg_allocator *library, int device, double fraction)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    scope.device = device;
    check(xseg_limits_get(library, &scope, &limits), "per_process_memory_fraction");
    limits.has_fraction = false;
    limits.has_rejection_fraction = true;
    limits.rejection_fraction = fraction;
    check(xseg_limits_set(library, &scope, &limits), "per_process_memory_fraction");
}

/* If a string sets per_process_memory_fraction, record the fraction above which throw_on_cudamalloc_oom rejects requests. */
void record_rejection_fraction(struct xseg_allocator *library, const std::string &settings)
{
    Keys keys = read_keys(settings.c_str(), nullptr);
    const KeyValue &fraction = keys.at("per_process_memory_fraction");
    size_t count = 0;
    if (!fraction.is_set) {
        return;
    }
    the_rejection_fraction.store(std::strtod(fraction.value.c_str(), nullptr));
    check(xseg_device_stats_get(library, nullptr, sizeof(struct xseg_device_stats), 0, &count),
          "per_process_memory_fraction");
    std::vector<struct xseg_device_stats> devices(count);
    check(xseg_device_stats_get(library, devices.data(), sizeof(struct xseg_device_stats), count,
                                nullptr),
          "per_process_memory_fraction");
    for (const struct xseg_device_stats &device : devices) {
        if (device.is_open) {
            set_rejection(library, device.device, the_rejection_fraction.load());
        }
    }
}

/*
 * Memory is made exportable and accessible to network adapters at its creation.  So the keys are also set for classic segments,
 * because later segments may be expandable.  They are set while segments are expandable, to avoid the warning about keys
 * without effect.
 */
void add_keys(struct xseg_allocator *library, const std::string &keys)
{
    bool is_expandable =
        read_keys(get_configuration(library).c_str(), nullptr).at("expandable_segments").value ==
        "True";
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
    std::string added = is_shared && !keys.at("exportable").is_set ? ",exportable:True" : "";
    return added + (keys.at("rdma").is_set ? "" : ",rdma:True");
}

void synchronize_settings()
{
    const char *source = "";
    Keys keys = read_keys(nullptr, &source);
    bool is_own_string = std::strcmp(source, "XSEG_ALLOC_CONF") == 0;
    bool is_expandable = keys.at("expandable_segments").value == "True";
    /* PyTorch must parse its variable now, while its own allocator has the name of `backend:`. */
    (void)Config::instance();
    bool differs = is_own_string || Config::expandable_segments() != is_expandable;
    caching::setAllocatorSettings(differs ? pytorch_settings(keys, is_own_string)
                                          : last_settings<Config>());
    record_fraction(keys);
    register_settings_hook();
    record_accepted();
}

void apply_settings(struct xseg_allocator *library)
{
    std::string keys = added_keys();
    if (!keys.empty()) {
        add_keys(library, keys);
    }
    AdapterLock<std::mutex> lock(the_mutex);
    for (const std::string &settings : early_strings) {
        configure(library, with_resets(settings, large_segment_of(library)));
    }
    record_fraction(read_keys(get_configuration(library).c_str(), nullptr));
    the_library = library;
}

void begin_device(struct xseg_allocator *library, int device)
{
    double fraction = the_rejection_fraction.load();
    if (fraction >= 0) {
        set_rejection(library, device, fraction);
    }
}

void detach_settings()
{
    AdapterLock<std::mutex> lock(the_mutex);
    the_library = nullptr;
    acknowledged.clear();
    the_rejection_fraction.store(-1);
}

std::string Allocator::name()
{
    return is_parsing ? "native" : "xseg";
}

void set_settings(const std::string &settings)
{
    std::string effective = effective_settings(settings);
    {
        Parsing parsing;
        caching::setAllocatorSettings(effective);
    }
    follow_settings(effective);
    acknowledge(settings, effective);
}

std::string acknowledged_settings()
{
    AdapterLock<std::mutex> lock(the_mutex);
    return acknowledged;
}

/* Get the value of the last entry with a key, without blanks; "" if no entry has the key. */
static std::string value_of(const std::string &settings, const std::string &key)
{
    std::string compact, value;
    std::copy_if(settings.begin(), settings.end(), std::back_inserter(compact),
                 [](char character) { return std::strchr(" \t\n\v\f\r", character) == nullptr; });
    std::istringstream entries(compact);
    for (std::string entry; std::getline(entries, entry, ',');) {
        if (entry.compare(0, key.size() + 1, key + ":") == 0) {
            value = entry.substr(key.size() + 1);
        }
    }
    return value;
}

/* Reject an invalid value before PyTorch applies other keys of the string, because no string restores all of PyTorch's
 * defaults. */
static void check_keys_of_pytorch(const std::string &settings)
{
    for (const char *key :
         {"pinned_free_catch_all", "pinned_use_background_threads", "pinned_use_cuda_host_register",
          "release_lock_on_cudamalloc", "release_lock_on_hipmalloc"}) {
        std::string value = value_of(settings, key);
        TORCH_CHECK_VALUE(value.empty() || value == "True" || value == "False", "xseg.torch: ", key,
                          ": invalid value, '", value, "'; set it to True or False");
    }
#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG
    if (std::string backend = value_of(settings, "backend"); !backend.empty()) {
        /* Throws PyTorch's error before other keys of the string are applied. */
        parse_own("backend:" + backend);
    }
#endif
}

void check_settings(const std::string &settings)
{
    size_t nul = settings.find('\0');
    TORCH_CHECK_VALUE(nul == std::string::npos, "xseg.torch: configuration: NUL at column ",
                      nul + 1, "; end the string before it");
    if (xseg_status status = xseg_config_keys(settings.c_str(), nullptr, nullptr, nullptr);
        status != XSEG_OK) {
        std::string message = error_message(status);
        /* The message begins with PyTorch's, for which programs may search. */
        const char *prefix = message.find(": unknown key, ") != std::string::npos
                                 ? "Unrecognized key in the allocator config: "
                                 : "";
        TORCH_CHECK_VALUE(false, prefix, "xseg.torch: ", message);
    }
    check_keys_of_pytorch(settings);
#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG
    for (size_t at = 0; (at = settings.find_first_of("0123456789", at)) != std::string::npos;) {
        errno = 0;
        (void)std::strtoull(settings.c_str() + at, nullptr, 10);
        TORCH_CHECK_VALUE(errno != ERANGE,
                          "xseg.torch: configuration: number out of range at column ", at + 1,
                          "; write at most 18446744073709551615");
        at = std::min(settings.find_first_not_of("0123456789", at), settings.size());
    }
    for (const auto &[key, value] : read_keys(settings.c_str(), nullptr)) {
        if (!value.is_set) {
            continue;
        }
        TORCH_CHECK_VALUE(
            is_known_to_pytorch(key.c_str()), "Unrecognized key '", key,
            "' in the allocator config; set it with xseg.torch.allocator().configure()");
        TORCH_CHECK_VALUE(value.value != "off", "xseg.torch: ", key,
                          ": value is unknown to PyTorch, 'off'; omit the key");
    }
#endif
}

void restore_settings()
{
#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG
    SettingValues current = current_values(), previous;
    {
        AdapterLock<std::mutex> lock(the_mutex);
        previous = accepted;
    }
    std::string changed;
    for (const auto &[key, value] : previous.values) {
        if (!value.empty() && current.values[key] != value) {
            changed += (changed.empty() ? "" : ",") + key + ":" + value;
        }
    }
    /* The last string restores the keys that every string resets. */
    for (const std::string &settings : {changed, previous.last}) {
        c10::CachingAllocator::AcceleratorAllocatorConfig::instance().parseArgs(settings);
        parse_own(settings);
    }
#endif
}

void follow_settings(const std::string &settings)
{
    check_settings(settings);
    AdapterLock<std::mutex> lock(the_mutex);
    if (the_library != nullptr) {
        /* As in PyTorch after CUDA was initialized, a fraction does not change the limit, but only affects rejections. */
        configure(the_library,
                  with_resets(without_fraction(settings), large_segment_of(the_library)));
        record_rejection_fraction(the_library, settings);
        return;
    }
    early_strings.push_back(settings);
}

/* Limits of pinned memory, which PyTorch 2.15 has in the settings of all accelerators. */
template <class Any, class Info> static void set_pinned_limits([[maybe_unused]] Info &info)
{
    if constexpr (requires { info.max_cached_size = Any::pinned_max_cached_size(); }) {
        info.max_cached_size = Any::pinned_max_cached_size();
    }
    if constexpr (requires { info.max_round_threshold = Any::pinned_max_round_threshold(); }) {
        info.max_round_threshold = Any::pinned_max_round_threshold();
    }
}

template <class Any, class Info> static void set_newer_fields(Info &info)
{
    if constexpr (requires {
                      info.graph_capture_record_stream_reuse =
                          Any::graph_capture_record_stream_reuse();
                  }) {
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
    if (std::string acknowledged_string = acknowledged_settings(); !acknowledged_string.empty()) {
        info.expandable_segments = false;
        info.last_allocator_settings = acknowledged_string;
    }
    info.roundup_power2_divisions = Config::roundup_power2_divisions();
    set_newer_fields<Config>(info);
#if XSEG_TORCH_HAS_ALLOCATOR_CONFIG
    set_pinned_limits<c10::CachingAllocator::AcceleratorAllocatorConfig>(info);
#endif
    return info;
}

/* PyTorch stores the limit in bytes, and returns the fraction of these bytes. */
static double round_fraction(struct xseg_allocator *library, const struct xseg_scope &scope,
                             double fraction)
{
    struct xseg_statistics statistics = {sizeof(statistics)};
    check(xseg_stats_get(library, &scope, &statistics), "get_per_process_memory_fraction");
    double total = static_cast<double>(statistics.device_bytes);
    return static_cast<double>(static_cast<uint64_t>(fraction * total)) / total;
}

double Allocator::getMemoryFraction(DeviceIndex device)
{
    check_device(device);
    if (!is_open(device)) {
        return the_fraction.load();
    }
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    scope.device = device;
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    check(xseg_limits_get(library_, &scope, &limits), "get_per_process_memory_fraction");
    return limits.fraction == 1 ? 1 : round_fraction(library_, scope, limits.fraction);
}

/* The fraction replaces the fraction of the string, also for garbage collection, and may exceed it. */
void Allocator::setMemoryFraction(double fraction, DeviceIndex device)
{
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction,
                ". Please set within [0, 1].");
    open_device(device);
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    scope.device = device;
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    check(xseg_limits_get(library_, &scope, &limits), "set_per_process_memory_fraction");
    limits.fraction = fraction;
    limits.has_fraction = true;
    check(xseg_limits_set(library_, &scope, &limits), "set_per_process_memory_fraction");
}

} // namespace xseg_torch
