// A call with everything ready that costs time: memory is filled, maps are encoded, parameters are patched.
#pragma once

#include <memory>
#include <vector>

#include "memory.hpp"
#include "plan.hpp"

namespace executor {

// An operation with everything resolved that costs time: only driver calls are left.
struct Step {
    const Operation* operation;
    int index;
    CUstream stream;
    std::vector<CUevent> waits;
    CUevent done = nullptr;  // recorded behind it, where another stream waits for it
    bool programmatic = false;
    CUdeviceptr target = 0, source = 0;
    std::vector<Bytes> params;
    std::vector<void*> param_pointers;
};

struct Prepared {
    std::vector<std::unique_ptr<PrivateBuffer>> buffers;  // null for variables of the module
    std::vector<CUtensorMap> tensor_maps;
    std::unique_ptr<PrivateBuffer> staging;
    std::vector<CUdeviceptr> staged;  // by operation
    std::vector<Step> steps;
    std::vector<CUstream> side_streams;
    CUevent forked = nullptr;
    std::vector<CUevent> joined;
};

// Fills `count` elements of `width` bytes; throws Malformed for other widths than 1, 2 and 4.
void fill_range(CUdeviceptr start, std::uint64_t count, std::uint32_t value, std::uint32_t width, CUstream stream);

}  // namespace executor
