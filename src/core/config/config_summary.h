/* SPDX-License-Identifier: MIT */
/* The members of a configuration that follow from others. */
#ifndef XSEG_CORE_CONFIG_SUMMARY_H
#define XSEG_CORE_CONFIG_SUMMARY_H

#include "src/core/config/config.h"

/* Work out the members that follow from others. */
void xseg_config_sum_up(struct xseg_config *config);

#endif
