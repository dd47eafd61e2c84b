/* SPDX-License-Identifier: MIT */
/* The keys of the configuration as a program can ask for them. */
#include "tests/support/env.h"

#include <stdlib.h>
#include <string.h>

static const char *const variables[] = {"XSEG_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
                                        "PYTORCH_ALLOC_CONF"};

static int without_variables(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(variables); i++)
        assert_int_equal(unsetenv(variables[i]), 0);
    return 0;
}

/* What was told of one key. */
struct told {
    const char *name;
    char value[64], standard[64];
    bool is_named, is_standard, has_effect;
    unsigned visits, times;
};

static bool note_key(void *context, const struct xseg_config_key *key)
{
    struct told *told = context;

    assert_int_equal(key->struct_size, sizeof(*key));
    told->visits++;
    if (strcmp(key->name, told->name) != 0)
        return true;
    told->times++;
    (void)strncpy(told->value, key->value, sizeof(told->value) - 1);
    (void)strncpy(told->standard, key->default_value, sizeof(told->standard) - 1);
    told->is_named = key->is_set;
    told->is_standard = key->is_default;
    told->has_effect = key->has_effect;
    return true;
}

static struct told ask(const char *config, const char *name, const char *source)
{
    struct told told = {.name = name};
    const char *from = NULL;

    assert_ok(xseg_config_keys(config, &from, note_key, &told));
    assert_string_equal(from, source);
    assert_int_equal(told.times, 1);
    return told;
}

static bool check_texts(void *context, const struct xseg_config_key *key)
{
    unsigned *count = context;

    ++*count;
    assert_true(strlen(key->name) > 0 && strlen(key->values) > 0 && strlen(key->value) > 0);
    assert_true(key->description[strlen(key->description) - 1] == '.');
    assert_null(strstr(key->description, "]("));
    assert_true(key->is_default && !key->is_set);
    assert_string_equal(key->value, key->default_value);
    return true;
}

TEST_WITH(without_a_configuration_all_have_their_defaults, without_variables, NULL)
{
    unsigned count = 0;

    assert_ok(xseg_config_keys(NULL, NULL, check_texts, &count));
    assert_true(count > 30);
    assert_string_equal(ask(NULL, "expandable_segments", "default").value, "True");
    assert_string_equal(ask(NULL, "max_split_size_mb", "default").value, "unlimited");
}

TEST_WITH(a_string_names_some, without_variables, NULL)
{
    const char *const config = "max_split_size_mb:64,page_size:fixed";
    struct told told = ask(config, "max_split_size_mb", "argument");

    assert_string_equal(told.value, "64");
    assert_string_equal(told.standard, "unlimited");
    assert_true(told.is_named && !told.is_standard && told.has_effect);
    told = ask(config, "page_size", "argument");
    assert_true(told.is_named && told.is_standard);
    told = ask(config, "idle_ms", "argument");
    assert_true(!told.is_named && told.is_standard && told.has_effect);
    /* Another key follows. */
    told = ask("large_segment_size_mb:40", "max_non_split_rounding_mb", "argument");
    assert_string_equal(told.value, "40");
    assert_true(!told.is_named && !told.is_standard);
}

TEST_WITH(some_have_no_effect, without_variables, NULL)
{
    assert_true(ask("", "page_size", "argument").has_effect);
    assert_false(ask("expandable_segments:False", "page_size", "argument").has_effect);
}

/* The threshold is a part of the limit that a memory fraction sets. */
TEST_WITH(a_threshold_has_an_effect_with_a_fraction, without_variables, NULL)
{
    static const char key[] = "garbage_collection_threshold";

    assert_true(ask("", key, "argument").has_effect);
    assert_false(ask("garbage_collection_threshold:0.8", key, "argument").has_effect);
    assert_true(
        ask("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5", key, "argument")
            .has_effect);
}

/* The order of sources is that of xseg_open(). */
TEST_WITH(the_environment_counts_as_for_an_allocator, without_variables, NULL)
{
    struct told told;

    assert_int_equal(setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:30", 1), 0);
    told = ask(NULL, "expandable_segments", "PYTORCH_ALLOC_CONF");
    assert_string_equal(told.value, "False");
    assert_false(told.is_named);
    assert_int_equal(setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:31", 1), 0);
    assert_string_equal(ask(NULL, "max_split_size_mb", "PYTORCH_CUDA_ALLOC_CONF").value, "31");
    assert_int_equal(setenv("XSEG_ALLOC_CONF", "max_split_size_mb:32", 1), 0);
    told = ask(NULL, "max_split_size_mb", "XSEG_ALLOC_CONF");
    assert_string_equal(told.value, "32");
    assert_string_equal(ask(NULL, "expandable_segments", "XSEG_ALLOC_CONF").value, "True");
    assert_string_equal(ask("", "max_split_size_mb", "argument").value, "unlimited");
}

TEST_WITH(a_bad_string_is_refused_before_any_visit, without_variables, NULL)
{
    struct told told = {.name = "idle_ms"};
    const char *from = "untouched";

    env_expect_error(xseg_config_keys("idle_ms:1,idel_ms:2", &from, note_key, &told),
                     XSEG_ERR_CONFIG, "did you mean idle_ms? (source: argument)");
    assert_int_equal(told.visits, 0);
    assert_string_equal(from, "untouched");
    assert_int_equal(setenv("XSEG_ALLOC_CONF", "idle_ms=5", 1), 0);
    env_expect_error(xseg_config_keys(NULL, NULL, NULL, NULL), XSEG_ERR_CONFIG,
                     "(source: XSEG_ALLOC_CONF)");
    assert_ok(xseg_config_keys("", NULL, NULL, NULL));
}

static bool end_visits(void *context, const struct xseg_config_key *key)
{
    (void)key;
    return --*(unsigned *)context > 0;
}

TEST_WITH(visits_end_when_told_to, without_variables, NULL)
{
    unsigned left = 3;

    assert_ok(xseg_config_keys("", NULL, end_visits, &left));
    assert_int_equal(left, 0);
}
