/* SPDX-License-Identifier: MIT */
/*
 * Words that are atomic, added to and compared where they lie.
 *
 * gcc takes what is atomic into a register first.  That is an instruction or two more, of the 500 that an allocation
 * and its free take, and a result more, of the some 240 that a processor keeps while it waits (bench-waits).
 *
 * ThreadSanitizer sees no assembly, so with it, and on other processors, the same is said in C.
 */
#ifndef XSEG_BASE_SINGLE_WRITER_H
#define XSEG_BASE_SINGLE_WRITER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__SANITIZE_THREAD__)
#define XSEG_HAS_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define XSEG_HAS_THREAD_SANITIZER 1
#endif
#endif
#ifndef XSEG_HAS_THREAD_SANITIZER
#define XSEG_HAS_THREAD_SANITIZER 0
#endif

#if defined(__x86_64__) && !XSEG_HAS_THREAD_SANITIZER
#define XSEG_WORD_ASSEMBLY 1
#else
#define XSEG_WORD_ASSEMBLY 0
#endif

/* For who alone writes it.  Whoever reads the sum sees what was written before. */
static inline void xseg_single_writer_add(atomic_uint_fast64_t *word, uint64_t amount)
{
#if XSEG_WORD_ASSEMBLY
    __asm__ volatile("addq %1, %0" : "+m"(*word) : "er"(amount) : "memory");
#else
    atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + amount,
                          memory_order_release);
#endif
}

/* Whether it is a value.  What is read behind this is read later. */
static inline bool xseg_single_writer_equals(const atomic_uint_fast64_t *word, uint64_t value)
{
#if XSEG_WORD_ASSEMBLY
    bool is;

    __asm__ volatile("cmpq %2, %1" : "=@cce"(is) : "m"(*word), "er"(value) : "memory");
    return is;
#else
    return atomic_load_explicit(word, memory_order_acquire) == value;
#endif
}

/* Whether it is a value.  The compiler keeps what is written before this before it, and what is behind it behind it;
 * a processor may change both. */
static inline bool xseg_atomic_equals_in_memory(const atomic_uint_fast64_t *word, uint64_t value)
{
#if XSEG_WORD_ASSEMBLY
    return xseg_single_writer_equals(word, value);
#else
    atomic_signal_fence(memory_order_seq_cst);
    const bool is = atomic_load_explicit(word, memory_order_relaxed) == value;
    atomic_signal_fence(memory_order_seq_cst);
    return is;
#endif
}

/* Whether it is a value; what is read behind this may be read earlier. */
static inline bool xseg_single_writer_equals_relaxed(const atomic_uint_fast64_t *word,
                                                     uint64_t value)
{
#if XSEG_WORD_ASSEMBLY
    bool is;

    __asm__("cmpq %2, %1" : "=@cce"(is) : "m"(*word), "er"(value));
    return is;
#else
    return atomic_load_explicit(word, memory_order_relaxed) == value;
#endif
}

/* Whether a value is above it. */
static inline bool xseg_single_writer_is_below(const atomic_uint_fast64_t *word, uint64_t value)
{
#if XSEG_WORD_ASSEMBLY
    bool is_below;

    __asm__ volatile("cmpq %2, %1" : "=@cca"(is_below) : "r"(value), "m"(*word));
    return is_below;
#else
    return value > atomic_load_explicit(word, memory_order_relaxed);
#endif
}

#endif
