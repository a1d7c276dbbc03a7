// Where in the submission's host code the present call comes from.
#pragma once

#include <cstddef>
#include <cstdint>

namespace recorder {

// Calls in the submission's library, innermost first, as offsets in it. The parent reads lines from them.
struct Frames {
    static constexpr std::size_t limit = 8;
    std::uint64_t offsets[limit];
    std::size_t count = 0;
};

// Frames in other libraries than the one behind this handle of dlopen are left out, and all before this call.
void watch_library(void* handle);

// The present frames; safe in signal handlers: walks the stack without locks or memory of its own.
Frames here();

// `kernel<<<...>>>(...)` is two calls: the second comes from generated code, which belongs to no line. Until it is
// `placed`, `here` answers with where the first came from.
void place_next_launch(const Frames& frames);
void launch_is_placed();

}  // namespace recorder
