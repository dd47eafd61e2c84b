/* SPDX-License-Identifier: MIT */
/*
 * Function entries on four paths through the library: small hit, free, miss, trim.
 *
 * In a build with -finstrument-functions each function of the library reports its entry.  The program records the entries of
 * each path and prints them in order.  A line has the path, the file of the shared library, and the offset of the function in
 * that file.  paths.py creates such a build and resolves the offsets.  In other builds the program prints nothing.
 *
 * The paths are those of a program in steady state: the streams are known, and each pool has a segment.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <dlfcn.h>

#include "xseg/allocator.h"
#include "xseg/reclaim.h"

#define ENTRIES_MAX (1u << 20)
#define SMALL       ((size_t)4 << 10)
#define LARGE       ((size_t)64 << 20)
#define WARM_UPS    100u

static void *entries[ENTRIES_MAX];
static size_t count;
static bool is_recording;

/* Called by instrumented functions. */
void __cyg_profile_func_enter(void *function, void *caller);
void __cyg_profile_func_exit(void *function, void *caller);

void __cyg_profile_func_enter(void *function, void *caller)
{
    (void)caller;
    if (is_recording && count < ENTRIES_MAX)
        entries[count++] = function;
}

void __cyg_profile_func_exit(void *function, void *caller)
{
    (void)function;
    (void)caller;
}

static void begin_path(void)
{
    count = 0;
    is_recording = true;
}

static void end_path(const char *path)
{
    Dl_info info;

    is_recording = false;
    for (size_t i = 0; i < count; i++)
        if (dladdr(entries[i], &info) != 0)
            printf("%s %s %#zx\n", path, info.dli_fname,
                   (size_t)((uintptr_t)entries[i] - (uintptr_t)info.dli_fbase));
}

static void check(xseg_status status)
{
    char message[1024];

    if (status == XSEG_OK)
        return;
    (void)xseg_error_message(message, sizeof(message));
    (void)fprintf(stderr, "paths: %s\n", message);
    exit(3);
}

static void *allocate(struct xseg_allocator *allocator, size_t bytes)
{
    void *block = NULL;

    check(xseg_alloc(allocator, 0, bytes, NULL, &block));
    return block;
}

int main(void)
{
    struct xseg_options options = {sizeof(options)};
    struct xseg_scope scope = {sizeof(scope)};
    struct xseg_trim_options trim = {sizeof(trim)};
    struct xseg_trim_result result = {sizeof(result)};
    struct xseg_allocator *allocator = NULL;

    options.driver = BENCH_DRIVER;
    check(xseg_open("expandable_segments:True", &options, &allocator));
    void *large = allocate(allocator, LARGE);
    void *before = allocate(allocator, SMALL);
    void *between = allocate(allocator, SMALL);
    void *after = allocate(allocator, SMALL);

    /* Hits and frees between two allocated blocks.  The first ones raise the peaks of the statistics. */
    check(xseg_free(allocator, between));
    for (unsigned i = 0; i < WARM_UPS; i++)
        check(xseg_free(allocator, allocate(allocator, SMALL)));

    begin_path();
    void *hit = allocate(allocator, SMALL);
    end_path("hit");
    begin_path();
    check(xseg_free(allocator, hit));
    end_path("free");
    begin_path();
    void *missed = allocate(allocator, LARGE);
    end_path("miss");
    check(xseg_free(allocator, missed));
    check(xseg_free(allocator, large));
    begin_path();
    check(xseg_trim(allocator, &scope, &trim, &result));
    end_path("trim");
    check(xseg_free(allocator, before));
    check(xseg_free(allocator, after));
    check(xseg_close(allocator));
    return 0;
}
