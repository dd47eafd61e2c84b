/* SPDX-License-Identifier: MIT */
/* Included before an adapter's first line, so that what GCC 12 makes of it runs with glibc 2.28 and the C++ library of
 * GCC 7, which are what manylinux_2_28 has.  Inline functions of GCC 12's headers call three things that are newer. */

/* A variable of glibc 2.32 that tells whether there is one thread only.  Without it, counts are atomic always. */
#define _SYS_SINGLE_THREADED_H
static constexpr char xseg_is_single_threaded = 0;
#define __libc_single_threaded xseg_is_single_threaded

/* Constructors of string streams, of GCC 9: these are instantiated here.  Other streams and locales stay the
 * library's, since a facet is found by the address of a variable. */
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
