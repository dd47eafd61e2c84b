/* SPDX-License-Identifier: MIT */
/* Included before an adapter, so that the output of GCC 12 runs with glibc 2.28 and the C++ library of GCC 7, as in
 * manylinux_2_28.  Inline functions of GCC 12's headers use three newer symbols. */

/* A variable of glibc 2.32: whether the process has only one thread.  Without it, reference counts are always atomic. */
#define _SYS_SINGLE_THREADED_H
static constexpr char xseg_is_single_threaded = 0;
#define __libc_single_threaded xseg_is_single_threaded

/* Constructors of string streams of GCC 9, which are instantiated here.  Other streams and locales remain those of the library,
 * because facets are found by the address of a variable. */
#include <istream>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#include <sstream>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 1

/* A function of GCC 11. */
#include <new>
namespace std {
void __throw_bad_array_new_length()
{
    throw bad_array_new_length();
}
}
