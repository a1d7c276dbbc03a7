#include "state.hpp"

#include <cuda.h>
#include <iostream>
#include <sstream>
#include <unistd.h>

#include "interpose.hpp"
#include "memory.hpp"
#include "wire.hpp"

namespace recorder {
namespace {

constexpr std::size_t operation_limit = 20000;
constexpr std::size_t noted_errors_limit = 16;
constexpr std::size_t ignored_limit = 16;

dim3 read_dim3(std::istream& words) {
    dim3 value;
    words >> value.x >> value.y >> value.z;
    return value;
}

void read_kernel(std::istream& words) {
    Kernel kernel;
    words >> kernel.name >> kernel.registers >> kernel.static_smem_bytes >> kernel.stack_bytes;
    kernel.max_ntid = read_dim3(words);
    kernel.req_ntid = read_dim3(words);
    kernel.cluster = read_dim3(words);
    words >> kernel.max_cluster_rank >> kernel.blocks_are_clusters;
    for (std::uint32_t bytes; words >> bytes;)
        kernel.param_bytes.push_back(bytes);
    const std::string name = kernel.name;
    state().kernels.emplace(name, std::move(kernel));
}

void read_profile(std::istream& words) {
    Profile& profile = state().profile;
    const std::map<std::string, int*> numbers = {
        {"cc_major", &profile.cc_major},
        {"cc_minor", &profile.cc_minor},
        {"sm_count", &profile.sm_count},
        {"clock_khz", &profile.clock_khz},
        {"memory_clock_khz", &profile.memory_clock_khz},
        {"memory_bus_bits", &profile.memory_bus_bits},
        {"l2_bytes", &profile.l2_bytes},
        {"persisting_l2_bytes", &profile.persisting_l2_bytes},
        {"access_policy_window_bytes", &profile.access_policy_window_bytes},
        {"smem_per_sm_bytes", &profile.smem_per_sm_bytes},
        {"smem_per_block_bytes", &profile.smem_per_block_bytes},
        {"smem_optin_bytes", &profile.smem_optin_bytes},
        {"reserved_smem_bytes", &profile.reserved_smem_bytes},
        {"registers_per_sm", &profile.registers_per_sm},
        {"registers_per_block", &profile.registers_per_block},
        {"threads_per_sm", &profile.threads_per_sm},
        {"blocks_per_sm", &profile.blocks_per_sm},
        {"portable_cluster", &profile.portable_cluster},
        {"max_cluster", &profile.max_cluster},
    };
    std::string field;
    words >> field;
    if (field == "name") {
        std::getline(words >> std::ws, profile.name);
    } else if (field == "memory_bytes") {
        words >> profile.memory_bytes;
    } else if (field == "gpc_sms") {
        for (int count; words >> count;)
            profile.gpc_sms.push_back(count);
    } else {
        words >> *numbers.at(field);
    }
}

}  // namespace

State& state() {
    // Never destroyed: destructors of the submission may still call the runtime.
    static State& value = *new State;
    return value;
}

// The request is lines of words; the parent, which wrote it, is trusted, and nothing of the submission has run yet.
void read_request() {
    State& now = state();
    std::uint64_t base = 0, spacing = 0;
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string kind, name;
        words >> kind;
        if (kind == "library") {
            std::getline(words >> std::ws, now.library);
        } else if (kind == "range") {
            words >> base >> spacing;
            reserve_device_range(base, spacing);
        } else if (kind == "seed") {
            std::uint64_t seed = 0;
            words >> seed;
            seed_clock_and_random(seed);
        } else if (kind == "profile") {
            read_profile(words);
        } else if (kind == "kernel") {
            read_kernel(words);
        } else if (kind == "call") {
            now.calls.emplace_back();
        } else if (kind == "again") {  // a call with the arguments of an earlier one
            std::size_t index = 0;
            words >> index;
            now.calls.push_back(now.calls.at(index));
        } else if (kind == "buffer") {
            std::uint64_t bytes = 0;
            words >> name >> bytes;
            now.calls.back().push_back(add_buffer(name, bytes, Role::argument));
        } else if (kind == "axis") {
            std::int64_t value = 0;
            words >> value;
            now.calls.back().push_back(static_cast<std::uint64_t>(value));
        } else {
            fail("infra.request", "the recorder does not know the request line `" + line + "`");
        }
    }
    now.streams.resize(3);  // the given one, the legacy default stream, the per-thread default stream
    for (int index = 0; index < 3; ++index)
        now.streams[index].index = index;
    // As harnesses make it (torch.cuda.Stream, and so every CUDA graph that they capture): the default stream does not
    // wait for it, nor the other way round.
    now.streams[0].flags = cudaStreamNonBlocking;
    now.live_streams.insert(&now.streams[0]);
}

