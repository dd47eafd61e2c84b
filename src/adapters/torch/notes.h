/* SPDX-License-Identifier: MIT */
/*
 * What PyTorch's users write beside events: metadata and compile contexts of a thread, and annotations of a block.
 *
 * A text of the library's history has at most 119 bytes, so what is longer, or has parts, stays here, and the
 * text ends in its number: "optimizer #12".  A note is kept while somebody holds it or an event has its text; then its
 * number is used again, so that there are no more texts than notes at a time.  Where texts have taken TEXTS_MOST bytes,
 * new ones are numbers alone.
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
    std::string internal_metadata;         /* LABEL: which call of PyTorch's allocates */
    size_t address = 0, bytes = 0;         /* BLOCK; SNAPSHOT: bytes */
    void *stream = nullptr;                /* BLOCK */
    std::pair<unsigned long long, unsigned long long> pool{0, 0}; /* BLOCK: PyTorch's id */
};

/** A note that is held, and the text that stands for it. */
struct HeldNote {
    uint64_t number = 0; /* 0: none */
    std::string text;
};

/** Keep a note and hold it, until let_go_of_note().  Labels that are equal are one note. */
HeldNote hold_note(Note note);

/** Hold a note no longer.  `is_in_events`: events may have its text; else it may be forgotten at once. */
void let_go_of_note(uint64_t number, bool is_in_events);

/** The note that a text stands for; none for a text of somebody else's. */
std::optional<Note> note_of(const char *text);

/** The number that a text ends in; 0: none. */
uint64_t note_number(const char *text);

/** Whether so many notes have come that it is time to look which of them are still in events. */
bool has_many_notes();

/** Begin to forget; the number is for forget_notes().  What is let go of from now on stays. */
uint64_t begin_to_forget_notes();

/** Forget the notes that nobody holds and whose numbers are not in `used`; NULL: none is forgotten. */
void forget_notes(uint64_t round, const std::unordered_set<uint64_t> *used);

} // namespace xseg_torch

#endif
