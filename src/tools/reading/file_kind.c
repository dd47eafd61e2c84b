/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/file_kind.h"

#include <ctype.h>
#include <string.h>

#include "src/tools/output/message.h"
#include "src/tools/reading/pickle.h"

#define QUOTED_MAX 24u /* bytes of a text file that are shown */

#define OLD_PICKLE \
    "a pickle of protocol 0 or 1; pickle.dump(value, file, 4) writes one that xseg reads"
#define BYTES(text) text, sizeof(text) - 1

/* Files that are identified by their first bytes, or by bytes at an offset. */
static const struct signature {
    const char *description;
    const char *bytes;
    size_t count, offset;
    const char *decompressor; /* the program that decompresses the file; NULL: not compressed */
} signatures[] = {
    {"a gzip file", BYTES("\x1f\x8b"), 0, "gzip"},
    {"a bzip2 file", BYTES("BZh"), 0, "bzip2"},
    {"an xz file",
     BYTES("\xfd"
           "7zXZ"),
     0, "xz"},
    {"an LZ4 file", BYTES("\x04\x22\x4d\x18"), 0, "lz4"},
    {"a tar archive; unpack it and use the file in it", BYTES("ustar"), 257, NULL},
    {"a 7z archive; unpack it and use the file in it", BYTES("7z\xbc\xaf\x27\x1c"), 0, NULL},
    {"a program or library (ELF)",
     BYTES("\x7f"
           "ELF"),
     0, NULL},
    {"a checkpoint that torch.save() of an old release wrote",
     BYTES("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"), 0, NULL},
    {"an array of NumPy", BYTES("\x93NUMPY"), 0, NULL},
    {"an SQLite database, as Nsight Systems exports one", BYTES("SQLite format 3"), 0, NULL},
    {"a PNG image", BYTES("\x89PNG"), 0, NULL},
    {"a PDF document", BYTES("%PDF"), 0, NULL},
    {"the statistics that a process publishes; `xseg top` shows them", BYTES("xseg-top"), 0, NULL},
    {"an export of memory for other processes", BYTES("xsegshr"), 0, NULL},
    {"a dump of metrics (Prometheus' text format)", BYTES("# HELP "), 0, NULL},
    {"a dump of metrics (Prometheus' text format)", BYTES("# TYPE "), 0, NULL},
    {"a timeline that `xseg replay --timeline` wrote", BYTES("# usec\t"), 0, NULL},
    {"a timeline that `xseg replay --timeline` wrote", BYTES("# event\t"), 0, NULL},
    {"a trace, which `xseg replay` and `xseg advise` read; other commands read memory snapshots",
     BYTES("xtrace "), 0, NULL},
    {"UTF-8 text with a byte order mark; remove its first three bytes", BYTES("\xef\xbb\xbf"), 0,
     NULL},
    {"UTF-16 text; convert it to UTF-8", BYTES("\xff\xfe"), 0, NULL},
    {"UTF-16 text; convert it to UTF-8", BYTES("\xfe\xff"), 0, NULL},
    {OLD_PICKLE, BYTES("(dp0\n"), 0, NULL},
    {OLD_PICKLE, BYTES("(lp0\n"), 0, NULL},
    {OLD_PICKLE, BYTES("}q"), 0, NULL},
    {OLD_PICKLE, BYTES("]q"), 0, NULL},
};

/* The first bytes of a file. */
struct begin {
    const unsigned char *bytes;
    size_t count;
};

static bool contains_at(const struct begin *begin, size_t offset, const char *bytes, size_t count)
{
    return begin->count >= offset + count && memcmp(begin->bytes + offset, bytes, count) == 0;
}

static bool contains(const struct begin *begin, const char *text)
{
    return memmem(begin->bytes, begin->count, text, strlen(text)) != NULL;
}

/* Find the offset of the first byte that is no white space. */
static size_t skip_space(const struct begin *begin)
{
    size_t at = 0;

    while (at < begin->count && isspace(begin->bytes[at]))
        at++;
    return at;
}

static bool is_text(const struct begin *begin)
{
    for (size_t i = 0; i < begin->count; i++)
        if (begin->bytes[i] < ' ' && !isspace(begin->bytes[i]))
            return false;
    return true;
}

/* Safetensors begin with the size of a JSON object, in 64 bits, and the object. */
static bool is_safetensors(const struct begin *begin)
{
    return begin->count > 9 && begin->bytes[7] == 0 && begin->bytes[6] == 0 &&
           contains_at(begin, 8, "{\"", 2);
}

/* A Perfetto trace is a sequence of messages, each in field 1. */
static bool is_perfetto(const struct begin *begin)
{
    size_t at = 0;

    for (unsigned packets = 0; packets < 3; packets++) {
        if (at + 2 >= begin->count || begin->bytes[at] != 0x0a || begin->bytes[at + 1] >= 0x80)
            return false;
        at += 2 + (size_t)begin->bytes[at + 1];
    }
    return true;
}

