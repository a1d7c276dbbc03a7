// The candidate's module: its functions, and its memory as it was when loaded.
#pragma once

#include <string>
#include <vector>

#include "driver.hpp"
#include "plan.hpp"

namespace executor {

class Module {
public:
    Module(Bytes cubin, std::vector<std::string> kernels, std::vector<Variable> variables, CUstream stream);
    ~Module();
    Module(const Module&) = delete;
    Module& operator=(const Module&) = delete;

    CUfunction function(std::size_t kernel) const { return functions_[kernel].handle; }
    CUdeviceptr variable(const std::string& name) const;
    // Whether a variable cannot be found, so that the module is loaded anew before every call.
    bool reloads() const { return reloads_; }

    // Sets what `plan` asks for, and every kernel that it does not name back to its own.
    void apply(const Plan& plan);
    // Brings variables back to what they were when the module was loaded.
    void restore(CUstream stream);

private:
    struct Function {
        CUfunction handle = nullptr;
        std::vector<int> defaults, values;  // of the attributes that a plan can set
    };
    struct Place {
        CUdeviceptr address;
        std::size_t size;
        Bytes initial;  // empty for zeros
    };
    void load();
    void locate(CUstream stream);

    Bytes cubin_;
    std::vector<std::string> kernels_;
    std::vector<Variable> variables_;
    CUmodule module_ = nullptr;
    std::vector<Function> functions_;
    std::vector<Place> places_;
    bool reloads_ = false;
    bool fresh_ = true;
    const Plan* applied_ = nullptr;
};

}  // namespace executor
