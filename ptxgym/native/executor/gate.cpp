#include "gate.hpp"

namespace executor {

Gate::Gate(CUdevice device) {
    int works = 0;
    check(driver().cuDeviceGetAttribute(&works, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device),
          "cuDeviceGetAttribute");
    works_ = works != 0;  // not with some virtual GPUs; what is enqueued in front then has to hide the host's gaps
    if (!works_) return;
    void* memory = nullptr;
    check(driver().cuMemHostAlloc(&memory, sizeof *flag_, CU_MEMHOSTALLOC_DEVICEMAP), "cuMemHostAlloc");
    flag_ = static_cast<std::uint32_t*>(memory);
    *flag_ = 0;
    check(driver().cuMemHostGetDevicePointer(&address_, memory, 0), "cuMemHostGetDevicePointer");
}

Gate::Closed::Closed(Gate& gate, CUstream stream) : gate_(gate) {
    if (!gate_.works_) return;
    check(driver().cuStreamWaitValue32(stream, gate_.address_, ++gate_.number_, CU_STREAM_WAIT_VALUE_GEQ),
          "cuStreamWaitValue32");
}

void Gate::Closed::open() {
    if (gate_.works_) __atomic_store_n(gate_.flag_, gate_.number_, __ATOMIC_RELEASE);
}

}  // namespace executor
