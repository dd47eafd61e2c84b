/* SPDX-License-Identifier: MIT */
/* xseg: a GPU memory allocator with expandable segments.  This header pulls in the others. */
#ifndef XSEG_XSEG_H
#define XSEG_XSEG_H

#include "xseg/allocator.h"
#include "xseg/budget.h"
#include "xseg/capture.h"
#include "xseg/explain.h"
#include "xseg/export.h"
#include "xseg/history.h"
#include "xseg/key.h"
#include "xseg/mapping.h"
#include "xseg/metrics.h"
#include "xseg/observe.h"
#include "xseg/peer.h"
#include "xseg/pool.h"
#include "xseg/range.h"
#include "xseg/registration.h"
#include "xseg/snapshot.h"
#include "xseg/stats.h"
#include "xseg/status.h"
#include "xseg/stream.h"
#include "xseg/trim.h"
#include "xseg/version.h"

#endif
