/* SPDX-License-Identifier: MIT */
#include "tests/support/handle_reuse_driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define REUSED_MAX 64u

typedef int (*find_entry)(const char *symbol, void **function, int version,
                          unsigned long long flags, int *status);
typedef int (*get_id)(xseg_stream stream, unsigned long long *id);

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char *symbol, void **function,
                                                               int version,
                                                               unsigned long long flags,
                                                               int *status);

static xseg_stream reused[REUSED_MAX];
static unsigned count;
static get_id real_get_id;

/* Each reuse of a handle adds 2^32 to its stream ID. */
static int get_reused_id(xseg_stream stream, unsigned long long *id)
{
    const int result = real_get_id(stream, id);

    for (unsigned i = 0; result == 0 && i < count; i++)
        if (reused[i] == stream)
            *id += 1ULL << 32;
    return result;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags,
                        int *status)
{
    void *original = dlsym(RTLD_NEXT, "cuGetProcAddress_v2");
    int (*replacement)(xseg_stream, unsigned long long *) = get_reused_id;
    find_entry find;

    memcpy(&find, &original, sizeof(find));
    const int result = find(symbol, function, version, flags, status);
    if (result == 0 && *function != NULL && strcmp(symbol, "cuStreamGetId") == 0) {
        memcpy(&real_get_id, function, sizeof(real_get_id));
        memcpy(function, &replacement, sizeof(replacement));
    }
    return result;
}

__attribute__((visibility("default"))) const char *handle_reuse_driver(void)
{
    static Dl_info info;
    const char *(*self)(void) = handle_reuse_driver;
    void *address;

    memcpy(&address, &self, sizeof(address));
    if (dladdr(address, &info) == 0)
        abort();
    count = 0;
    return info.dli_fname;
}

__attribute__((visibility("default"))) void handle_reuse_stream(xseg_stream stream)
{
    if (count == REUSED_MAX)
        abort();
    reused[count++] = stream;
}
