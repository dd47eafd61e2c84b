/* SPDX-License-Identifier: MIT */
/*
 * A fact: an assumption of xseg about the driver, with a check that verifies it.
 *
 * Terms
 *   verdict  the result: the fact holds, the driver differs, or the fact was not verified
 *   answer   details of the verdict: the call that differed, with its error and the expected one; the reason why the fact
 *            was not verified; or a measurement
 *   needs    the requirements of the check
 *
 * A check asserts with the macros below.  The first failed assertion ends the check by longjmp(), and objects of the
 * check remain, so the process verifies no further fact (verify.h).
 *
 * cmocka is not used, because the answers are data, and a fact that cannot be verified on a host is neither passed nor
 * failed.
 *
 * Locking: only the thread of the check asserts.
 */
#ifndef XSEG_TESTS_GPU_FACTS_FACT_H
#define XSEG_TESTS_GPU_FACTS_FACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cuda.h>

enum need {
    NOTHING = 0,     /* the driver's library only */
    DEVICE = 1,      /* a device, whose primary context is current */
    VMM = 2,         /* virtual memory management */
    EXPORT = 4,      /* memory that is exported by file descriptor */
    TWO_DEVICES = 8, /* a second device */
    RDMA = 16,       /* mapped memory that is accessible by RDMA */
    DMA_BUFS = 32,   /* dma-bufs of address ranges */
};

struct fact {
    const char *id;   /* FACT-..., of docs/driver-facts.md; never reused */
    const char *name; /* the fact as a clause */
    void (*check)(void);
    unsigned needs; /* enum need; all but NOTHING imply DEVICE */
};

/* The function of a check, which registers itself. */
#define FACT(id, name, needs)                                      \
    static void name(void);                                        \
    __attribute__((constructor)) static void name##_register(void) \
    {                                                              \
        static const struct fact fact = {id, #name, name, needs};  \
                                                                   \
        fact_add(&fact);                                           \
    }                                                              \
    static void name(void)

void fact_add(const struct fact *fact);

/* All facts, in the order of the sources in tests/gpu/meson.build. */
size_t fact_count(void);
const struct fact *fact_at(size_t index);
/* Returns the index, or fact_count() for an unknown id. */
size_t fact_find(const char *id);

/* --- Within a check. --- */

/* Each macro stringifies its arguments itself: passed to another macro, they would be expanded. */
#define ASSERT_CU(call, expected) fact_expect_result((call), (expected), #call, __FILE__, __LINE__)
#define ASSERT_OK(call)           fact_expect_result((call), CUDA_SUCCESS, #call, __FILE__, __LINE__)
/* As ASSERT_CU, for a stored result; `call` describes the call. */
#define ASSERT_RESULT(call, result, expected) \
    fact_expect_result((result), (expected), call, __FILE__, __LINE__)
#define ASSERT_EQUAL(value, expected)                                                        \
    fact_expect_number((uint64_t)(value), (uint64_t)(expected), #value, #expected, __FILE__, \
                       __LINE__)
#define ASSERT_DIFFERENT(first, second) \
    fact_expect((first) != (second), #first " != " #second, __FILE__, __LINE__)
#define ASSERT(condition) fact_expect((condition), #condition, __FILE__, __LINE__)
/* Any error is accepted; the answer contains it. */
#define ASSERT_FAILS(call) fact_expect_failure((call), #call, __FILE__, __LINE__)

void fact_expect_result(CUresult result, CUresult expected, const char *call, const char *file,
                        int line);
void fact_expect_number(uint64_t value, uint64_t expected, const char *expression,
                        const char *expected_expression, const char *file, int line);
void fact_expect_failure(CUresult result, const char *call, const char *file, int line);
void fact_expect(bool condition, const char *expression, const char *file, int line);
__attribute__((format(printf, 3, 4), noreturn)) void fact_fail(const char *file, int line,
                                                               const char *format, ...);

/* The fact cannot be verified on this host; the message is the reason. */
__attribute__((format(printf, 1, 2), noreturn)) void fact_skip(const char *format, ...);

/* Adds a measurement to the answer. */
__attribute__((format(printf, 1, 2))) void fact_report(const char *format, ...);

/* --- Around a check. --- */

enum verdict { HOLDS, DIFFERS, SKIPPED, CRASHED, HUNG };

const char *verdict_name(enum verdict verdict);

struct outcome {
    enum verdict verdict;
    char answer[600];
    char position[64]; /* FILE:LINE of the failed assertion */
    double milliseconds;
    bool is_clean; /* no objects remain: the process may verify the next fact */
};

/* Run the check of a fact.  The context is synchronized at the end, so errors of the check's work are found. */
void fact_verify(const struct fact *fact, struct outcome *outcome);

#endif
