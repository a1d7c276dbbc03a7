// A libcuda.so.1 without a GPU: device memory is host memory at the same addresses, kernels are the functions below,
// everything runs at once when it is enqueued. $FAKE_CUDA names a script, $FAKE_CUDA_LOG where calls are written down.
//
// Lines of the script:
//   kernel NAME BEHAVIOUR SIZE…   a kernel of the module, and the sizes of its parameters
//   section BYTES FILL            memory of the module, each byte FILL when loaded; numbered from 0
//   variable NAME SECTION OFFSET BYTES  one that the driver finds by name
//   memory BYTES                  what cuMemCreate gives in all
//   fail CALL RESULT NTH          the NTH call (from 1) of a function returns RESULT
#include <cuda.h>
#undef cuEventElapsedTime  // the program asks for the first version

#include <array>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr std::size_t granularity_bytes = 2 << 20;
constexpr int reserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

struct Kernel {
    std::string name, behaviour;
    std::vector<std::size_t> sizes;
    std::map<int, int> attributes;
};

struct Script {
    std::map<std::string, Kernel> kernels;
    std::vector<std::pair<std::size_t, int>> sections;
    std::map<std::string, std::array<std::size_t, 3>> variables;  // section, offset, bytes
    std::map<std::string, std::pair<int, int>> failures;
    std::size_t memory = std::size_t{1} << 40;
};

struct Module {
    std::vector<std::vector<unsigned char>> sections;
};

struct Allocation {
    int file;
    std::size_t bytes;
    bool imported;
};

Script script;
Kernel residue{"ptxgym_residue", "", {4, 4}, {}};
Kernel translations{"ptxgym_translations", "", {8, 8}, {}};
unsigned arrived = 0;
FILE* log_file = nullptr;
int sticky = 0, active = 0;
bool hangs = false;
Module* loaded = nullptr;
std::size_t created_bytes = 0;
std::map<CUdeviceptr, std::size_t> mapped;
std::map<std::string, int> calls;
std::uint64_t next_handle = 1;

const volatile std::uint32_t* flag = nullptr;  // what a stream waits for, and the value
std::uint32_t flag_value = 0;

void note(const char* pattern, ...) {
    if (flag && *flag >= flag_value) {
        flag = nullptr;
        std::fprintf(log_file, "opened\n");
    }
    va_list arguments;
    va_start(arguments, pattern);
    std::vfprintf(log_file, pattern, arguments);
    va_end(arguments);
    std::fputc('\n', log_file);
    std::fflush(log_file);
}

template <typename Handle>
unsigned long long number(Handle handle) {
    return reinterpret_cast<unsigned long long>(handle);
}

std::string hex(const void* data, std::size_t size) {
    std::string text;
    char pair[3];
    for (std::size_t i = 0; i < size; ++i) {
        std::snprintf(pair, sizeof pair, "%02x", static_cast<const unsigned char*>(data)[i]);
        text += pair;
    }
    return text;
}

void read_script() {
    std::ifstream file(std::getenv("FAKE_CUDA"));
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string kind, name;
        words >> kind;
        if (kind == "kernel") {
            Kernel kernel;
            words >> kernel.name >> kernel.behaviour;
            for (std::size_t size; words >> size;) kernel.sizes.push_back(size);
            script.kernels[kernel.name] = kernel;
        } else if (kind == "section") {
            std::size_t bytes;
            int fill;
            words >> bytes >> fill;
            script.sections.emplace_back(bytes, fill);
        } else if (kind == "variable") {
            std::size_t section, offset, bytes;
            words >> name >> section >> offset >> bytes;
            script.variables[name] = {section, offset, bytes};
        } else if (kind == "memory") {
            words >> script.memory;
        } else if (kind == "fail") {
            int result, nth;
            words >> name >> result >> nth;
            script.failures[name] = {result, nth};
        }
    }
    log_file = std::fopen(std::getenv("FAKE_CUDA_LOG"), "w");
}

// What a call returns before it does anything: its scripted failure, or the fault that has ended the context.
CUresult verdict(const char* call) {
    const auto found = script.failures.find(call);
    if (found != script.failures.end() && ++calls[call] == found->second.second)
        return static_cast<CUresult>(found->second.first);
    return static_cast<CUresult>(sticky);
}

template <typename Number>
Number argument(void** params, int index) {
    Number value;
    std::memcpy(&value, params[index], sizeof value);
    return value;
}

