// Function attributes, for the runtime and the driver alike.
#pragma once

#include <optional>
#include <string>

#include "state.hpp"

namespace recorder {

enum class FunctionAttribute { max_dynamic_smem, carveout, non_portable_cluster, ignored };

// Set and record an attribute; return what a real driver would object to, or an empty text.
std::string set_function_attribute(Kernel& kernel, FunctionAttribute attribute, int value);

// Dynamic shared memory that a launch may ask for at present.
int dynamic_smem_limit(const Kernel& kernel);

}  // namespace recorder
