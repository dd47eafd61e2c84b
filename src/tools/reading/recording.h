/* SPDX-License-Identifier: MIT */
/*
 * A recording: the contents of a memory snapshot in PyTorch's format, of all its devices, in arrays.
 *
 * A snapshot is written by torch.cuda.memory._dump_snapshot() or xseg_snapshot(), or is the list of segments alone.
 * Keys that older releases do not write have defaults.  The key `xseg`, which only xseg writes, is optional.
 *
 * Strings, frames, stacks, pools and contexts are interned: equal values have one index, which is valid only in this recording.
 *
 *   entry    a record of the history, as in PyTorch: an allocation, a request or completion of a free, or a change of a
 *            segment.  Structures and functions name it `event`.  Synthetic entries, of blocks that the allocator
 *            allocates and frees within one call, are removed (histories.c).
 *   event    in reports: an entry, or a free request and its completion directly after it.  `xseg replay` replays and
 *            counts the events of blocks: allocations and frees.
 *   text     index of a string; 0 is the empty string.
 *   stack    index of a list of frames, innermost first; 0 is the empty list.
 *   pool     index of the pair of numbers that identifies a pool; 0 is the default pool.
 *   context  index of the labels of an event; 0 has none.
 *
 * Locking: none; a recording does not change after it is read, so several threads may use it.  Several threads may
 * read files, one of them standard input.
 */
#ifndef TOOLS_RECORDING_H
#define TOOLS_RECORDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/reading/input.h"
#include "src/tools/reading/symbols.h"

enum recording_action {
    RECORDING_ALLOC,
    RECORDING_FREE_REQUESTED,
    RECORDING_FREE_COMPLETED,
    RECORDING_SEGMENT_ALLOC,
    RECORDING_SEGMENT_FREE,
    RECORDING_SEGMENT_MAP,
    RECORDING_SEGMENT_UNMAP,
    RECORDING_OOM,
    RECORDING_SNAPSHOT, /* this action and later ones change nothing */
    RECORDING_ANNOTATE,
    RECORDING_OTHER /* unknown */
};

/* The cause of a change of a segment, in snapshots of xseg. */
enum recording_cause {
    RECORDING_CAUSE_NONE,
    RECORDING_CAUSE_REMAP,
    RECORDING_CAUSE_DECAY,
    RECORDING_CAUSE_TRIM,
    RECORDING_CAUSE_PAUSE,
    RECORDING_CAUSE_RESUME,
    RECORDING_CAUSE_BUDGET_RELEASE,
    RECORDING_CAUSE_OTHER, /* of a later release */
    RECORDING_CAUSES
};

struct recording_frame {
    uint32_t name, file; /* texts */
    uint64_t line;       /* of a frame without source: the offset in the module `file` */
    uint32_t build_id;   /* text; of that module */
    uint32_t module;     /* text; path of the module of a symbolized frame */
};

struct recording_stack {
    uint32_t first, count; /* in recording.stack_frames */
};

/* The labels of an event; each is a text. */
struct recording_context {
    uint32_t label;       /* of the user: user_metadata, xseg_history_label() */
    uint32_t region;      /* compiled region, such as "Torch-Compiled Region: 0/0" */
    uint32_t step, stage; /* annotations.h */
};

struct recording_event {
    uint64_t time_us; /* since 1970, or since an origin of the program; 0: unknown */
    uint64_t address; /* OOM: free bytes of the device */
    uint64_t bytes;   /* requested; of a segment its size */
    uint64_t stream;
    uint32_t stack, pool, context;
    uint8_t action;   /* enum recording_action */
    uint8_t cause;    /* enum recording_cause */
    bool is_internal; /* tagged by the allocator (`internal_metadata`) */
};

enum recording_state { RECORDING_INACTIVE, RECORDING_PENDING, RECORDING_ALLOCATED };

struct recording_block {
    uint64_t address, bytes, requested;
    uint32_t stack;
    uint8_t state; /* enum recording_state */
};

struct recording_segment {
    uint64_t address, bytes, stream;
    uint32_t pool;
    bool is_small, is_expandable;
    uint32_t first, count; /* in recording.blocks, by address, contiguous */
};

