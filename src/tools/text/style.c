/* SPDX-License-Identifier: MIT */
#include "src/tools/text/style.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum style_when chosen = STYLE_AUTO;

void style_choose(enum style_when when)
{
    chosen = when;
}

static bool has_colours(FILE *file)
{
    const char *no = secure_getenv("NO_COLOR"), *terminal = secure_getenv("TERM");

    if (chosen != STYLE_AUTO)
        return chosen == STYLE_ALWAYS;
    return (!no || !*no) && terminal && strcmp(terminal, "dumb") != 0 && isatty(fileno(file));
}

const char *style_on(FILE *file, enum style style)
{
    static const char *const codes[] = {
        [STYLE_STRONG] = "\033[1m", [STYLE_GOOD] = "\033[32m", [STYLE_BAD] = "\033[1;31m"};

    return has_colours(file) ? codes[style] : "";
}

const char *style_off(FILE *file)
{
    return has_colours(file) ? "\033[m" : "";
}
