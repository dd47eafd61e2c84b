/* SPDX-License-Identifier: MIT */
/* Writing a configuration as the string that it could have been read from. */
#ifndef XSEG_CORE_CONFIG_PRINT_H
#define XSEG_CORE_CONFIG_PRINT_H

#include "src/core/config/config.h"

/*
 * Write every key as a string that xseg_config_load() reads as the same configuration.  A key whose
 * value has no spelling (unlimited, off) is left out: that value is its default.
 */
void xseg_config_print(const struct xseg_config *config, struct xseg_strbuf *text);

/*
 * Write the value of one key.  Returns false, and writes nothing, if the value has no spelling.
 */
bool xseg_config_print_value(const struct xseg_config *config, enum xseg_config_key_id key,
                             struct xseg_strbuf *text);

#endif
