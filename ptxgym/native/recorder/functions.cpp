#include "functions.hpp"

#include <algorithm>

#include "wire.hpp"

namespace recorder {

std::string set_function_attribute(Kernel& kernel, FunctionAttribute attribute, int value) {
    const int optin = state().profile.smem_optin_bytes;
    const char* name = "";
    switch (attribute) {
        case FunctionAttribute::max_dynamic_smem:
            if (value < 0 || value > optin - kernel.static_smem_bytes) {
                return format("MaxDynamicSharedMemorySize = %d for %s: the device allows %d bytes less %d static ones",
                              value, kernel.name.c_str(), optin, kernel.static_smem_bytes);
            }
            kernel.max_dynamic_smem_bytes = value;
            name = "max_dynamic_smem_bytes";
            break;
        case FunctionAttribute::carveout:
            if (value < -1 || value > 100)
                return format("PreferredSharedMemoryCarveout = %d must be from -1 to 100", value);
            kernel.carveout = value;
            name = "preferred_smem_carveout";
            break;
        case FunctionAttribute::non_portable_cluster:
            kernel.non_portable_cluster = value != 0;
            name = "non_portable_cluster";
            break;
        case FunctionAttribute::ignored: note_ignored("cudaFuncSetAttribute", "cluster scheduling policy"); return "";
    }
    Line("function").field("kernel", kernel.name).field("attribute", name).field("value", value).send();
    return "";
}

int dynamic_smem_limit(const Kernel& kernel) {
    if (kernel.max_dynamic_smem_bytes >= 0) return kernel.max_dynamic_smem_bytes;
    return std::max(0, state().profile.smem_per_block_bytes - kernel.static_smem_bytes);
}

}  // namespace recorder
