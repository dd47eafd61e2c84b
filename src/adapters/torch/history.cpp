/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/history.h"

#include <algorithm>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_set>

#include "src/adapters/torch/contexts.h"
#include "src/adapters/torch/errors.h"
#include "src/adapters/torch/notes.h"
#include "src/adapters/torch/pools.h"

namespace xseg_torch
{

namespace
{

constexpr size_t EVENTS_MIN = 16, EVENTS_MAX = 16777216; /* of the key history_events */
constexpr const char *NO_COMPILE_CONTEXT = "N/A";

std::atomic<bool> is_recording{false};     /* no events exist while it is false */
std::atomic<size_t> max_entries{SIZE_MAX}; /* of a device, in a snapshot */
std::atomic<bool> skips_snapshots{false}, skips_annotations{false};
thread_local std::string metadata, internal_metadata;
thread_local std::vector<std::string> compile_contexts;

const char *stacks_of(RecordContext when)
{
    switch (when) {
    case RecordContext::STATE:
        return "state";
    case RecordContext::ALLOC:
        return "alloc";
    case RecordContext::ALL:
        return "all";
    default:
        return "none";
    }
}

/*
 * Entries that are not in the library's history: annotations of a time, for which PyTorch has one ring, and events of devices
 * without any request.  Each deque has the newest entries, at most max_entries.
 */
struct AdapterEvents {
    std::mutex mutex;
    std::deque<Annotation> annotations;
    std::map<DeviceIndex, std::deque<TraceEntry>> early;
    /* Time of the last increase of max_entries, and the previous value: PyTorch's ring contains at most that many events from
     * before that time. */
    time_t raised_at = 0;
    size_t raised_from = SIZE_MAX;
};

AdapterEvents &adapter_events()
{
    static AdapterEvents *const the_events = new AdapterEvents;
    return *the_events;
}

/* Get the time of day, in microseconds. */
time_t time_now()
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* The caller holds the lock of adapter_events(). */
template <class Entry> void push_entry(std::deque<Entry> &ring, Entry entry)
{
    entry.time_.t_ = time_now();
    ring.push_back(std::move(entry));
    while (ring.size() > max_entries.load()) {
        ring.pop_front();
    }
}

/* Get the value of history_skip for the actions of the library.  The adapter implements the other actions. */
std::string library_skip_list(const std::vector<std::string> &actions)
{
    static const char *const known[] = {
        "alloc",        "free_requested", "free_completed", "segment_alloc",
        "segment_free", "segment_map",    "segment_unmap",  "oom"};
    std::string list;
    for (const std::string &action : actions) {
        bool is_known = std::find(std::begin(known), std::end(known), action) != std::end(known);
        TORCH_CHECK(is_known || action == "snapshot" || action == "annotate",
                    "Unknown TraceEntry action: ", action);
        if (is_known) {
            list += (list.empty() ? "" : ",") + action;
        }
    }
    auto has = [&](const char *name) {
        return std::find(actions.begin(), actions.end(), name) != actions.end();
    };
    skips_snapshots.store(has("snapshot"));
    skips_annotations.store(has("annotate"));
    return "[" + list + "]";
}

/* The note of the label of a thread. */
struct ThreadLabel {
    uint64_t id = 0;