unsigned char* pointer(void** params, int index) {
    return reinterpret_cast<unsigned char*>(argument<std::uint64_t>(params, index));
}

// Whether 16 bytes of `value` lie anywhere in what is mapped for kernels, the byte at `but` excepted.
bool scan(unsigned char value) {
    const std::string wanted(16, static_cast<char>(value));
    for (const auto& [address, size] : mapped)
        if (memmem(reinterpret_cast<void*>(address), size, wanted.data(), wanted.size()) != nullptr) return true;
    return false;
}

void behave(const Kernel& kernel, void** params) {
    const std::string& what = kernel.behaviour;
    if (what == "copy") {  // target, source, bytes
        std::memcpy(pointer(params, 0), pointer(params, 1), argument<std::uint64_t>(params, 2));
    } else if (what == "poke") {  // target, offset, value
        pointer(params, 0)[argument<std::int64_t>(params, 1)] =
            static_cast<unsigned char>(argument<std::uint32_t>(params, 2));
    } else if (what == "scan") {  // target, value
        *pointer(params, 0) = scan(static_cast<unsigned char>(argument<std::uint32_t>(params, 1)));
    } else if (what == "bump") {  // target: all bytes of all sections go up by one, the first of each is handed out
        for (std::size_t index = 0; index < loaded->sections.size(); ++index) {
            pointer(params, 0)[index] = loaded->sections[index][0];
            for (unsigned char& byte : loaded->sections[index]) ++byte;
        }
    } else if (what == "print") {  // bytes
        for (std::uint32_t left = argument<std::uint32_t>(params, 0); left > 0; --left) std::fputc('p', stdout);
    } else if (what == "assert") {
        std::fprintf(stderr, "/kernel.cu:7: void k(): block: [0,0,0], thread: [1,0,0] Assertion `x > 0` failed.\n");
        sticky = CUDA_ERROR_ASSERT;
    } else if (what == "fault") {  // result
        sticky = argument<std::int32_t>(params, 0);
    } else if (what == "hang") {
        hangs = true;
    } else if (what == "doze") {  // milliseconds
        usleep(1000 * argument<std::uint32_t>(params, 0));
    } else if (what == "die") {
        std::raise(SIGSEGV);
    }
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned) {
    if (log_file == nullptr) read_script();
    return verdict("cuInit");
}
CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int) {
    *device = 0;
    return verdict("cuDeviceGet");
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
    static const std::map<int, int> known = {
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, std::getenv("FAKE_CUDA_NO_GATE") ? 0 : 1},
        {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, std::getenv("FAKE_CUDA_PAGEABLE") ? 1 : 0},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 3 << 20},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 7},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
        {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
    };
    *value = known.count(which) ? known.at(which) : 0;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    *context = nullptr;
    note("context %s", std::getenv("CUDA_VISIBLE_DEVICES"));
    active = 1;
    return verdict("cuDevicePrimaryCtxRetain");
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) {
    note("context ends");
    const CUresult result = verdict("cuDevicePrimaryCtxRelease");
    if (result == CUDA_SUCCESS) active = 0;
    return result;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* state) {
    *flags = 0;
    *state = active;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, std::size_t value) {
    note("limit %d %zu", limit, value);
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
    note("synchronize");
    while (hangs || flag) pause();
    return verdict("cuCtxSynchronize");
}
CUresult cuCtxResetPersistingL2Cache() {
    note("reset_persisting");
    return verdict("cuCtxResetPersistingL2Cache");
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    if (std::memcmp(image, "\x7f" "ELF", 4) != 0) {  // the executor's own PTX
        const char* frame = std::strstr(static_cast<const char*>(image), "frame[");
        if (frame != nullptr) note("frame %d", std::atoi(frame + 6));
        *module = nullptr;
        return CUDA_SUCCESS;
    }
    if (const CUresult result = verdict("cuModuleLoadData")) return result;
    loaded = new Module;
    for (auto& [name, kernel] : script.kernels) kernel.attributes.clear();
    for (const auto& [bytes, fill] : script.sections)
        loaded->sections.emplace_back(bytes, static_cast<unsigned char>(fill));
    note("load module");
    *module = reinterpret_cast<CUmodule>(loaded);
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
    if (module == nullptr) return CUDA_SUCCESS;
    note("unload");
    delete reinterpret_cast<Module*>(module);
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    if (module == nullptr) {
        *function = reinterpret_cast<CUfunction>(name == translations.name ? &translations : &residue);
        return CUDA_SUCCESS;
    }
    const auto found = script.kernels.find(name);
    if (found == script.kernels.end()) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(&found->second);
    return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal(CUdeviceptr* address, std::size_t* bytes, CUmodule module, const char* name) {
    if (module == nullptr) {
        *address = reinterpret_cast<CUdeviceptr>(&arrived);
        return CUDA_SUCCESS;
    }
    const auto found = script.variables.find(name);
    if (found == script.variables.end()) return CUDA_ERROR_NOT_FOUND;
    const auto& [index, offset, size] = found->second;
    *address = reinterpret_cast<CUdeviceptr>(reinterpret_cast<Module*>(module)->sections[index].data()) + offset;
    if (bytes != nullptr) *bytes = size;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction function) {
    *value = reinterpret_cast<Kernel*>(function)->attributes[which];
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
    auto* kernel = reinterpret_cast<Kernel*>(function);
    if (kernel == &residue) return CUDA_SUCCESS;
    note("attribute %s %d %d", kernel->name.c_str(), which, value);
    if (const CUresult result = verdict("cuFuncSetAttribute")) return result;
    kernel->attributes[which] = value;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
    note("allocate %zu", bytes);
    *address = reinterpret_cast<CUdeviceptr>(std::malloc(bytes));
    return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
    note("free");
    std::free(reinterpret_cast<void*>(address));
    return CUDA_SUCCESS;
}
CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
    *bytes = granularity_bytes;
    return CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
    if (bytes > std::size_t{1} << 37) return CUDA_ERROR_OUT_OF_MEMORY;
    void* start = mmap(nullptr, bytes + granularity_bytes, PROT_NONE, reserved, -1, 0);
    if (start == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    *address = (reinterpret_cast<CUdeviceptr>(start) + granularity_bytes - 1) / granularity_bytes * granularity_bytes;
    return CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr, std::size_t bytes) {
    note("free addresses %zu", bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*,
                     unsigned long long) {
    if (const CUresult result = verdict("cuMemCreate")) return result;
    if (created_bytes + bytes > script.memory) return CUDA_ERROR_OUT_OF_MEMORY;
    created_bytes += bytes;
    const int file = memfd_create("device", MFD_CLOEXEC);
    if (ftruncate(file, static_cast<off_t>(bytes)) < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Allocation{file, bytes, false});
    note("create %zu", bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* os_handle,
                                        CUmemAllocationHandleType) {
    if (const CUresult result = verdict("cuMemImportFromShareableHandle")) return result;
    const int file = dup(static_cast<int>(reinterpret_cast<std::uintptr_t>(os_handle)));
    *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Allocation{file, 0, true});
    note("import");
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    auto* allocation = reinterpret_cast<Allocation*>(handle);
    created_bytes -= allocation->bytes;
    close(allocation->file);
    note("release %zu", allocation->bytes);
    delete allocation;
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t, CUmemGenericAllocationHandle handle,
                  unsigned long long) {
    const auto* allocation = reinterpret_cast<Allocation*>(handle);
    if (const CUresult result = verdict("cuMemMap")) return result;
    void* start = reinterpret_cast<void*>(address);
    if (mmap(start, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->file, 0) == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    mapped[address] = bytes;
    note("map %s %llx %zu", allocation->imported ? "region" : "private", address, bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc*, std::size_t) {
    mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE);
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
    mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, reserved | MAP_FIXED, -1, 0);
    mapped.erase(address);
    note("unmap %llx %zu", address, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, std::size_t count, CUstream stream) {
    note("memset8 %llx %x %zu stream %llx", target, value, count, number(stream));
    if (const CUresult result = verdict("cuMemsetD8Async")) return result;
    std::memset(reinterpret_cast<void*>(target), value, count);
    return CUDA_SUCCESS;
}
CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, std::size_t count, CUstream stream) {
    note("memset16 %llx %x %zu stream %llx", target, value, count, number(stream));
    for (std::size_t i = 0; i < count; ++i) reinterpret_cast<unsigned short*>(target)[i] = value;
    return verdict("cuMemsetD16Async");
}
CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, std::size_t count, CUstream stream) {
    note("memset32 %llx %x %zu stream %llx", target, value, count, number(stream));
    for (std::size_t i = 0; i < count; ++i) reinterpret_cast<unsigned*>(target)[i] = value;
    return verdict("cuMemsetD32Async");
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void* source, std::size_t bytes, CUstream) {
    note("upload %llx %zu", target, bytes);
    std::memcpy(reinterpret_cast<void*>(target), source, bytes);
    return verdict("cuMemcpyHtoDAsync");
}
CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr source, std::size_t bytes, CUstream) {
    if (const CUresult result = verdict("cuMemcpyDtoHAsync")) return result;
    std::memcpy(target, reinterpret_cast<void*>(source), bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, std::size_t bytes, CUstream stream) {
    note("copy %llx %llx %zu stream %llx", target, source, bytes, number(stream));
    if (const CUresult result = verdict("cuMemcpyDtoDAsync")) return result;
    std::memmove(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), bytes);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    *stream = reinterpret_cast<CUstream>(next_handle++);
    note("stream %llx %u", number(*stream), flags);
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream) { return verdict("cuStreamSynchronize"); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    note("wait %llx event %llx", number(stream), number(event));
    return verdict("cuStreamWaitEvent");
}
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    note("hold %llx", number(stream));
    flag = reinterpret_cast<const volatile std::uint32_t*>(address);
    flag_value = value;
    return flags == CU_STREAM_WAIT_VALUE_GEQ ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
    *memory = std::malloc(bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr* address, void* memory, unsigned) {
    *address = reinterpret_cast<CUdeviceptr>(memory);
    return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(next_handle++);
    return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
    note("record %llx event %llx", number(stream), number(event));
    return verdict("cuEventRecord");
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent, CUevent) {
    *milliseconds = 0.03125F;
    return verdict("cuEventElapsedTime");
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void**) {
    auto* kernel = reinterpret_cast<Kernel*>(function);
    if (kernel == &translations) {
        note("translations grid=%u block=%u %llx %llu", config->gridDimX, config->blockDimX,
             *static_cast<unsigned long long*>(params[0]), *static_cast<unsigned long long*>(params[1]));
        return static_cast<CUresult>(sticky);
    }
    if (kernel == &residue) {
        note("residue grid=%u block=%u smem=%u", config->gridDimX, config->blockDimX, config->sharedMemBytes);
        return static_cast<CUresult>(sticky);
    }
    std::string text;
    for (unsigned index = 0; index < config->numAttrs; ++index) {
        const CUlaunchAttribute& set = config->attrs[index];
        if (set.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            text += " cluster=" + std::to_string(set.value.clusterDim.x) + "," +
                    std::to_string(set.value.clusterDim.y) + "," + std::to_string(set.value.clusterDim.z);
        if (set.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) text += " cooperative";
        if (set.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) text += " programmatic";
    }
    for (std::size_t index = 0; index < kernel->sizes.size(); ++index)
        text += " " + hex(params[index], kernel->sizes[index]);
    for (const auto& [address, bytes] : mapped) note("visible %llx %zu", address, bytes);
    note("launch %s grid=%u,%u,%u block=%u,%u,%u smem=%u stream=%llx%s", kernel->name.c_str(), config->gridDimX,
         config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ,
         config->sharedMemBytes, number(config->hStream), text.c_str());
    if (const CUresult result = verdict("cuLaunchKernelEx")) return result;
    behave(*kernel, params);
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    std::ostringstream text;
    for (cuuint32_t i = 0; i < rank; ++i) text << (i ? "," : " dims=") << dims[i];
    for (cuuint32_t i = 0; i + 1 < rank; ++i) text << (i ? "," : " strides=") << strides[i];
    for (cuuint32_t i = 0; i < rank; ++i) text << (i ? "," : " box=") << box[i];
    for (cuuint32_t i = 0; i < rank; ++i) text << (i ? "," : " steps=") << steps[i];
    note("encode type=%d address=%llx%s enums=%d,%d,%d,%d", type, number(address),
         text.str().c_str(), interleave, swizzle, promotion, fill);
    std::memset(map, 0x77, sizeof *map);
    std::memcpy(map, &address, sizeof address);
    return verdict("cuTensorMapEncodeTiled");
}

CUresult cuProfilerStart() {
    note("profiler_start");
    return CUDA_SUCCESS;
}
CUresult cuProfilerStop() {
    note("profiler_stop");
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult result, const char** name) {
    static std::map<int, std::string> names;
    *name = (names[result] = "CUDA_ERROR_" + std::to_string(result)).c_str();
    return CUDA_SUCCESS;
}

}  // extern "C"
