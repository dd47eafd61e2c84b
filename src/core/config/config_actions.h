/* SPDX-License-Identifier: MIT */
/* The words by which the configuration names actions of the history. */
#ifndef XSEG_CORE_CONFIG_ACTIONS_H
#define XSEG_CORE_CONFIG_ACTIONS_H

#include "xseg/history.h"

extern const char *const xseg_config_actions[XSEG_HISTORY_ACTIONS];

#endif
