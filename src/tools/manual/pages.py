# SPDX-License-Identifier: MIT
"""Manual pages and shell completion, from the descriptors of the tool.

pages.py TOOL man FOLDER                       xseg.1, and xseg-COMMAND.1 for each command
pages.py TOOL bash|zsh|fish FILE               completion for a shell

The descriptors are the output of `TOOL help --json` and `TOOL config --keys --json`.
"""
import json
import pathlib
import re
import subprocess
import sys

CODE = re.compile(r"`([^`]*)`")


def read_descriptors(tool):
    """Read the version, the tool itself, and its commands."""
    printed = json.loads(subprocess.run([tool, "help", "--json"], check=True, capture_output=True,
                                     text=True).stdout)
    return printed["version"], printed["commands"][0], printed["commands"][1:]


def first_clause(meaning):
    """The beginning of a meaning, without backquotes, for short descriptions."""
    return re.split(r"[.:;](?: |$)", CODE.sub(r"\1", meaning))[0]


# --- Manual pages: man(7). ---

def roff(text):
    """A word or line as literal text."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\\&" + text if text.startswith(".") else text


def prose(text):
    """Sentences, one on each line; text between backquotes is bold."""
    pieces = []
    for index, piece in enumerate(CODE.split(text)):
        pieces.append(f"\\fB{roff(piece)}\\fR" if index % 2 else
                      piece.replace("\\", "\\e").replace("'", "\\(cq"))
    text = re.sub(r"(?<=[a-z0-9)R][.:?!]) (?=[A-Z\\])", "\n", "".join(pieces))
    return "\n".join("\\&" + line if line.startswith((".", "'")) else line
                     for line in text.split("\n"))


def page_name(command):
    """The name of a command's page."""
    return "xseg-" + command["name"] if command["name"] else "xseg"


def man_synopsis(command):
    """The synopsis of a command; words in capitals are placeholders."""
    usage = ("[OPTION]... " if command["name"] else "") + command["usage"]
    usage = re.sub(r"[A-Z]+", lambda word: f"\\fI{word[0]}\\fR", usage)
    return f"\\fB{page_name(command).replace('-', ' ')}\\fR {usage}".rstrip()


def man_option(option):
    """The term of an option: -v, --verbose; --check[=HOW]."""
    term = f"\\fB\\-{option['letter']}\\fR, " if option["letter"] else ""
    term += f"\\fB{roff('--' + option['name'])}\\fR"
    if option["takes"] != "nothing":
        argument = f"\\fI{option['argument']}\\fR"
        term += f"[={argument}]" if option["optional_argument"] else f" {argument}"
    return term


def man_keys(tool):
    """The section of configuration keys."""
    keys = json.loads(subprocess.run([tool, "config", "--keys", "--json"], check=True,
                                     capture_output=True, text=True).stdout)["keys"]
    lines = [".SH KEYS"]
    for key in keys:
        effect = "" if key["has_effect"] else " No effect."
        lines += [".TP", f"\\fB{roff(key['name'])}\\fR",
                  prose(f"Takes {key['accepted_values']}; default {key['default']}.{effect} {key['meaning']}")]
    return lines


def man_page(version, command, commands, keys):
    """Make a page.  `commands` are the commands of SEE ALSO, `keys` is the section of configuration keys."""
    name = page_name(command)
    lines = [f'.TH {roff(name.upper())} 1 "" "xseg {version}" "xseg manual"',
             ".SH NAME", f"{roff(name)} \\- {prose(command['summary'])}",
             ".SH SYNOPSIS", man_synopsis(command),
             ".SH DESCRIPTION", "\n.PP\n".join(prose(part) for part in command["description"].split("\n\n"))]
    if not command["name"]:
        lines += [".SH COMMANDS"]
        for other in commands:
            lines += [".TP", f"\\fB{roff(page_name(other))}\\fR(1)", prose(other["summary"])]
    lines.append(".SH OPTIONS")
    for option in command["options"]:
        lines += [".TP", man_option(option), prose(option["meaning"])]
    if command["name"] == "config":
        lines += keys
    lines.append(".SH EXIT STATUS")
    for status, meaning in command["exits"]:
        lines += [".TP", f"\\fB{status}\\fR", prose(meaning)]
    lines.append(".SH EXAMPLES")
    for line, does in command["examples"]:
        lines += [".TP", f"\\fB{roff(line)}\\fR", prose(does)]
    names = ["xseg"] if command["name"] else []
    names += [page_name(other) for other in commands if other is not command]
    lines += [".SH SEE ALSO", ",\n".join(f"\\fB{roff(name)}\\fR(1)" for name in names)]
    return "\n".join(lines) + "\n"


