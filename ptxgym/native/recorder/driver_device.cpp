// The CUDA driver: device, context, functions of the build, launches, streams, events, entry points.

#include <cstdio>
#include <cstring>
#include <dlfcn.h>

#include <cuda.h>

#include "device.hpp"
#include "entry_points.hpp"
#include "functions.hpp"
#include "interpose.hpp"
#include "launch.hpp"
#include "occupancy.hpp"
#include "streams.hpp"
#include "wire.hpp"

using namespace recorder;

namespace {

CUcontext const the_context = reinterpret_cast<CUcontext>(&state());

CUresult only_device_0(const char* call, CUdevice device) {
    return device == 0 ? CUDA_SUCCESS
                       : error(call, CUDA_ERROR_INVALID_DEVICE, format("device %d; there is device 0 only", device));
}

Kernel* kernel_or_error(const char* call, CUfunction function, CUresult& status) {
    Kernel* kernel = find_kernel(function);
    if (kernel == nullptr)
        status = error(call, CUDA_ERROR_INVALID_HANDLE, "the handle is no kernel of this submission");
    return kernel;
}

void launch(const char* call, CUfunction function, LaunchRequest request, void** arguments, void** extra) {
    if (extra != nullptr) {
        fail("plan.refused_call", format("%s with `extra`: pass the parameters by kernelParams", call));
    }
    request.kernel = find_kernel(function);
    if (request.kernel == nullptr)
        fail_launch("launch.function",
                    format("%s: %p is no kernel of this submission", call, static_cast<void*>(function)));
    request.arguments = arguments;
    record_launch(call, request);
}

Event* event_or_error(const char* call, CUevent event, CUresult& status) {
    Event* found = find_event(event);
    if (found == nullptr) status = error(call, CUDA_ERROR_INVALID_HANDLE, "the handle is no event");
    return found;
}

CUresult recorded(const char* call, CUevent event, CUstream stream) {
    const int index = stream_index(call, stream);
    CUresult status = CUDA_SUCCESS;
    if (Event* found = event_or_error(call, event, status)) record_event(*found, index);
    return status;
}

CUresult host_waited(const char* call, CUevent event) {
    CUresult status = CUDA_SUCCESS;
    if (const Event* found = event_or_error(call, event, status)) host_waits_for_event(*found);
    return status;
}

CUresult new_stream(const char* call, CUstream* out, unsigned flags, int priority) {
    if (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)
        return error(call, CUDA_ERROR_INVALID_VALUE, format("flags %#x; there is CU_STREAM_NON_BLOCKING only", flags));
    *out = reinterpret_cast<CUstream>(create_stream(flags, priority));
    return CUDA_SUCCESS;
}

}  // namespace

namespace recorder {

void* entry_point(const char* name) {
    if (name == nullptr || std::strncmp(name, "cu", 2) != 0) return nullptr;
    for (const char* version : {"_v4", "_v3", "_v2", ""}) {
        char versioned[128];
        std::snprintf(versioned, sizeof versioned, "%s%s", name, version);
        if (void* found = dlsym(RTLD_DEFAULT, versioned)) return found;
    }
    return nullptr;
}

}  // namespace recorder

