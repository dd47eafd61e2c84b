/* SPDX-License-Identifier: MIT */
/*
 * Faults of the host: an allocation, a mapping or a thread of the library fails.
 *
 * The linker leads malloc(), calloc(), realloc(), aligned_alloc(), strdup(), mmap() and pthread_create()
 * here (--wrap), where they are counted.  The simulator and cmocka are shared libraries, so theirs are not
 * among them.
 */
#ifndef XSEG_TESTS_HOST_FAULTS_H
#define XSEG_TESTS_HOST_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

/* From here on the n-th call fails; with `onward` all that follow it do as well.  nth 0: none fails. */
void host_fault_set(uint64_t nth, bool onward);

/* No call fails any more. */
void host_fault_clear(void);

/* While held, calls are neither counted nor do they fail: for what a test asks the library itself. */
void host_fault_suspend(bool held);

/* Calls that have failed since host_fault_set(). */
uint64_t host_fault_count(void);

#endif
