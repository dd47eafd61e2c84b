/* SPDX-License-Identifier: MIT */
/*
 * Configuration keys: their meaning and values.
 *
 *     static bool print_key(void *context, const struct xseg_config_key *key)
 *     {
 *         (void)context;
 *         printf("%s:%s\n", key->name, key->value);
 *         return true; // Continues with the next key.
 *     }
 *     xseg_config_keys("expandable_segments:True", NULL, print_key, NULL);
 */
#ifndef XSEG_KEY_H
#define XSEG_KEY_H

#include <stdbool.h>
#include <stddef.h>

#include "xseg/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A key of the configuration string. */
struct xseg_config_key {
    size_t struct_size;      /* sizeof(struct xseg_config_key) of the library */
    const char *name;        /* as in the configuration string */
    const char *values;      /* accepted values, such as "True or False" */
    const char *description; /* description */
    const char *value;       /* value as in a configuration string, or a word such as "unlimited" */
    const char *default_value; /* default value, in the same form */
    bool is_set;               /* the configuration names the key */
    bool is_default;           /* the value is the default */
    bool has_effect;           /* the value has an effect in this configuration */
};

/**
 * Parse a configuration as xseg_open() does, and visit all keys in the order of docs/options.md.  No allocator is
 * opened.
 *
 * @param config   configuration string; NULL: the environment, as for xseg_open().
 * @param source   receives the source of the configuration as xseg_config_source(), a static string; may be NULL.
 * @param visit    called for each key, which is valid during the call; returns false to end the visits.  NULL: only
 *                 parse.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK          also if visit ended the visits.
 *         XSEG_ERR_CONFIG  the string has an error; the message names key, value and position.  visit was not called.
 * Threads: any; no thread may change the environment concurrently.
 * Cost: no driver call, no lock.
 */
XSEG_API xseg_status xseg_config_keys(const char *config, const char **source,
                                      bool (*visit)(void *context,
                                                    const struct xseg_config_key *key),
                                      void *context);

#ifdef __cplusplus
}
#endif

#endif
