// What kernels leave behind where no address leads: shared memory, and local memory (stack frames and spills). Both
// keep their contents from launch to launch, so that a kernel could take there what an earlier call computed.
#pragma once

#include <cstdint>

#include "driver.hpp"

namespace executor {

// A kernel of our own that overwrites both on every multiprocessor.
class Residue {
public:
    // `frame_bytes` is the largest stack frame of the candidate's kernels.
    Residue(CUdevice device, std::uint32_t frame_bytes);
    ~Residue();
    Residue(const Residue&) = delete;
    Residue& operator=(const Residue&) = delete;

    void overwrite(CUstream stream) const;

private:
    CUmodule module_ = nullptr;
    CUfunction kernel_ = nullptr;
    CUdeviceptr arrived_ = 0;
    unsigned blocks_ = 0;
    unsigned shared_bytes_ = 0;
};

}  // namespace executor
