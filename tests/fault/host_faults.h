/* SPDX-License-Identifier: MIT */
/*
 * Faults of the host: an allocation, a mapping or a thread creation of the library fails.
 *
 * The linker redirects malloc(), calloc(), realloc(), aligned_alloc(), strdup(), mmap() and pthread_create() of the
 * library to this module (--wrap).  The simulator and cmocka are shared libraries, so their calls are not redirected.
 */
#ifndef XSEG_TESTS_HOST_FAULTS_H
#define XSEG_TESTS_HOST_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

/* Fail the nth call from now on, and all later calls if `onward`; 0: no call. */
void host_fault_set(uint64_t nth, bool onward);

void host_fault_clear(void);

/* While the faults are suspended, as for calls of the test itself, calls are not counted and do not fail. */
void host_fault_suspend(bool suspend);

/* Calls that have failed since host_fault_set(). */
uint64_t host_fault_count(void);

#endif
