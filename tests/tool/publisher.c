/* SPDX-License-Identifier: MIT */
/*
 * A process that publishes its statistics, for tests of `xseg top`.  It reads a command per line, and prints a line with
 * the result of each command.
 *
 *     open CONFIG         alloc DEVICE MIB      pool NAME MIB
 *     trim                fail DEVICE           register DEVICE MIB
 *     fork
 *
 * `fail` requests more memory than a device has.  `fork` prints the process ID of the child, which waits until it is
 * killed.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/null_registrar.h"
#include "tests/support/trim_due.h"
#include "xseg/xseg.h"

static struct xseg_allocator *allocator;

static xseg_status create_pool(const char *name, size_t bytes)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_request request = {sizeof(request)};
    void *ptr;

    options.name = name;
    const xseg_status status = xseg_pool_create(allocator, 0, &options, &request.pool);
    request.bytes = bytes;
    return status == XSEG_OK ? xseg_alloc_with(allocator, &request, &ptr) : status;
}

static xseg_status register_block(int device, size_t bytes)
{
    const struct xseg_registrar registrar = null_registrar(false);
    void *ptr = NULL;
    uint64_t id;
    const xseg_status status = xseg_alloc(allocator, device, bytes, NULL, &ptr);

    return status == XSEG_OK ? xseg_register(allocator, ptr, bytes, &registrar, &id) : status;
}

static xseg_status request_excessive_memory(int device)
{
    void *ptr;

    return xseg_alloc(allocator, device, (size_t)1 << 45, NULL, &ptr) == XSEG_ERR_NO_MEMORY
               ? XSEG_OK
               : XSEG_ERR_ARGUMENT;
}

static long fork_child(void)
{
    const pid_t child = fork();

    if (child == 0) {
        (void)close(STDIN_FILENO);
        for (;;)
            (void)pause();
    }
    return (long)child;
}

/* Execute a command.  Returns the number to print, or -1 on failure. */
static long execute(const char *line)
{
    unsigned long mib;
    char argument[128];
    void *ptr;
    int device;

    if (sscanf(line, "open %127s", argument) == 1)
        return xseg_open(argument, NULL, &allocator) == XSEG_OK ? 0 : -1;
    if (sscanf(line, "alloc %d %lu", &device, &mib) == 2)
        return xseg_alloc(allocator, device, mib << 20, NULL, &ptr) == XSEG_OK ? 0 : -1;
    if (sscanf(line, "pool %127s %lu", argument, &mib) == 2)
        return create_pool(argument, mib << 20) == XSEG_OK ? 0 : -1;
    if (sscanf(line, "register %d %lu", &device, &mib) == 2)
        return register_block(device, mib << 20) == XSEG_OK ? 0 : -1;
    if (strcmp(line, "trim") == 0)
        return trim_due(allocator, 1) == XSEG_OK ? 0 : -1;
    if (sscanf(line, "fail %d", &device) == 1)
        return request_excessive_memory(device) == XSEG_OK ? 0 : -1;
    return strcmp(line, "fork") == 0 ? fork_child() : -1;
}

int main(void)
{
    char line[256], message[512] = "";

    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        const long result = execute(line);

        if (result < 0)
            (void)xseg_error_message(message, sizeof(message));
        (void)printf("%ld %s\n", result, result < 0 ? message : "");
        (void)fflush(stdout);
    }
    return 0; /* without closing the allocator, like most processes */
}
