/* SPDX-License-Identifier: MIT */
/*
 * Levels of self-checking:
 *
 *   0  none; what a release build ships
 *   1  XSEG_ASSERT: facts that the next line relies on, O(1)
 *   2  + XSEG_AUDIT as each mutating call ends; the default while developing
 *   3  + audits that compare everything with everything; for fuzzing
 *
 * A release build gives 0, meson's option `checks` another: -Dchecks=3.
 *
 * An audit is a function that reports the first invariant that does not hold, by tag, so that a
 * test can ask which; XSEG_AUDIT dies of what it reports.
 */
#ifndef XSEG_BASE_CHECK_H
#define XSEG_BASE_CHECK_H

#include <stdbool.h>
#include <stdio.h>

#ifndef XSEG_CHECKS
#error "XSEG_CHECKS, the level of self-checks, is for the build to define"
#endif

/* What an audit found: the tag of the broken invariant, and the numbers. */
struct xseg_finding {
    const char *tag;
    char text[160];
};

/* State one invariant inside an audit: returns false from it at the first that does not hold. */
#define XSEG_HOLDS(finding, tag_, cond, ...)                                       \
    do {                                                                           \
        if (!(cond)) {                                                             \
            (finding)->tag = (tag_);                                               \
            (void)snprintf((finding)->text, sizeof((finding)->text), __VA_ARGS__); \
            return false;                                                          \
        }                                                                          \
    } while (0)

/* Say what is broken on standard error, and abort. */
_Noreturn void xseg_die(const char *file, int line, const char *what, const char *detail);

#if XSEG_CHECKS >= 1
#define XSEG_ASSERT(cond)                            \
    do {                                             \
        if (!(cond))                                 \
            xseg_die(__FILE__, __LINE__, #cond, ""); \
    } while (0)
#else
#define XSEG_ASSERT(cond) ((void)sizeof(cond))
#endif

#if XSEG_CHECKS >= 2
#define XSEG_AUDIT(audit, object)                                      \
    do {                                                               \
        struct xseg_finding finding_ = {0};                            \
        if (!audit((object), &finding_))                               \
            xseg_die(__FILE__, __LINE__, finding_.tag, finding_.text); \
    } while (0)
#else
#define XSEG_AUDIT(audit, object) ((void)(object))
#endif

#endif
