/* SPDX-License-Identifier: MIT */
/*
 * The annotations of a snapshot that is being read: names and times of PyTorch's record_function(), which attribute an
 * allocation to a step and a stage of the program.
 *
 *   region  an annotation whose name begins with "Torch-Compiled Region"; used for entries without a compiled region.
 *   step    an annotation whose name contains "step", in upper or lower case, and ends with a digit, such as
 *           "ProfilerStep#12" or "train_step 3".
 *   stage   any other annotation, such as "forward".
 *
 * An annotation is active from its START up to, and excluding, its END.  An annotation without a START, which the ring
 * overwrote, is active from the beginning; an annotation without an END is active up to the end.  An allocation belongs to
 * the last started annotation of each kind that is active at its time on its device; an allocation of pinned host memory,
 * on any device.  Annotations have no thread.
 *
 * Locking: none; one thread uses them.
 */
#ifndef TOOLS_ANNOTATIONS_H
#define TOOLS_ANNOTATIONS_H

#include "src/tools/reading/reading.h"

/*
 * Read the list `external_annotations`, and set the contexts of the allocations of all devices.  NULL: there is no list.
 *
 * Returns: false with a fault
 * Cost:    O(a log a + e log a) for a boundaries of annotations and e entries
 */
bool annotations_read(struct reading *reading, const struct pickle_value *list);

#endif
