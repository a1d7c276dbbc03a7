// Device memory as host code sees it: addresses in a reservation that is never accessible.
#pragma once

#include <cstdint>
#include <string>

namespace recorder {

enum class Role { argument, workspace, symbol };

struct Buffer {
    std::string name;
    std::uint64_t address = 0, bytes = 0;
    Role role = Role::workspace;
    bool freed = false;
};

// Reserve the range; `spacing` is the extra gap after each buffer, by which two recordings differ.
void reserve_device_range(std::uint64_t base, std::uint64_t spacing);
bool in_device_range(std::uint64_t address);

std::uint64_t add_buffer(const std::string& name, std::uint64_t bytes, Role role, bool in_stream_order = false);
// `in_stream_order`: the memory may be what a kernel still at work had freed in a stream (cudaMallocAsync).
std::uint64_t allocate_workspace(const char* call, std::uint64_t bytes, bool in_stream_order = false);

// Return the buffer that holds [address, address + bytes), or nullptr; a freed buffer holds nothing.
Buffer* find_buffer(std::uint64_t address, std::uint64_t bytes);
// Return the last buffer that starts at or before `address`, freed or not; for messages. Allocates nothing.
const Buffer* nearest_buffer(std::uint64_t address);
bool free_workspace(std::uint64_t address);

}  // namespace recorder
