// Copies, uploads and fills, for the runtime and the driver alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace recorder {

enum class Direction { to_device, from_device, on_device, on_host, by_address };

// Where a copy goes, and whether the call returns only when an upload is there (cudaMemcpy) or at once
// (cudaMemcpyAsync). Copies on the device never hold the host up (CUDA runtime API, "API synchronization behavior").
struct Queue {
    int stream;
    bool host_waits;
};

// Record a copy. Return what a real driver would object to, or an empty text; a copy to the host ends the recording.
std::string transfer(const char* call, const void* target, const void* source, std::size_t bytes, Direction direction,
                     Queue queue);

// Record `rows` fills of `count` elements of `width_bytes`, `pitch_bytes` apart.
std::string fill(std::uint64_t target, std::uint32_t value, unsigned width_bytes, std::size_t count, std::size_t rows,
                 std::size_t pitch_bytes, int stream);

}  // namespace recorder
