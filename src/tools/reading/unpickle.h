/* SPDX-License-Identifier: MIT */
/*
 * Reading a pickle: its opcodes, one after the other, become values of pickle.h.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef TOOLS_UNPICKLE_H
#define TOOLS_UNPICKLE_H

#include "src/tools/reading/input.h"
#include "src/tools/reading/pickle.h"

/*
 * Read one pickle, and the input to its end; what comes behind the pickle does not count.
 *
 * @param taker  NULL: none
 * @param out    filled in on success; the caller calls pickle_fini().  A taker may look at it
 * @param fault  filled in on failure; its text is empty where the taker has stopped the reading
 */
bool pickle_read(struct input *input, const struct pickle_taker *taker, struct pickle *out,
                 struct pickle_fault *fault);

#endif
