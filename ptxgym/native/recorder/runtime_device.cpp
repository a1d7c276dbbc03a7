// The CUDA runtime: device, errors, streams, events, entry points.

#include <cuda.h>

#include "device.hpp"
#include "entry_points.hpp"
#include "interpose.hpp"
#include "launch.hpp"
#include "streams.hpp"
#include "wire.hpp"

using namespace recorder;

namespace {

constexpr int lowest_priority = 0, highest_priority = -5;  // as on an H200

cudaError_t only_device_0(const char* call, int device) {
    return device == 0 ? cudaSuccess
                       : error(call, cudaErrorInvalidDevice, format("device %d; there is device 0 only", device));
}

cudaError_t checked_stream(const char* call, const void* stream) {
    stream_index(call, stream);
    return cudaSuccess;
}

Event* event_or_error(const char* call, const void* event, cudaError_t& status) {
    Event* found = find_event(event);
    if (found == nullptr) status = error(call, cudaErrorInvalidResourceHandle, "the handle is no event");
    return found;
}

cudaError_t recorded(const char* call, const void* event, const void* stream) {
    const int index = stream_index(call, stream);
    cudaError_t status = cudaSuccess;
    if (Event* found = event_or_error(call, event, status)) record_event(*found, index);
    return status;
}

cudaError_t host_waited(const char* call, const void* event) {
    cudaError_t status = cudaSuccess;
    if (const Event* found = event_or_error(call, event, status)) host_waits_for_event(*found);
    return status;
}

cudaError_t new_stream(const char* call, cudaStream_t* out, unsigned flags, int priority) {
    if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)
        return error(call, cudaErrorInvalidValue, format("flags %#x; there is cudaStreamNonBlocking only", flags));
    *out = reinterpret_cast<cudaStream_t>(create_stream(flags, priority));
    return cudaSuccess;
}

const Stream& stream_of(const char* call, const void* stream) {
    return state().streams[static_cast<std::size_t>(stream_index(call, stream))];
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() {
    const cudaError_t last = state().last_error;
    state().last_error = cudaSuccess;
    return last;
}
cudaError_t cudaPeekAtLastError() { return state().last_error; }
const char* cudaGetErrorName(cudaError_t code) {
    const char* name = runtime_error_name(code);
    return name ? name : "cudaErrorUnknown";
}
const char* cudaGetErrorString(cudaError_t code) {
    const char* text = error_text(code);
    return text ? text : "unrecognized error code";
}

cudaError_t cudaGetDeviceCount(int* count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return only_device_0("cudaSetDevice", device); }
cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return only_device_0("cudaInitDevice", device); }
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
    host_waits_for_device();
    return cudaSuccess;
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    if (device != 0) return only_device_0("cudaGetDeviceProperties", device);
    fill_properties(*properties);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (device != 0) return only_device_0("cudaDeviceGetAttribute", device);
    const auto found = device_attribute(attribute);
    if (!found)
        return error("cudaDeviceGetAttribute", cudaErrorInvalidValue,
                     format("attribute %d is not known", static_cast<int>(attribute)));
    *value = *found;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit limit) {
    const auto found = device_limit(limit);
    if (!found)
        return error("cudaDeviceGetLimit", cudaErrorUnsupportedLimit, format("limit %d", static_cast<int>(limit)));
    *value = *found;
    return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, std::size_t) {
    if (!device_limit(limit))
        return error("cudaDeviceSetLimit", cudaErrorUnsupportedLimit, format("limit %d", static_cast<int>(limit)));
    note_ignored("cudaDeviceSetLimit", format("limit %d", static_cast<int>(limit)).c_str());
    return cudaSuccess;
}

cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) {
    note_ignored("cudaDeviceSetCacheConfig", "L1 cache");
    return cudaSuccess;
}
cudaError_t cudaCtxResetPersistingL2Cache() {
    note_ignored("cudaCtxResetPersistingL2Cache", "persisting L2 is reset before each call");
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least != nullptr) *least = lowest_priority;
    if (greatest != nullptr) *greatest = highest_priority;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* out) { return new_stream("cudaStreamCreate", out, cudaStreamDefault, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
    return new_stream("cudaStreamCreateWithFlags", out, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
    return new_stream("cudaStreamCreateWithPriority", out, flags, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return destroy_stream(stream)
               ? cudaSuccess
               : error("cudaStreamDestroy", cudaErrorInvalidResourceHandle, "the handle is no stream of yours");
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    host_waits_for_stream(stream_index("cudaStreamSynchronize", stream));
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    host_waits_for_stream(stream_index("cudaStreamQuery", stream));
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    const int index = stream_index("cudaStreamWaitEvent", stream);
    cudaError_t status = cudaSuccess;
    if (const Event* found = event_or_error("cudaStreamWaitEvent", event, status)) wait_for_event(index, *found);
    return status;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
    *priority = stream_of("cudaStreamGetPriority", stream).priority;
    return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
    *flags = stream_of("cudaStreamGetFlags", stream).flags;
    return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
    *device = 0;
    return checked_stream("cudaStreamGetDevice", stream);
}
cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID attribute, const cudaStreamAttrValue*) {
    constexpr const char* call = "cudaStreamSetAttribute";
    stream_index(call, stream);
    const char* about = hint(attribute);
    if (about == nullptr)
        return error(call, cudaErrorInvalidValue,
                     format("attribute %d is none of a stream", static_cast<int>(attribute)));
    note_ignored(call, about);
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    *status = cudaStreamCaptureStatusNone;
    return checked_stream("cudaStreamIsCapturing", stream);
}

cudaError_t cudaEventCreate(cudaEvent_t* out) {
    *out = reinterpret_cast<cudaEvent_t>(create_event(cudaEventDefault));
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
    *out = reinterpret_cast<cudaEvent_t>(create_event(flags));
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return destroy_event(event) ? cudaSuccess
                                : error("cudaEventDestroy", cudaErrorInvalidResourceHandle, "the handle is no event");
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return recorded("cudaEventRecord", event, stream);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return recorded("cudaEventRecordWithFlags", event, stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return host_waited("cudaEventSynchronize", event); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return host_waited("cudaEventQuery", event); }

// Nothing runs while a plan is recorded, so there is no time to measure: the answer differs from recording to
// recording, and a plan that follows from it is refused.
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
    constexpr const char* call = "cudaEventElapsedTime";
    cudaError_t status = cudaSuccess;
    const Event *from = event_or_error(call, start, status), *to = event_or_error(call, end, status);
    if (from == nullptr || to == nullptr) return status;
    if (!from->recorded || !to->recorded)
        return error(call, cudaErrorInvalidResourceHandle, "an event was not recorded");
    *ms = 0.001f * static_cast<float>(1 + fake_time_ns() % 9973);
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
    *function = entry_point(name);
    if (status != nullptr) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, status);
}

}  // extern "C"
