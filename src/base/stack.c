/* SPDX-License-Identifier: MIT */
#include "src/base/stack.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/check.h"

/* The most frames of this file, and of a sanitizer that stands before backtrace(), in a walk. */
#define OWN_FRAMES 5u

typedef int walk_function(void **frames, int max);

/* Who walks a stack; NULL before the first xseg_stack_prepare(). */
static _Atomic(walk_function *) unwinder;

#if defined(__aarch64__)

/* What a function saves first, by the procedure call standard of the processor; x29 leads to it. */
struct frame_record {
    const struct frame_record *caller;
    void *return_address;
};

/* The calling thread's stack; {0, 0} before it is known. */
static _Thread_local struct {
    uintptr_t low, high;
} limits;

static void find_bounds(void)
{
    pthread_attr_t attributes;
    void *low = NULL;
    size_t bytes = 0;

    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return;
    if (pthread_attr_getstack(&attributes, &low, &bytes) == 0) {
        limits.low = (uintptr_t)low;
        limits.high = (uintptr_t)low + bytes;
    }
    (void)pthread_attr_destroy(&attributes);
}

static bool is_on_the_stack(const struct frame_record *record)
{
    const uintptr_t address = (uintptr_t)record;

    return address % sizeof(void *) == 0 && address >= limits.low && address < limits.high &&
           limits.high - address >= sizeof(*record);
}

/* A return address without the signature that processors with pointer authentication put into it. */
static void *without_signature(void *address)
{
    register void *link __asm__("x30") = address;

    __asm__("hint #7" : "+r"(link)); /* xpaclri; nothing on older processors */
    return link;
}

static __attribute__((noinline)) int walk_records(void **frames, int max)
{
    const struct frame_record *record = __builtin_frame_address(0);
    int count = 0;

    if (limits.high == 0)
        find_bounds();
    while (count < max && is_on_the_stack(record) && record->return_address != NULL) {
        const struct frame_record *caller = record->caller;

        frames[count++] = without_signature(record->return_address);
        if (caller <= record)
            break;
        record = caller;
    }
    return count;
}

static walk_function *open_quick(void)
{
    return walk_records;
}

#else

/* libunwind's walk, or NULL.  The library stays open, since threads may be inside at any time. */
static walk_function *open_quick(void)
{
    void *library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, "unw_backtrace") : NULL;
    walk_function *walk = NULL;

    if (symbol != NULL)
        memcpy(&walk, &symbol, sizeof(walk));
    else if (library != NULL)
        (void)dlclose(library);
    return walk;
}

#endif

/* There is no lock: a thread that waited for one could hold the loader's, which the other thread needs.
 * Two threads that come first at once both open the library, which counts how often it was opened. */
bool xseg_stack_prepare(void)
{
    walk_function *walk = atomic_load_explicit(&unwinder, memory_order_acquire);

    if (walk == NULL) {
        void *frames[OWN_FRAMES];

        walk = open_quick();
        if (walk == NULL)
            walk = backtrace;
        (void)walk(frames, OWN_FRAMES);
        (void)backtrace(frames, OWN_FRAMES); /* it opens a library at first */
        atomic_store_explicit(&unwinder, walk, memory_order_release);
    }
    return walk != backtrace;
}

/*
 * Walk the stack and give the caller's part of it: what begins with the return address `caller`.  Returns 0 where the walk
 * does not reach that.
 *
 * all: room for all frames, with ours
 */
static uint32_t walk_by(walk_function *walk, void *caller, void **all, uint32_t room, void **frames,
                        uint32_t max)
{
    const int walked = walk(all, (int)room);
    const uint32_t count = walked > 0 ? (uint32_t)walked : 0;
    uint32_t own = 0;

    while (own < count && own < OWN_FRAMES && all[own] != caller)
        own++;
    if (own == count || all[own] != caller)
        return 0;
    const uint32_t taken = (uint32_t)xseg_min(count - own, max);
    memcpy(frames, all + own, taken * sizeof(*frames));
    return taken | (count - own > max ? XSEG_STACK_TRUNCATED : 0);
}

/* The quick way may fail where backtrace() does not: libunwind at a frame, frame records on the stack of a fibre. */
static uint32_t walk_from(void *caller, void **all, uint32_t room, void **frames, uint32_t max)
{
    walk_function *walk = atomic_load_explicit(&unwinder, memory_order_acquire);
    const uint32_t taken = walk_by(walk != NULL ? walk : backtrace, caller, all, room, frames, max);

    return taken == 0 && walk != NULL && walk != backtrace
               ? walk_by(backtrace, caller, all, room, frames, max)
               : taken;
}

/* A function of its own, so that usual stacks do not need the room of the deepest. */
static __attribute__((noinline)) uint32_t take_deep(void *caller, void **frames, uint32_t max)
{
    void *all[XSEG_STACK_FRAMES_MAX + OWN_FRAMES + 1];

    return walk_from(caller, all, max + OWN_FRAMES + 1, frames, max);
}

__attribute__((noinline)) uint32_t xseg_stack_capture(void **frames, uint32_t max)
{
    void *caller = __builtin_extract_return_addr(__builtin_return_address(0));
    void *all[XSEG_STACK_FRAMES + OWN_FRAMES + 1];

    XSEG_ASSERT(max != 0 && max <= XSEG_STACK_FRAMES_MAX);
    if (max > XSEG_STACK_FRAMES)
        return take_deep(caller, frames, (uint32_t)xseg_min(max, XSEG_STACK_FRAMES_MAX));
    return walk_from(caller, all, max + OWN_FRAMES + 1, frames, max);
}
