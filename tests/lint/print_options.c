/* SPDX-License-Identifier: MIT */
/* Prints the table of configuration keys as it stands in docs/options.md. */
#include <stdio.h>

#include "src/core/config/config_table.h"

int main(void)
{
    static char buffer[32768];
    struct xseg_text text;

    xseg_text_init(&text, buffer, sizeof(buffer));
    xseg_config_table_print(&text);
    if (text.length >= sizeof(buffer))
        return 1;
    (void)fputs(buffer, stdout);
    return 0;
}
