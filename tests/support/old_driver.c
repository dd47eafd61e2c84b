/* SPDX-License-Identifier: MIT */
/*
 * A driver that is older than the oldest supported version.
 *
 * XSEG_OLD_DRIVER=cuStreamGetId: this entry point is missing.  XSEG_OLD_DRIVER=11080: all entry points exist, and
 * cuDriverGetVersion() returns this version.
 */
#include <stdlib.h>
#include <string.h>

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char *symbol, void **function,
                                                               int version,
                                                               unsigned long long flags,
                                                               int *status);

static int old_version(int *version)
{
    *version = atoi(getenv("XSEG_OLD_DRIVER"));
    return 0;
}

static int succeed(void)
{
    return 0;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags,
                        int *status)
{
    int (*stub)(void) = succeed;
    int (*get_version)(int *) = old_version;

    (void)version;
    (void)flags;
    *status = 0;
    *function = NULL;
    if (strcmp(symbol, getenv("XSEG_OLD_DRIVER")) == 0) {
        *status = 1;
        return 500; /* CUDA_ERROR_NOT_FOUND */
    }
    if (strcmp(symbol, "cuDriverGetVersion") == 0)
        memcpy(function, &get_version, sizeof(get_version));
    else
        memcpy(function, &stub, sizeof(stub));
    return 0;
}
