/* SPDX-License-Identifier: MIT */
/* A registrar that registers nowhere, for tests of what the library tells of registrations. */
#ifndef XSEG_TESTS_REGISTRAR_H
#define XSEG_TESTS_REGISTRAR_H

#include "xseg/register.h"

static bool registrar_enter(void *context, struct xseg_registered *run)
{
    (void)context;
    (void)run;
    return true;
}

static void registrar_leave(void *context, const struct xseg_registered *run)
{
    (void)context;
    (void)run;
}

static inline struct xseg_registrar registrar_of_nothing(bool pin)
{
    struct xseg_registrar registrar = {sizeof(registrar)};

    registrar.enter = registrar_enter;
    registrar.leave = registrar_leave;
    registrar.pin = pin;
    return registrar;
}

#endif
