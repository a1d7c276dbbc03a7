// The CUDA driver, found at run time: the program links against nothing of CUDA.
#pragma once

#include <cuda.h>

#include <string>

namespace executor {

// A driver call that failed: what was being done, and the item (buffer, map, operation …) that it was done for.
struct DriverError {
    std::string stage;
    int result;
    std::string name;
    std::string call;
    int index;
};

struct Driver {
#define CALL(function) decltype(&::function) function = nullptr;
#include "driver_calls.def"
#undef CALL
    // cuda.h 13 maps the name to a second version that drivers before 12.8 do not have; the first does the same here.
    CUresult (*event_elapsed_time)(float* milliseconds, CUevent start, CUevent end) = nullptr;
    // Of cudaProfiler.h, which the compiler's packages do not bring.
    CUresult (*profiler_start)() = nullptr;
    CUresult (*profiler_stop)() = nullptr;
};

// The functions of libcuda.so.1; throws DriverError of stage "start" if the library or a function is missing.
const Driver& driver();

// Names the work in hand for the errors of this scope.
class Stage {
public:
    explicit Stage(const char* name, int index = -1);
    ~Stage();
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;

private:
    const char* outer_name_;
    int outer_index_;
};

// Throws DriverError unless `result` is success.
void check(CUresult result, const char* call);

}  // namespace executor
