/* SPDX-License-Identifier: MIT */
/* Finding a key of the configuration by its name. */
#ifndef XSEG_CORE_CONFIG_NAMES_H
#define XSEG_CORE_CONFIG_NAMES_H

#include "src/core/config/config_table.h"

/* The row with this name or alias; NULL: there is none. */
const struct xseg_config_row *xseg_config_names_find(const char *name, size_t length);

/* Add to the error text about an unknown name: the key that was probably meant, or where keys
 * are listed. */
void xseg_config_names_suggest(const char *name, size_t length);

#endif
