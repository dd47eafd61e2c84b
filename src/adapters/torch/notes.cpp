/* SPDX-License-Identifier: MIT */
#include "src/adapters/torch/notes.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

namespace xseg_torch
{

namespace
{

constexpr size_t EXCERPT_MAX = 90;  /* maximum bytes of the excerpt before the ID */
constexpr size_t NOTES_MIN = 16384; /* minimum number of notes that triggers a scan of the events */

struct StoredNote {
    Note note;
    std::string text;
    unsigned references = 1;
    uint64_t round = 0; /* round in which the note was released */
};

struct Notes {
    std::mutex mutex;
    std::map<uint64_t, StoredNote> by_id;
    std::map<std::tuple<std::string, std::string, std::string>, uint64_t> labels;
    std::vector<uint64_t> free_ids; /* IDs to reuse */
    uint64_t last = 0, round = 0;
    size_t scan_threshold = NOTES_MIN;
};

Notes &notes()
{
    static Notes *const the_notes = new Notes;
    return *the_notes;
}

/* Labels with the same key are equal. */
std::tuple<std::string, std::string, std::string> key_of(const Note &note)
{
    return {note.metadata, note.compile_context, note.internal_metadata};
}

/* The excerpt ends at a NUL, as strings of the library do. */
std::string note_string(const Note &note, uint64_t id)
{
    std::string excerpt = note.metadata.empty() ? note.compile_context : note.metadata;
    excerpt = excerpt.substr(0, excerpt.find('\0'));
    std::string text = "#" + std::to_string(id);
    return excerpt.empty() ? text : excerpt.substr(0, EXCERPT_MAX) + " " + text;
}

uint64_t new_id(Notes &all)
{
    if (all.free_ids.empty()) {
        return ++all.last;
    }
    uint64_t id = all.free_ids.back();
    all.free_ids.pop_back();
    return id;
}

std::map<uint64_t, StoredNote>::iterator
discard_note(Notes &all, std::map<uint64_t, StoredNote>::iterator stored)
{
    if (stored->second.note.kind == NoteKind::LABEL) {
        all.labels.erase(key_of(stored->second.note));
    }
    all.free_ids.push_back(stored->first);
    return all.by_id.erase(stored);
}

} // namespace

RetainedNote retain_note(Note note)
{
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (note.kind == NoteKind::LABEL) {
        auto found = all.labels.find(key_of(note));
        if (found != all.labels.end()) {
            StoredNote &stored = all.by_id.at(found->second);
            stored.references++;
            return {found->second, stored.text};
        }
    }
    uint64_t id = new_id(all);
    if (note.kind == NoteKind::LABEL) {
        all.labels[key_of(note)] = id;
    }
    StoredNote stored;
    stored.text = note_string(note, id);
    stored.note = std::move(note);
    return {id, all.by_id.emplace(id, std::move(stored)).first->second.text};
}

void release_note(uint64_t id, bool is_in_events)
{
    if (id == 0) {
        return;
    }
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto stored = all.by_id.find(id);
    stored->second.round = all.round;
    if (--stored->second.references == 0 && !is_in_events) {
        discard_note(all, stored);
    }
}

uint64_t note_id_of(const char *text)
{
    const char *mark = text == nullptr ? nullptr : std::strrchr(text, '#');
    return mark == nullptr ? 0 : std::strtoull(mark + 1, nullptr, 10);
}

std::optional<Note> note_of(const char *text)
{
    uint64_t id = note_id_of(text);
    if (id == 0) {
        return std::nullopt;
    }
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.by_id.find(id);
    if (found == all.by_id.end() || found->second.text != text) {
        return std::nullopt;
    }
    return found->second.note;
}

bool is_note_scan_due()
{
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    return all.by_id.size() >= all.scan_threshold;
}

uint64_t begin_discarding_notes()
{
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.scan_threshold = SIZE_MAX; /* only one thread scans */
    return ++all.round;
}

void discard_notes(uint64_t round, const std::unordered_set<uint64_t> *used)
{
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    for (auto stored = all.by_id.begin(); used != nullptr && stored != all.by_id.end();) {
        bool is_used = stored->second.references > 0 || stored->second.round >= round ||
                       used->count(stored->first) > 0;
        stored = is_used ? std::next(stored) : discard_note(all, stored);
    }
    all.scan_threshold = std::max(NOTES_MIN, 2 * all.by_id.size());
}

} // namespace xseg_torch
