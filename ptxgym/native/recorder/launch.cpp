// Limits and their order: the CUDA programming guide's table of technical specifications for compute capability 9.0 and
// 10.0, and launches tried on an H200 with driver 580 (which refuses each of them).

#include "launch.hpp"

#include <cstring>

#include "occupancy.hpp"
#include "wire.hpp"

namespace recorder {
namespace {

constexpr unsigned max_grid_x = 0x7fffffff, max_grid_yz = 65535;
constexpr unsigned max_block_xy = 1024, max_block_z = 64, max_threads = 1024;

using ull = unsigned long long;

std::string text(const dim3& d) { return format("(%u, %u, %u)", d.x, d.y, d.z); }
ull volume(const dim3& d) { return ull{d.x} * d.y * d.z; }
bool given(const dim3& d) { return d.x != 0 || d.y != 0 || d.z != 0; }
bool equal(const dim3& a, const dim3& b) { return a.x == b.x && a.y == b.y && a.z == b.z; }
bool divides(const dim3& a, const dim3& b) { return b.x % a.x == 0 && b.y % a.y == 0 && b.z % a.z == 0; }

[[noreturn]] void refuse(const char* code, const Kernel& kernel, const std::string& why) {
    fail_launch(code, "launch of " + kernel.name + ": " + why);
}

void check_shape(const Kernel& kernel, const LaunchRequest& request) {
    const dim3 &grid = request.grid, &block = request.block;
    if (volume(grid) == 0 || grid.x > max_grid_x || grid.y > max_grid_yz || grid.z > max_grid_yz) {
        refuse("launch.grid", kernel, "grid " + text(grid) + " must be from 1 to (2147483647, 65535, 65535)");
    }
    if (volume(block) == 0 || block.x > max_block_xy || block.y > max_block_xy || block.z > max_block_z) {
        refuse("launch.block", kernel, "block " + text(block) + " must be from 1 to (1024, 1024, 64)");
    }
    if (volume(block) > max_threads) {
        refuse("launch.block", kernel,
               "block " + text(block) + format(" has %llu threads, more than 1024", volume(block)));
    }
    // PTX ISA, .blocksareclusters: the grid counts clusters; replay would have to launch it so.
    if (kernel.blocks_are_clusters && volume(kernel.cluster) > 1) {
        refuse("launch.bounds", kernel,
               "__block_size__ with a cluster " + text(kernel.cluster) +
                   " is not supported: use __cluster_dims__, and a grid that counts blocks");
    }
    if (given(kernel.req_ntid) && !equal(kernel.req_ntid, block)) {
        refuse("launch.bounds", kernel,
               "block " + text(block) + " is not the .reqntid " + text(kernel.req_ntid) + " that it was compiled for");
    }
    if (given(kernel.max_ntid) && volume(block) > volume(kernel.max_ntid)) {
        refuse("launch.bounds", kernel,
               format("block %s has %llu threads, more than the %llu of its __launch_bounds__", text(block).c_str(),
                      volume(block), volume(kernel.max_ntid)));
    }
}

void check_resources(const Kernel& kernel, const LaunchRequest& request) {
    const Profile& profile = state().profile;
    const int threads = static_cast<int>(volume(request.block));
    const int registers = registers_per_block(kernel, threads);
    if (registers > profile.registers_per_block) {
        refuse("launch.registers", kernel,
               format("%d threads of %d registers take %d registers (warps count in fours), more than %d: use fewer "
                      "threads or __launch_bounds__(%d)",
                      threads, kernel.registers, registers, profile.registers_per_block, threads));
    }
    const ull dynamic = request.dynamic_smem_bytes;
    const ull fixed = static_cast<ull>(kernel.static_smem_bytes);
    if (fixed + dynamic > static_cast<ull>(profile.smem_optin_bytes)) {
        refuse("launch.shared_memory", kernel,
               format("%llu static and %llu dynamic bytes of shared memory exceed the device's %d", fixed, dynamic,
                      profile.smem_optin_bytes));
    }
    if (kernel.max_dynamic_smem_bytes < 0 && fixed + dynamic > static_cast<ull>(profile.smem_per_block_bytes)) {
        refuse("launch.shared_memory", kernel,
               format("%llu static and %llu dynamic bytes of shared memory exceed %d; beyond that call "
                      "cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) first",
                      fixed, dynamic, profile.smem_per_block_bytes));
    }
    if (kernel.max_dynamic_smem_bytes >= 0 && dynamic > static_cast<ull>(kernel.max_dynamic_smem_bytes)) {
        refuse("launch.shared_memory", kernel,
               format("%llu dynamic bytes of shared memory exceed the %d that cudaFuncSetAttribute allowed", dynamic,
                      kernel.max_dynamic_smem_bytes));
    }
}

dim3 checked_cluster(const Kernel& kernel, const LaunchRequest& request) {
    const Profile& profile = state().profile;
    dim3 cluster = kernel.cluster;
    if (given(request.cluster)) {
        if (given(cluster) && !equal(cluster, request.cluster)) {
            refuse("launch.cluster_conflict", kernel,
                   "cluster attribute " + text(request.cluster) + " conflicts with the compile-time cluster " +
                       text(cluster));
        }
        cluster = request.cluster;
    }
    if (!given(cluster)) {
        if (given(request.preferred_cluster)) {
            refuse("launch.cluster_size", kernel,
                   "preferred cluster " + text(request.preferred_cluster) + " needs a cluster dimension beside it");
        }
        return cluster;
    }
    const ull ctas = volume(cluster);
    if (ctas == 0 || ctas > static_cast<ull>(profile.max_cluster)) {
        refuse("launch.cluster_size", kernel,
               format("cluster %s has %llu CTAs; it must have from 1 to %d", text(cluster).c_str(), ctas,
                      profile.max_cluster));
    }
    if (kernel.max_cluster_rank != 0 && ctas > kernel.max_cluster_rank) {
        refuse("launch.cluster_size", kernel,
               format("cluster %s has %llu CTAs, more than the %u of its __launch_bounds__ (.maxclusterrank)",
                      text(cluster).c_str(), ctas, kernel.max_cluster_rank));
    }
    if (ctas > static_cast<ull>(profile.portable_cluster) && !kernel.non_portable_cluster) {
        refuse("launch.cluster_size", kernel,
               format("cluster %s has %llu CTAs; more than %d need cudaFuncAttributeNonPortableClusterSizeAllowed",
                      text(cluster).c_str(), ctas, profile.portable_cluster));
    }
    if (!divides(cluster, request.grid)) {
        refuse("launch.cluster_grid", kernel,
               "grid " + text(request.grid) + " is not a multiple of cluster " + text(cluster));
    }
    const dim3& preferred = request.preferred_cluster;
    if (given(preferred) &&
        (volume(preferred) == 0 || !divides(cluster, preferred) || !divides(preferred, request.grid))) {
        refuse("launch.cluster_size", kernel,
               "preferred cluster " + text(preferred) + " must be a multiple of cluster " + text(cluster) +
                   " and divide grid " + text(request.grid));
    }
    return cluster;
}

void check_cooperative(const Kernel& kernel, const LaunchRequest& request) {
    if (!request.cooperative) return;
    const int threads = static_cast<int>(volume(request.block));
    const ull resident = static_cast<ull>(blocks_per_sm(kernel, threads, request.dynamic_smem_bytes)) *
                         static_cast<ull>(state().profile.sm_count);
    if (volume(request.grid) > resident) {
        refuse(
            "launch.cooperative_too_large", kernel,
            format("a cooperative grid of %llu CTAs; the device keeps %llu resident, so launch no more than that",
                   volume(request.grid), resident));
    }
}

void check_host_pointer(const Kernel& kernel, std::size_t index, const void* argument) {
    std::uint64_t value = 0;
    __builtin_memcpy(&value, argument, sizeof value);
    const auto& pinned = state().pinned;
    auto after = pinned.upper_bound(value);
    if (after == pinned.begin()) return;
    --after;
    if (value - after->first < after->second) {
        fail("plan.host_pointer", format("parameter %zu of %s points to host memory; kernels get device memory only",
                                         index, kernel.name.c_str()));
    }
}

std::vector<std::string> parameter_bytes(const Kernel& kernel, void** arguments) {
    if (!kernel.param_bytes.empty() && arguments == nullptr)
        refuse("launch.arguments", kernel, "the argument array is null");
    std::vector<std::string> params;
    for (std::size_t i = 0; i < kernel.param_bytes.size(); ++i) {
        if (arguments[i] == nullptr)
            refuse("launch.arguments", kernel, format("the pointer to parameter %zu is null", i));
        if (kernel.param_bytes[i] == 8) check_host_pointer(kernel, i, arguments[i]);
        params.push_back(hex(arguments[i], kernel.param_bytes[i]));
    }
    return params;
}

std::vector<std::uint64_t> list(const dim3& d) { return {d.x, d.y, d.z}; }

}  // namespace

void record_launch(const char* call, const LaunchRequest& request) {
    const Kernel& kernel = *request.kernel;
    check_shape(kernel, request);
    check_resources(kernel, request);
    const dim3 cluster = checked_cluster(kernel, request);
    check_cooperative(kernel, request);
    count_operation();
    Line("launch")
        .field("kernel", kernel.name)
        .field("grid", list(request.grid))
        .field("block", list(request.block))
        .field("dynamic_smem_bytes", static_cast<std::uint64_t>(request.dynamic_smem_bytes))
        .field("cluster", given(cluster) ? list(cluster) : std::vector<std::uint64_t>{})
        .field("cooperative", request.cooperative)
        .field("programmatic", request.programmatic)
        .field("stream", stream_index(call, request.stream))
        .field("params", parameter_bytes(kernel, request.arguments))
        .place()
        .send();
    launch_is_placed();
}

const char* hint(int attribute) {
    switch (attribute) {
        case cudaLaunchAttributeAccessPolicyWindow: return "access policy window";
        case cudaLaunchAttributeSynchronizationPolicy: return "synchronization policy";
        case cudaLaunchAttributeClusterSchedulingPolicyPreference: return "cluster scheduling policy";
        case cudaLaunchAttributePriority: return "priority";
        case cudaLaunchAttributeMemSyncDomain: return "memory synchronization domain";
        case cudaLaunchAttributeMemSyncDomainMap: return "memory synchronization domain map";
        case cudaLaunchAttributePreferredSharedMemoryCarveout: return "shared memory carve-out";
        default: return nullptr;
    }
}

[[noreturn]] void refuse_attribute(const char* call, const std::string& which) {
    fail("plan.refused_attribute", format("%s: launch attribute %s is not supported", call, which.c_str()));
}

void apply_attribute(const char* call, const cudaLaunchAttribute& attribute, LaunchRequest& request) {
    const cudaLaunchAttributeValue& value = attribute.val;
    int id = 0;
    std::memcpy(&id, &attribute.id, sizeof id);  // any number that the host code gave
    switch (id) {
        case cudaLaunchAttributeClusterDimension:
            request.cluster = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
            return;
        case cudaLaunchAttributePreferredClusterDimension:
            note_ignored(call, "preferred cluster dimension");
            request.preferred_cluster = {value.preferredClusterDim.x, value.preferredClusterDim.y,
                                         value.preferredClusterDim.z};
            return;
        case cudaLaunchAttributeCooperative: request.cooperative = value.cooperative != 0; return;
        case cudaLaunchAttributeProgrammaticStreamSerialization:
            request.programmatic = value.programmaticStreamSerializationAllowed != 0;
            return;
        case cudaLaunchAttributeIgnore: return;
        case cudaLaunchAttributeProgrammaticEvent: refuse_attribute(call, "cudaLaunchAttributeProgrammaticEvent");
        case cudaLaunchAttributeLaunchCompletionEvent:
            refuse_attribute(call, "cudaLaunchAttributeLaunchCompletionEvent");
        case cudaLaunchAttributeDeviceUpdatableKernelNode:
            refuse_attribute(call, "cudaLaunchAttributeDeviceUpdatableKernelNode");
        default:
            if (const char* about = hint(id)) return note_ignored(call, about);
            refuse_attribute(call, std::to_string(id));
    }
}

}  // namespace recorder
