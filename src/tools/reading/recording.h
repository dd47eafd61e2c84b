/* SPDX-License-Identifier: MIT */
/*
 * A recording: what a memory snapshot of PyTorch's format says, of all its devices, in arrays.
 *
 * A snapshot is what torch.cuda.memory._dump_snapshot() or xseg_snapshot() writes, or the list of segments alone.  Keys
 * that older releases do not write have defaults.  Facts that only xseg writes (its key `xseg`) are there if they are.
 *
 * Terms:
 *   text   a number that stands for a text; 0 is the empty one
 *   stack  a number that stands for a list of frames, the innermost first; 0 is the empty one.  Equal stacks have one
 *          number
 *   pool   a number that stands for the two numbers of a pool; 0 is the default pool
 *
 * Numbers of texts, frames, stacks and pools are of one recording.
 *
 * Locking: none; what is read does not change any more, so any number of threads may look at it.
 */
#ifndef TOOLS_RECORDING_H
#define TOOLS_RECORDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum recording_action {
    RECORDING_ALLOC,
    RECORDING_FREE_REQUESTED,
    RECORDING_FREE_COMPLETED,
    RECORDING_SEGMENT_ALLOC,
    RECORDING_SEGMENT_FREE,
    RECORDING_SEGMENT_MAP,
    RECORDING_SEGMENT_UNMAP,
    RECORDING_OOM,
    RECORDING_SNAPSHOT, /* from here on nothing has changed */
    RECORDING_ANNOTATE,
    RECORDING_OTHER /* what is not known */
};

/* Why memory of a segment went or came; of xseg's own snapshots. */
enum recording_cause {
    RECORDING_CAUSE_NONE, /* none is told */
    RECORDING_CAUSE_REMAP,
    RECORDING_CAUSE_DECAY,
    RECORDING_CAUSE_TRIM,
    RECORDING_CAUSE_PAUSE,
    RECORDING_CAUSE_RESUME,
    RECORDING_CAUSE_BUDGET_RELEASE,
    RECORDING_CAUSE_OTHER, /* a word of a later release */
    RECORDING_CAUSES
};

struct recording_frame {
    uint32_t name, file; /* texts */
    uint64_t line;       /* of a module without source: the offset in it */
    uint32_t build_id;   /* text; of such a module */
    uint32_t module;     /* text; where the source is known by it (sources.h): its path */
};

struct recording_stack {
    uint32_t first, count; /* in recording.stack_frames */
};

struct recording_event {
    uint64_t time_us; /* since 1970, or as the recorded programme counted; 0: not known */
    uint64_t address; /* OOM: bytes that the device had left */
    uint64_t bytes;   /* as asked for; of a segment all of it */
    uint64_t stream;
    uint32_t stack, pool, label /* text */;
    uint8_t action; /* enum recording_action */
    uint8_t cause;  /* enum recording_cause */
};

enum recording_state { RECORDING_INACTIVE, RECORDING_PENDING, RECORDING_LIVE };

struct recording_block {
    uint64_t address, bytes, requested;
    uint32_t stack;
    uint8_t state; /* enum recording_state */
};

struct recording_segment {
    uint64_t address, bytes, stream;
    uint32_t pool;
    bool is_small, is_expandable;
    uint32_t first, count; /* in recording.blocks, by address, without gaps */
};

/* Why memory is reserved; of xseg's own snapshots. */
struct recording_page {
    uint64_t address, bytes, live, cached;
    uint64_t registered; /* 0 in older files */
    uint32_t reason;     /* text */
};

struct recording_device {
    int number;
    struct recording_segment *segments; /* [segment_count], by address */
    size_t segment_count;
    struct recording_event *events; /* [event_count], the oldest first */
    size_t event_count;
    struct recording_page *pages; /* [page_count] */
    size_t page_count;
    uint64_t lost, left_out; /* events before the first, if the snapshot says so */
    uint64_t
        single_page_rest; /* bytes of live blocks beyond what was asked for, because of single_page */
};

struct recording {
    char *name;     /* of the file, for reports */
    char *texts;    /* all of them, one behind the other */
    uint32_t *text; /* [text_count]: where a text begins */
    struct recording_frame *frames;
    uint32_t *stack_frames;
    struct recording_stack *stacks;
    uint64_t (*pools)[2];
    struct recording_block *blocks;
    struct recording_device *devices; /* [device_count], those that have anything, by number */
    size_t text_count, frame_count, stack_count, pool_count, block_count, device_count;
    bool has_config;
    bool
        names_segments; /* the settings contain expandable_segments; older releases do not write it */
    uint32_t config;    /* text: allocator_settings' string; the key expandable_segments is in it */
    bool is_own;        /* xseg has written it */
};

struct recording_fault {
    char text[240];
};

void recording_fini(struct recording *recording);

static inline const char *recording_text(const struct recording *recording, uint32_t text)
{
    return recording->texts + recording->text[text];
}

/* The kinds of segments in a recording, by its segments and by events of segments. */
enum recording_segments {
    RECORDING_UNSHOWN,
    RECORDING_CLASSIC,
    RECORDING_EXPANDABLE,
    RECORDING_BOTH
};

enum recording_segments recording_segments(const struct recording *recording);

/* The number of devices that have a history. */
size_t recording_histories(const struct recording *recording);

/* The device of a number, or NULL; -1: the one with most events, or else with the largest segment. */
const struct recording_device *recording_device(const struct recording *recording, int number);

#endif
