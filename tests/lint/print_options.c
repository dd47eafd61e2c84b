/* SPDX-License-Identifier: MIT */
/* Prints the table of configuration keys of docs/options.md. */
#include <stdio.h>

#include "src/core/config/config.h"
#include "src/core/config/config_table.h"

static void print_row(const struct xseg_config *defaults, enum xseg_config_key_id key)
{
    const struct xseg_config_row *row = &xseg_config_table[key];
    char buffer[512];
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    if (!xseg_config_print_value(defaults, key, &text))
        xseg_strbuf_printf(&text, "%s", row->unset_name);
    printf("| `%s` | %s | %s | %s | %s |\n", row->name, row->accepted, buffer, row->description,
           row->source);
}

int main(void)
{
    struct xseg_config defaults;

    xseg_config_init(&defaults);
    puts("| key | accepted values | default | description | source |\n|---|---|---|---|---|");
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++)
        print_row(&defaults, (enum xseg_config_key_id)key);
    return 0;
}
