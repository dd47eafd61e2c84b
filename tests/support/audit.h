/* SPDX-License-Identifier: MIT */
/* Audits of the library, which must pass or detect a violated invariant. */
#ifndef XSEG_TESTS_AUDIT_H
#define XSEG_TESTS_AUDIT_H

#include "src/base/check.h"
#include "tests/support/test.h"

static struct xseg_violation violation;

/* `passes` is the result of an audit that wrote to `violation`.  `tag` is the invariant whose violation the audit must
 * detect; if it is NULL, the audit must pass. */
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

/* Run a check, which expects a violated invariant, while a variable has another value. */
#define WITH_VALUE(variable, value, check)                 \
    do {                                                   \
        const __typeof__(variable) original_ = (variable); \
        (variable) = (value);                              \
        check;                                             \
        (variable) = original_;                            \
    } while (0)

#endif