extern "C" {

CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = 0;
    return only_device_0("cuDeviceGet", ordinal);
}
CUresult cuDeviceGetCount(int* count) {
    *count = 1;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
    std::snprintf(name, static_cast<std::size_t>(size), "%s", state().profile.name.c_str());
    return only_device_0("cuDeviceGetName", device);
}
CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice device) {
    *bytes = state().profile.memory_bytes;
    return only_device_0("cuDeviceTotalMem", device);
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    if (device != 0) return only_device_0("cuDeviceGetAttribute", device);
    const auto found = device_attribute(attribute);
    if (!found)
        return error("cuDeviceGetAttribute", CUDA_ERROR_INVALID_VALUE,
                     format("attribute %d is not known", static_cast<int>(attribute)));
    *value = *found;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    *context = the_context;
    return only_device_0("cuDevicePrimaryCtxRetain", device);
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return only_device_0("cuDevicePrimaryCtxRelease", device); }
CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = the_context;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* device) {
    *device = 0;
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
    host_waits_for_device();
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char** name) {
    *name = driver_error_name(code);
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorString(CUresult code, const char** text) {
    *text = error_text(code);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetProcAddress(const char* name, void** function, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
    *function = entry_point(name);
    if (status != nullptr) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS
                     : error("cuGetProcAddress", CUDA_ERROR_NOT_FOUND, format("there is no driver call %s", name));
}

// By `dlsym` this name is the call of CUDA 11, without the last argument; by its header it is the one above.
#undef cuGetProcAddress
CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, nullptr);
}

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned smem, CUstream stream, void** arguments, void** extra) {
    LaunchRequest request;
    request.grid = {gx, gy, gz};
    request.block = {bx, by, bz};
    request.dynamic_smem_bytes = smem;
    request.stream = stream;
    launch("cuLaunchKernel", function, request, arguments, extra);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* configuration, CUfunction function, void** arguments, void** extra) {
    // The driver's attributes are the runtime's under other names.
    static_assert(sizeof(CUlaunchAttribute) == sizeof(cudaLaunchAttribute));
    LaunchRequest request;
    request.grid = {configuration->gridDimX, configuration->gridDimY, configuration->gridDimZ};
    request.block = {configuration->blockDimX, configuration->blockDimY, configuration->blockDimZ};
    request.dynamic_smem_bytes = configuration->sharedMemBytes;
    request.stream = configuration->hStream;
    for (unsigned i = 0; i < configuration->numAttrs; ++i) {
        cudaLaunchAttribute attribute;
        std::memcpy(&attribute, &configuration->attrs[i], sizeof attribute);
        apply_attribute("cuLaunchKernelEx", attribute, request);
    }
    launch("cuLaunchKernelEx", function, request, arguments, extra);
    return CUDA_SUCCESS;
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned smem, CUstream stream, void** arguments) {
    LaunchRequest request;
    request.grid = {gx, gy, gz};
    request.block = {bx, by, bz};
    request.dynamic_smem_bytes = smem;
    request.stream = stream;
    request.cooperative = true;
    launch("cuLaunchCooperativeKernel", function, request, arguments, nullptr);
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    CUresult status = CUDA_SUCCESS;
    Kernel* kernel = kernel_or_error("cuFuncSetAttribute", function, status);
    if (kernel == nullptr) return status;
    FunctionAttribute known;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: known = FunctionAttribute::max_dynamic_smem; break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: known = FunctionAttribute::carveout; break;
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
            known = FunctionAttribute::non_portable_cluster;
            break;
        case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: known = FunctionAttribute::ignored; break;
        default:
            fail("plan.refused_attribute",
                 format("cuFuncSetAttribute: attribute %d is not supported", static_cast<int>(attribute)));
    }
    const std::string problem = set_function_attribute(*kernel, known, value);
    return problem.empty() ? CUDA_SUCCESS : error("cuFuncSetAttribute", CUDA_ERROR_INVALID_VALUE, problem);
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
    CUresult status = CUDA_SUCCESS;
    const Kernel* kernel = kernel_or_error("cuFuncGetAttribute", function, status);
    if (kernel == nullptr) return status;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = launchable_threads(*kernel); break;
        case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = kernel->static_smem_bytes; break;
        case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = kernel->stack_bytes; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = kernel->registers; break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = dynamic_smem_limit(*kernel); break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
            *value = state().profile.cc_major * 10 + state().profile.cc_minor;
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = kernel->carveout; break;
        case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: *value = kernel->cluster.x != 0; break;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: *value = static_cast<int>(kernel->cluster.x); break;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: *value = static_cast<int>(kernel->cluster.y); break;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: *value = static_cast<int>(kernel->cluster.z); break;
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: *value = kernel->non_portable_cluster; break;
        default:
            return error("cuFuncGetAttribute", CUDA_ERROR_INVALID_VALUE,
                         format("attribute %d is not known", static_cast<int>(attribute)));
    }
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, std::size_t smem) {
    CUresult status = CUDA_SUCCESS;
    const Kernel* kernel = kernel_or_error("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, status);
    if (kernel == nullptr) return status;
    if (threads <= 0)
        return error("cuOccupancyMaxActiveBlocksPerMultiprocessor", CUDA_ERROR_INVALID_VALUE, "no threads");
    *blocks = blocks_per_sm(*kernel, threads, smem);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* out, unsigned flags) { return new_stream("cuStreamCreate", out, flags, 0); }
CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
    return new_stream("cuStreamCreateWithPriority", out, flags, priority);
}
CUresult cuStreamDestroy(CUstream stream) {
    return destroy_stream(stream)
               ? CUDA_SUCCESS
               : error("cuStreamDestroy", CUDA_ERROR_INVALID_HANDLE, "the handle is no stream of yours");
}
CUresult cuStreamSynchronize(CUstream stream) {
    host_waits_for_stream(stream_index("cuStreamSynchronize", stream));
    return CUDA_SUCCESS;
}
CUresult cuStreamQuery(CUstream stream) {
    host_waits_for_stream(stream_index("cuStreamQuery", stream));
    return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    const int index = stream_index("cuStreamWaitEvent", stream);
    CUresult status = CUDA_SUCCESS;
    if (const Event* found = event_or_error("cuStreamWaitEvent", event, status)) wait_for_event(index, *found);
    return status;
}

CUresult cuEventCreate(CUevent* out, unsigned flags) {
    *out = reinterpret_cast<CUevent>(create_event(flags));
    return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) {
    return destroy_event(event) ? CUDA_SUCCESS
                                : error("cuEventDestroy", CUDA_ERROR_INVALID_HANDLE, "the handle is no event");
}
CUresult cuEventRecord(CUevent event, CUstream stream) { return recorded("cuEventRecord", event, stream); }
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
    return recorded("cuEventRecordWithFlags", event, stream);
}
CUresult cuEventSynchronize(CUevent event) { return host_waited("cuEventSynchronize", event); }
CUresult cuEventQuery(CUevent event) { return host_waited("cuEventQuery", event); }

}  // extern "C"
