/* SPDX-License-Identifier: MIT */
/* Where the configuration of a new allocator comes from. */
#ifndef XSEG_CORE_CONFIG_LOAD_H
#define XSEG_CORE_CONFIG_LOAD_H

#include "src/core/config/config.h"

/*
 * Make the configuration of a new allocator from the first source that is present.
 *
 * @param argument  a string; or NULL: the first variable that is set of XSEG_ALLOC_CONF,
 *                  PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, else the defaults
 * @param source    name of the source that was used; lives as long as the library
 * @param named     NULL, or the set of keys that the string names
 *
 * Returns: as xseg_config_parse(); the error text names the source, too
 */
xseg_status xseg_config_load(struct xseg_config *config, const char *argument, const char **source,
                             uint64_t *named);

#endif
