/* SPDX-License-Identifier: MIT */
/* Properties of a driver for which the simulator has settings: lines of a name, a tab and a value. */
#ifndef XSEG_TESTS_GPU_FACTS_DESCRIBE_H
#define XSEG_TESTS_GPU_FACTS_DESCRIBE_H

/* Unknown properties are omitted. Returns an exit status. */
int describe(void);

#endif
