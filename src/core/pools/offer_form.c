/* SPDX-License-Identifier: MIT */
#include "src/core/pools/offer_form.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/check.h"
#include "src/base/error.h"

#define PREFIX "xseg1:"

/* Hexadecimal digits of a random number. */
#define DIGITS 16u

_Static_assert(sizeof(PREFIX) + 20 + 1 + 20 + 1 + 10 + 1 + 3 * DIGITS + 1 <= XSEG_SHARE_TEXT_BYTES,
               "the longest text fits");

size_t xseg_offer_form_write(const struct xseg_offer_text *offer, char text[XSEG_SHARE_TEXT_BYTES])
{
    const int length =
        snprintf(text, XSEG_SHARE_TEXT_BYTES,
                 PREFIX "%" PRId64 ":%" PRIu64 ":%d:%016" PRIx64 ":%016" PRIx64 "%016" PRIx64,
                 offer->process, offer->start, offer->file, offer->socket, offer->token.word[0],
                 offer->token.word[1]);

    XSEG_ASSERT(length > 0 && length < (int)XSEG_SHARE_TEXT_BYTES);
    return (size_t)length + 1;
}

/* --- Reading. --- */

/* A text as it is read; a field that is wrong ends it. */
struct reader {
    const char *text, *at;
    const char *wrong; /* the field that is wrong; NULL: none */
};

static int value_of(char digit, unsigned base)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    return base == 16 && digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* Read a number up to `most`, and the character behind it unless that is 0. */
static uint64_t read_number(struct reader *reader, const char *field, unsigned base, uint64_t most,
                            char behind)
{
    const char *at = reader->at;
    uint64_t number = 0;
    unsigned digits = 0;

    if (reader->wrong != NULL)
        return 0;
    for (int value; (base == 10 || digits < DIGITS) && (value = value_of(*at, base)) >= 0; at++) {
        const uint64_t digit = (uint64_t)value;

        if (number > (most - digit) / base)
            break;
        number = number * base + digit;
        digits++;
    }
    if (digits == 0 || (base == 16 && digits != DIGITS) || (behind != '\0' && *at != behind)) {
        reader->wrong = field;
        return 0;
    }
    reader->at = behind == '\0' ? at : at + 1;
    return number;
}

xseg_status xseg_offer_form_read(const char *text, struct xseg_offer_text *out)
{
    struct reader reader = {text, text, NULL};
    struct xseg_offer_text offer;

    if (strncmp(text, PREFIX, sizeof(PREFIX) - 1) != 0)
        return xseg_fail(XSEG_ERR_ARGUMENT, "this is no text of xseg_export_text(): it does not "
                                            "begin with \"" PREFIX "\"");
    reader.at += sizeof(PREFIX) - 1;
    offer.process = (int64_t)read_number(&reader, "number of a process", 10, INT_MAX, ':');
    offer.start = read_number(&reader, "start of the process", 10, UINT64_MAX, ':');
    offer.file = (int)read_number(&reader, "descriptor", 10, INT_MAX, ':');
    offer.socket = read_number(&reader, "number of the socket", 16, UINT64_MAX, ':');
    offer.token.word[0] = read_number(&reader, "token", 16, UINT64_MAX, '\0');
    offer.token.word[1] = read_number(&reader, "token", 16, UINT64_MAX, '\0');
    if (reader.wrong == NULL && (*reader.at != '\0' || offer.process == 0))
        reader.wrong = *reader.at != '\0' ? "end" : "number of a process";
    if (reader.wrong != NULL)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "this text of a share has no valid %s at its character %td: give all of "
                         "what xseg_export_text() wrote",
                         reader.wrong, reader.at - text + 1);
    *out = offer;
    return XSEG_OK;
}

/* --- Processes and sockets. --- */

uint64_t xseg_offer_form_start(int64_t process)
{
    /* Of /proc/PROCESS/stat: the 20th field behind the name, which is in parentheses. */
    enum { FIELD = 20 };
    char path[64], line[1024];
    uint64_t start = 0;

    (void)snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", process);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    const ssize_t got = read(file, line, sizeof(line) - 1);
    (void)close(file);
    if (got <= 0)
        return 0;
    line[got] = '\0';
    const char *at = strrchr(line, ')');
    for (int field = 0; at != NULL && field < FIELD; field++)
        at = strchr(at + 1, ' ');
    return at != NULL && sscanf(at, " %" SCNu64, &start) == 1 ? start : 0;
}

bool xseg_offer_form_is_own_process(int64_t process)
{
    char path[64], text[4096];
    unsigned real = 0, effective = 0;

    (void)snprintf(path, sizeof(path), "/proc/%" PRId64 "/status", process);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    const ssize_t got = read(file, text, sizeof(text) - 1);
    (void)close(file);
    text[got > 0 ? got : 0] = '\0';
    const char *line = strstr(text, "\nUid:");
    return line != NULL && sscanf(line, "\nUid: %u %u", &real, &effective) == 2 &&
           effective == geteuid();
}

socklen_t xseg_offer_form_address(int64_t process, uint64_t socket, struct sockaddr_un *out)
{
    memset(out, 0, sizeof(*out));
    out->sun_family = AF_UNIX;
    /* A name that begins with a zero is in no file system. */
    const int length = snprintf(out->sun_path + 1, sizeof(out->sun_path) - 1,
                                "xseg-%" PRId64 "-%016" PRIx64, process, socket);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

bool xseg_offer_form_is_own(int socket)
{
    struct ucred other;
    socklen_t bytes = sizeof(other);

    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 &&
           bytes == sizeof(other) && other.uid == geteuid();
}
