/* SPDX-License-Identifier: MIT */
/* The closest match for a misspelled word. */
#include "src/tools/command/suggestion.h"

#include <string.h>

#include "tests/support/test.h"

/* The closest match for a word among names, which end with NULL. */
static const char *closest(const char *word, const char *const *names)
{
    struct suggestion suggestion;

    suggestion_init(&suggestion, word, strlen(word));
    while (*names)
        suggestion_consider(&suggestion, *names++);
    return suggestion.name;
}

TEST(prefixes_match_without_case_and_hyphens)
{
    static const char *const names[] = {"min-device-memory", "history", NULL};

    assert_string_equal(closest("min-", names), "min-device-memory");
    assert_string_equal(closest("min_", names), "min-device-memory");
    assert_string_equal(closest("MIN_DEV", names), "min-device-memory");
    assert_string_equal(closest("HIS", names), "history");
    assert_null(closest("mi", names));
    assert_null(closest("min.", names));
}

TEST(shorter_name_wins_a_tie)
{
    static const char *const names[] = {"device-memory", "device", "devices", NULL};
    static const char *const equal[] = {"ab-cd-1", "ab-cd-2", NULL};

    assert_string_equal(closest("dev", names), "device");
    assert_string_equal(closest("ab-cd-3", equal), "ab-cd-1");
}
