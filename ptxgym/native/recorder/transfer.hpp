// Copies, uploads and fills, for the runtime and the driver alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace recorder {

enum class Direction { to_device, from_device, on_device, on_host, by_address };

// Record a copy. Return what a real driver would object to, or an empty text; a copy to the host ends the recording.
std::string transfer(const char* call, const void* target, const void* source, std::size_t bytes, Direction direction,
                     int stream);

// Record `rows` fills of `count` elements of `width_bytes`, `pitch_bytes` apart.
std::string fill(std::uint64_t target, std::uint32_t value, unsigned width_bytes, std::size_t count, std::size_t rows,
                 std::size_t pitch_bytes, int stream);

}  // namespace recorder
