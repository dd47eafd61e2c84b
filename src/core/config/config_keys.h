/* SPDX-License-Identifier: MIT */
/*
 * The keys of a configuration as users see them (key.h).
 *
 * Locking: none.
 */
#ifndef XSEG_CORE_CONFIG_KEYS_H
#define XSEG_CORE_CONFIG_KEYS_H

#include "src/core/config/config.h"
#include "xseg/allocator.h"

/* Whether the value of a key differs from its default. */
bool xseg_config_keys_is_set(const struct xseg_config *config, enum xseg_config_key_id key);

/* Whether a key has any effect under this configuration. */
bool xseg_config_keys_has_effect(const struct xseg_config *config, enum xseg_config_key_id key);

/* Visit all keys, in the order of the table, until `visit` returns false. */
void xseg_config_keys_visit(const struct xseg_config *config, uint64_t named,
                            bool (*visit)(void *context, const struct xseg_config_key *key),
                            void *context);

#endif
