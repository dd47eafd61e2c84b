/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/simulator.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "src/tools/output/message.h"
#include "xseg/allocator.h"

struct simulator simulator;

static char path[4096];

static const char *file_of(const void *symbol)
{
    Dl_info info;

    return symbol && dladdr(symbol, &info) ? info.dli_fname : NULL;
}

/*
 * Beside libxseg.so, where both are built or installed; else where the loader looks.  The loader alone
 * would not do: AddressSanitizer calls dlopen() in the tool's place, and so without its run path.
 */
static void *open_library(void)
{
    const char *beside = file_of(dlsym(RTLD_DEFAULT, "xseg_open"));
    const char *slash = beside ? strrchr(beside, '/') : NULL;
    void *library = NULL;

    if (slash && snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - beside), beside,
                          TOOLS_SIMULATOR) < (int)sizeof(path))
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library ? library : dlopen(TOOLS_SIMULATOR, RTLD_NOW | RTLD_LOCAL);
}

/* A function's address is not an object's in C, so it is copied byte by byte. */
static bool resolve(void *library)
{
    void *symbol;

#define X(name)                                 \
    symbol = dlsym(library, "xseg_sim_" #name); \
    if (!symbol)                                \
        return false;                           \
    memcpy(&simulator.name, &symbol, sizeof(symbol));
    SIMULATOR_CALLS(X)
#undef X
    symbol = dlsym(library, "xseg_sim_reset");
    (void)snprintf(path, sizeof(path), "%s", file_of(symbol) ? file_of(symbol) : "");
    return path[0] != '\0';
}

bool simulator_open(void)
{
    static void *library; /* until the process ends: the addresses are used */

    if (library)
        return true;
    library = open_library();
    if (library && resolve(library))
        return true;
    message_error("the simulated driver cannot be opened: %s", dlerror());
    message_error("build and install " TOOLS_SIMULATOR " (meson's option simulator), or take this "
                  "machine's driver with --driver cuda");
    if (library)
        (void)dlclose(library);
    library = NULL;
    return false;
}

const char *simulator_path(void)
{
    return path[0] != '\0' && simulator.reset ? path : NULL;
}
