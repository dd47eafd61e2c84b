/* SPDX-License-Identifier: MIT */
/* Prints the list of configuration keys for docs/options.md. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "src/core/config/config.h"
#include "src/core/config/config_table.h"

#define WIDTH  100
#define INDENT 2

/* The headings of the list, each before its first key. */
static const struct {
    enum xseg_config_key_id first;
    const char *text;
} headings[] = {
    {XSEG_CONFIG_EXPANDABLE_SEGMENTS, "Keys of PyTorch"},
    {XSEG_CONFIG_PAGE, "Pages"},
    {XSEG_CONFIG_DEBUG_FILL, "Debugging"},
    {XSEG_CONFIG_BLOCK_USER, "History"},
    {XSEG_CONFIG_IDLE, "Limits, and release of idle memory"},
    {XSEG_CONFIG_EXPORTABLE, "Other processes and network adapters"},
    {XSEG_CONFIG_OOM_SNAPSHOT, "Snapshots and statistics"},
    {XSEG_CONFIG_BUDGET_FILE, "Budgets"},
};

static void print_heading(enum xseg_config_key_id key)
{
    for (unsigned i = 0; i < sizeof(headings) / sizeof(headings[0]); i++)
        if (headings[i].first == key)
            printf("%s### %s\n\n", i == 0 ? "" : "\n", headings[i].text);
}

/* Print a string with line breaks between words; returns the column after the last word. */
static size_t print_wrapped(const char *text, size_t column)
{
    while (*text != '\0') {
        const size_t length = strcspn(text, " ");
        const bool fits = column + 1 + length <= WIDTH;

        printf("%s%.*s", fits ? " " : "\n  ", (int)length, text);
        column = (fits ? column + 1 : INDENT) + length;
        text += length + (text[length] == ' ');
    }
    return column;
}

static void print_key(const struct xseg_config *defaults, enum xseg_config_key_id key)
{
    const struct xseg_config_row *row = &xseg_config_table[key];
    char buffer[512], values[1024];
    struct xseg_strbuf text;
    size_t column;

    xseg_strbuf_init(&text, buffer, sizeof(buffer));
    if (!xseg_config_print_value(defaults, key, &text))
        xseg_strbuf_printf(&text, "%s", row->unset_name);
    if (row->type == XSEG_CONFIG_BOOL)
        (void)snprintf(values, sizeof(values), "(default %s).", buffer);
    else
        (void)snprintf(values, sizeof(values), "(default %s): %s.", buffer, row->accepted);
    print_heading(key);
    column = (size_t)printf("- **`%s`**", row->name);
    (void)print_wrapped(row->description, print_wrapped(values, column));
    putchar('\n');
}

int main(void)
{
    struct xseg_config defaults;

    xseg_config_init(&defaults);
    for (unsigned key = 0; key < XSEG_CONFIG_KEYS; key++)
        print_key(&defaults, (enum xseg_config_key_id)key);
    return 0;
}