void begin_call(std::size_t index) {
    state().used = {};
    Line("call").field("index", static_cast<std::uint64_t>(index)).send();
}

Kernel* find_kernel(const void* function) {
    State& now = state();
    const auto stub = now.functions.find(function);
    if (stub != now.functions.end()) return stub->second;
    for (auto& [name, kernel] : now.kernels) {
        if (&kernel == function) return &kernel;
    }
    return nullptr;
}

int stream_index(const char* call, const void* stream) {
    if (stream == nullptr || stream == cudaStreamLegacy) return 1;
    if (stream == cudaStreamPerThread) return 2;
    if (state().live_streams.count(stream) == 0)
        fail("plan.bad_stream", format("%s: %p is no stream of this program", call, stream));
    return static_cast<const Stream*>(stream)->index;
}

void count_operation(const std::string& hint) {
    if (++state().used.operations > operation_limit) {
        fail("plan.operation_limit",
             format("more than %zu launches, copies and memsets in one call%s", operation_limit, hint.c_str()));
    }
}

namespace {

void note_error(const char* call, const char* name, const std::string& why) {
    if (state().used.errors++ < noted_errors_limit)
        Line("api_error").field("call", call).field("error", name).field("why", why).place().send();
}

}  // namespace

cudaError_t error(const char* call, cudaError_t code, const std::string& why) {
    note_error(call, runtime_error_name(code), why);
    state().last_error = code;
    return code;
}

CUresult error(const char* call, CUresult code, const std::string& why) {
    note_error(call, driver_error_name(code), why);
    return code;
}

void note_ignored(const char* call, const char* what) {
    static std::set<std::string> noted;
    if (noted.size() >= ignored_limit || !noted.insert(format("%s (%s)", call, what)).second) return;
    Line("ignored").field("call", call).field("what", what).send();
}

namespace {

struct KnownError {
    int code;
    const char* runtime_name;
    const char* driver_name;
    const char* text;
};

// Only errors that this runtime returns; driver and runtime share their numbers.
constexpr KnownError known_errors[] = {
    {cudaSuccess, "cudaSuccess", "CUDA_SUCCESS", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "cudaErrorInvalidDeviceFunction",
     "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {cudaErrorUnsupportedLimit, "cudaErrorUnsupportedLimit", "CUDA_ERROR_UNSUPPORTED_LIMIT",
     "limit is not supported on this architecture"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "CUDA_ERROR_INVALID_HANDLE",
     "invalid resource handle"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound", "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {cudaErrorNotReady, "cudaErrorNotReady", "CUDA_ERROR_NOT_READY", "device not ready"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize", "CUDA_ERROR_INVALID_CLUSTER_SIZE",
     "cluster misconfiguration"},
};

const KnownError* find_error(int code) {
    for (const KnownError& known : known_errors) {
        if (known.code == code) return &known;
    }
    return nullptr;
}

}  // namespace

const char* runtime_error_name(int code) {
    const KnownError* known = find_error(code);
    return known ? known->runtime_name : "cudaErrorUnknown";
}

const char* driver_error_name(int code) {
    const KnownError* known = find_error(code);
    return known ? known->driver_name : nullptr;
}

const char* error_text(int code) {
    const KnownError* known = find_error(code);
    return known ? known->text : nullptr;
}

}  // namespace recorder