def write_manual(version, tool, commands, keys, folder):
    """Write all pages."""
    for command in (tool, *commands):
        pathlib.Path(folder, page_name(command) + ".1").write_text(
            man_page(version, command, commands, keys), encoding="utf-8")


# --- Completion: bash. ---

BASH = r"""# Completion of xseg for bash; made from the tables of the tool.

_xseg()
{
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command='' option='' words='' prefix='' word
    COMPREPLY=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ $word == -* ]] || { command=$word; break; }
    done
    # --option=value is three words, unless '=' does not break them.
    if [[ $current == '=' ]]; then
        option="$previous=" current=''
    elif [[ $previous == '=' ]]; then
        option="${COMP_WORDS[COMP_CWORD - 2]}="
    elif [[ $current == --*=* ]]; then
        option="${current%%=*}=" prefix="${current%%=*}=" current=${current#*=}
    else
        option=$previous
    fi
    case "$command $option" in
@VALUES@
    *)
        case "$command $current" in
@OPTIONS@
@OPERANDS@
        esac
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -P "$prefix" -W "$words" -- "$current")
}

complete -F _xseg xseg
"""
BASH_FILES = """compopt -o filenames 2>/dev/null
{indent}mapfile -t COMPREPLY < <(compgen -P "$prefix" -f -- "$current")
{indent}return ;;"""


def spellings(command, option, is_split):
    """The patterns of an option before its value: in a separate word, or with '='."""
    names = [f'"{command} --{option["name"]}="']
    if is_split and not option["optional_argument"]:
        names.insert(0, f'"{command} --{option["name"]}"')
    return " | ".join(names)


def bash_value(command, option):
    """The bash code that completes the value of an option."""
    if option["takes"] == "file":
        does = BASH_FILES.format(indent=" " * 8)
    elif option["takes"] == "choice":
        # A path contains one of these characters, and no word does.
        does = (f"words='{' '.join(option['words'])}'\n        [[ $current != *[/.]* ]] || {{\n            " +
                BASH_FILES.format(indent=" " * 12).replace("return ;;", "return\n        } ;;"))
    elif option["words"]:
        does = f"words='{' '.join(option['words'])}' ;;"
    else:
        does = "return ;;"
    return f"    {spellings(command, option, True)})\n        {does}"


def long_and_short(options):
    """List all spellings of options."""
    return " ".join(["--" + option["name"] for option in options] +
                    ["-" + option["letter"] for option in options if option["letter"]])


def bash(tool, commands):
    """The completion for bash."""
    names = " ".join(command["name"] for command in commands)
    values, options, operands = [], [], []
    for command in (tool, *commands):
        name = command["name"]
        values += [bash_value(name, option) for option in command["options"]
                   if option["takes"] != "nothing"]
        options.append(f'        "{name} -"*) words=\'{long_and_short(command["options"])}\' ;;')
        if command["operands"] == "commands":
            operands.append(f'        "{name} "*) words=\'{names}\' ;;')
        elif command["operands"] == "files":
            operands.append(f'        "{name} "*)\n            ' +
                            BASH_FILES.format(indent=" " * 12))
        elif command["operands"] == "program":
            operands.append(f'        "{name} "*)\n            ' +
                            BASH_FILES.format(indent=" " * 12).replace("-f --", "-c -f --"))
    return BASH.replace("@VALUES@", "\n".join(values)).replace("@OPTIONS@", "\n".join(options)) \
        .replace("@OPERANDS@", "\n".join(operands))


# --- Completion: zsh. ---

def zsh_text(text):
    """Text inside single quotes and inside the brackets of _arguments."""
    return re.sub(r"([\[\]:\\])", r"\\\1", text).replace("'", "'\\''")


