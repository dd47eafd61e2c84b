/* SPDX-License-Identifier: MIT */
#include "src/core/config/config_names.h"

#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/nearest.h"

static bool is_name(const char *name, const char *text, size_t length)
{
    return name != NULL && strlen(name) == length && memcmp(name, text, length) == 0;
}

const struct xseg_config_row *xseg_config_names_find(const char *name, size_t length)
{
    XSEG_ASSERT(name != NULL);
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++)
        if (is_name(xseg_config_table[key].name, name, length) ||
            is_name(xseg_config_table[key].alias, name, length))
            return &xseg_config_table[key];
    return NULL;
}

void xseg_config_names_suggest(const char *name, size_t length)
{
    struct xseg_nearest nearest;

    XSEG_ASSERT(name != NULL && length != 0);
    xseg_nearest_init(&nearest, name, length);
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++) {
        XSEG_ASSERT(xseg_config_table[key].name != NULL);
        xseg_nearest_offer(&nearest, xseg_config_table[key].name);
        if (xseg_config_table[key].alias != NULL)
            xseg_nearest_offer(&nearest, xseg_config_table[key].alias);
    }
    if (nearest.name != NULL)
        xseg_fail_add(": did you mean %s?", nearest.name);
    else
        xseg_fail_add(": expected a key; `xseg config --keys` lists them");
}
