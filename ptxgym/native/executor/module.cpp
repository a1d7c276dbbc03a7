#include "module.hpp"

#include <iterator>

namespace executor {
namespace {

constexpr CUfunction_attribute settable[] = {
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
};

}  // namespace

Module::Module(Bytes cubin, std::vector<std::string> kernels, std::vector<Variable> variables, CUstream stream)
    : cubin_(std::move(cubin)), kernels_(std::move(kernels)), variables_(std::move(variables)) {
    load();
    try {
        locate(stream);
    } catch (...) {
        driver().cuModuleUnload(module_);
        throw;
    }
}

Module::~Module() {
    driver().cuModuleUnload(module_);
}

void Module::load() {
    const Stage stage("load");
    check(driver().cuModuleLoadData(&module_, cubin_.data()), "cuModuleLoadData");
    functions_.assign(kernels_.size(), Function());
    for (std::size_t kernel = 0; kernel < kernels_.size(); ++kernel) {
        Function& function = functions_[kernel];
        check(driver().cuModuleGetFunction(&function.handle, module_, kernels_[kernel].c_str()),
              "cuModuleGetFunction");
        for (const CUfunction_attribute attribute : settable) {
            int value = 0;
            check(driver().cuFuncGetAttribute(&value, attribute, function.handle), "cuFuncGetAttribute");
            function.defaults.push_back(value);
        }
        function.values = function.defaults;
    }
    applied_ = nullptr;
    fresh_ = true;
}

// The driver places variables one by one, not section by section, but knows all of them by name, those too that have
// internal linkage or stem from inline assembly (driver 580, measured on an H200).
void Module::locate(CUstream stream) {
    for (const Variable& variable : variables_) {
        Place place{};
        const CUresult found = driver().cuModuleGetGlobal(&place.address, &place.size, module_, variable.name.c_str());
        if (found != CUDA_SUCCESS) {
            reloads_ = true;
            return;
        }
        if (!variable.zeros) {
            place.initial.resize(place.size);
            check(driver().cuMemcpyDtoHAsync(place.initial.data(), place.address, place.size, stream),
                  "cuMemcpyDtoHAsync");
            check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
        }
        places_.push_back(std::move(place));
    }
}

CUdeviceptr Module::variable(const std::string& name) const {
    CUdeviceptr address = 0;
    check(driver().cuModuleGetGlobal(&address, nullptr, module_, name.c_str()), "cuModuleGetGlobal");
    return address;
}

void Module::apply(const Plan& plan) {
    if (applied_ == &plan) return;
    std::vector<std::vector<int>> wanted;
    for (const Function& function : functions_) wanted.push_back(function.defaults);
    for (const FunctionAttributes& set : plan.functions) {
        auto& values = wanted[set.kernel];
        if (set.max_dynamic_smem_bytes > 0) values[0] = set.max_dynamic_smem_bytes;
        if (set.preferred_smem_carveout >= 0) values[1] = set.preferred_smem_carveout;
        if (set.non_portable_cluster) values[2] = 1;
    }
    for (std::size_t kernel = 0; kernel < functions_.size(); ++kernel) {
        const Stage stage("attribute", static_cast<int>(kernel));
        Function& function = functions_[kernel];
        for (std::size_t index = 0; index < std::size(settable); ++index) {
            if (function.values[index] == wanted[kernel][index]) continue;
            check(driver().cuFuncSetAttribute(function.handle, settable[index], wanted[kernel][index]),
                  "cuFuncSetAttribute");
            function.values[index] = wanted[kernel][index];
        }
    }
    applied_ = &plan;
}

void Module::restore(CUstream stream) {
    if (reloads_) {
        if (!fresh_) {
            check(driver().cuModuleUnload(module_), "cuModuleUnload");
            module_ = nullptr;
            load();
        }
        fresh_ = false;
        return;
    }
    for (const Place& place : places_) {
        if (place.initial.empty())
            check(driver().cuMemsetD8Async(place.address, 0, place.size, stream), "cuMemsetD8Async");
        else
            check(driver().cuMemcpyHtoDAsync(place.address, place.initial.data(), place.size, stream),
                  "cuMemcpyHtoDAsync");
    }
}

}  // namespace executor
