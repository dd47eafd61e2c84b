/* SPDX-License-Identifier: MIT */
/* What the simulator has a setting for, asked of a driver: lines of a name, a tab and a value. */
#ifndef XSEG_TESTS_GPU_FACTS_DESCRIBE_H
#define XSEG_TESTS_GPU_FACTS_DESCRIBE_H

/* What cannot be found out is left out.  Returns: an exit status. */
int describe(void);

#endif
