/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/simulator.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "src/tools/output/installation.h"
#include "src/tools/output/message.h"
#include "xseg/allocator.h"

struct simulator simulator;

static char path[4096];

/* Load the library next to libxseg.so, where both are built or installed, or else by the loader's search.  The search
 * alone is not sufficient: AddressSanitizer intercepts dlopen(), so the run path of the tool is not used. */
static void *open_library(void)
{
    void *library = NULL;

    if (installation_path(TOOLS_SIMULATOR, path, sizeof(path)))
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library ? library : dlopen(TOOLS_SIMULATOR, RTLD_NOW | RTLD_LOCAL);
}

/* ISO C has no conversion from an object pointer to a function pointer, so the bytes are copied. */
static bool resolve_functions(void *library)
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
    (void)snprintf(path, sizeof(path), "%s", installation_file_of(symbol));
    return path[0] != '\0';
}

bool simulator_open(void)
{
    static void *library; /* never closed: its functions are in use */

    if (library)
        return true;
    library = open_library();
    if (library && resolve_functions(library))
        return true;
    const char *const reason = dlerror();
    message_error("the simulated driver cannot be loaded: %s", reason ? reason : "its path is unknown");
    message_error("build and install " TOOLS_SIMULATOR
                  " (meson's option simulator), or use the driver of this "
                  "host with --driver cuda");
    if (library)
        (void)dlclose(library);
    library = NULL;
    return false;
}

const char *simulator_path(void)
{
    return path[0] != '\0' && simulator.reset ? path : NULL;
}
