/* SPDX-License-Identifier: MIT */
#include "src/tools/command/option.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "src/tools/command/suggestion.h"
#include "src/tools/output/message.h"
#include "src/tools/output/text.h"

/* The size of the string for getopt: "+:", each option with "::", and the terminator. */
#define LETTERS_MAX (3 * OPTION_COUNT + 3)
/* getopt_long() returns LONG_OPTION + enum option_id for a long option. */
#define LONG_OPTION 256

bool option_error(const char *option, const char *error)
{
    message_error("%s %s", option, error);
    return false;
}

static bool value_error(const struct option_row *row, const char *error)
{
    message_error("--%s %s", row->name, error);
    return false;
}

static bool word_error(const struct option_row *row, const char *word)
{
    char error[192] = "takes ";
    struct suggestion suggestion;
    size_t length;

    suggestion_init(&suggestion, word, strlen(word));
    for (unsigned i = 0; i < OPTION_WORDS && row->words[i]; i++) {
        const bool is_last = i + 1 == OPTION_WORDS || !row->words[i + 1];

        length = strlen(error);
        (void)snprintf(error + length, sizeof(error) - length, "%s%s",
                       i == 0    ? ""
                       : is_last ? " or "
                                 : ", ",
                       row->words[i]);
        suggestion_consider(&suggestion, row->words[i]);
    }
    length = strlen(error);
    if (row->takes == OPTION_TAKES_CHOICE)
        length += (size_t)snprintf(error + length, sizeof(error) - length,
                                   ", or a FILE, whose path has a / or a .");
    if (suggestion.name)
        (void)snprintf(error + length, sizeof(error) - length, "; did you mean %s?",
                       suggestion.name);
    return value_error(row, error);
}

static bool read_word(const struct option_row *row, const char *text, uint64_t *out)
{
    for (unsigned i = 0; i < OPTION_WORDS && row->words[i]; i++)
        if (strcmp(text, row->words[i]) == 0) {
            *out = i;
            return true;
        }
    /* No word has a '/' or a '.', so a misspelled word is not read as a file. */
    *out = OPTION_WORDS;
    return (row->takes == OPTION_TAKES_CHOICE && strpbrk(text, "/.") != NULL) ||
           word_error(row, text);
}

/* Read decimal digits; a number of more than 64 bits is UINT64_MAX.  Returns the text after the digits. */
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
    char error[160];
    uint64_t number;

    if (*text && !*read_digits(text, &number) && number >= row->min && number <= row->max) {
        *out = number;
        return true;
    }
    (void)snprintf(error, sizeof(error), "takes %s", row->unit);
    return value_error(row, error);
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
        return value_error(
            row, "takes a whole number with KiB, MiB, GiB or TiB, such as 900MiB or 24GiB");
    if (number > row->max >> shift)
        return value_error(row, "exceeds the memory of any device");
    *out = number << shift;
    return *out >= row->min ||
           value_error(row, "is less than 2MiB; without a unit, the size is in bytes");
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

/* Fill in the arguments of getopt_long(). */
static void fill_getopt_tables(const struct command *command, char *letters,
                               struct option *long_options)
{
    for (const uint8_t *id = command->options; *id != OPTION_NONE; id++) {
        const struct option_row *row = &option_table[*id];
        const int has_argument = row->takes == OPTION_TAKES_NOTHING ? no_argument
                                 : row->is_optional                 ? optional_argument
                                                                    : required_argument;

        *long_options++ = (struct option){row->name, has_argument, NULL, LONG_OPTION + *id};
        if (!row->letter)
            continue;
        *letters++ = row->letter;
        for (int i = 0; i < has_argument; i++)
            *letters++ = ':';
    }
    *letters = '\0';
    *long_options = (struct option){0};
}

/* Convert a result of getopt_long() to enum option_id; OPTION_NONE: the command has no such option. */
static unsigned find_option_id(const struct command *command, int option)
{
    if (option > LONG_OPTION)
        return (unsigned)(option - LONG_OPTION);
    for (const uint8_t *id = command->options; *id != OPTION_NONE; id++)
        if (option_table[*id].letter == option)
            return *id;
    return OPTION_NONE;
}

static bool is_ambiguous(const struct option *long_options, const char *name, size_t length)
{
    unsigned count = 0;

    for (; long_options->name; long_options++)
        count += strncmp(long_options->name, name, length) == 0;
    return count > 1;
}

static void name_error(const struct option *long_options, const char *argument, int length)
{
    struct suggestion suggestion;

    suggestion_init(&suggestion, argument + 2, (size_t)length - 2);
    for (; long_options->name; long_options++)
        suggestion_consider(&suggestion, long_options->name);
    if (suggestion.name)
        message_error("unrecognized option '%.*s'; did you mean --%s?", length, argument,
                      suggestion.name);
    else
        message_error("unrecognized option '%.*s'", length, argument);
}

/* Print the error of getopt_long() with the text of getopt(3).  getopt(3) itself would print the argument unescaped. */
static bool parse_error(const struct command *command, const struct option *long_options,
                        int option, const char *argument)
{
    const unsigned id = optopt != 0 ? find_option_id(command, optopt) : OPTION_NONE;
    const bool is_long = strncmp(argument, "--", 2) == 0;
    const int length = (int)strcspn(argument, "=");

    if (option == ':')
        message_error("option '--%s' requires an argument", option_table[id].name);
    else if (!is_long)
        message_error("invalid option -- '%c'", optopt);
    else if (id != OPTION_NONE)
        message_error("option '--%s' doesn't allow an argument", option_table[id].name);
    else if (is_ambiguous(long_options, argument + 2, (size_t)length - 2))
        message_error("option '%.*s' is ambiguous", length, argument);
    else
        name_error(long_options, argument, length);
    message_print("`%s --help` lists the options", message_program());
    return false;
}

static bool check_operands(const struct command *command, const struct option_values *values)
{
    char limit[48] = "the command takes none";

    if (values->of[OPTION_HELP].given || values->of[OPTION_VERSION].given)
        return true;
    if (values->operand_count < command->min_operands) {
        message_error("needs %s; `%s --help` prints the usage", command->required_operands,
                      message_program());
        return false;
    }
    if (values->operand_count <= command->max_operands)
        return true;
    if (command->max_operands > 0)
        (void)snprintf(limit, sizeof(limit), "the command takes at most %d", command->max_operands);
    message_error("too many arguments, '%s'; %s; usage: %s [OPTION]...%s%s",
                  values->operands[command->max_operands], limit, message_program(),
                  *command->usage ? " " : "", command->usage);
    return false;
}

bool option_parse(const struct command *command, int count, char **arguments,
                  struct option_values *out)
{
    char letters[LETTERS_MAX] = "+:";
    struct option long_options[OPTION_COUNT + 1];
    /* '+' ends the options at the first operand: the options of the tool at the name of the command, and the options of
     * `xseg run` at the name of the program. */
    const bool ends_at_operand = command->run == NULL || command->operands == COMMAND_PROGRAM;
    const char *const short_options = letters + (ends_at_operand ? 0 : 1);
    int option;

    *out = (struct option_values){0};
    for (unsigned id = 0; id < OPTION_COUNT; id++)
        out->of[id].number = option_table[id].default_number;
    optind = 0; /* restart getopt_long() */
    opterr = 0;
    fill_getopt_tables(command, letters + 2, long_options);
    while ((option = getopt_long(count, arguments, short_options, long_options, NULL)) != -1) {
        const unsigned id = find_option_id(command, option);

        if (id == OPTION_NONE)
            return parse_error(command, long_options, option, arguments[optind - 1]);
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
