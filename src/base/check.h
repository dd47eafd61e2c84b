/* SPDX-License-Identifier: MIT */
/*
 * Assertions and audits, by the level of self-checks (option `checks` of the build, XSEG_CHECKS):
 *
 *   0  No checks; the level of release builds.
 *   1  XSEG_ASSERT: conditions that the next line relies on, O(1).
 *   2  Additionally XSEG_AUDIT at the end of each mutating call; the level of development builds.
 *   3  Additionally audits that are quadratic or worse; for fuzzing.
 *
 * An audit is a function that verifies the invariants of an object.  It stores the first violation with the tag of the
 * invariant, so a test can compare the tag, and returns false.  XSEG_AUDIT aborts the process on a violation.
 */
#ifndef XSEG_BASE_CHECK_H
#define XSEG_BASE_CHECK_H

#include <stdbool.h>
#include <stdio.h>

#ifndef XSEG_CHECKS
#error "XSEG_CHECKS, the level of self-checks, is for the build to define"
#endif

/* A violated invariant: its tag, and a message with the values. */
struct xseg_violation {
    const char *tag;
    char text[160];
};

/* Verify one invariant in an audit, which returns false if the condition is false. */
#define XSEG_INVARIANT(violation, tag_, cond, ...)                                     \
    do {                                                                               \
        if (!(cond)) {                                                                 \
            (violation)->tag = (tag_);                                                 \
            (void)snprintf((violation)->text, sizeof((violation)->text), __VA_ARGS__); \
            return false;                                                              \
        }                                                                              \
    } while (0)

/* Write a failed check to standard error, and abort. */
_Noreturn void xseg_panic(const char *file, int line, const char *check, const char *message);

#if XSEG_CHECKS >= 1
#define XSEG_ASSERT(cond)                              \
    do {                                               \
        if (!(cond))                                   \
            xseg_panic(__FILE__, __LINE__, #cond, ""); \
    } while (0)
#else
#define XSEG_ASSERT(cond) ((void)sizeof(cond))
#endif

#if XSEG_CHECKS >= 2
#define XSEG_AUDIT(audit, object)                                            \
    do {                                                                     \
        struct xseg_violation violation_ = {0};                              \
        if (!audit((object), &violation_))                                   \
            xseg_panic(__FILE__, __LINE__, violation_.tag, violation_.text); \
    } while (0)
#else
#define XSEG_AUDIT(audit, object) ((void)(object))
#endif

#endif
