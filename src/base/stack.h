/* SPDX-License-Identifier: MIT */
/*
 * Taking the calling thread's call stack.
 *
 * On aarch64 functions that call others have a frame record, of which each leads to its caller's; so walking takes two loads
 * a frame and no library.  The walk stays within the thread's stack, and on any other stack backtrace() is used.
 *
 * Elsewhere libunwind walks a stack some 20 times faster than the C library's backtrace(), because it remembers how
 * each return address is unwound.  It is opened at run time and never linked: a linked libunwind takes over
 * the exceptions of the whole process.  Where it cannot be opened, backtrace() is used.
 *
 * Terms:
 *   frame    a return address.  The innermost comes first.
 *   taken    what xseg_stack_capture() returns: the number of frames, with XSEG_STACK_TRUNCATED added if the stack
 *            has more
 *
 * Limits of libunwind (up to 1.8): its memory is one table a thread, and return addresses are never
 * removed from it.  If code is unloaded, and other code comes to the same addresses, a return address
 * that both have is unwound as in the old code, in threads that walked through it before.  The frames
 * behind it are wrong then.  Reading them may even reach an address without memory, as in every program
 * that uses unw_backtrace().
 *
 * Locking: none of ours.  The first walk over a frame asks the loader (dl_iterate_phdr), and the first
 * walk of a thread may ask the C library for memory.
 */
#ifndef XSEG_BASE_STACK_H
#define XSEG_BASE_STACK_H

#include <stdbool.h>
#include <stdint.h>

/* What the quick way of this processor is called; the other way is backtrace(). */
#if defined(__aarch64__)
#define XSEG_STACK_FAST_UNWINDER "frame records"
#else
#define XSEG_STACK_FAST_UNWINDER "libunwind"
#endif

/* How many frames of a stack are kept: by default, and at most. */
#define XSEG_STACK_FRAMES     64u
#define XSEG_STACK_FRAMES_MAX 1024u

/* Added to a number of frames: these are the innermost, and the stack has more. */
#define XSEG_STACK_TRUNCATED (1u << 31)

static inline uint32_t xseg_stack_frames(uint32_t taken)
{
    return taken & ~XSEG_STACK_TRUNCATED;
}

static inline bool xseg_stack_is_truncated(uint32_t taken)
{
    return (taken & XSEG_STACK_TRUNCATED) != 0;
}

/*
 * Make ready for taking stacks: find the unwinder, and let it allocate what it allocates on its first use.
 * Later calls only answer.
 *
 * Threads: any.  No lock of the library may be held: opening a library runs the code of others.
 * Cost: some 500 us the first time.
 *
 * Returns: whether stacks are taken by XSEG_STACK_FAST_UNWINDER; else a stack costs some 25 times as much
 */
bool xseg_stack_prepare(void);

/*
 * Take the stack of the calling thread, from the caller of this function on.
 *
 * frames: room for `most` of them
 * most: 1 to XSEG_STACK_FRAMES_MAX
 *
 * Threads: any.  May be called with locks held.  Before xseg_stack_prepare() it works, but slowly.
 * Cost: some 20 ns and 6 ns a frame with libunwind, for frames that this thread has walked over before; no
 * allocation then, and no lock.  Without libunwind some 100 ns a frame.
 *
 * Returns: the number of frames taken, see `taken` above; XSEG_STACK_TRUNCATED | most if there are more
 */
uint32_t xseg_stack_capture(void **frames, uint32_t max);

#endif
