/* SPDX-License-Identifier: MIT */
#include <jansson.h>
#include <string.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/main/commands.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"
#include "xseg/version.h"

/* --- Text. --- */

#define COLUMN 25 /* of the meanings */

/* "-v, --verbose", "    --check[=HOW]" */
static void format_option(const struct option_row *row, char *text, size_t bytes)
{
    const char *argument = row->takes == OPTION_TAKES_NOTHING ? "" : row->argument;

    (void)snprintf(text, bytes, "%c%c%s--%s%s%s%s", row->letter ? '-' : ' ',
                   row->letter ? row->letter : ' ', row->letter ? ", " : "  ", row->name,
                   !*argument         ? ""
                   : row->is_optional ? "[="
                                      : " ",
                   argument, row->is_optional ? "]" : "");
}

/* Print a term and its meaning in two columns; the meaning of a long term begins on the next line. */
static void print_definition(FILE *out, const char *term, const char *meaning)
{
    const int width = (int)strlen(term);

    (void)fprintf(out, "  %s%s%s", text_style_on(out, TEXT_STRONG), term, text_style_off(out));
    if (width + 4 > COLUMN)
        (void)fprintf(out, "\n%*s", COLUMN, "");
    else
        (void)fprintf(out, "%*s", COLUMN - 2 - width, "");
    text_wrap(out, meaning, COLUMN);
}

static void print_options(FILE *out, const struct command *command)
{
    char term[64];

    text_print_heading(out, "Options:");
    for (const uint8_t *id = command->options; *id != OPTION_NONE; id++) {
        format_option(&option_table[*id], term, sizeof(term));
        print_definition(out, term, option_table[*id].meaning);
    }
}

static void print_examples(FILE *out, const struct command *command)
{
    text_print_heading(out, "Examples:");
    for (unsigned i = 0; i < COMMAND_EXAMPLES && command->examples[i].line; i++) {
        (void)fprintf(out, "  %s\n      ", command->examples[i].line);
        text_wrap(out, command->examples[i].does, 6);
    }
}

static void print_exits(FILE *out, const struct command *command)
{
    text_print_heading(out, "Exit status:");
    for (int status = 0; status < COMMAND_EXITS; status++)
        if (command->exits[status]) {
            (void)fprintf(out, "  %d  ", status);
            text_wrap(out, command->exits[status], 5);
        }
}

static void print_commands(FILE *out)
{
    text_print_heading(out, "Commands:");
    for (const struct command *const *command = commands; *command; command++)
        print_definition(out, (*command)->name, (*command)->summary);
}

void commands_print_help(FILE *out, const struct command *command)
{
    (void)fprintf(out, "usage: %s%s%s%s\n\n", commands_full_name(command),
                  command->name ? " [OPTION]..." : "", *command->usage ? " " : "", command->usage);
    text_wrap(out, command->description, 0);
    if (!command->name)
        print_commands(out);
    print_options(out, command);
    print_examples(out, command);
    print_exits(out, command);
    if (!command->name)
        (void)fprintf(out, "\n`xseg help COMMAND` describes a command.\n");
}

/* --- JSON. --- */

static json_t *words_json(const struct option_row *row)
{
    json_t *words = json_array();

    for (unsigned i = 0; i < OPTION_WORDS && row->words[i]; i++)
        (void)json_array_append_new(words, json_string(row->words[i]));
    return words;
}

static json_t *options_json(const struct command *command)
{
    static const char *const takes[] = {
        [OPTION_TAKES_NOTHING] = "nothing", [OPTION_TAKES_TEXT] = "text",
        [OPTION_TAKES_KEYS] = "keys",       [OPTION_TAKES_WORD] = "word",
        [OPTION_TAKES_NUMBER] = "number",   [OPTION_TAKES_SIZE] = "size",
        [OPTION_TAKES_OUTPUT] = "file",     [OPTION_TAKES_CHOICE] = "choice",
    };
    json_t *options = json_array();

    for (const uint8_t *id = command->options; *id != OPTION_NONE; id++) {
        const struct option_row *row = &option_table[*id];
        const char letter[] = {row->letter, '\0'};

        (void)json_array_append_new(
            options,
            json_pack("{s:s, s:s, s:s, s:b, s:s?, s:o, s:s}", "name", row->name, "letter", letter,
                      "takes", takes[row->takes], "optional_argument", row->is_optional, "argument",
                      row->argument, "words", words_json(row), "meaning", row->meaning));
    }
    return options;
}

static json_t *examples_json(const struct command *command)
{
    json_t *examples = json_array();

    for (unsigned i = 0; i < COMMAND_EXAMPLES && command->examples[i].line; i++)
        (void)json_array_append_new(
            examples, json_pack("[s, s]", command->examples[i].line, command->examples[i].does));
    return examples;
}

static json_t *exits_json(const struct command *command)
{
    json_t *exits = json_array();

    for (int status = 0; status < COMMAND_EXITS; status++)
        if (command->exits[status])
            (void)json_array_append_new(exits, json_pack("[i, s]", status, command->exits[status]));
    return exits;
}

static json_t *command_json(const struct command *command)
{
    static const char *const operands[] = {[COMMAND_NO_OPERANDS] = "nothing",
                                           [COMMAND_FILES] = "files",
                                           [COMMAND_NAMES] = "commands",
                                           [COMMAND_TEXT] = "text",
                                           [COMMAND_PROGRAM] = "program"};

    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o}", "name",
                     command->name ? command->name : "", "summary", command->summary, "usage",
                     command->usage, "operands", operands[command->operands], "description",
                     command->description, "options", options_json(command), "examples",
                     examples_json(command), "exits", exits_json(command));
}

/* Print the descriptors: the tool, then its commands. */
static int print_json(void)
{
    json_t *all = json_array(), *object;

    (void)json_array_append_new(all, command_json(&commands_tool));
    for (const struct command *const *command = commands; *command; command++)
        (void)json_array_append_new(all, command_json(*command));
    object = json_pack("{s:s, s:o}", "version", XSEG_VERSION_TEXT, "commands", all);
    return output_json(stdout, object) ? COMMAND_SUCCESS : COMMAND_ERROR;
}

/* --- The command. --- */

static int command_help_run(const struct option_values *arguments)
{
    const struct command *command =
        arguments->operand_count > 0 ? commands_find(arguments->operands[0]) : &commands_tool;

    if (!command)
        return COMMAND_ERROR;
    if (option_given(arguments, OPTION_JSON))
        return print_json();
    commands_print_help(stdout, command);
    return COMMAND_SUCCESS;
}

const struct command command_help = {
    .name = "help",
    .run = command_help_run,
    .summary = "print the help of a command",
    .usage = "[COMMAND]",
    .operands = COMMAND_NAMES,
    .max_operands = 1,
    .options = {OPTION_JSON, OPTION_COLOR, OPTION_HELP},
    .description =
        "Prints the description, options, examples and exit statuses of a command; without "
        "COMMAND, the list of commands. The manual pages have the same text: `man xseg-replay`. "
        "With `--json`, it prints the descriptions of all commands.",
    .examples = {{"xseg help replay", "the options of `xseg replay`"}},
    .exits = {COMMAND_EXIT_SUCCESS, NULL, "an unknown command"},
};
