// Tensor maps: checked, recorded, and written as 128 bytes that name their index and are found again wherever they go.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace recorder {

// Enumerations are whatever number the host code gave, which need not be one of their values.
struct TensorMapRequest {
    int data_type;
    std::uint32_t rank;
    std::uint64_t address;
    const std::uint64_t* dim;
    const std::uint64_t* strides;
    const std::uint32_t* box;
    const std::uint32_t* element_strides;
    int interleave, swizzle, l2_promotion, oob_fill;
};

// Return what is wrong with the arguments (field, value and rule), or an empty text.
std::string tensor_map_problem(const void* map, const TensorMapRequest& request);

// Record the map and write its tag to `map`.
void record_tensor_map(void* map, const TensorMapRequest& request);

}  // namespace recorder
