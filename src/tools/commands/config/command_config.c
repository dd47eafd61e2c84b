/* SPDX-License-Identifier: MIT */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"
#include "xseg/allocator.h"
#include "xseg/history.h"

#define INDENT 4

/* The environment variables with a configuration string, the highest priority first. */
static const char *const variables[] = {"XSEG_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
                                        "PYTORCH_ALLOC_CONF"};

struct config {
    const char *string; /* of the command line; NULL: none */
    const char *source;
    bool is_verbose;
    unsigned printed, omitted; /* keys; keys with default values are omitted */
    int widths[3];             /* of the columns key, value and default */
    json_t *keys;
};

#define VARIABLES (sizeof(variables) / sizeof(variables[0]))

/* Get the configuration string, or NULL. */
static const char *config_string(const struct config *config)
{
    if (config->string)
        return config->string;
    for (unsigned i = 0; i < VARIABLES; i++)
        if (strcmp(variables[i], config->source) == 0)
            return secure_getenv(variables[i]);
    return NULL;
}

/* --- The configuration in effect. --- */

/* Get the source of a value: the configuration string, the default, or another key of the string that implies the value. */
static const char *reason_of(const struct config *config, const struct xseg_config_key *key)
{
    static char implied[64];

    if (key->is_set)
        return config->source;
    if (key->is_default)
        return "default";
    (void)snprintf(implied, sizeof(implied), "implied by %s", config->source);
    return implied;
}

/* Get a remark about a key without effect; "" if the key has an effect. */
static const char *effect_of(const struct xseg_config_key *key)
{
    if (key->has_effect || !key->is_set)
        return "";
    return strcmp(key->name, "garbage_collection_threshold") == 0
               ? ", no effect without a memory fraction"
               : ", no effect with this configuration";
}

static void print_row(const struct config *config, const char *key, const char *value,
                      const char *default_value, const char *source)
{
    (void)printf("  %-*s  %-*s  %-*s  %s\n", config->widths[0], key, config->widths[1], value,
                 config->widths[2], default_value, source);
}

static bool is_listed(const struct config *config, const struct xseg_config_key *key)
{
    return config->is_verbose || key->is_set || !key->is_default;
}

/* Widen the columns to a row. */
static bool widen_columns(void *context, const struct xseg_config_key *key)
{
    struct config *config = context;
    char value[1024];
    const char *const cells[] = {key->name, value, key->default_value};

    (void)text_escape(key->value, value, sizeof(value));
    for (unsigned i = 0; i < 3 && is_listed(config, key); i++)
        if ((int)strlen(cells[i]) > config->widths[i])
            config->widths[i] = (int)strlen(cells[i]);
    return true;
}

static bool print_value(void *context, const struct xseg_config_key *key)
{
    struct config *config = context;
    char value[1024], source[128];

    if (!is_listed(config, key)) {
        config->omitted++;
        return true;
    }
    if (config->printed++ == 0) {
        (void)printf("\n%s", text_style_on(stdout, TEXT_STRONG));
        print_row(config, "key", "value", "default", "source");
        (void)printf("%s", text_style_off(stdout));
    }
    (void)snprintf(source, sizeof(source), "%s%s", reason_of(config, key), effect_of(key));
    (void)text_escape(key->value, value, sizeof(value));
    print_row(config, key->name, value, key->default_value, source);
    return true;
}

/* Get whether call stacks are captured with libunwind. */
static bool has_libunwind(void)
{
    return strcmp(xseg_history_stack_method(NULL), "backtrace") != 0;
}

/* Print the source of the configuration, the variables that are ignored, and the method of call stack capture. */
static void print_source(const struct config *config)
{
    const char *text = config_string(config);

    (void)printf("source    %s\n", config->source);
    if (text) {
        (void)fputs("string    ", stdout);
        text_print(stdout, text);
        (void)putchar('\n');
    }
    for (unsigned i = 0; i < VARIABLES; i++)
        if (strcmp(variables[i], config->source) != 0 && secure_getenv(variables[i]))
            (void)printf("ignored   %s: only the first source that is set is read\n", variables[i]);
    if (has_libunwind())
        (void)printf("stacks    call stacks are captured by %s\n", xseg_history_stack_method(NULL));
    else
        (void)printf("stacks    call stacks are captured by backtrace() of the C library; "
                     "libunwind, which is 25 times as fast, cannot be loaded (Debian: "
                     "libunwind8)\n");
}

