/* SPDX-License-Identifier: MIT */
#include "src/core/history/stack_text.h"

#include <string.h>

/* How many of the innermost frames lie in the module of the very first one, which is the library; 0 if all do, as in a
 * program that is linked with the static library. */
static uint32_t own_frames(const struct xseg_stack_depot *depot, uint32_t stack, uint32_t count)
{
    struct xseg_stack_frame first, frame;

    if (!xseg_stack_depot_frame(depot, stack, 0, &first) || first.path == NULL)
        return 0;
    for (uint32_t i = 1; i < count && xseg_stack_depot_frame(depot, stack, i, &frame); i++)
        if (frame.path == NULL || strcmp(frame.path, first.path) != 0)
            return i;
    return 0;
}

void xseg_stack_text_add(struct xseg_history_store *store, uint32_t stack, unsigned most,
                         const char *lead, struct xseg_text *text)
{
    const struct xseg_stack_depot *depot = xseg_history_store_depot(store);
    struct xseg_stack_view view;

    if (depot == NULL || !xseg_stack_depot_get(depot, stack, &view))
        return;
    xseg_text_add(text, "%s", lead);
    xseg_stack_depot_describe(depot, stack, own_frames(depot, stack, view.count), most, text);
}
