/* SPDX-License-Identifier: MIT */
#include "vmm/free_memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/align.h"

/* Number of bytes that are read.  MemAvailable is the third line of the file. */
#define MEMINFO_BYTES 1024u

bool xseg_free_memory_parse(const char *text, uint64_t *available)
{
    static const char key[] = "MemAvailable:";
    const char *line = text;
    char *end;

    while (line != NULL && strncmp(line, key, sizeof(key) - 1) != 0) {
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    if (line == NULL)
        return false;
    line += sizeof(key) - 1;
    const unsigned long long kib = strtoull(line, &end, 10);
    if (end == line || strncmp(end, " kB", 3) != 0 || kib > UINT64_MAX >> 10)
        return false;
    *available = (uint64_t)kib << 10;
    return true;
}

/* Read the start of /proc/meminfo.  Returns the number of bytes, 0 on failure. */
static size_t read_meminfo(char *text, size_t bytes)
{
    const int file = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    ssize_t count;

    if (file < 0)
        return 0;
    count = read(file, text, bytes - 1);
    (void)close(file);
    if (count <= 0)
        return 0;
    text[count] = '\0';
    return (size_t)count;
}

/* Query the memory that the host can provide.  Returns false if it is unknown. */
static bool query_available(const struct xseg_context *context, uint64_t *available)
{
    char text[MEMINFO_BYTES];

    return (xseg_driver_simulated_meminfo(context->driver, text, sizeof(text)) != 0 ||
            read_meminfo(text, sizeof(text)) != 0) &&
           xseg_free_memory_parse(text, available);
}

xseg_status xseg_free_memory_query(struct xseg_context *context, uint64_t *free, uint64_t *total)
{
    uint64_t available;

    if (__builtin_expect(context->is_integrated, 0) && query_available(context, &available)) {
        *free = xseg_min(available, context->total_bytes);
        *total = context->total_bytes;
        return XSEG_OK;
    }
    return xseg_driver_memory_info(context, free, total);
}
