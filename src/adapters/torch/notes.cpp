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

constexpr size_t SHOWN = 90;        /* maximum bytes of the excerpt before the ID */
constexpr size_t NOTES_MIN = 16384; /* minimum number of notes that triggers a scan of the events */

struct Kept {
    Note note;
    std::string text;
    unsigned holders = 1;
    uint64_t round = 0; /* in which the note was released */
};

struct Notes {
    std::mutex mutex;
    std::map<uint64_t, Kept> by_id;
    std::map<std::tuple<std::string, std::string, std::string>, uint64_t> labels;
    std::vector<uint64_t> vacant; /* IDs to reuse */
    uint64_t last = 0, round = 0;
    size_t many = NOTES_MIN;
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

/* A string of the library ends at a NUL, so the excerpt does as well. */
std::string text_of(const Note &note, uint64_t id)
{
    std::string shown = note.metadata.empty() ? note.compile_context : note.metadata;
    shown = shown.substr(0, shown.find('\0'));
    std::string text = "#" + std::to_string(id);
    return shown.empty() ? text : shown.substr(0, SHOWN) + " " + text;
}

uint64_t new_id(Notes &all)
{
    if (all.vacant.empty()) {
        return ++all.last;
    }
    uint64_t id = all.vacant.back();
    all.vacant.pop_back();
    return id;
}

std::map<uint64_t, Kept>::iterator discard(Notes &all, std::map<uint64_t, Kept>::iterator kept)
{
    if (kept->second.note.kind == NoteKind::LABEL) {
        all.labels.erase(key_of(kept->second.note));
    }
    all.vacant.push_back(kept->first);
    return all.by_id.erase(kept);
}

} // namespace

RetainedNote retain_note(Note note)
{
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (note.kind == NoteKind::LABEL) {
        auto found = all.labels.find(key_of(note));
        if (found != all.labels.end()) {
            Kept &kept = all.by_id.at(found->second);
            kept.holders++;
            return {found->second, kept.text};
        }
    }
    uint64_t id = new_id(all);
    if (note.kind == NoteKind::LABEL) {
        all.labels[key_of(note)] = id;
    }
    Kept kept;
    kept.text = text_of(note, id);
    kept.note = std::move(note);
    return {id, all.by_id.emplace(id, std::move(kept)).first->second.text};
}

void release_note(uint64_t id, bool is_in_events)
{
    if (id == 0) {
        return;
    }
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto kept = all.by_id.find(id);
    kept->second.round = all.round;
    if (--kept->second.holders == 0 && !is_in_events) {
        discard(all, kept);
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

bool has_many_notes()
{
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    return all.by_id.size() >= all.many;
}

uint64_t begin_discarding_notes()
{
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.many = SIZE_MAX; /* only one thread scans */
    return ++all.round;
}

void discard_notes(uint64_t round, const std::unordered_set<uint64_t> *used)
{
    Notes &all = notes();
    std::lock_guard<std::mutex> lock(all.mutex);
    for (auto kept = all.by_id.begin(); used != nullptr && kept != all.by_id.end();) {
        bool is_kept =
            kept->second.holders > 0 || kept->second.round >= round || used->count(kept->first) > 0;
        kept = is_kept ? std::next(kept) : discard(all, kept);
    }
    all.many = std::max(NOTES_MIN, 2 * all.by_id.size());
}

} // namespace xseg_torch
