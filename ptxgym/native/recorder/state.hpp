// What the recording runtime knows: the device that it plays, the kernels of the build, memory, streams and errors.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "frames.hpp"

namespace recorder {

// The device profile; filled by name from the request, see profile.py for the meaning and the source of each number.
struct Profile {
    std::string name;
    int cc_major = 0, cc_minor = 0, sm_count = 0;
    int clock_khz = 0, memory_clock_khz = 0, memory_bus_bits = 0;
    std::uint64_t memory_bytes = 0;
    int l2_bytes = 0, persisting_l2_bytes = 0, access_policy_window_bytes = 0;
    int smem_per_sm_bytes = 0, smem_per_block_bytes = 0, smem_optin_bytes = 0, reserved_smem_bytes = 0;
    int registers_per_sm = 0, registers_per_block = 0, threads_per_sm = 0, blocks_per_sm = 0;
    int portable_cluster = 0, max_cluster = 0;
    std::vector<int> gpc_sms;  // SMs of each GPC that can hold clusters of more than two CTAs
};

struct Kernel {
    std::string name;
    int registers = 0, static_smem_bytes = 0, stack_bytes = 0;
    dim3 max_ntid{0, 0, 0}, req_ntid{0, 0, 0}, cluster{0, 0, 0};  // zero: the PTX has no such directive
    unsigned max_cluster_rank = 0;  // zero: none
    bool blocks_are_clusters = false;
    std::vector<std::uint32_t> param_bytes;
    // What host code set.
    int max_dynamic_smem_bytes = -1, carveout = -1;
    bool non_portable_cluster = false;

    int threads_limit() const {
        const dim3& bound = req_ntid.x ? req_ntid : max_ntid;
        return bound.x ? static_cast<int>(bound.x * bound.y * bound.z) : 1024;
    }
};

struct Variable {
    std::string name;
    std::uint64_t address = 0, bytes = 0;
};

struct Stream {
    int index = 0, priority = 0;
    unsigned flags = 0;
};

struct Event {
    int index = 0;
    bool recorded = false;
    unsigned flags = 0;
};

struct CallConfiguration {
    dim3 grid, block;
    std::size_t smem;
    cudaStream_t stream;
    Frames frames;
};

// What is limited in each call.
struct Used {
    std::size_t operations = 0, orders = 0, streams = 0, events = 0, buffers = 0, tensor_maps = 0, errors = 0;
    std::uint64_t workspace_bytes = 0, record_bytes = 0;
};

struct State {
    Profile profile;
    std::string library;
    std::vector<std::vector<std::uint64_t>> calls;  // arguments of `run` in each call, without the stream
    std::map<std::string, Kernel> kernels;
    std::map<const void*, Kernel*> functions;   // host stub → kernel
    std::map<const void*, Variable> variables;  // host shadow → device variable
    std::deque<Stream> streams;                 // streams[0] is the one that `run` gets
    std::set<const void*> live_streams;
    std::deque<Event> events;
    std::set<const void*> live_events;
    std::vector<CallConfiguration> configurations;
    std::map<std::uint64_t, std::uint64_t> pinned;  // host memory from cudaMallocHost and cudaHostRegister
    cudaError_t last_error = cudaSuccess;
    Used used;
};

State& state();

// Read the request that the parent sent on standard input.
void read_request();

// From here on the record and all limits are those of the call `index`; what host code keeps, it keeps.
void begin_call(std::size_t index);

// Return the kernel for a host stub or a kernel handle, or nullptr.
Kernel* find_kernel(const void* function);

// Return the index of a stream; fail the recording where the handle is none.
int stream_index(const char* call, const void* stream);

// Count one more operation of the plan; fail the recording beyond the limit, with `hint` at the end of the message.
void count_operation(const std::string& hint = "");

// Note a call that failed as on a real device, for the messages of later failures, and return the error.
// The runtime's calls set the last error; the driver's do not.
cudaError_t error(const char* call, cudaError_t code, const std::string& why);
CUresult error(const char* call, CUresult code, const std::string& why);

// Note a call that is a hint about speed and no part of a plan, once.
void note_ignored(const char* call, const char* what);

// nullptr for an error that this runtime never returns.
const char* runtime_error_name(int code);
const char* driver_error_name(int code);
const char* error_text(int code);

}  // namespace recorder
