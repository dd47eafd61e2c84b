/* SPDX-License-Identifier: MIT */
#include "src/core/snapshot/rank.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/text.h"

/* The rank that a launcher gave this process, or NULL.  torchrun sets RANK, Slurm SLURM_PROCID; LOCAL_RANK alone
 * tells processes of one machine apart. */
static const char *get_rank(void)
{
    static const char *const variables[] = {"RANK", "SLURM_PROCID", "LOCAL_RANK"};

    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++) {
        const char *value = secure_getenv(variables[i]);

        if (value != NULL && value[0] != '\0' && strlen(value) <= 10 &&
            strspn(value, "0123456789") == strlen(value))
            return value;
    }
    return NULL;
}

size_t xseg_snapshot_rank_name(char *name, size_t bytes, const char *folder, const char *what,
                               unsigned number)
{
    const char *rank = get_rank();
    struct xseg_text text;

    xseg_text_init(&text, name, bytes);
    xseg_text_add(&text, "%s/%s-", folder, what);
    if (rank != NULL)
        xseg_text_add(&text, "rank%s-", rank);
    xseg_text_add(&text, "pid%ld-%u.pickle", (long)getpid(), number);
    return text.length;
}
