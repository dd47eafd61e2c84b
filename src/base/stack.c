/* SPDX-License-Identifier: MIT */
#include "src/base/stack.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/check.h"

/* The most frames of this file, and of a sanitizer that stands before backtrace(), in a walk. */
#define OWN_FRAMES 5u

typedef int walk_function(void **frames, int most);

/* Who walks a stack; NULL before the first xseg_stack_prepare(). */
static _Atomic(walk_function *) unwinder;

/* libunwind's walk, or NULL.  The library stays open, since threads may be inside at any time. */
static walk_function *open_libunwind(void)
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

/* There is no lock: a thread that waited for one could hold the loader's, which the other thread needs.
 * Two threads that come first at once both open the library, which counts how often it was opened. */
bool xseg_stack_prepare(void)
{
    walk_function *walk = atomic_load_explicit(&unwinder, memory_order_acquire);

    if (walk == NULL) {
        void *frames[OWN_FRAMES];

        walk = open_libunwind();
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
                        uint32_t most)
{
    const int walked = walk(all, (int)room);
    const uint32_t count = walked > 0 ? (uint32_t)walked : 0;
    uint32_t own = 0;

    while (own < count && own < OWN_FRAMES && all[own] != caller)
        own++;
    if (own == count || all[own] != caller)
        return 0;
    const uint32_t taken = (uint32_t)xseg_min(count - own, most);
    memcpy(frames, all + own, taken * sizeof(*frames));
    return taken | (count - own > most ? XSEG_STACK_CUT : 0);
}

/* libunwind may fail at a frame where backtrace() does not. */
static uint32_t walk_from(void *caller, void **all, uint32_t room, void **frames, uint32_t most)
{
    walk_function *walk = atomic_load_explicit(&unwinder, memory_order_acquire);
    const uint32_t taken =
        walk_by(walk != NULL ? walk : backtrace, caller, all, room, frames, most);

    return taken == 0 && walk != NULL && walk != backtrace
               ? walk_by(backtrace, caller, all, room, frames, most)
               : taken;
}

/* A function of its own, so that usual stacks do not need the room of the deepest. */
static __attribute__((noinline)) uint32_t take_deep(void *caller, void **frames, uint32_t most)
{
    void *all[XSEG_STACK_FRAMES_MOST + OWN_FRAMES + 1];

    return walk_from(caller, all, most + OWN_FRAMES + 1, frames, most);
}

__attribute__((noinline)) uint32_t xseg_stack_take(void **frames, uint32_t most)
{
    void *caller = __builtin_extract_return_addr(__builtin_return_address(0));
    void *all[XSEG_STACK_FRAMES + OWN_FRAMES + 1];

    XSEG_ASSERT(most != 0 && most <= XSEG_STACK_FRAMES_MOST);
    if (most > XSEG_STACK_FRAMES)
        return take_deep(caller, frames, (uint32_t)xseg_min(most, XSEG_STACK_FRAMES_MOST));
    return walk_from(caller, all, most + OWN_FRAMES + 1, frames, most);
}
