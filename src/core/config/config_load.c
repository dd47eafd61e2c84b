/* SPDX-License-Identifier: MIT */
#include "src/core/config/config_load.h"

#include <stdlib.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/error.h"

xseg_status xseg_config_load(struct xseg_config *config, const char *argument, const char **source,
                             uint64_t *named)
{
    static const char *const variable[] = {
        "XSEG_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
    };
    const char *from = argument != NULL ? "argument" : "default", *text = argument;
    struct xseg_config made;
    bool is_for_pytorch = false;

    XSEG_ASSERT(config != NULL && source != NULL);
    for (unsigned i = 0; text == NULL && i < XSEG_COUNT_OF(variable); i++)
        if ((text = secure_getenv(variable[i])) != NULL) {
            from = variable[i];
            is_for_pytorch = i > 0;
        }
    xseg_config_init(&made);
    /* A string written for PyTorch has PyTorch's default: expandable segments are off. */
    made.expandable_segments = !is_for_pytorch;
    if (xseg_config_parse(&made, text != NULL ? text : "", named) != XSEG_OK) {
        xseg_fail_add(" (source: %s)", from);
        return XSEG_ERR_CONFIG;
    }
    *config = made;
    *source = from;
    return XSEG_OK;
}
