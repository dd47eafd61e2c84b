/* SPDX-License-Identifier: MIT */
/*
 * Which exported symbol of a loaded module an address belongs to, as dladdr() says it.
 *
 * dladdr() takes the lock that a thread holds while it runs the constructors of a library it loads.  Such a
 * constructor may call this library; so nothing here may wait for that lock.  And dladdr() looks at
 * all symbols for every address, which takes 0.4 ms in a library of 60,000.  Here they are sorted at
 * the first question.
 *
 * Locking: the owner's lock covers everything.  The module must stay loaded during a call: modules.h.
 */
#ifndef XSEG_BASE_SYMBOLS_H
#define XSEG_BASE_SYMBOLS_H

#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/bump.h"

/* Where a loaded module has its symbols. */
struct xseg_symbol_table {
    const ElfW(Sym) * symbols; /* NULL if it exports none */
    uint32_t count;
    const char *names;
    size_t name_bytes;
};

/* The numbers of a module's functions, by address.  It is the same wherever the module is loaded. */
struct xseg_symbol_order {
    const uint32_t *number; /* NULL if there is none, or was no room for it */
    uint32_t count;
    bool was_tried; /* by the first question */
};

/* A symbol: the name lies in the module. */
struct xseg_symbol {
    const char *name;
    size_t name_bytes; /* without its terminator, which need not be there */
    uint64_t offset;   /* of the symbol in the module */
};

/*
 * Find the symbols of a module.
 *
 * base: the difference between its addresses in memory and in the file
 * dynamic: its dynamic section in memory
 * start, end: the addresses that it takes; what does not lie there is not believed
 */
void xseg_symbols_read(struct xseg_symbol_table *table, uintptr_t base, const ElfW(Dyn) * dynamic,
                       uintptr_t start, uintptr_t end);

/*
 * Find the function that the offset in a module belongs to.
 *
 * order: filled at the first question.  Without room in `memory` all symbols are looked at instead.
 *
 * Returns: false, and nothing is written, if no symbol has it
 */
bool xseg_symbols_find(const struct xseg_symbol_table *table, struct xseg_symbol_order *order,
                       struct xseg_bump *memory, uint64_t offset, struct xseg_symbol *out);

#endif