def zsh_option(option):
    """One option for _arguments."""
    name, letter = "--" + option["name"], option["letter"]
    text = f"[{zsh_text(first_clause(option['meaning']))}]"
    if option["takes"] == "nothing":
        if not letter:
            return f"'{name}{text}'"
        return f"'(-{letter} {name})'{{-{letter},{name}}}'{text}'"
    words = " ".join(option["words"])
    action = {"file": "_files",
              "choice": f"{{compadd {words}; [[ $PREFIX != *[/.]* ]] || _files}}"}.get(
                  option["takes"], f"({words})" if words else "")
    sign, colons = ("=-", "::") if option["optional_argument"] else ("=", ":")
    return f"'{name}{sign}{text}{colons}{option['argument']}:{action}'"


def zsh(tool, commands):
    """The completion for zsh."""
    names = [f"        '{command['name']}:{zsh_text(first_clause(command['summary']))}'"
             for command in commands]
    cases = []
    for command in commands:
        operands = {"files": "'*:FILE:_files'", "text": "'1:STRING:'",
                    "commands": "'1:command:_xseg_commands'", "program": "'*::program:_normal'",
                    "nothing": ""}[command["operands"]]
        rest = [zsh_option(option) for option in command["options"]]
        cases.append(f"    ({command['name']})\n        _arguments \\\n            " +
                     " \\\n            ".join([*rest, *filter(None, [operands])]) + "\n        ;;")
    top = " \\\n        ".join(zsh_option(option) for option in tool["options"])
    return "\n".join([
        "#compdef xseg", "# Completion of xseg for zsh; made from the tables of the tool.", "",
        "_xseg_commands() {", "    local -a commands=(", *names, "    )",
        "    _describe command commands", "}", "",
        "_xseg() {", "    local curcontext=$curcontext state line", "    typeset -A opt_args",
        f"    _arguments -C \\\n        {top} \\\n        '1:command:_xseg_commands' \\\n"
        "        '*::argument:->argument'",
        "    [[ $state == argument ]] || return", "    case $words[1] in", *cases, "    esac", "}",
        "", '_xseg "$@"', ""])


# --- Completion: fish. ---

def fish_text(text):
    """A string in single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish_option(condition, option):
    """One option for fish."""
    parts = ["complete -c xseg -n", fish_text(condition), "-l", option["name"]]
    if option["letter"]:
        parts += ["-s", option["letter"]]
    if option["takes"] == "file":
        parts += ["-r -F"]
    elif option["takes"] != "nothing":
        parts.append("-f" if option["optional_argument"] else "-x")
        words = " ".join(option["words"])
        if option["takes"] == "choice":
            words += " (string match -qr '[/.]' -- (commandline -ct); and __fish_complete_path (commandline -ct))"
        parts += ["-a", fish_text(words)] if words else []
    return " ".join([*parts, "-d", fish_text(first_clause(option["meaning"]))])


def fish(tool, commands):
    """The completion for fish."""
    names = " ".join(command["name"] for command in commands)
    lines = ["# Completion of xseg for fish; made from the tables of the tool.", "",
             "complete -c xseg -f"]
    lines += [fish_option("__fish_use_subcommand", option) for option in tool["options"]]
    for command in commands:
        name, seen = command["name"], f"__fish_seen_subcommand_from {command['name']}"
        lines += ["", f"complete -c xseg -n __fish_use_subcommand -a {name} -d " +
                  fish_text(first_clause(command["summary"]))]
        if command["operands"] == "files":
            lines.append(f"complete -c xseg -n {fish_text(seen)} -F")
        if command["operands"] == "program":
            lines.append(f"complete -c xseg -n {fish_text(seen)} -x -a '(__fish_complete_subcommand --fcs-skip=2)'")
        if command["operands"] == "commands":
            lines.append(f"complete -c xseg -n {fish_text(seen)} -a {fish_text(names)}")
        lines += [fish_option(seen, option) for option in command["options"]]
    return "\n".join(lines) + "\n"


def main(program, kind, output):
    """Make one kind of page."""
    version, tool, commands = read_descriptors(program)
    if kind == "man":
        write_manual(version, tool, commands, man_keys(program), output)
    else:
        shells = {"bash": bash, "zsh": zsh, "fish": fish}
        pathlib.Path(output).write_text(shells[kind](tool, commands), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
