/* SPDX-License-Identifier: MIT */
#include "src/tools/command/option.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "src/tools/output/message.h"
#include "src/tools/output/text.h"

#define LETTERS (3 * OPTION_COUNT + 3) /* of getopt: "+:", each option, "::", and the end */
#define LONG    256                    /* what getopt_long() returns: this + enum option_id */

bool option_refuse(const char *option, const char *sentence)
{
    message_error("%s %s", option, sentence);
    return false;
}

static bool refuse(const struct option_row *row, const char *sentence)
{
    message_error("--%s %s", row->name, sentence);
    return false;
}

static bool refuse_word(const struct option_row *row)
{
    char sentence[192] = "takes ";

    for (unsigned i = 0; i < OPTION_WORDS && row->words[i]; i++) {
        const bool is_last = i + 1 == OPTION_WORDS || !row->words[i + 1];
        const size_t at = strlen(sentence);

        (void)snprintf(sentence + at, sizeof(sentence) - at, "%s%s",
                       i == 0    ? ""
                       : is_last ? " or "
                                 : ", ",
                       row->words[i]);
    }
    if (row->takes == OPTION_TAKES_CHOICE)
        (void)strncat(sentence, ", or a FILE, whose name has a / or a .",
                      sizeof(sentence) - strlen(sentence) - 1);
    return refuse(row, sentence);
}

static bool read_word(const struct option_row *row, const char *text, uint64_t *out)
{
    for (unsigned i = 0; i < OPTION_WORDS && row->words[i]; i++)
        if (strcmp(text, row->words[i]) == 0) {
            *out = i;
            return true;
        }
    /* Neither is in a word, so a mistyped word is no file. */
    *out = OPTION_WORDS;
    return (row->takes == OPTION_TAKES_CHOICE && strpbrk(text, "/.") != NULL) || refuse_word(row);
}

/* Decimal digits; more than 64 bits are UINT64_MAX.  Returns what stands behind them. */
static const char *read_digits(const char *text, uint64_t *out)
{
    uint64_t number = 0;

    for (; *text >= '0' && *text <= '9'; text++) {
        const unsigned digit = (unsigned)(*text - '0');

        number = number > (UINT64_MAX - digit) / 10 ? UINT64_MAX : number * 10 + digit;
    }
    *out = number;
    return text;
}

static bool read_number(const struct option_row *row, const char *text, uint64_t *out)
{
    char sentence[160];
    uint64_t number;

    if (*text && !*read_digits(text, &number) && number >= row->least && number <= row->most) {
        *out = number;
        return true;
    }
    (void)snprintf(sentence, sizeof(sentence), "takes %s", row->unit);
    return refuse(row, sentence);
}

static bool read_size(const struct option_row *row, const char *text, uint64_t *out)
{
    static const char units[] = "kmgt";
    uint64_t number;
    const char *at = read_digits(text, &number);
    const char *unit = *at ? strchr(units, *at | 0x20) : NULL;
    unsigned shift = 0;

    if (unit && at > text) {
        shift = 10 * (unsigned)(unit - units + 1);
        at += strcmp(at + 1, "iB") == 0 ? 3 : 1;
    }
    if (at == text || *at)
        return refuse(row,
                      "takes a whole number with KiB, MiB, GiB or TiB, such as 900MiB or 24GiB");
    if (number > row->most >> shift)
        return refuse(row, "is more than any device has");
    *out = number << shift;
    return *out >= row->least || refuse(row, "is less than 2MiB; a number alone is in bytes");
}

static bool read_value(const struct option_row *row, struct option_value *value)
{
    switch (value->text ? row->takes : OPTION_TAKES_NOTHING) {
    case OPTION_TAKES_WORD:
    case OPTION_TAKES_CHOICE:
        return read_word(row, value->text, &value->number);
    case OPTION_TAKES_NUMBER:
        return read_number(row, value->text, &value->number);
    case OPTION_TAKES_SIZE:
        return read_size(row, value->text, &value->number);
    case OPTION_TAKES_NOTHING:
    case OPTION_TAKES_TEXT:
    case OPTION_TAKES_KEYS:
    case OPTION_TAKES_OUTPUT:
        break;
    }
    return true;
}

