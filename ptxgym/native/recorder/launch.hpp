// One kernel launch: refused where a real driver refuses it, else recorded with the bytes of its parameters.
#pragma once

#include <cuda_runtime_api.h>

#include "state.hpp"

namespace recorder {

struct LaunchRequest {
    const Kernel* kernel = nullptr;
    dim3 grid, block;
    std::size_t dynamic_smem_bytes = 0;
    const void* stream = nullptr;
    void** arguments = nullptr;
    dim3 cluster{0, 0, 0};            // zero: no attribute
    dim3 preferred_cluster{0, 0, 0};  // checked, otherwise without effect: a driver may ignore it
    bool cooperative = false, programmatic = false;
};

// A refused launch ends the recording with status launch_error, whether or not host code would have looked.
void record_launch(const char* call, const LaunchRequest& request);

// What a launch or stream attribute is a hint about: no effect on results. nullptr for any other.
const char* hint(int attribute);

// Take one launch attribute over into the request; one that this recorder does not know ends the recording.
void apply_attribute(const char* call, const cudaLaunchAttribute& attribute, LaunchRequest& request);

}  // namespace recorder
