/* SPDX-License-Identifier: MIT */
/* Functions whose calls the linker redirects to the program's own __wrap_NAME() (--wrap); __real_NAME() is the original. */
#ifndef XSEG_TESTS_WRAPPED_H
#define XSEG_TESTS_WRAPPED_H

#define WRAPPED(result, name, ...)     \
    result __real_##name(__VA_ARGS__); \
    result __wrap_##name(__VA_ARGS__)

#endif
