/* SPDX-License-Identifier: MIT */
/* Members of a configuration that are derived from its keys. */
#ifndef XSEG_CORE_CONFIG_SUMMARY_H
#define XSEG_CORE_CONFIG_SUMMARY_H

#include "src/core/config/config.h"

/* Derive these members from the keys. */
void xseg_config_sum_up(struct xseg_config *config);

/* Whether there is a background thread. */
static inline bool xseg_config_has_thread(const struct xseg_config *config)
{
    return config->background_thread || config->share_budget[0] != '\0';
}

#endif
