/* SPDX-License-Identifier: MIT */
#include "xseg/key.h"

#include "src/base/error.h"
#include "src/core/config/config.h"
#include "src/core/config/config_keys.h"

xseg_status xseg_config_keys(const char *config, const char **source,
                             bool (*visit)(void *context, const struct xseg_config_key *key),
                             void *context)
{
    XSEG_OPERATION(__func__);
    struct xseg_config loaded;
    const char *from;
    uint64_t named;
    const xseg_status status = xseg_config_load(&loaded, config, &from, &named);

    if (status != XSEG_OK)
        return status;
    if (source != NULL)
        *source = from;
    if (visit != NULL)
        xseg_config_keys_visit(&loaded, named, visit, context);
    return XSEG_OK;
}
