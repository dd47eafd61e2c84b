/* SPDX-License-Identifier: MIT */
/* Audits of the library that must pass, or must find a broken invariant. */
#ifndef XSEG_TESTS_AUDIT_H
#define XSEG_TESTS_AUDIT_H

#include "src/base/check.h"
#include "tests/support/test.h"

static struct xseg_violation violation;

/* `passes` is the result of an audit that wrote to `violation`.  `tag` is the invariant that it must find broken; NULL:
 * the audit must pass. */
static inline void expect_audit(bool passes, const char *tag)
{
    if (passes != (tag == NULL))
        fail_msg("%s: %s", passes ? tag : violation.tag, violation.text);
    if (tag != NULL) {
        assert_string_equal(violation.tag, tag);
        assert_string_not_equal(violation.text, "");
    }
    violation = (struct xseg_violation){0};
}

/* Run a check, which expects a broken invariant, while `place` has another value. */
#define WITH_VALUE(place, value, check)          \
    do {                                         \
        const __typeof__(place) kept_ = (place); \
        (place) = (value);                       \
        check;                                   \
        (place) = kept_;                         \
    } while (0)

#endif
