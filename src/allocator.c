/* SPDX-License-Identifier: MIT */
/* The entry points of the allocator itself; those of its blocks are in block.c. */
#include "xseg/allocator.h"

#include "src/core/config/config_print.h"
#include "src/core/front/allocator_config.h"
#include "src/core/front/allocator_open.h"
#include "src/entry.h"

/* The options that a caller gave; members that its header does not have keep their defaults. */
static struct xseg_options options_of(const struct xseg_options *given)
{
    struct xseg_options options = XSEG_OPTIONS_INIT;

    if (given != NULL)
        XSEG_ENTRY_TAKE(&options, given);
    return options;
}

xseg_status xseg_open(const char *config, const struct xseg_options *options,
                      struct xseg_allocator **out)
{
    XSEG_OPERATION(__func__);
    XSEG_ENTRY_REQUIRE(out != NULL, "out is NULL");
    XSEG_ENTRY_IN(options, struct xseg_options, log_context);
    const struct xseg_options chosen = options_of(options);
    const struct xseg_log log = {chosen.log, chosen.log_context};
    const struct xseg_clock clock = {chosen.clock, chosen.clock_context};
    return xseg_allocator_open(config, chosen.driver, &log, &clock, out);
}

xseg_status xseg_close(struct xseg_allocator *allocator)
{
    if (allocator == NULL)
        return XSEG_OK;
    XSEG_ENTRY(allocator);
    return xseg_allocator_close(allocator);
}

xseg_status xseg_config_set(struct xseg_allocator *allocator, const char *config)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(config != NULL, "config is NULL");
    return xseg_allocator_configure(allocator, config);
}

xseg_status xseg_config_get(struct xseg_allocator *allocator, char *text, size_t bytes,
                            size_t *needed)
{
    struct xseg_text builder;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(text != NULL || bytes == 0, "text is NULL, bytes %zu", bytes);
    xseg_text_init(&builder, text, bytes);
    xseg_config_print(xseg_allocator_config(allocator), &builder);
    if (needed != NULL)
        *needed = builder.length + 1;
    return XSEG_OK;
}

const char *xseg_config_source(const struct xseg_allocator *allocator)
{
    return allocator == NULL ? "" : allocator->config_source;
}
