/* SPDX-License-Identifier: MIT */
/*
 * Capturing the call stack of the calling thread, as return addresses, innermost first.
 *
 * On aarch64, functions that call others store a frame record, which links to the frame record of the caller.  Walking these
 * takes two loads per frame and no library.  The walk is limited to the bounds of the thread's stack; on any other stack,
 * such as the stack of a fiber, backtrace() is used.
 *
 * On other architectures libunwind walks a stack about 20 times faster than backtrace(), because it caches how each return
 * address is unwound.  It is loaded at run time and never linked: a linked libunwind would handle the C++ exceptions of the
 * whole process.  If it cannot be loaded, backtrace() is used.
 *
 * libunwind (up to 1.8) never removes addresses from its cache, one table per thread.  If a library is unloaded and other
 * code is loaded at its addresses, a thread that has walked through the old code unwinds a return address that both have as
 * in the old code.  The outer frames of that stack are wrong, and reading them can fault, as in every program that uses
 * unw_backtrace().
 *
 * Locking: no lock of the library.  The first walk over a frame calls dl_iterate_phdr(), and the first walk of a thread may
 * allocate from the heap.
 */
#ifndef XSEG_BASE_STACK_H
#define XSEG_BASE_STACK_H

#include <stdbool.h>
#include <stdint.h>

/* The name of the fast unwinder of this architecture; the fallback is backtrace(). */
#if defined(__aarch64__)
#define XSEG_STACK_FAST_UNWINDER "frame records"
#else
#define XSEG_STACK_FAST_UNWINDER "libunwind"
#endif

/* The number of frames that are captured by default, and the maximum. */
#define XSEG_STACK_FRAMES     64u
#define XSEG_STACK_FRAMES_MAX 1024u

/* Flag in the result of xseg_stack_capture(): the stack has more frames, outside the captured ones. */
#define XSEG_STACK_TRUNCATED (1u << 31)

/* The number of frames in the result of xseg_stack_capture(). */
static inline uint32_t xseg_stack_frames(uint32_t captured)
{
    return captured & ~XSEG_STACK_TRUNCATED;
}

static inline bool xseg_stack_is_truncated(uint32_t captured)
{
    return (captured & XSEG_STACK_TRUNCATED) != 0;
}

/*
 * Load the unwinder, and walk once, so that it allocates what it needs on first use.  Later calls only return the result.
 *
 * Threads: any; no lock of the library may be held, because loading a library runs its constructors.
 * Cost: about 500 us for the first call.
 *
 * Returns: whether the fast unwinder is used; otherwise a capture takes about 25 times as long
 */
bool xseg_stack_prepare(void);

/*
 * Capture the stack of the calling thread, starting with the caller of this function.
 *
 * frames: at least `max` elements
 * max: 1 to XSEG_STACK_FRAMES_MAX
 *
 * Threads: any; locks may be held.  Before xseg_stack_prepare() the call uses backtrace().
 * Cost: with libunwind about 20 ns and 6 ns per frame, without allocation and locks, for frames that the thread has walked
 * before; without libunwind about 100 ns per frame.
 *
 * Returns: the number of frames; with XSEG_STACK_TRUNCATED if there are more
 */
uint32_t xseg_stack_capture(void **frames, uint32_t max);

#endif
