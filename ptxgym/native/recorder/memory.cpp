#include "memory.hpp"

#include <algorithm>
#include <deque>
#include <sys/mman.h>

#include "state.hpp"
#include "wire.hpp"

namespace recorder {
namespace {

constexpr std::uint64_t granule = std::uint64_t{2} << 20;
// cudaMalloc of a small size returns addresses that are multiples of 512 and of nothing more (measured on an H200).
constexpr std::uint64_t alignment = 512;
constexpr std::uint64_t range_bytes = std::uint64_t{1} << 40;
constexpr std::uint64_t workspace_limit_bytes = std::uint64_t{4} << 30;
constexpr std::size_t buffer_limit = 4096;

std::uint64_t range_begin = 0, range_spacing = 0, cursor = 0;
std::deque<Buffer> buffers;  // by address, since addresses are never used twice

}  // namespace

void reserve_device_range(std::uint64_t base, std::uint64_t spacing) {
    void* wanted = reinterpret_cast<void*>(base);
    void* got =
        mmap(wanted, range_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != wanted) fail("infra.reservation", "the recorder could not reserve its range of device addresses");
    range_begin = base;
    range_spacing = spacing;
    cursor = base + granule;
}

bool in_device_range(std::uint64_t address) { return address - range_begin < range_bytes; }

std::uint64_t add_buffer(const std::string& name, std::uint64_t bytes, Role role, bool in_stream_order) {
    if (state().used.buffers++ >= buffer_limit)
        fail("plan.buffer_limit", format("more than %zu device allocations", buffer_limit));
    const std::uint64_t address = cursor + alignment;
    const std::uint64_t taken = (bytes + alignment + granule - 1) / granule * granule;
    // Room before and after, so that a pointer a little out of bounds still tells which buffer it came from.
    cursor += taken + granule + range_spacing;
    if (!in_device_range(cursor))
        fail("plan.workspace_limit", "device allocations exceed the recorder's range of 1 TiB");
    buffers.push_back({name, address, bytes, role, false});
    static const char* const roles[] = {"argument", "workspace", "symbol"};
    Line("buffer")
        .field("name", name)
        .field("role", roles[static_cast<int>(role)])
        .field("address", address)
        .field("bytes", bytes)
        .field("in_stream_order", in_stream_order)
        .send();
    return address;
}

std::uint64_t allocate_workspace(const char* call, std::uint64_t bytes, bool in_stream_order) {
    static int count = 0;
    std::uint64_t& workspace_bytes = state().used.workspace_bytes;
    if (bytes > workspace_limit_bytes || workspace_bytes + bytes > workspace_limit_bytes) {
        fail("plan.workspace_limit",
             format("%s of %llu bytes: a plan may allocate %llu bytes of workspace in all, and has %llu already", call,
                    static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(workspace_limit_bytes),
                    static_cast<unsigned long long>(workspace_bytes)));
    }
    workspace_bytes += bytes;
    return add_buffer("workspace" + std::to_string(count++), bytes, Role::workspace, in_stream_order);
}

const Buffer* nearest_buffer(std::uint64_t address) {
    const Buffer* found = nullptr;
    for (const Buffer& buffer : buffers) {
        if (buffer.address > address) break;
        found = &buffer;
    }
    return found;
}

Buffer* find_buffer(std::uint64_t address, std::uint64_t bytes) {
    auto* buffer = const_cast<Buffer*>(nearest_buffer(address));
    if (buffer == nullptr || buffer->freed) return nullptr;
    const std::uint64_t offset = address - buffer->address;
    return offset <= buffer->bytes && bytes <= buffer->bytes - offset ? buffer : nullptr;
}

bool free_workspace(std::uint64_t address) {
    Buffer* buffer = find_buffer(address, 0);
    if (buffer == nullptr || buffer->address != address || buffer->role != Role::workspace) return false;
    buffer->freed = true;
    Line("free").field("name", buffer->name).send();
    return true;
}

}  // namespace recorder
