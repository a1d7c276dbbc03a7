#include "driver.hpp"

#include <dlfcn.h>

#define AS_TEXT(symbol) #symbol
#define SYMBOL_OF(function) AS_TEXT(function)

namespace executor {
namespace {

const char* stage_name = "start";
int stage_index = -1;

template <typename Function>
void resolve(Function& function, void* library, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw DriverError{"start", CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", name, -1};
}

Driver load() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* why = dlerror();
        throw DriverError{"start", CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
                          why != nullptr ? why : "dlopen", -1};
    }
    Driver found;
#define CALL(function) resolve(found.function, library, SYMBOL_OF(function));
#include "driver_calls.def"
#undef CALL
    resolve(found.event_elapsed_time, library, "cuEventElapsedTime");
    resolve(found.profiler_start, library, "cuProfilerStart");
    resolve(found.profiler_stop, library, "cuProfilerStop");
    return found;
}

}  // namespace

const Driver& driver() {
    static const Driver loaded = load();
    return loaded;
}

Stage::Stage(const char* name, int index) : outer_name_(stage_name), outer_index_(stage_index) {
    stage_name = name;
    stage_index = index;
}

Stage::~Stage() {
    stage_name = outer_name_;
    stage_index = outer_index_;
}

void check(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    const char* name = nullptr;
    if (driver().cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "an unknown error";
    throw DriverError{stage_name, static_cast<int>(result), name, call, stage_index};
}

}  // namespace executor
