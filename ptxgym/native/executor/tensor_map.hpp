// Tensor maps, encoded by the driver for the addresses of one call.
#pragma once

#include "driver.hpp"
#include "plan.hpp"

namespace executor {

// The map over the tensor that starts at `address`; throws DriverError if the driver refuses it.
CUtensorMap encode(const TensorMap& map, CUdeviceptr address);

}  // namespace executor
