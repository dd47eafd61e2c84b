/* SPDX-License-Identifier: MIT */
#include "src/core/stats/free_log.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/align.h"
#include "src/base/check.h"

/* Frames that a text names: enough to reach past the library into its caller's code. */
#define FRAMES_SHOWN 8u

void xseg_free_log_init(struct xseg_free_log *log)
{
    memset(log, 0, sizeof(*log));
    xseg_lock_init(&log->lock, XSEG_RANK_FREE_LOG);
}

void xseg_free_log_fini(struct xseg_free_log *log)
{
    free(log->ring);
    log->ring = NULL;
    xseg_lock_fini(&log->lock);
}

static uint32_t capacity_of(const struct xseg_free_log *log)
{
    return (uint32_t)atomic_load_explicit(&log->capacity, memory_order_relaxed);
}

/* Make a ring of another size, with the last frees that fit in it. */
static bool resize(struct xseg_free_log *log, uint32_t capacity)
{
    struct xseg_free_entry *ring = calloc(capacity, sizeof(*ring));
    const uint32_t old = capacity_of(log);
    const uint64_t kept = xseg_min(log->count, xseg_min(old, capacity));

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_FREE_LOG));
    XSEG_ASSERT(capacity != 0);
    if (ring == NULL)
        return false;
    for (uint64_t number = log->count - kept + 1; number <= log->count; number++)
        ring[number % capacity] = log->ring[number % old];
    free(log->ring);
    log->ring = ring;
    atomic_store_explicit(&log->capacity, capacity, memory_order_relaxed);
    XSEG_AUDIT(xseg_free_log_audit, log);
    return true;
}

__attribute__((noinline)) uint64_t xseg_free_log_note(struct xseg_free_log *log, uint32_t capacity,
                                                      uint64_t address, uint64_t bytes)
{
    struct xseg_free_entry entry = {.address = address, .bytes = bytes, .thread = gettid()};
    const int depth = backtrace(entry.frame, XSEG_FREE_LOG_FRAMES);

    XSEG_ASSERT(capacity != 0);
    entry.depth = depth > 0 ? (uint32_t)depth : 0;
    xseg_lock_take(&log->lock);
    if (capacity_of(log) == capacity || resize(log, capacity)) {
        entry.number = ++log->count;
        XSEG_ASSERT(entry.number > log->ring[entry.number % capacity].number);
        log->ring[entry.number % capacity] = entry;
    }
    xseg_lock_give(&log->lock);
    return entry.number;
}

void xseg_free_log_withdraw(struct xseg_free_log *log, uint64_t number)
{
    xseg_lock_take(&log->lock);
    XSEG_ASSERT(number != 0 && number <= log->count);
    struct xseg_free_entry *entry = &log->ring[number % capacity_of(log)];
    if (entry->number == number)
        memset(entry, 0, sizeof(*entry));
    xseg_lock_give(&log->lock);
}

bool xseg_free_log_find(struct xseg_free_log *log, uint64_t address, struct xseg_free_entry *out,
                        uint64_t *since)
{
    bool found = false;

    if (capacity_of(log) == 0)
        return false;
    xseg_lock_take(&log->lock);
    const uint32_t capacity = capacity_of(log);
    const uint64_t kept = xseg_min(log->count, capacity);
    for (uint64_t i = 0; i < kept && !found; i++) {
        const struct xseg_free_entry *entry = &log->ring[(log->count - i) % capacity];

        found = entry->number != 0 && address - entry->address < entry->bytes;
        if (found) {
            *out = *entry;
            *since = i;
        }
    }
    xseg_lock_give(&log->lock);
    return found;
}

/* Print a frame as function+offset where the function is known, else as file+offset. */
static void add_frame(struct xseg_text *text, void *frame)
{
    const char *file = NULL;
    Dl_info info;

    if (dladdr(frame, &info) == 0 || info.dli_fname == NULL) {
        xseg_text_add(text, "%p", frame);
        return;
    }
    file = strrchr(info.dli_fname, '/');
    file = file != NULL ? file + 1 : info.dli_fname;
    if (info.dli_sname != NULL)
        xseg_text_add(text, "%s+%#tx", info.dli_sname, (char *)frame - (char *)info.dli_saddr);
    else
        xseg_text_add(text, "%s+%#tx", file, (char *)frame - (char *)info.dli_fbase);
}

bool xseg_free_log_describe(struct xseg_free_log *log, uint64_t address, const char *lead,
                            struct xseg_text *text)
{
    struct xseg_free_entry entry;
    uint64_t since = 0;

    if (!xseg_free_log_find(log, address, &entry, &since))
        return false;
    xseg_text_add(text,
                  "%sfreed as number %" PRIu64 ", %" PRIu64
                  " free%s ago, by thread %d, with the %" PRIu64 " bytes at %#" PRIx64 ", from",
                  lead, entry.number, since, since == 1 ? "" : "s", (int)entry.thread, entry.bytes,
                  entry.address);
    /* The first frame is xseg_free_log_note() itself. */
    for (uint32_t i = 1; i < entry.depth && i <= FRAMES_SHOWN; i++) {
        xseg_text_add(text, i == 1 ? " " : " < ");
        add_frame(text, entry.frame[i]);
    }
    return true;
}

bool xseg_free_log_audit(const struct xseg_free_log *log, struct xseg_finding *finding)
{
    const uint32_t capacity = capacity_of(log);

    for (uint32_t i = 0; i < capacity; i++) {
        const uint64_t number = log->ring[i].number;

        XSEG_HOLDS(finding, "FREELOG-1",
                   number == 0 || (number % capacity == i && number <= log->count &&
                                   log->count - number < capacity),
                   "free %" PRIu64 " of %" PRIu64 " is entry %" PRIu32, number, log->count, i);
    }
    return true;
}
