/* SPDX-License-Identifier: MIT */
/* The names that a configuration string may contain: keys, ignored keys, actions of the history. */
#ifndef XSEG_CORE_CONFIG_NAMES_H
#define XSEG_CORE_CONFIG_NAMES_H

#include "src/core/config/config_table.h"
#include "xseg/history.h"

/* The row with this name; NULL: there is none. */
const struct xseg_config_row *xseg_config_names_find(const char *name, size_t length);

/*
 * Keys of PyTorch that the library accepts and ignores.  PyTorch applies those of pinned host memory, and `backend`, itself;
 * the others belong to PyTorch's own allocator.
 */
extern const char *const xseg_config_ignored[XSEG_CONFIG_IGNORED];

/* The index of a name in xseg_config_ignored[]; XSEG_CONFIG_IGNORED: the name is not in it. */
unsigned xseg_config_names_find_ignored(const char *name, size_t length);

/* The value of an ignored key as the user wrote it; NULL: no string has named the key. */
const char *xseg_config_names_ignored_value(const struct xseg_config *config, const char *name);

/* The names of the actions of the history. */
extern const char *const xseg_config_actions[XSEG_HISTORY_ACTIONS];

/* Add to the error text about an unknown name: the key that was probably meant, or where keys
 * are listed. */
void xseg_config_names_suggest(const char *name, size_t length);

#endif
