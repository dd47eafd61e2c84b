/* SPDX-License-Identifier: MIT */
/*
 * Roots: memory from the kernel through which the heap's is reached.
 *
 * LeakSanitizer looks through the heap and the programme's own data alone, and has to be told of other
 * memory.  Else it reports what only that memory leads to, in a programme that ends with an open
 * allocator.
 */
#ifndef XSEG_BASE_LSAN_ROOT_H
#define XSEG_BASE_LSAN_ROOT_H

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define XSEG_LSAN_ROOT_IS_NEEDED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define XSEG_LSAN_ROOT_IS_NEEDED 1
#endif
#endif

#ifdef XSEG_LSAN_ROOT_IS_NEEDED
#include <sanitizer/lsan_interface.h>
#endif

static inline void xseg_lsan_root_add(const void *memory, size_t bytes)
{
#ifdef XSEG_LSAN_ROOT_IS_NEEDED
    __lsan_register_root_region(memory, bytes);
#else
    (void)memory;
    (void)bytes;
#endif
}

static inline void xseg_lsan_root_remove(const void *memory, size_t bytes)
{
#ifdef XSEG_LSAN_ROOT_IS_NEEDED
    __lsan_unregister_root_region(memory, bytes);
#else
    (void)memory;
    (void)bytes;
#endif
}

#endif
