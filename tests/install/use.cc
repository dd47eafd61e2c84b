// SPDX-License-Identifier: MIT
// A C++ program of a user: handles in smart pointers, blocks in a small class.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include <xseg/xseg.h>

static void expect(xseg_status status)
{
    if (status == XSEG_OK)
        return;
    std::string message(xseg_error_message(nullptr, 0) + 1, '\0');
    xseg_error_message(&message[0], message.size());
    throw std::runtime_error(message);
}

struct closer {
    void operator()(xseg_allocator *allocator) const
    {
        if (xseg_close(allocator) != XSEG_OK)
            std::terminate();
    }
};

class block
{
  public:
    block(xseg_allocator *owner, std::size_t bytes) : allocator(owner)
    {
        expect(xseg_alloc(allocator, 0, bytes, nullptr, &address));
    }
    ~block()
    {
        if (xseg_free(allocator, address) != XSEG_OK)
            std::terminate();
    }
    block(const block &) = delete;
    block &operator=(const block &) = delete;

  private:
    xseg_allocator *allocator;
    void *address = nullptr;
};

static std::uint64_t allocated_blocks(xseg_allocator *allocator)
{
    struct xseg_statistics stats = {};
    xseg_scope scope = XSEG_SCOPE_ALL;

    stats.struct_size = sizeof(stats);
    scope.device = 0;
    expect(xseg_stats_get(allocator, &scope, &stats));
    return stats.allocation[XSEG_STAT_ALL].current;
}

int main()
{
    try {
        xseg_allocator *opened = nullptr;
        expect(xseg_open(nullptr, nullptr, &opened));
        const std::unique_ptr<xseg_allocator, closer> allocator(opened);
        {
            const block small(opened, 512), large(opened, std::size_t{64} << 20);
            if (allocated_blocks(opened) != 2)
                throw std::runtime_error("statistics do not count two allocated blocks");
        }
        if (allocated_blocks(opened) != 0)
            throw std::runtime_error("statistics count freed blocks");
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return std::puts(XSEG_VERSION_TEXT) < 0;
}
