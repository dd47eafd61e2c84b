/* SPDX-License-Identifier: MIT */
/* xseg: a GPU memory allocator with expandable segments.  This header includes all others. */
#ifndef XSEG_XSEG_H
#define XSEG_XSEG_H

#include "xseg/allocator.h"
#include "xseg/budget.h"
#include "xseg/history.h"
#include "xseg/observer.h"
#include "xseg/pool.h"
#include "xseg/range.h"
#include "xseg/reclaim.h"
#include "xseg/register.h"
#include "xseg/share.h"
#include "xseg/stats.h"
#include "xseg/status.h"
#include "xseg/version.h"

#endif
