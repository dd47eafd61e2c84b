/* SPDX-License-Identifier: MIT */
/* Variables that nothing reads are told, with the name that was meant; those of the table are not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/environment.h"
#include "tests/support/test.h"

struct heard {
    unsigned count;
    char line[12][256];
};

static void hear(void *context, enum xseg_log_level level, const char *line)
{
    struct heard *heard = context;

    assert_int_equal(level, XSEG_LOG_WARNING);
    assert_true(heard->count < XSEG_COUNT_OF(heard->line));
    (void)snprintf(heard->line[heard->count++], sizeof(heard->line[0]), "%s", line);
}

static struct heard check(void)
{
    struct heard heard = {0};
    const struct xseg_log log = {hear, &heard};

    xseg_environment_check(&log);
    return heard;
}

/* Clear all variables but the one that cmocka goes by. */
static void clear(void)
{
    const char *output = getenv("CMOCKA_MESSAGE_OUTPUT");
    char kept[32] = "";

    if (output != NULL)
        (void)snprintf(kept, sizeof(kept), "%s", output);
    assert_int_equal(clearenv(), 0);
    if (kept[0] != '\0')
        assert_int_equal(setenv("CMOCKA_MESSAGE_OUTPUT", kept, 1), 0);
}

TEST(names_of_the_table_are_known)
{
    static const char *const name[] = {
#define X(name, reader, meaning) "XSEG_" name,
        XSEG_ENVIRONMENT(X)
#undef X
    };

    clear();
    for (size_t i = 0; i < XSEG_COUNT_OF(name); i++)
        assert_int_equal(setenv(name[i], "1", 1), 0);
    /* What begins otherwise is others'. */
    assert_int_equal(setenv("XSEGDRIVER", "1", 1), 0);
    assert_int_equal(setenv("PYTORCH_XSEG_ALLOC", "1", 1), 0);
    assert_int_equal(check().count, 0);
    clear();
    assert_int_equal(check().count, 0);
}

TEST(mistyped_names_are_reported_with_the_closest_match)
{
    static const struct {
        const char *name, *want;
    } row[] = {
        {"XSEG_DRIVR", "environment: unknown variable, XSEG_DRIVR; did you mean XSEG_DRIVER?"},
        {"XSEG_driver", "environment: unknown variable, XSEG_driver; did you mean XSEG_DRIVER?"},
        {"XSEG_ALLOC_CONFIG",
         "environment: unknown variable, XSEG_ALLOC_CONFIG; did you mean XSEG_ALLOC_CONF?"},
        {"XSEG_SIM_MEMORY",
         "environment: unknown variable, XSEG_SIM_MEMORY; did you mean XSEG_SIM_MEMORY_MB?"},
        {"XSEG_SIM_DEVICE",
         "environment: unknown variable, XSEG_SIM_DEVICE; did you mean XSEG_SIM_DEVICES?"},
        {"XSEG_COLOUR_OF_THE_SKY", "environment: unknown variable, XSEG_COLOUR_OF_THE_SKY; "
                                   "see docs/environment.md for all names"},
        {"XSEG_", "environment: unknown variable, XSEG_; see docs/environment.md for all names"},
    };

    for (size_t i = 0; i < XSEG_COUNT_OF(row); i++) {
        clear();
        assert_int_equal(setenv(row[i].name, "value=1", 1), 0);
        assert_int_equal(setenv("XSEG_DRIVER", "x", 1), 0);
        const struct heard heard = check();
        assert_int_equal(heard.count, 1);
        assert_string_equal(heard.line[0], row[i].want);
    }
    clear();
}

TEST(many_unknown_names_are_summarized)
{
    char name[32];

    clear();
    for (unsigned i = 0; i < 11; i++) {
        (void)snprintf(name, sizeof(name), "XSEG_UNHEARD_OF_%u", i);
        assert_int_equal(setenv(name, "", 1), 0);
    }
    const struct heard heard = check();
    assert_int_equal(heard.count, 9);
    assert_string_equal(heard.line[8],
                        "environment: more unknown variables, 3 with the prefix XSEG_; see "
                        "docs/environment.md for all names");
    clear();
}
