/* SPDX-License-Identifier: MIT */
/*
 * Notes that PyTorch's users attach to events: metadata and compile contexts of a thread, and annotations of a block.
 *
 * A string of the library's history has at most 119 bytes.  The table of notes has the complete contents, and the string in the
 * history is an excerpt that ends with the ID of the note: "optimizer #12".  A note is kept while it is retained or
 * an event has its string.  Then its ID is reused, so the number of strings is bounded by the number of notes.
 *
 * Threads: any.
 */
#ifndef XSEG_ADAPTERS_TORCH_NOTES_H
#define XSEG_ADAPTERS_TORCH_NOTES_H

#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

namespace xseg_torch
{

enum class NoteKind { LABEL, BLOCK, TIME, SNAPSHOT };

struct Note {
    NoteKind kind = NoteKind::LABEL;
    std::string metadata, compile_context; /* LABEL, SNAPSHOT; BLOCK: metadata; TIME: its name */
    std::string internal_metadata;         /* LABEL: the function of PyTorch that allocates */
    size_t address = 0, bytes = 0;         /* BLOCK; SNAPSHOT: bytes */
    void *stream = nullptr;                /* BLOCK */
    std::pair<unsigned long long, unsigned long long> pool{0, 0}; /* BLOCK: ID in PyTorch */
};

/** The ID of a retained note, and its string in the history. */
struct RetainedNote {
    uint64_t id = 0; /* 0: none */
    std::string text;
};

/** Add a note and retain it until release_note().  Equal labels share a note. */
RetainedNote retain_note(Note note);

/** Release a note.  If is_in_events is false, no event has its string, and the note can be discarded immediately. */
void release_note(uint64_t id, bool is_in_events);

/** Get the note of a string; empty for strings of other callers. */
std::optional<Note> note_of(const char *text);

/** Get the ID at the end of a string, or 0. */
uint64_t note_id_of(const char *text);

/** Get whether the number of notes has reached the threshold of a scan of the events for unused notes. */
bool is_note_scan_due();

/** Begin to discard notes.  Returns the round for discard_notes(), which keeps notes that are released from now on. */
uint64_t begin_discarding_notes();

/** Discard the notes that are not retained and whose IDs are not in `used`.  NULL discards none. */
void discard_notes(uint64_t round, const std::unordered_set<uint64_t> *used);

} // namespace xseg_torch

#endif
