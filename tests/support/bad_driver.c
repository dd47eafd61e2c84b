/* SPDX-License-Identifier: MIT */
/*
 * The simulated driver with one defective entry point: BAD_DRIVER=DEFECT:NAME, with the name without a version.
 *
 *   missing   the entry point does not exist, as in an older driver
 *   crash     it raises a signal
 *   hang      it never returns, and a pending alarm() expires immediately
 *   deaf      it never returns, and SIGALRM is ignored
 *   slow      it sleeps for three seconds
 *
 * BAD_DRIVER=mig: no defect; the device is a MIG instance.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "xseg/sim.h"

typedef int (*find_entry)(const char *symbol, void **function, int version,
                          unsigned long long flags, int *status);

__attribute__((visibility("default"))) int cuGetProcAddress_v2(const char *symbol, void **function,
                                                               int version,
                                                               unsigned long long flags,
                                                               int *status);

/* A reference to the simulator, so that the linker keeps its library. */
__attribute__((used)) static const __typeof__(&xseg_sim_leaks) simulator = xseg_sim_leaks;

static int crash(void)
{
    (void)signal(SIGSEGV, SIG_DFL);
    (void)raise(SIGSEGV);
    return 0;
}

static int wait_forever(void)
{
    while (pause() != 0)
        continue;
    return 0;
}

static int hang(void)
{
    if (alarm(0) > 0)
        (void)raise(SIGALRM);
    return wait_forever();
}

static int hang_deaf(void)
{
    (void)signal(SIGALRM, SIG_IGN);
    return wait_forever();
}

static int slow(void)
{
    (void)sleep(3);
    return 0;
}

int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags,
                        int *status)
{
    static const struct {
        const char *prefix;
        int (*entry)(void);
    } kinds[] = {{"crash:", crash},
                 {"hang:", hang},
                 {"deaf:", hang_deaf},
                 {"slow:", slow},
                 {"missing:", NULL}};
    const char *defect = getenv("BAD_DRIVER");
    void *original = dlsym(RTLD_NEXT, "cuGetProcAddress_v2");
    find_entry find;

    for (unsigned i = 0; defect != NULL && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const size_t length = strlen(kinds[i].prefix);

        if (strncmp(defect, kinds[i].prefix, length) != 0 || strcmp(defect + length, symbol) != 0)
            continue;
        memcpy(function, &kinds[i].entry, sizeof(kinds[i].entry));
        *status = kinds[i].entry == NULL;        /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND */
        return kinds[i].entry == NULL ? 500 : 0; /* CUDA_ERROR_NOT_FOUND */
    }
    memcpy(&find, &original, sizeof(find));
    return find(symbol, function, version, flags, status);
}

__attribute__((visibility("default"))) int cuDeviceGetName(char *name, int bytes, int device);

int cuDeviceGetName(char *name, int bytes, int device)
{
    const char *defect = getenv("BAD_DRIVER");
    void *original = dlsym(RTLD_NEXT, "cuDeviceGetName");
    int (*get)(char *name, int bytes, int device);

    if (defect != NULL && strcmp(defect, "mig") == 0) {
        (void)snprintf(name, (size_t)bytes, "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
        return 0;
    }
    memcpy(&get, &original, sizeof(get));
    return get(name, bytes, device);
}
