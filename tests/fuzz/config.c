/* SPDX-License-Identifier: MIT */
/*
 * Parses any bytes as a configuration string.  An accepted string keeps the invariants of config.h and has the same meaning
 * after it is printed; a rejected string changes nothing, and its error contains a position.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/error.h"
#include "src/core/config/config.h"
#include "tests/fuzz/holds.h"

static void print(const struct xseg_config *config, char *buffer, size_t bytes)
{
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, buffer, bytes);
    xseg_config_print(config, &text);
    HOLDS(text.length < bytes);
}

static void check_accepted(const struct xseg_config *config)
{
    char first[4096], second[4096];
    struct xseg_config reparsed;

    HOLDS(config->large_segment_bytes <= config->max_split_bytes);
    HOLDS(config->large_segment_bytes <= config->max_non_split_rounding_bytes);
    HOLDS(!config->expandable_segments || config->large_segment_bytes % (2 * XSEG_MIB) == 0);
    print(config, first, sizeof(first));
    xseg_config_init(&reparsed);
    HOLDS(xseg_config_parse(&reparsed, first, NULL) == XSEG_OK);
    print(&reparsed, second, sizeof(second));
    HOLDS(strcmp(first, second) == 0);
    HOLDS(memcmp(config->roundup_divisions, reparsed.roundup_divisions,
                 sizeof(reparsed.roundup_divisions)) == 0);
}

static void check_rejected(const struct xseg_config *config)
{
    char text[4096], defaults[4096];
    struct xseg_config fresh;

    HOLDS(strstr(xseg_fail_detail(), " at column ") != NULL);
    HOLDS(strstr(xseg_fail_detail(), "; expected ") != NULL ||
          strstr(xseg_fail_detail(), "; did you mean ") != NULL ||
          strstr(xseg_fail_detail(), "; run `xseg config --keys`") != NULL);
    xseg_config_init(&fresh);
    print(config, text, sizeof(text));
    print(&fresh, defaults, sizeof(defaults));
    HOLDS(strcmp(text, defaults) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct xseg_config config;
    char *text = malloc(size + 1);

    if (text == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    xseg_config_init(&config);
    if (xseg_config_parse(&config, text, NULL) == XSEG_OK)
        check_accepted(&config);
    else
        check_rejected(&config);
    free(text);
    return 0;
}
