/* SPDX-License-Identifier: MIT */
/* What `xseg probe` prints: a page of text, or JSON. */
#ifndef TOOLS_PROBE_REPORT_H
#define TOOLS_PROBE_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/commands/probe/probe_costs.h"

struct probe_report {
    const char *library; /* of the driver */
    const char *preset;  /* of the simulator's costs; NULL: they were measured */
    struct probe_driver *driver;
    const struct probe_device *device;
    const struct probe_costs *costs;
};

void probe_report_print(FILE *out, const struct probe_report *report);

/* NULL without host memory. */
json_t *probe_report_json(const struct probe_report *report);

#endif