    void set(uint64_t next)
    {
        if (id != 0 && !installed()->is_forked()) {
            release_note(id, is_recording.load());
        }
        id = next;
    }
    ~ThreadLabel()
    {
        set(0);
    }
};
thread_local ThreadLabel label;

/* Warn about a string that the library cannot store.  The only effect is that snapshots lack the string. */
void warn_missing_string(xseg_status status)
{
    if (status != XSEG_OK && status != XSEG_ERR_FORKED) {
        TORCH_WARN_ONCE("xseg.torch: annotation or metadata is missing in snapshots: ",
                        error_message(status));
    }
}

bool add_id(void *context, const struct xseg_history_entry *entry)
{
    static_cast<std::unordered_set<uint64_t> *>(context)->insert(note_id_of(entry->label));
    return true;
}

/* Discard the notes whose events were overwritten. */
void discard_old_notes(Allocator *allocator)
{
    if (!is_note_scan_due()) {
        return;
    }
    uint64_t round = begin_discarding_notes();
    std::unordered_set<uint64_t> used;
    xseg_status status = xseg_for_each_event(allocator->library(), -1, add_id, &used, nullptr);
    discard_notes(round, status == XSEG_OK ? &used : nullptr);
}

/* Get the difference of the time of day and the clock of events, in nanoseconds. */
int64_t clock_offset()
{
    struct timespec real, monotonic;
    clock_gettime(CLOCK_REALTIME, &real);
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    return (real.tv_sec - monotonic.tv_sec) * 1000000000LL + (real.tv_nsec - monotonic.tv_nsec);
}

template <class Entry>
void set_metadata(Entry &entry, const std::string &compile_context,
                  const std::string &user_metadata, const std::string &internal = "")
{
    if constexpr (requires { entry.internal_metadata_; }) {
        entry.internal_metadata_ = internal;
    }
    if constexpr (requires { entry.compile_context_; }) {
        entry.compile_context_ = compile_context;
    }
    if constexpr (requires { entry.user_metadata_; }) {
        entry.user_metadata_ = user_metadata;
    }
}

struct EventVisit {
    DeviceIndex device;
    int64_t offset;
    std::vector<TraceEntry> entries;
};

std::string compile_context_of(const Note &note)
{
    return note.compile_context.empty() ? NO_COMPILE_CONTEXT : note.compile_context;
}

template <class Entry> bool add_block_note(EventVisit *visit, const Note &note, time_t time)
{
    if constexpr (requires { Entry::ANNOTATE; }) {
        visit->entries.push_back(make_entry(Entry::ANNOTATE, visit->device, note.address,
                                            note.bytes, static_cast<cudaStream_t>(note.stream),
                                            note.pool));
        visit->entries.back().time_.t_ = time;
        set_metadata(visit->entries.back(), NO_COMPILE_CONTEXT, note.metadata);
    }
    return true;
}

TraceEntry snapshot_entry(DeviceIndex device, const Note &note)
{
    TraceEntry entry = make_entry(TraceEntry::SNAPSHOT, device, 0, note.bytes, nullptr, {0, 0});
    set_metadata(entry, compile_context_of(note), note.metadata);
    return entry;
}

bool add_annotation(EventVisit *visit, const struct xseg_history_entry *entry, time_t time)
{
    std::optional<Note> note = note_of(entry->label);
    if (!note) {
        return true;
    }
    if (note->kind == NoteKind::BLOCK) {
        return add_block_note<TraceEntry>(visit, *note, time);
    }
    if (note->kind == NoteKind::SNAPSHOT) {
        visit->entries.push_back(snapshot_entry(visit->device, *note));
        visit->entries.back().time_.t_ = time;
    }
    return true;
}

bool add_event(void *context, const struct xseg_history_entry *entry)
{
    EventVisit *visit = static_cast<EventVisit *>(context);
    time_t time = (static_cast<int64_t>(entry->time_ns) + visit->offset) / 1000;
    if (entry->action == XSEG_HISTORY_ANNOTATION) {
        return add_annotation(visit, entry, time);
    }
    static const TraceEntry::Action actions[] = {
        TraceEntry::ALLOC,          TraceEntry::FREE_REQUESTED,
        TraceEntry::FREE_COMPLETED, TraceEntry::SEGMENT_ALLOC,
        TraceEntry::SEGMENT_FREE,   TraceEntry::SEGMENT_MAP,
        TraceEntry::SEGMENT_UNMAP,  TraceEntry::OOM};
    size_t action = entry->action;
    if (action >= std::size(actions)) {
        return true; /* an action that PyTorch does not have */
    }
    /* An out-of-memory entry has the free bytes in the place of the address. */
    size_t address =
        entry->action == XSEG_HISTORY_OOM ? entry->bytes : reinterpret_cast<size_t>(entry->base);
    TraceEntry trace_entry = make_entry(actions[action], visit->device, address, entry->requested,
                                        entry->stream, {entry->pool_id[0], entry->pool_id[1]});
    trace_entry.time_.t_ = time;
    trace_entry.context_ = context_of(entry->frames);
    std::optional<Note> note = note_of(entry->label);
    std::string foreign = entry->label == nullptr ? "" : entry->label;
    set_metadata(trace_entry, note ? compile_context_of(*note) : NO_COMPILE_CONTEXT,
                 note ? note->metadata : foreign, note ? note->internal_metadata : "");
    visit->entries.push_back(std::move(trace_entry));
    return true;
}

} // namespace

template <class Entry>
static Entry construct_entry(TraceEntry::Action action, DeviceIndex device, size_t address,
                             size_t bytes, cudaStream_t stream, MempoolId_t pool)
{
    using Time = decltype(c10::getApproximateTime());
    if constexpr (std::is_constructible_v<Entry, TraceEntry::Action, DeviceIndex, size_t, size_t,
                                          cudaStream_t, MempoolId_t, Time>) {
        return Entry(action, device, address, bytes, stream, pool, Time{});
    } else {
        return Entry(action, device, address, bytes, stream, Time{});
    }
}

TraceEntry make_entry(TraceEntry::Action action, DeviceIndex device, size_t address, size_t bytes,
                      cudaStream_t stream, MempoolId_t pool)
{
    return construct_entry<TraceEntry>(action, device, address, bytes, stream, pool);
}

std::vector<TraceEntry> trace_entries(Allocator *allocator, DeviceIndex device)
{
    EventVisit visit{device, clock_offset(), {}};
    time_t raised_at;
    size_t raised_from;
    {
        std::lock_guard<std::mutex> lock(adapter_events().mutex);
        const std::deque<TraceEntry> &early = adapter_events().early[device];
        visit.entries.assign(early.begin(), early.end());
        raised_at = adapter_events().raised_at;
        raised_from = adapter_events().raised_from;
    }
    if (allocator->is_open(device)) {
        check(xseg_for_each_event(allocator->library(), device, add_event, &visit, nullptr),
              "memory_snapshot");
    }
    auto raised =
        std::find_if(visit.entries.begin(), visit.entries.end(),
                     [&](const TraceEntry &entry) { return entry.time_.t_ >= raised_at; });
    if (static_cast<size_t>(raised - visit.entries.begin()) > raised_from) {
        visit.entries.erase(visit.entries.begin(), raised - static_cast<ptrdiff_t>(raised_from));
    }
    /* The library has this many entries for each stream of a pool; PyTorch has one ring per device. */
    if (visit.entries.size() > max_entries.load()) {
        visit.entries.erase(visit.entries.begin(),
                            visit.entries.end() - static_cast<ptrdiff_t>(max_entries.load()));
    }
    return std::move(visit.entries);
}

std::vector<Annotation> time_annotations()
{
    std::lock_guard<std::mutex> lock(adapter_events().mutex);
    return {adapter_events().annotations.begin(), adapter_events().annotations.end()};
}

void set_thread_label(Allocator *allocator)
{
    /* Until the library is open, the thread stores the strings; init() sets the label. */
    if (allocator->library() == nullptr || allocator->is_forked()) {
        return;
    }
    Note note;
    note.metadata = metadata;
    note.compile_context = compile_contexts.empty() ? "" : compile_contexts.back();
    note.internal_metadata = internal_metadata;
    bool is_empty =
        note.metadata.empty() && note.compile_context.empty() && note.internal_metadata.empty();
    RetainedNote retained = is_empty ? RetainedNote() : retain_note(std::move(note));
    xseg_status status = xseg_history_label(
        allocator->library(), retained.id == 0 ? nullptr : retained.text.c_str(), nullptr);
    if (status == XSEG_OK) {
        label.set(retained.id);
    } else {
        release_note(retained.id, false);
        warn_missing_string(status);
    }
    discard_old_notes(allocator);
}

InternalMetadata::InternalMetadata(Allocator *allocator, const char *text)
    : allocator_(is_recording.load() ? allocator : nullptr)
{
    if (allocator_ != nullptr) {
        internal_metadata = text;
        set_thread_label(allocator_);
    }
}

InternalMetadata::~InternalMetadata()
{
    if (allocator_ != nullptr) {
        internal_metadata.clear();
        set_thread_label(allocator_);
    }
}

static void record_note(Allocator *allocator, DeviceIndex device, Note note)
{
    if (is_recording.load() && allocator->is_open(device) && !allocator->is_forked()) {
        RetainedNote retained = retain_note(std::move(note));
        xseg_status status =
            xseg_history_annotate(allocator->library(), device, retained.text.c_str());
        release_note(retained.id, status == XSEG_OK);
        warn_missing_string(status);
        discard_old_notes(allocator);
    }
}

void record_snapshot(Allocator *allocator, DeviceIndex device, size_t active_bytes)
{
    if (!is_recording.load() || skips_snapshots.load()) {
        return;
    }
    Note note;
    note.kind = NoteKind::SNAPSHOT;
    note.bytes = active_bytes;
    note.metadata = metadata;
    note.compile_context = compile_contexts.empty() ? "" : compile_contexts.back();
    if (allocator->is_open(device)) {
        record_note(allocator, device, std::move(note));
    } else {
        std::lock_guard<std::mutex> lock(adapter_events().mutex);
        push_entry(adapter_events().early[device], snapshot_entry(device, note));
    }
}

bool Allocator::isHistoryEnabled()
{
    return is_recording.load();
}

std::shared_ptr<GatheredContext> Allocator::getContextForPointer(const void *ptr)
{
    struct xseg_block_info block = {sizeof(block)};
    bool is_allocated =
        xseg_block_query(library_, ptr, &block) == XSEG_OK && block.state == XSEG_BLOCK_ALLOCATED;
    return is_allocated ? context_of(block.frames) : nullptr;
}

void Allocator::recordHistory(bool enabled, CreateContextFn recorder, size_t entries,
                              RecordContext when)
{
    recordHistory(enabled, recorder, entries, when, false, {});
}

void Allocator::recordHistory(bool enabled, CreateContextFn recorder, size_t entries,
                              RecordContext when, bool clear)
{
    recordHistory(enabled, recorder, entries, when, clear, {});
}

void Allocator::recordHistory(bool enabled, CreateContextFn recorder, size_t entries,
                              RecordContext when, bool clear, const std::vector<std::string> &skip)
{
    TORCH_CHECK(
        when == RecordContext::NEVER || recorder != nullptr,
        "xseg.torch: recordHistory: missing function that records call stacks; pass one, or "
        "record no contexts");
    std::string keys = "history:nothing,history_stacks:none";
    if (enabled) {
        size_t events = std::min(std::max(entries, EVENTS_MIN), EVENTS_MAX);
        keys = std::string("history:all,history_stacks:") + stacks_of(when) +
               ",history_events:" + std::to_string(events) +
               ",history_skip:" + library_skip_list(skip);
        set_recorder(when == RecordContext::NEVER ? nullptr : recorder);
    }
    bool was_recording = is_recording.exchange(is_recording.load() || enabled);
    xseg_status status = xseg_config_set(library_, keys.c_str());
    if (status != XSEG_OK) {
        is_recording.store(was_recording);
    }
    check(status, "recordHistory");
    if (enabled) {
        std::lock_guard<std::mutex> lock(adapter_events().mutex);
        size_t previous = max_entries.exchange(std::max<size_t>(entries, 1));
        if (entries > previous) {
            adapter_events().raised_at = time_now();
            adapter_events().raised_from = previous;
        }
    }
    if (clear || !enabled) {
        {
            std::lock_guard<std::mutex> lock(adapter_events().mutex);
            adapter_events().annotations.clear();
            adapter_events().early.clear();
            adapter_events().raised_from = SIZE_MAX;
        }
        const std::unordered_set<uint64_t> none;
        uint64_t round = begin_discarding_notes();
        status = xseg_history_clear(library_, -1);
        discard_notes(round, status == XSEG_OK ? &none : nullptr);
        check(status, "recordHistory");
    }
    if (!enabled) {
        is_recording.store(false);
        set_recorder(nullptr);
    }
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>> &annotation)
{
    if (!is_recording.load()) {
        return;
    }
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    Annotation entry(device, {});
    for (const auto &[key, value] : annotation) {
        entry.recordUserMetadata(key, value);
    }
    {
        std::lock_guard<std::mutex> lock(adapter_events().mutex);
        push_entry(adapter_events().annotations, std::move(entry));
    }
    /* In snapshots of the library, an annotation is a string. */
    Note note;
    note.kind = NoteKind::TIME;
    note.metadata = annotation.empty() ? "" : annotation[0].second;
    record_note(this, device, std::move(note));
}

void Allocator::pushCompileContext(std::string &text)
{
    if (is_recording.load()) {
        compile_contexts.push_back(text);
        set_thread_label(this);
    }
}

void Allocator::popCompileContext()
{
    if (is_recording.load() && !compile_contexts.empty()) {
        compile_contexts.pop_back();
        set_thread_label(this);
    }
}

bool Allocator::supportsUserMetadata()
{
    return true;
}

void Allocator::setUserMetadata(const std::string &text)
{
    metadata = text;
    set_thread_label(this);
}

std::string Allocator::getUserMetadata()
{
    return metadata;
}

void Allocator::annotateMemory(const void *ptr, const std::string &text)
{
    struct xseg_block_info block = {sizeof(block)};
    xseg_status status = xseg_block_query(library_, ptr, &block);
    TORCH_CHECK(status == XSEG_OK && block.state == XSEG_BLOCK_ALLOCATED && block.base == ptr,
                "annotateMemory: no live allocation found at pointer ", ptr);
    if (skips_annotations.load()) {
        return;
    }
    Note note;
    note.kind = NoteKind::BLOCK;
    note.metadata = text;
    note.address = reinterpret_cast<size_t>(block.base);
    note.bytes = block.requested;
    note.stream = block.stream;
    note.pool = id_of_pool(block.fallback_pool != nullptr ? block.fallback_pool : block.pool);
    record_note(this, static_cast<DeviceIndex>(block.device), std::move(note));
}

} // namespace xseg_torch
