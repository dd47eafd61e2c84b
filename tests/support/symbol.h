/* SPDX-License-Identifier: MIT */
#ifndef XSEG_TESTS_SUPPORT_SYMBOL_H
#define XSEG_TESTS_SUPPORT_SYMBOL_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <dlfcn.h>

/* Store the address of a function, or NULL, in a function pointer; return whether the library has the function.
 * ISO C does not convert object pointers to function pointers, so the address is copied bytewise. */
static inline bool symbol_find(void *library, const char *name, void *function)
{
    void *address = dlsym(library, name);

    memcpy(function, &address, sizeof(address));
    return address != NULL;
}

#endif
