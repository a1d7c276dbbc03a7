// The rules are those of the documentation of cuTensorMapEncodeTiled in cuda.h (CUDA 13.0), and two that it does not
// state but a driver 580 on an H200 enforces: element strides of every dimension, and the size of the box.

#include "tensor_map.hpp"

#include <cstring>
#include <map>
#include <vector>

#include <cuda.h>

#include "state.hpp"
#include "wire.hpp"

namespace recorder {
namespace {

constexpr std::size_t map_bytes = 128;
constexpr std::size_t map_limit = 4096;
constexpr char tag[] = "ptxgymTM";  // 8 bytes; plan/merge.py looks for them

struct DataType {
    const char* name;
    int bits;
    bool floating, packed, padded;  // padded: gaps between the values, stricter rules
};

const DataType* data_type(int type) {
    static const std::map<int, DataType> types = {
        {CU_TENSOR_MAP_DATA_TYPE_UINT8, {"UINT8", 8, false, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_UINT16, {"UINT16", 16, false, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_UINT32, {"UINT32", 32, false, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_INT32, {"INT32", 32, false, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_UINT64, {"UINT64", 64, false, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_INT64, {"INT64", 64, false, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_FLOAT16, {"FLOAT16", 16, true, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, {"FLOAT32", 32, true, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_FLOAT64, {"FLOAT64", 64, true, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, {"BFLOAT16", 16, true, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ, {"FLOAT32_FTZ", 32, true, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, {"TFLOAT32", 32, true, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ, {"TFLOAT32_FTZ", 32, true, false, false}},
        {CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B, {"16U4_ALIGN8B", 4, false, true, false}},
        {CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B, {"16U4_ALIGN16B", 4, false, true, true}},
        {CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B, {"16U6_ALIGN16B", 6, false, true, true}},
    };
    const auto found = types.find(type);
    return found == types.end() ? nullptr : &found->second;
}

struct Swizzle {
    const char* name;
    int span_bytes;
    bool blackwell;
};

const Swizzle* swizzle(int mode) {
    static const std::map<int, Swizzle> modes = {
        {CU_TENSOR_MAP_SWIZZLE_NONE, {"NONE", 0, false}},
        {CU_TENSOR_MAP_SWIZZLE_32B, {"32B", 32, false}},
        {CU_TENSOR_MAP_SWIZZLE_64B, {"64B", 64, false}},
        {CU_TENSOR_MAP_SWIZZLE_128B, {"128B", 128, false}},
        {CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B, {"128B_ATOM_32B", 128, true}},
        {CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B, {"128B_ATOM_32B_FLIP_8B", 128, true}},
        {CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B, {"128B_ATOM_64B", 128, true}},
    };
    const auto found = modes.find(mode);
    return found == modes.end() ? nullptr : &found->second;
}

constexpr const char* interleave_names[] = {"NONE", "16B", "32B"};
constexpr const char* promotion_names[] = {"NONE", "L2_64B", "L2_128B", "L2_256B"};
constexpr const char* fill_names[] = {"NONE", "NAN_REQUEST_ZERO_FMA"};

using ull = unsigned long long;

std::string enumerators_problem(const TensorMapRequest& request) {
    const bool blackwell = state().profile.cc_major >= 10;
    const DataType* type = data_type(request.data_type);
    if (type == nullptr)
        return format("tensorDataType = %d is no CUtensorMapDataType", request.data_type);
    if (type->packed && !blackwell) {
        return format("tensorDataType = %s needs compute capability 10.0; this device has %d.%d", type->name,
                      state().profile.cc_major, state().profile.cc_minor);
    }
    const Swizzle* mode = swizzle(request.swizzle);
    if (mode == nullptr) return format("swizzle = %d is no CUtensorMapSwizzle", request.swizzle);
    if (mode->blackwell && !blackwell) {
        return format("swizzle = %s needs compute capability 10.0; this device has %d.%d", mode->name,
                      state().profile.cc_major, state().profile.cc_minor);
    }
    if (static_cast<unsigned>(request.interleave) > 2) {
        return format("interleave = %d is no CUtensorMapInterleave", request.interleave);
    }
    if (static_cast<unsigned>(request.l2_promotion) > 3) {
        return format("l2Promotion = %d is no CUtensorMapL2promotion", request.l2_promotion);
    }
    if (static_cast<unsigned>(request.oob_fill) > 1) {
        return format("oobFill = %d is no CUtensorMapFloatOOBfill", request.oob_fill);
    }
    if (request.oob_fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA && !type->floating) {
        return format("oobFill = NAN_REQUEST_ZERO_FMA needs a floating-point type, not %s", type->name);
    }
    return "";
}

std::string interleave_problem(const TensorMapRequest& request) {
    if (request.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE) return "";
    if (request.rank < 3) return format("tensorRank = %u must be at least 3 with an interleaved layout", request.rank);
    if (request.interleave == CU_TENSOR_MAP_INTERLEAVE_32B && request.swizzle != CU_TENSOR_MAP_SWIZZLE_32B) {
        return format("swizzle = %s must be 32B with interleave 32B", swizzle(request.swizzle)->name);
    }
    if (request.data_type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B) {
        return "interleave must be NONE with tensorDataType 16U6_ALIGN16B";
    }
    return "";
}

std::string packed_swizzle_problem(const TensorMapRequest& request) {
    if (!data_type(request.data_type)->padded) return "";
    const int mode = request.swizzle;
    const bool allowed =
        mode == CU_TENSOR_MAP_SWIZZLE_NONE || mode == CU_TENSOR_MAP_SWIZZLE_128B ||
        mode == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B ||
        (mode == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B && request.data_type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B);
    return allowed ? ""
                   : format("swizzle = %s is not supported with tensorDataType %s", swizzle(mode)->name,
                            data_type(request.data_type)->name);
}

std::string address_problem(const void* map, const TensorMapRequest& request, bool wide) {
    if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0)
        return format("tensorMap = %p is not aligned to 64 bytes", map);
    const unsigned wanted = wide ? 32 : 16;
    if (request.address % wanted != 0) {
        return format("globalAddress = ...%03llx is not a multiple of %u bytes",
                      static_cast<ull>(request.address % 4096), wanted);
    }
    return "";
}

std::string global_problem(const TensorMapRequest& request, bool wide) {
    const DataType& type = *data_type(request.data_type);
    for (unsigned i = 0; i < request.rank; ++i) {
        if (request.dim[i] == 0 || request.dim[i] > (ull{1} << 32)) {
            return format("globalDim[%u] = %llu must be from 1 to 2^32", i, static_cast<ull>(request.dim[i]));
        }
    }
    const unsigned multiple = type.padded ? 128 : type.packed ? 2 : 1;
    if (request.dim[0] % multiple != 0) {
        return format("globalDim[0] = %llu must be a multiple of %u with tensorDataType %s",
                      static_cast<ull>(request.dim[0]), multiple, type.name);
    }
    const unsigned wanted = wide ? 32 : 16;
    for (unsigned i = 0; i + 1 < request.rank; ++i) {
        const ull stride = request.strides[i];
        if (stride % wanted != 0)
            return format("globalStrides[%u] = %llu bytes must be a multiple of %u", i, stride, wanted);
        if (stride >= (ull{1} << 40)) return format("globalStrides[%u] = %llu bytes must be less than 2^40", i, stride);
    }
    return "";
}

std::string box_problem(const TensorMapRequest& request) {
    const DataType& type = *data_type(request.data_type);
    ull elements = 1;
    for (unsigned i = 0; i < request.rank; ++i) {
        if (request.box[i] == 0 || request.box[i] > 256)
            return format("boxDim[%u] = %u must be from 1 to 256", i, request.box[i]);
        if (request.element_strides[i] == 0 || request.element_strides[i] > 8) {
            return format("elementStrides[%u] = %u must be from 1 to 8", i, request.element_strides[i]);
        }
        // TMA takes no stride in dimension 0 unless the layout is interleaved.
        const bool strided = i > 0 || request.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE;
        const unsigned step = strided ? request.element_strides[i] : 1;
        elements *= (request.box[i] + step - 1) / step;
    }
    if (type.padded && request.box[0] != 128) {
        return format("boxDim[0] = %u must be 128 with tensorDataType %s", request.box[0], type.name);
    }
    const unsigned inner_bits = request.box[0] * static_cast<unsigned>(type.bits);
    const unsigned inner_bytes = inner_bits / 8;
    if (request.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE) {
        if (inner_bits % 128 != 0) {
            return format("boxDim[0] = %u elements of %s are %u bytes, which must be a multiple of 16", request.box[0],
                          type.name, inner_bytes);
        }
        const Swizzle& mode = *swizzle(request.swizzle);
        if (mode.span_bytes > 0 && inner_bytes > static_cast<unsigned>(mode.span_bytes)) {
            return format("boxDim[0] = %u elements of %s are %u bytes, more than the %d bytes of swizzle %s",
                          request.box[0], type.name, inner_bytes, mode.span_bytes, mode.name);
        }
    }
    const ull box_bytes = elements * static_cast<ull>(type.bits) / 8;
    if (box_bytes > static_cast<ull>(state().profile.smem_per_sm_bytes)) {
        return format("boxDim: the box takes %llu bytes, more than the %d bytes of shared memory", box_bytes,
                      state().profile.smem_per_sm_bytes);
    }
    return "";
}

std::vector<std::uint64_t> list(const std::uint64_t* values, std::size_t count) { return {values, values + count}; }
std::vector<std::uint64_t> list(const std::uint32_t* values, std::size_t count) { return {values, values + count}; }

// 128 bytes that no host code makes by accident: the tag, the index, and words that repeat both.
std::array<std::uint64_t, map_bytes / 8> tagged(std::uint64_t index) {
    std::array<std::uint64_t, map_bytes / 8> words;
    std::memcpy(&words[0], tag, 8);
    words[1] = index;
    for (std::size_t i = 2; i < words.size(); ++i)
        words[i] = (words[0] ^ (index * 0x9e3779b97f4a7c15)) + i;
    return words;
}

}  // namespace

std::string tensor_map_problem(const void* map, const TensorMapRequest& request) {
    if (map == nullptr) return "tensorMap is null";
    if (request.rank < 1 || request.rank > 5) return format("tensorRank = %u must be from 1 to 5", request.rank);
    if (!request.dim || !request.strides || !request.box || !request.element_strides) {
        return "globalDim, globalStrides, boxDim and elementStrides must not be null (not even globalStrides at rank "
               "1)";
    }
    if (std::string problem = enumerators_problem(request); !problem.empty()) return problem;
    if (std::string problem = interleave_problem(request); !problem.empty()) return problem;
    if (std::string problem = packed_swizzle_problem(request); !problem.empty()) return problem;
    const bool wide = request.interleave == CU_TENSOR_MAP_INTERLEAVE_32B || data_type(request.data_type)->padded;
    if (std::string problem = address_problem(map, request, wide); !problem.empty()) return problem;
    if (std::string problem = global_problem(request, wide); !problem.empty()) return problem;
    return box_problem(request);
}

void record_tensor_map(void* map, const TensorMapRequest& request) {
    static std::uint64_t count = 0;
    if (state().used.tensor_maps++ >= map_limit)
        fail("plan.operation_limit", format("more than %zu tensor maps in one call", map_limit));
    const std::size_t rank = request.rank;
    Line("tensor_map")
        .field("data_type", data_type(request.data_type)->name)
        .field("address", request.address)
        .field("global_dim", list(request.dim, rank))
        .field("global_strides_bytes", list(request.strides, rank - 1))
        .field("box_dim", list(request.box, rank))
        .field("element_strides", list(request.element_strides, rank))
        .field("interleave", interleave_names[request.interleave])
        .field("swizzle", swizzle(request.swizzle)->name)
        .field("l2_promotion", promotion_names[request.l2_promotion])
        .field("oob_fill", fill_names[request.oob_fill])
        .send();
    const auto words = tagged(count++);
    std::memcpy(map, words.data(), map_bytes);
}

}  // namespace recorder
