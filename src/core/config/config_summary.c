/* SPDX-License-Identifier: MIT */
#include "src/core/config/config_summary.h"

#include "src/base/check.h"

void xseg_config_sum_up(struct xseg_config *config)
{
    config->decays = config->idle_ms >= 0 || config->soft_limit_bytes != UINT64_MAX ||
                     config->device_free_min_bytes != 0 || config->soft_by_device;
    config->decays_on_calls = config->decays && !xseg_config_has_thread(config);
    config->watches_frees = config->debug_fill;
    config->follows_calls = config->decays_on_calls || config->traced;
    config->ends_with_work = config->follows_calls || config->publish;
    config->notes_blocks =
        config->traced || config->block_user || config->history != XSEG_HISTORY_NOTHING;
    config->has_plain_frees =
        !config->watches_frees && !config->follows_calls && !config->notes_blocks;
    config->has_plain_hits = !config->follows_calls && !config->unmap_on_free &&
                             !config->guard_page &&
                             !(config->garbage_collection_threshold > 0 &&
                               (config->memory_fraction < 1.0 || config->fraction_by_device));
    for (unsigned i = 0; i < XSEG_CONFIG_INTERVALS; i++)
        config->has_plain_hits = config->has_plain_hits && config->roundup_divisions[i] <= 1;
    XSEG_ASSERT(!config->decays_on_calls || config->decays);
    XSEG_ASSERT(!config->has_plain_frees || (!config->follows_calls && !config->watches_frees));
    XSEG_ASSERT(!config->has_plain_hits || !config->follows_calls);
    XSEG_ASSERT(!config->has_plain_frees || !config->notes_blocks);
}
