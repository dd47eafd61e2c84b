/* SPDX-License-Identifier: MIT */
#include "src/tools/trace/trace_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/message.h"
#include "src/tools/trace/xtrace.h"

#define DEVICE_DEFAULT ((uint64_t)80 << 30)
#define DEVICE_GRANULE ((uint64_t)2 << 20)

/* Make the complete configuration of the program; NULL if out of host memory.  The `c` line is a string of PyTorch,
 * where a string without expandable_segments selects classic segments. */
static char *complete_config(const struct xtrace *trace)
{
    const char *config = trace->config;
    char *completed;

    if (!config || xtrace_names_expandable(config))
        return strdup(config ? config : "");
    if (asprintf(&completed, "%s%sexpandable_segments:False", config, config[0] ? "," : "") < 0)
        return NULL;
    return completed;
}

static bool read_stream(FILE *stream, int device, struct trace_file *file)
{
    struct xtrace_fault fault;

    if (!xtrace_read(stream, device, &file->trace, &fault)) {
        if (fault.line > 0)
            message_print("%s:%" PRIu64 ": %s", file->name, fault.line, fault.text);
        else
            message_print("%s: %s", file->name, fault.text);
        return false;
    }
    if (file->trace.summary[0])
        message_print("%s: %s", file->name, file->trace.summary);
    return true;
}

static bool finish_reading(struct trace_file *file, int device)
{
    file->config = complete_config(&file->trace);
    if (!file->config)
        message_print("%s: out of host memory", file->name);
    else if (device < 0 || file->trace.is_snapshot)
        return true;
    else
        message_print(
            "%s: --device selects a history of a memory snapshot; this file is a trace, which has "
            "one",
            file->name);
    trace_file_fini(file);
    return false;
}

bool trace_file_read(const char *path, int device, struct trace_file *out)
{
    const bool is_input = strcmp(path, "-") == 0;
    FILE *stream = is_input ? stdin : fopen(path, "rb");
    bool success;

    *out = (struct trace_file){.name = is_input ? "standard input" : path};
    if (!stream) {
        message_print("%s: cannot be opened: %s", path, strerror(errno));
        return false;
    }
    success = read_stream(stream, device, out);
    if (!is_input)
        (void)fclose(stream);
    return success && finish_reading(out, device);
}

void trace_file_fini(struct trace_file *file)
{
    free(file->config);
    file->config = NULL;
    xtrace_fini(&file->trace);
}

uint64_t trace_file_device_bytes(const struct trace_file *file, uint64_t option_bytes)
{
    const uint64_t bytes = option_bytes               ? option_bytes
                           : file->trace.device_bytes ? file->trace.device_bytes
                                                      : DEVICE_DEFAULT;

    return bytes / DEVICE_GRANULE * DEVICE_GRANULE;
}