/* The table as getopt_long() wants it. */
static void list_options(const struct command *command, char *letters, struct option *longs)
{
    for (const uint8_t *id = command->options; *id != OPTION_NONE; id++) {
        const struct option_row *row = &option_table[*id];
        const int has_argument = row->takes == OPTION_TAKES_NOTHING ? no_argument
                                 : row->may_lack                    ? optional_argument
                                                                    : required_argument;

        *longs++ = (struct option){row->name, has_argument, NULL, LONG + *id};
        if (!row->letter)
            continue;
        *letters++ = row->letter;
        for (int i = 0; i < has_argument; i++)
            *letters++ = ':';
    }
    *letters = '\0';
    *longs = (struct option){0};
}

/* Which option getopt_long() means; OPTION_NONE: none of the command's. */
static unsigned id_of(const struct command *command, int option)
{
    if (option > LONG)
        return (unsigned)(option - LONG);
    for (const uint8_t *id = command->options; *id != OPTION_NONE; id++)
        if (option_table[*id].letter == option)
            return *id;
    return OPTION_NONE;
}

static bool is_ambiguous(const struct option *longs, const char *name, size_t length)
{
    unsigned count = 0;

    for (; longs->name; longs++)
        count += strncmp(longs->name, name, length) == 0;
    return count > 1;
}

/* What getopt_long() has found wrong, in its words; its own sentence would show what was typed as it is. */
static bool refuse_unknown(const struct command *command, const struct option *longs, int option,
                           const char *argument)
{
    const unsigned id = optopt != 0 ? id_of(command, optopt) : OPTION_NONE;
    const bool is_long = strncmp(argument, "--", 2) == 0;
    const int length = (int)strcspn(argument, "=");

    if (option == ':')
        message_error("option '--%s' requires an argument", option_table[id].name);
    else if (!is_long)
        message_error("invalid option -- '%c'", optopt);
    else if (id != OPTION_NONE)
        message_error("option '--%s' doesn't allow an argument", option_table[id].name);
    else if (is_ambiguous(longs, argument + 2, (size_t)length - 2))
        message_error("option '%.*s' is ambiguous", length, argument);
    else
        message_error("unrecognized option '%.*s'", length, argument);
    message_print("%s --help lists the options", message_program());
    return false;
}

/* The first operand beyond the most that a command takes. */
static bool refuse_operand(const struct command *command, const char *operand)
{
    char most[48] = "it takes none";

    if (command->most_operands > 0)
        (void)snprintf(most, sizeof(most), "it takes %d at most", command->most_operands);
    message_error("too many arguments, '%s': %s; usage: %s [OPTION]...%s%s", operand, most,
                   message_program(), *command->usage ? " " : "", command->usage);
    return false;
}

static bool check_operands(const struct command *command, const struct option_values *values)
{
    if (values->of[OPTION_HELP].given || values->of[OPTION_VERSION].given)
        return true;
    if (values->operand_count < command->least_operands) {
        message_error("needs %s; %s --help lists the options", command->needs, message_program());
        return false;
    }
    if (values->operand_count <= command->most_operands)
        return true;
    return refuse_operand(command, values->operands[command->most_operands]);
}

bool option_parse(const struct command *command, int count, char **arguments,
                  struct option_values *out)
{
    char letters[LETTERS] = "+:";
    struct option longs[OPTION_COUNT + 1];
    /* Behind a '+' options end with the first operand: what follows a command's name is its own. */
    const char *const from = letters + (command->run != NULL);
    int option;

    *out = (struct option_values){0};
    for (unsigned id = 0; id < OPTION_COUNT; id++)
        out->of[id].number = option_table[id].standard;
    optind = 0; /* from the start, whatever it has read before */
    opterr = 0;
    list_options(command, letters + 2, longs);
    while ((option = getopt_long(count, arguments, from, longs, NULL)) != -1) {
        const unsigned id = id_of(command, option);

        if (id == OPTION_NONE)
            return refuse_unknown(command, longs, option, arguments[optind - 1]);
        out->of[id].given = true;
        out->of[id].text = optarg;
        if (!read_value(&option_table[id], &out->of[id]))
            return false;
    }
    out->operands = arguments + optind;
    out->operand_count = count - optind;
    if (out->of[OPTION_COLOR].given)
        text_set_color((enum text_color)out->of[OPTION_COLOR].number);
    return check_operands(command, out);
}
