/* SPDX-License-Identifier: MIT */
#include "src/core/config/config_keys.h"

#include <string.h>

#include "src/base/check.h"
#include "src/core/config/config_print.h"
#include "src/core/config/config_table.h"

enum { VALUE_BYTES = 320, MEANING_BYTES = 640 };

/* Print the value of a key as the grammar spells it, or the word that the table has for a value
 * without a spelling. */
static void print_value(const struct xseg_config *config, enum xseg_config_key_id key, char *value)
{
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, value, VALUE_BYTES);
    XSEG_ASSERT(key < XSEG_CONFIG_KEYS);
    if (!xseg_config_print_value(config, key, &text))
        xseg_strbuf_printf(&text, "%s", xseg_config_table[key].unset);
    XSEG_ASSERT(text.length < VALUE_BYTES);
}

/* Print a sentence of the table without Markdown: a link becomes the path of its document. */
static void print_meaning(const char *sentence, char *meaning)
{
    struct xseg_strbuf text;

    xseg_strbuf_init(&text, meaning, MEANING_BYTES);
    while (*sentence != '\0') {
        const char *const link = *sentence == '[' ? strstr(sentence, "](") : NULL;
        const char *const end = link != NULL ? strchr(link, ')') : NULL;

        if (end == NULL) {
            xseg_strbuf_printf(&text, "%c", *sentence++);
            continue;
        }
        xseg_strbuf_printf(&text, "docs/%.*s", (int)(end - link - 2), link + 2);
        sentence = end + 1;
    }
    XSEG_ASSERT(text.length < MEANING_BYTES);
}

bool xseg_config_keys_is_set(const struct xseg_config *config, enum xseg_config_key_id key)
{
    struct xseg_config standard;
    char given[VALUE_BYTES], usual[VALUE_BYTES];

    xseg_config_init(&standard);
    print_value(config, key, given);
    print_value(&standard, key, usual);
    return strcmp(given, usual) != 0;
}

/* Whether a threshold is set without the memory fraction of whose limit it is a part. */
static bool is_idle_threshold(const struct xseg_config *config, enum xseg_config_key_id key)
{
    return key == XSEG_CONFIG_GARBAGE_COLLECTION && config->garbage_collection_threshold > 0 &&
           config->memory_fraction >= 1.0 && !config->fraction_by_device;
}

bool xseg_config_keys_has_effect(const struct xseg_config *config, enum xseg_config_key_id key)
{
    const struct xseg_config_row *row = &xseg_config_table[key];

    XSEG_ASSERT(key < XSEG_CONFIG_KEYS);
    return (config->expandable_segments || !row->is_expandable) && !is_idle_threshold(config, key);
}

void xseg_config_keys_visit(const struct xseg_config *config, uint64_t named,
                            bool (*visit)(void *context, const struct xseg_config_key *key),
                            void *context)
{
    char value[VALUE_BYTES], standard[VALUE_BYTES], meaning[MEANING_BYTES];
    struct xseg_config usual;

    xseg_config_init(&usual);
    for (unsigned i = 0; i < XSEG_CONFIG_KEYS; i++) {
        const enum xseg_config_key_id key = (enum xseg_config_key_id)i;
        const struct xseg_config_row *row = &xseg_config_table[i];

        print_value(config, key, value);
        print_value(&usual, key, standard);
        print_meaning(row->sentence, meaning);
        const struct xseg_config_key told = {
            .struct_size = sizeof(told),
            .name = row->name,
            .values = row->accepts,
            .description = meaning,
            .value = value,
            .default_value = standard,
            .is_set = (named >> i & 1) != 0,
            .is_default = strcmp(value, standard) == 0,
            .has_effect = xseg_config_keys_has_effect(config, key),
        };
        if (!visit(context, &told))
            return;
    }
}
