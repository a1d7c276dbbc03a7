// Attributes, properties and limits of the device that the profile describes.
#pragma once

#include <optional>

#include <cuda_runtime_api.h>

namespace recorder {

// Runtime and driver number their device attributes alike; nothing for a number that names none.
std::optional<int> device_attribute(int attribute);
void fill_properties(cudaDeviceProp& properties);
std::optional<std::size_t> device_limit(int limit);

}  // namespace recorder