/* The reason for which a page is reserved, in snapshots of xseg. */
struct recording_page {
    uint64_t address, bytes, allocated, cached;
    uint64_t registered; /* bytes; 0 in older files */
    uint32_t reason;     /* text */
};

#define RECORDING_HOST (-1) /* number of pinned host memory */

struct recording_device {
    int number;
    struct recording_segment *segments; /* [segment_count], by address */
    size_t segment_count;
    struct recording_event *events; /* [event_count], the oldest first */
    size_t event_count;
    struct recording_page *pages; /* [page_count] */
    size_t page_count;
    /* Entries before the first entry of the file: overwritten, and beyond the limit of the file. */
    uint64_t lost, truncated;
    uint64_t synthetic; /* entries of the allocator's own blocks, which are not in `events` */
    uint64_t single_page_padding; /* bytes of blocks above the request, because of single_page */
};

struct recording {
    char *name;     /* of the file */
    char *texts;    /* all strings, each terminated */
    uint32_t *text; /* [text_count]: offsets in `texts` */
    struct recording_frame *frames;
    uint32_t *stack_frames;
    struct recording_stack *stacks;
    uint64_t (*pools)[2];
    struct recording_context *contexts;
    struct recording_block *blocks;
    /* [device_count], by number; only devices with a segment or an event */
    struct recording_device *devices;
    struct recording_device host; /* pinned host memory; all its memory is classic */
    size_t text_count, frame_count, stack_count, pool_count, context_count, block_count,
        device_count;
    bool has_config;
    /* The settings contain expandable_segments; older releases do not write the key. */
    bool names_segments;
    uint32_t config; /* text: the string of allocator_settings, with expandable_segments */
    bool is_own;     /* written by xseg */
};

struct recording_fault {
    char text[240];
};

void recording_fini(struct recording *recording);

static inline const char *recording_text(const struct recording *recording, uint32_t text)
{
    return recording->texts + recording->text[text];
}

/* Get whether pinned host memory was recorded. */
static inline bool recording_has_host(const struct recording *recording)
{
    return recording->host.segment_count + recording->host.event_count > 0;
}

/* The kinds of segments in a recording, by its segments and by events of segments. */
enum recording_segments {
    RECORDING_UNKNOWN,
    RECORDING_CLASSIC,
    RECORDING_EXPANDABLE,
    RECORDING_BOTH
};

enum recording_segments recording_segments(const struct recording *recording);

/* Count the devices that have a history. */
size_t recording_history_count(const struct recording *recording);

/* Find the device with a number, or NULL; -1: the device with the most entries, or else with the largest segment. */
const struct recording_device *recording_device(const struct recording *recording, int number);

/* --- Reading. --- */

struct input;
struct symbols;

/*
 * Read a snapshot.
 *
 * name:    of the file, for reports; copied.
 * symbols: to symbolize frames; NULL: they remain as recorded.
 *
 * Returns: false with a fault, which is an error message; there is nothing to free then
 */
bool recording_read(struct input *input, const char *name, struct symbols *symbols,
                    struct recording *out, struct recording_fault *fault);

/* --- Files; the path `-` is standard input. --- */

/* Get the name of a file in reports. */
const char *recording_file_name(const char *path);

/* As recording_read(), with symbols. */
bool recording_file_load(const char *path, struct recording *out, struct recording_fault *fault);

/* As recording_file_load(), with the progress and the error message on standard error. */
bool recording_file_read(const char *path, struct recording *out);

/* As recording_device(); NULL with a fault if the recording has no such device, or no device. */
const struct recording_device *recording_file_device(const struct recording *recording, int number,
                                                     struct recording_fault *fault);

/* --- Limits of a recording: missing, synthetic and inconsistent entries. --- */

enum recording_limit {
    RECORDING_LIMIT_LOST,
    RECORDING_LIMIT_TRUNCATED,
    RECORDING_LIMIT_SYNTHETIC,
    RECORDING_LIMIT_OMITTED
};

struct recording_limit_text {
    char text[128];
};

/* Describe a limit: "3 earlier entries were overwritten". */
struct recording_limit_text recording_file_limit(enum recording_limit limit, uint64_t count);

/* The end of a message that a file has no history. */
#define RECORDING_FILE_HOW_TO \
    "torch.cuda.memory._record_memory_history() or `history:all` records one"

#endif
