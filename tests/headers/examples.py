# SPDX-License-Identifier: MIT
"""The examples at the beginning of each public header compile in C11 and in C++17, and the C examples of README.md and docs
that are not complete programs compile in C11.  The suite install compiles the complete programs.

examples.py ROOT CC... [-- CXX...]   prints TAP

An example is a block of the header's comment that is indented by five columns and contains statements.  It begins with its
functions; the statements after them become the body of a function.  PRELUDE declares the names that the examples do not.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

# Headers without examples: xseg.h includes all headers, and version.h contains only constants.
WITHOUT_EXAMPLES = {"xseg.h", "version.h"}
COMMON = """#include <stdio.h>
#include <stdlib.h>
#include <xseg/{header}>
#include <xseg/allocator.h>
extern struct xseg_allocator *allocator, *importer;
extern void *block, *base, *weights, *cache;
extern size_t bytes;
extern uint64_t id, offset;
extern xseg_stream stream, stream_a, stream_b;
extern xseg_status status;
void use(void *address);
"""
PRELUDE = {
    "allocator.h": "int cudaStreamDestroy(xseg_stream);\n",
    "ipc.h": "#include <xseg/xseg.h>\nextern struct cudaIpcMemHandle_st handle;\n"
             "int cudaIpcGetMemHandle(struct cudaIpcMemHandle_st *, void *);\n",
    "observer.h": "bool cache_shrink(void *, uint64_t);\n",
    "pool.h": "struct graph *graph;\nextern struct xseg_pool *pool;\nenum { cudaStreamCaptureModeGlobal };\n"
              "int cudaStreamBeginCapture(xseg_stream, int);\nint cudaStreamEndCapture(xseg_stream, struct graph **);\n",
    "range.h": "extern struct xseg_range *range;\n",
    "register.h": "bool register_run(void *, struct xseg_registered *);\n"
                  "void deregister_run(void *, const struct xseg_registered *);\n",
    "share.h": "extern struct xseg_export_token token;\n",
}


def examples(header):
    """The functions and the statements of each example in a header."""
    comment = re.search(r"^/\*\n(.*?)^ \*/", header.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[1]
    blocks = [block for block in re.findall(r"(?<= \*\n)(?:^ \*     .*\n)+", comment, re.MULTILINE)
              if re.search(r";( *//.*)?$", block, re.MULTILINE)]
    if not blocks:
        raise ValueError(f"{header.name} has no example")
    for block in blocks:
        text = re.sub(r"^ \*     ", "", block, flags=re.MULTILINE)
        functions = re.match(r"(?:static .*?^\}\n)*", text, re.DOTALL | re.MULTILINE)[0]
        yield functions, text[len(functions):]


def page_examples(page):
    """The functions, which are empty, and the statements of each example of a page that is not a complete program."""
    for block in re.findall(r"^```c\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        if "main(" not in block:
            yield "", block


def compile_examples(compilers, include, header, folder):
    """Compile the examples of a header or a page; returns the messages of the compilers, or an empty string."""
    errors, is_page = "", header.suffix == ".md"
    for functions, statements in page_examples(header) if is_page else examples(header):
        program = (COMMON.format(header="xseg.h" if is_page else header.name) + PRELUDE.get(header.name, "") + functions +
                   "int example(void);\nint example(void)\n{\n" + statements + "return 0;\n}\n")
        for language, compiler in compilers.items():
            if is_page and language != "c":
                continue
            source = folder / f"{header.stem}.{language}"
            source.write_text(program, encoding="utf-8")
            flags = ["-std=c++17", "-x", "c++"] if language == "cc" else ["-std=gnu11", "-Werror=implicit-function-declaration"]
            result = subprocess.run([*compiler, *flags, "-fsyntax-only", f"-I{include}", source], check=False,
                                    capture_output=True, text=True)
            errors += "" if result.returncode == 0 else result.stderr
    return errors


def main(root, *arguments):
    """Print TAP; returns the exit status."""
    include, arguments = pathlib.Path(root) / "include", list(arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    compilers = {language: compiler for language, compiler in (("c", arguments[:end]), ("cc", arguments[end + 1:])) if compiler}
    headers = [header for header in sorted((include / "xseg").glob("*.h")) if header.name not in WITHOUT_EXAMPLES]
    pages = [pathlib.Path(root) / "README.md", *sorted(pathlib.Path(root).glob("docs/*.md"))]
    headers += [page for page in pages if list(page_examples(page))]
    failed = 0
    print(f"1..{len(headers)}")
    with tempfile.TemporaryDirectory() as folder:
        for number, header in enumerate(headers, 1):
            errors = compile_examples(compilers, include, header, pathlib.Path(folder))
            failed += bool(errors)
            print(f"{'not ok' if errors else 'ok'} {number} - the examples of {header.name} compile")
            print("".join(f"# {line}\n" for line in errors.splitlines()), end="", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