static void print_values(struct config *config)
{
    print_source(config);
    (void)!xseg_config_keys(config->string, NULL, widen_columns, config);
    (void)!xseg_config_keys(config->string, NULL, print_value, config);
    if (config->omitted > 0)
        (void)printf(
            "\n%s %u keys have their default values; -v lists them, --keys describes all keys\n",
            config->printed > 0 ? "the other" : "all", config->omitted);
}

/* --- Descriptions of the keys. --- */

static bool print_key(void *context, const struct xseg_config_key *key)
{
    const struct config *config = context;
    char value[1024];

    (void)text_escape(key->value, value, sizeof(value));
    (void)printf("%s%s%s (default %s", text_style_on(stdout, TEXT_STRONG), key->name,
                 text_style_off(stdout), key->default_value);
    if (key->is_set || !key->is_default)
        (void)printf("; here %s, %s", value, reason_of(config, key));
    (void)printf("%s)\n%*s", key->has_effect ? "" : "; no effect", INDENT, "");
    text_wrap(stdout, key->values, INDENT);
    (void)printf("%*s", INDENT, "");
    text_wrap(stdout, key->description, INDENT);
    return true;
}

/* --- JSON. --- */

static bool add_key(void *context, const struct xseg_config_key *key)
{
    struct config *config = context;
    json_t *object =
        json_pack("{s:s, s:o, s:s, s:b, s:s, s:b, s:s, s:s}", "name", key->name, "value",
                  text_json(key->value), "default", key->default_value, "is_set", key->is_set,
                  "source", reason_of(config, key), "has_effect", key->has_effect, "accepted_values", key->values,
                  "meaning", key->description);

    return object && json_array_append_new(config->keys, object) == 0;
}

static int print_json(struct config *config)
{
    const char *text = config_string(config);
    json_t *object;

    config->keys = json_array();
    (void)!xseg_config_keys(config->string, NULL, add_key, config);
    object = json_pack("{s:s, s:o, s:s, s:o}", "source", config->source, "string",
                       text ? text_json(text) : json_null(), "stacks",
                       xseg_history_stack_method(NULL), "keys", config->keys);
    return output_json(stdout, object) ? COMMAND_SUCCESS : COMMAND_ERROR;
}

static int command_config_run(const struct option_values *arguments)
{
    const bool lists_keys = option_given(arguments, OPTION_KEYS);
    struct config config = {
        .string = arguments->operand_count > 0 ? arguments->operands[0] : NULL,
        .is_verbose = option_given(arguments, OPTION_ALL_KEYS),
        .widths = {sizeof("key") - 1, sizeof("value") - 1, sizeof("default") - 1},
    };
    char error[1024] = "";

    /* The list is available even if the configuration of the environment is invalid. */
    if (lists_keys && !config.string)
        config.string = "";
    if (xseg_config_keys(config.string, &config.source, NULL, NULL) != XSEG_OK) {
        (void)xseg_error_message(error, sizeof(error));
        message_error("%s", error);
        if (arguments->operand_count > 0 && access(config.string, F_OK) == 0)
            message_error("'%s' is a file; the command takes a configuration string",
                          config.string);
        return COMMAND_ERROR;
    }
    if (option_given(arguments, OPTION_JSON))
        return print_json(&config);
    if (lists_keys)
        (void)!xseg_config_keys(config.string, NULL, print_key, &config);
    else
        print_values(&config);
    return COMMAND_SUCCESS;
}

const struct command command_config = {
    .name = "config",
    .run = command_config_run,
    .summary = "print the configuration in effect, check a string, list all keys",
    .usage = "[STRING]",
    .operands = COMMAND_TEXT,
    .max_operands = 1,
    .options = {OPTION_KEYS, OPTION_ALL_KEYS, OPTION_JSON, OPTION_COLOR, OPTION_HELP},
    .description = "Prints the configuration of a program that starts in this environment and the "
                   "source of each value, or the error in the configuration. The source is STRING, "
                   "or else the first environment variable that is set of `XSEG_ALLOC_CONF`, "
                   "`PYTORCH_CUDA_ALLOC_CONF` and `PYTORCH_ALLOC_CONF`, or else the defaults.",
    .examples =
        {
            {"xseg config", "the configuration of this environment, and its source"},
            {"xseg config max_split_size_mb:128,idle_ms:5000", "check a configuration string"},
            {"xseg config --keys", "all keys, with their descriptions"},
        },
    .exits = {COMMAND_EXIT_SUCCESS, NULL, "an invalid configuration or argument"},
};
