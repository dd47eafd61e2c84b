/* SPDX-License-Identifier: MIT */
/*
 * A process that publishes its statistics, for tests of `xseg top`: it reads commands, one in each line, and answers
 * each line.
 *
 *     open CONFIG         alloc DEVICE MIB      pool NAME MIB
 *     tick                refuse DEVICE         register DEVICE MIB
 *     fork (answers the process ID of the child, which waits until it is killed)
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

static xseg_status make_pool(const char *name, size_t bytes)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_request request = {sizeof(request)};
    void *ptr;

    options.name = name;
    const xseg_status status = xseg_pool_create(allocator, 0, &options, &request.pool);
    request.bytes = bytes;
    return status == XSEG_OK ? xseg_alloc_with(allocator, &request, &ptr) : status;
}

static xseg_status register_some(int device, size_t bytes)
{
    const struct xseg_registrar registrar = null_registrar(false);
    void *ptr = NULL;
    uint64_t id;
    const xseg_status status = xseg_alloc(allocator, device, bytes, NULL, &ptr);

    return status == XSEG_OK ? xseg_register(allocator, ptr, bytes, &registrar, &id) : status;
}

static xseg_status refuse(int device)
{
    void *ptr;

    return xseg_alloc(allocator, device, (size_t)1 << 45, NULL, &ptr) == XSEG_ERR_NO_MEMORY
               ? XSEG_OK
               : XSEG_ERR_ARGUMENT;
}

static long make_child(void)
{
    const pid_t child = fork();

    if (child == 0) {
        (void)close(STDIN_FILENO);
        for (;;)
            (void)pause();
    }
    return (long)child;
}

/* Do one line.  Returns a number to answer, or -1. */
static long serve(const char *line)
{
    unsigned long mib;
    char word[128];
    void *ptr;
    int device;

    if (sscanf(line, "open %127s", word) == 1)
        return xseg_open(word, NULL, &allocator) == XSEG_OK ? 0 : -1;
    if (sscanf(line, "alloc %d %lu", &device, &mib) == 2)
        return xseg_alloc(allocator, device, mib << 20, NULL, &ptr) == XSEG_OK ? 0 : -1;
    if (sscanf(line, "pool %127s %lu", word, &mib) == 2)
        return make_pool(word, mib << 20) == XSEG_OK ? 0 : -1;
    if (sscanf(line, "register %d %lu", &device, &mib) == 2)
        return register_some(device, mib << 20) == XSEG_OK ? 0 : -1;
    if (strcmp(line, "tick") == 0)
        return trim_due(allocator, 1) == XSEG_OK ? 0 : -1;
    if (sscanf(line, "refuse %d", &device) == 1)
        return refuse(device) == XSEG_OK ? 0 : -1;
    return strcmp(line, "fork") == 0 ? make_child() : -1;
}

int main(void)
{
    char line[256], text[512] = "";

    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        const long answer = serve(line);

        if (answer < 0)
            (void)xseg_error_message(text, sizeof(text));
        (void)printf("%ld %s\n", answer, answer < 0 ? text : "");
        (void)fflush(stdout);
    }
    return 0; /* with an open allocator, as processes end */
}
