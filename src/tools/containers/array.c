/* SPDX-License-Identifier: MIT */
#include "src/tools/containers/array.h"

#include <stdlib.h>

#define FIRST_ROOM 16u

bool array_room(void **array, size_t count, size_t bytes)
{
    void *bigger;

    if (count != 0 && (count < FIRST_ROOM || (count & (count - 1)) != 0))
        return true;
    bigger = realloc(*array, (count == 0 ? FIRST_ROOM : 2 * count) * bytes);
    if (bigger)
        *array = bigger;
    return bigger;
}
