#include "translations.hpp"

namespace executor {
namespace {

// Pages are 2 MiB; a warp reads 32 of them at a time. The load is volatile, so that the compiler keeps it.
const char* const ptx = R"(.version 7.8
.target sm_80
.address_size 64
.visible .entry ptxgym_translations(.param .u64 start, .param .u64 size)
{
    .reg .pred over;
    .reg .u32 thread, seen;
    .reg .u64 place, stop, offset;
    ld.param.u64 place, [start];
    ld.param.u64 stop, [size];
    add.u64 stop, stop, place;
    mov.u32 thread, %tid.x;
    mul.wide.u32 offset, thread, 2097152;
    add.u64 place, place, offset;
next:
    setp.ge.u64 over, place, stop;
    @over ret;
    ld.volatile.global.u32 seen, [place];
    add.u64 place, place, 67108864;
    bra next;
}
)";

}  // namespace

Translations::Translations(CUdevice device) {
    const Stage stage("translations");
    int multiprocessors = 0;
    check(driver().cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
          "cuDeviceGetAttribute");
    blocks_ = static_cast<unsigned>(multiprocessors);
    check(driver().cuModuleLoadData(&module_, ptx), "cuModuleLoadData");
    check(driver().cuModuleGetFunction(&kernel_, module_, "ptxgym_translations"), "cuModuleGetFunction");
}

Translations::~Translations() {
    driver().cuModuleUnload(module_);
}

void Translations::load(CUdeviceptr start, std::uint64_t size, CUstream stream) const {
    const Stage stage("translations");
    CUlaunchConfig config{};
    config.gridDimX = blocks_;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = 32;
    config.hStream = stream;
    void* params[] = {&start, &size};
    check(driver().cuLaunchKernelEx(&config, kernel_, params, nullptr), "cuLaunchKernelEx");
}

}  // namespace executor
