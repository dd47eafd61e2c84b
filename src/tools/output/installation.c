/* SPDX-License-Identifier: MIT */
#include "src/tools/output/installation.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

const char *installation_file_of(const void *symbol)
{
    Dl_info info;

    return symbol && dladdr(symbol, &info) && info.dli_fname ? info.dli_fname : "";
}

bool installation_path(const char *file, char *path, size_t bytes)
{
    const char *library = installation_file_of(dlsym(RTLD_DEFAULT, "xseg_open"));
    const char *slash = strrchr(library, '/');

    return slash &&
           snprintf(path, bytes, "%.*s/%s", (int)(slash - library), library, file) < (int)bytes;
}
