/* SPDX-License-Identifier: MIT */
/* The keys of the configuration string: what each means, and its value. */
#ifndef XSEG_KEY_H
#define XSEG_KEY_H

#include <stdbool.h>
#include <stddef.h>

#include "xseg/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A key of the configuration string. */
struct xseg_key {
    size_t struct_bytes; /* sizeof(struct xseg_key), as the library knows it */
    const char *name;
    const char *accepts; /* which values: "True or False" */
    const char *meaning; /* sentences */
    const char
        *value; /* as a string spells it; or a word, such as "unlimited", for what none can say */
    const char *standard; /* the value without any configuration, spelled likewise */
    bool is_named;        /* the string names the key */
    bool is_standard;     /* value and standard are the same */
    bool
        has_effect; /* false: the value is checked, but nothing depends on it under this configuration */
};

/**
 * Read a configuration as xseg_open() would, without opening anything, and visit all keys in the order
 * of docs/options.md.  So a string can be checked, and what the environment asks for be shown.
 *
 * @param config  configuration string, or NULL for the environment's or none, as for xseg_open()
 * @param source  NULL, or where the configuration came from, as xseg_configuration_source() says it: a
 *                string that lives as long as the library; written on success only
 * @param visit   called for each key, which is valid during the call; false ends the visits.  NULL: the
 *                configuration is only checked
 *
 * Returns: XSEG_OK, also when visit ended it
 *          XSEG_ERR_CONFIG  the text names the key, the value and the position; visit was not called
 * Threads: any; the environment must not change meanwhile.
 * Cost:    no driver call, no lock.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_keys(const char *config, const char **source,
                                              bool (*visit)(void *context,
                                                            const struct xseg_key *key),
                                              void *context);

#ifdef __cplusplus
}
#endif

#endif