static bool is_html(const struct begin *begin)
{
    const size_t at = skip_space(begin);
    char word[10] = "";

    for (size_t i = 0; i + 1 < sizeof(word) && at + i < begin->count; i++)
        word[i] = (char)tolower(begin->bytes[at + i]);
    return strcmp(word, "<!doctype") == 0 || strncmp(word, "<html", 5) == 0;
}

static const char *describe_zip(const struct begin *begin)
{
    if (contains(begin, "/data.pkl") || contains(begin, "/version") ||
        contains(begin, "/byteorder"))
        return "a checkpoint that torch.save() wrote, or a model of TorchScript";
    if (contains(begin, ".npy"))
        return "arrays of NumPy (.npz)";
    return "a zip archive; unpack it and use the file in it";
}

/* Describe a JSON file. */
static const char *describe_json(const struct begin *begin)
{
    const size_t at = skip_space(begin);
    const bool is_list = begin->bytes[at] == '[';

    if (contains(begin, "\"traceEvents\"") || contains(begin, "\"deviceProperties\"") ||
        contains(begin, "\"schemaVersion\"") || contains(begin, "\"displayTimeUnit\"") ||
        (is_list && contains(begin, "\"ph\"")))
        return "a trace of torch.profiler (Chrome's JSON), which ui.perfetto.dev opens; a memory "
               "snapshot is what " FILE_KIND_SNAPSHOT " writes";
    if (contains(begin, "{\"number\":1,\"line\":"))
        return "a history that `xseg replay --history` wrote, one object a line";
    if (is_list) {
        for (size_t next = at + 1; next < begin->count; next++)
            if (begin->bytes[next] == '[')
                return "a JSON list of lists, as export_memory_timeline() of torch.profiler writes";
            else if (!isspace(begin->bytes[next]))
                break;
    }
    if (contains(begin, "\"segments\"") || contains(begin, "\"device_traces\""))
        return "a memory snapshot as JSON; xseg reads pickles, and "
               "pickle.dump(json.load(file), out, 4) of Python converts it";
    return "a JSON file; a memory snapshot is a pickle, which " FILE_KIND_SNAPSHOT " writes";
}

static const struct signature *find_signature(const struct begin *begin)
{
    for (size_t i = 0; i < sizeof(signatures) / sizeof(signatures[0]); i++)
        if (contains_at(begin, signatures[i].offset, signatures[i].bytes, signatures[i].count))
            return &signatures[i];
    return NULL;
}

/* Describe a file without a signature. */
static const char *describe_unsigned(const struct begin *begin)
{
    const size_t at = skip_space(begin);

    if (contains_at(begin, 0, "PK\x03\x04", 4))
        return describe_zip(begin);
    if (is_safetensors(begin))
        return "a file of tensors (safetensors)";
    if (is_html(begin))
        return contains(begin, "<title>xseg view</title>")
                   ? "a page that `xseg view` wrote, which a browser opens"
                   : "a page of HTML";
    if (at < begin->count && (begin->bytes[at] == '{' || begin->bytes[at] == '['))
        return describe_json(begin);
    if (is_perfetto(begin))
        return "a trace of Perfetto, which ui.perfetto.dev opens";
    return is_text(begin) ? "a text file" : "binary data of no known format";
}

static void describe_text(const struct begin *begin, char *out, size_t capacity)
{
    size_t count = 0;

    while (count < begin->count && count < QUOTED_MAX && begin->bytes[count] &&
           !strchr("\r\n", begin->bytes[count]))
        count++;
    (void)snprintf(out, capacity,
                   "unsupported file, a text file that begins with '%.*s'; " FILE_KIND_READ,
                   (int)count, (const char *)begin->bytes);
}

bool file_kind_describe(struct input *input, char *out, size_t capacity)
{
    struct begin begin;
    const struct signature *signature;
    const char *description;

    begin.count = input_begin(input, &begin.bytes);
    if (begin.count == 0) {
        if (input_is_folder(input))
            (void)snprintf(
                out, capacity,
                "unsupported file, a folder; `xseg compare`, `xseg blame` and `xseg advise` read "
                "folders with a snapshot of each rank");
        else if (!input_error(input))
            (void)snprintf(out, capacity, "the file is empty; " FILE_KIND_READ);
        return input_is_folder(input) || !input_error(input);
    }
    signature = find_signature(&begin);
    if (!signature && begin.bytes[0] == PICKLE_PROTO)
        return false;
    if (signature && signature->decompressor) {
        (void)snprintf(out, capacity,
                       "unsupported file, %s; decompress it first: `%s -dc FILE | %s -`",
                       signature->description, signature->decompressor, message_program());
        return true;
    }
    description = signature ? signature->description : describe_unsigned(&begin);
    if (strcmp(description, "a text file") == 0)
        describe_text(&begin, out, capacity);
    else
        (void)snprintf(out, capacity, "unsupported file, %s%s", description,
                       strchr(description, ';') ? "" : "; " FILE_KIND_READ);
    return true;
}
