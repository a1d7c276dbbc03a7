#include "residue.hpp"

#include <algorithm>
#include <string>

namespace executor {
namespace {

constexpr unsigned threads = 1024;
constexpr unsigned blocks_per_sm = 2;  // 2048 threads: every place where a warp, and so a stack frame, can be
constexpr std::uint32_t least_frame_bytes = 1024;  // the driver's default stack, which calls and alloca use

// Stores are volatile, so that the compiler keeps them; `.local` has no volatile ones, hence generic addresses.
// A quarter of the registers stays free for what a sanitizer adds.
// Every block stays until all have come, so that none takes the place of another and no multiprocessor is left out.
const char* const before_frame = R"(.version 7.8
.target sm_80
.address_size 64
.visible .global .align 4 .u32 arrived;
.extern .shared .align 16 .b8 scratch[];
.visible .entry ptxgym_residue(.param .u32 blocks, .param .u32 shared_bytes)
.maxntid 1024, 1, 1
.maxnreg 24
{
    .local .align 16 .b8 frame[)";
const char* const after_frame = R"(];
    .reg .pred more;
    .reg .u32 at, end, ones, thread, seen;
    .reg .u64 place, stop;
    mov.u32 ones, 0xffffffff;
    mov.u64 place, frame;
    cvta.local.u64 place, place;
    add.u64 stop, place, )";
const char* const rest = R"(;
next_of_frame:
    st.volatile.v4.u32 [place], {ones, ones, ones, ones};
    add.u64 place, place, 16;
    setp.lt.u64 more, place, stop;
    @more bra next_of_frame;
    mov.u32 thread, %tid.x;
    mov.u32 at, scratch;
    ld.param.u32 end, [shared_bytes];
    add.u32 end, end, at;
    mad.lo.u32 at, thread, 16, at;
next_of_shared:
    setp.lt.u32 more, at, end;
    @more st.volatile.shared.v4.u32 [at], {ones, ones, ones, ones};
    add.u32 at, at, 16384;
    @more bra next_of_shared;
    bar.sync 0;
    setp.ne.u32 more, thread, 0;
    @more ret;
    ld.param.u32 end, [blocks];
    atom.global.add.u32 seen, [arrived], 1;
wait:
    ld.volatile.global.u32 seen, [arrived];
    setp.lt.u32 more, seen, end;
    @more bra wait;
    ret;
}
)";

int attribute(CUdevice_attribute which, CUdevice device) {
    int value = 0;
    check(driver().cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
}

}  // namespace

Residue::Residue(CUdevice device, std::uint32_t frame_bytes) {
    const Stage stage("residue");
    const std::uint32_t frame = frame_bytes == 0 ? 16 : (std::max(frame_bytes, least_frame_bytes) + 15) / 16 * 16;
    const std::string ptx = before_frame + std::to_string(frame) + after_frame + std::to_string(frame) + rest;
    check(driver().cuModuleLoadData(&module_, ptx.c_str()), "cuModuleLoadData");
    check(driver().cuModuleGetFunction(&kernel_, module_, "ptxgym_residue"), "cuModuleGetFunction");
    check(driver().cuModuleGetGlobal(&arrived_, nullptr, module_, "arrived"), "cuModuleGetGlobal");
    blocks_ = blocks_per_sm * attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    shared_bytes_ = attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device) / blocks_per_sm -
                    attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, device);
    check(driver().cuFuncSetAttribute(kernel_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                      static_cast<int>(shared_bytes_)),
          "cuFuncSetAttribute");
}

Residue::~Residue() {
    driver().cuModuleUnload(module_);
}

void Residue::overwrite(CUstream stream) const {
    const Stage stage("residue");
    check(driver().cuMemsetD32Async(arrived_, 0, 1, stream), "cuMemsetD32Async");
    CUlaunchAttribute together{};
    together.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    together.value.cooperative = 1;
    CUlaunchConfig config{};
    config.gridDimX = blocks_;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = threads;
    config.sharedMemBytes = shared_bytes_;
    config.hStream = stream;
    config.attrs = &together;
    config.numAttrs = 1;
    unsigned blocks = blocks_, shared_bytes = shared_bytes_;
    void* params[] = {&blocks, &shared_bytes};
    check(driver().cuLaunchKernelEx(&config, kernel_, params, nullptr), "cuLaunchKernelEx");
}

}  // namespace executor
