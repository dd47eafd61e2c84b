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

/* The maximum number of frames of this file, and of a sanitizer's wrapper of backtrace(), in a walk. */
#define INTERNAL_FRAMES 5u

typedef int walk_fn(void **frames, int max);

/* The unwinder; NULL before the first xseg_stack_prepare(). */
static _Atomic(walk_fn *) unwinder;

#if defined(__aarch64__)

/* The frame record of the procedure call standard; x29 points to it. */
struct frame_record {
    const struct frame_record *caller;
    void *return_address;
};

/* The bounds of the calling thread's stack; {0, 0} before they are read. */
static _Thread_local struct {
    uintptr_t low, high;
} limits;

static void read_stack_limits(void)
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

static bool is_on_stack(const struct frame_record *record)
{
    const uintptr_t address = (uintptr_t)record;

    return address % sizeof(void *) == 0 && address >= limits.low && address < limits.high &&
           limits.high - address >= sizeof(*record);
}

/* Remove the signature of pointer authentication from a return address. */
static void *strip_signature(void *address)
{
    register void *link __asm__("x30") = address;

    __asm__("hint #7" : "+r"(link)); /* xpaclri; a no-op on older CPUs */
    return link;
}

static __attribute__((noinline)) int walk_frame_records(void **frames, int max)
{
    const struct frame_record *record = __builtin_frame_address(0);
    int count = 0;

    if (limits.high == 0)
        read_stack_limits();
    while (count < max && is_on_stack(record) && record->return_address != NULL) {
        const struct frame_record *caller = record->caller;

        frames[count++] = strip_signature(record->return_address);
        if (caller <= record)
            break;
        record = caller;
    }
    return count;
}

static walk_fn *load_fast_unwinder(void)
{
    return walk_frame_records;
}

#else

/* libunwind's unw_backtrace(), or NULL.  The library remains loaded, because threads may execute it at any time. */
static walk_fn *load_fast_unwinder(void)
{
    void *library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL);
    void *symbol = library != NULL ? dlsym(library, "unw_backtrace") : NULL;
    walk_fn *walk = NULL;

    if (symbol != NULL)
        memcpy(&walk, &symbol, sizeof(walk));
    else if (library != NULL)
        (void)dlclose(library);
    return walk;
}

#endif

/* The function uses no lock: a thread that waits for the lock could hold the loader's lock, which dlopen() in another thread
 * needs.  If two threads call this function first, both load the library, which is reference-counted. */
bool xseg_stack_prepare(void)
{
    walk_fn *walk = atomic_load_explicit(&unwinder, memory_order_acquire);

    if (walk == NULL) {
        void *frames[INTERNAL_FRAMES];

        walk = load_fast_unwinder();
        if (walk == NULL)
            walk = backtrace;
        (void)walk(frames, INTERNAL_FRAMES);
        (void)backtrace(frames, INTERNAL_FRAMES); /* the first call loads a library */
        atomic_store_explicit(&unwinder, walk, memory_order_release);
    }
    return walk != backtrace;
}

/*
 * Walk the stack and copy the frames from the return address `caller` on.  Returns 0 if the walk does not reach that frame.
 *
 * buffer: `capacity` elements for all frames, including internal ones
 */
static uint32_t walk_and_copy(walk_fn *walk, void *caller, void **buffer, uint32_t capacity,
                              void **frames, uint32_t max)
{
    const int result = walk(buffer, (int)capacity);
    const uint32_t count = result > 0 ? (uint32_t)result : 0;
    uint32_t internal = 0;

    while (internal < count && internal < INTERNAL_FRAMES && buffer[internal] != caller)
        internal++;
    if (internal == count || buffer[internal] != caller)
        return 0;
    const uint32_t captured = (uint32_t)xseg_min(count - internal, max);
    memcpy(frames, buffer + internal, captured * sizeof(*frames));
    return captured | (count - internal > max ? XSEG_STACK_TRUNCATED : 0);
}

/* The fast unwinder can fail where backtrace() does not: libunwind at some frames, frame records on the stack of a fiber. */
static uint32_t walk_with_fallback(void *caller, void **buffer, uint32_t capacity, void **frames,
                                   uint32_t max)
{
    walk_fn *walk = atomic_load_explicit(&unwinder, memory_order_acquire);
    const uint32_t captured =
        walk_and_copy(walk != NULL ? walk : backtrace, caller, buffer, capacity, frames, max);

    return captured == 0 && walk != NULL && walk != backtrace
               ? walk_and_copy(backtrace, caller, buffer, capacity, frames, max)
               : captured;
}

/* Separate from xseg_stack_capture(), so that stacks of default depth do not need the large buffer. */
static __attribute__((noinline)) uint32_t capture_deep(void *caller, void **frames, uint32_t max)
{
    void *buffer[XSEG_STACK_FRAMES_MAX + INTERNAL_FRAMES + 1];

    return walk_with_fallback(caller, buffer, max + INTERNAL_FRAMES + 1, frames, max);
}

__attribute__((noinline)) uint32_t xseg_stack_capture(void **frames, uint32_t max)
{
    void *caller = __builtin_extract_return_addr(__builtin_return_address(0));
    void *buffer[XSEG_STACK_FRAMES + INTERNAL_FRAMES + 1];

    XSEG_ASSERT(max != 0 && max <= XSEG_STACK_FRAMES_MAX);
    if (max > XSEG_STACK_FRAMES)
        return capture_deep(caller, frames, (uint32_t)xseg_min(max, XSEG_STACK_FRAMES_MAX));
    return walk_with_fallback(caller, buffer, max + INTERNAL_FRAMES + 1, frames, max);
}
