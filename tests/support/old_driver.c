/* SPDX-License-Identifier: MIT */
/*
 * A driver that is too old.
 *
 * XSEG_OLD_DRIVER=cuStreamGetId: this entry point is missing.  XSEG_OLD_DRIVER=11080: all entry points exist, and
 * cuDriverGetVersion() returns this version.
 */
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char *symbol, void **function,
                                                               int version,
                                                               unsigned long long flags,
                                                               int *found);

static int version_of_old_driver(int *version)
{
    *version = atoi(getenv("XSEG_OLD_DRIVER"));
    return 0;
}

static int anything(void)
{
    return 0;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags,
                        int *found)
{
    int (*entry)(void) = anything;
    int (*versioned)(int *) = version_of_old_driver;

    (void)version;
    (void)flags;
    *found = 0;
    *function = NULL;
    if (strcmp(symbol, getenv("XSEG_OLD_DRIVER")) == 0) {
        *found = 1;
        return 500; /* CUDA_ERROR_NOT_FOUND */
    }
    if (strcmp(symbol, "cuDriverGetVersion") == 0)
        memcpy(function, &versioned, sizeof(versioned));
    else
        memcpy(function, &entry, sizeof(entry));
    return 0;
}
