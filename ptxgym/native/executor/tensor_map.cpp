#include "tensor_map.hpp"

#include <map>

namespace executor {
namespace {

template <typename Enumerator>
using Names = std::map<std::string, Enumerator>;

const Names<CUtensorMapDataType> data_types = {
    {"UINT8", CU_TENSOR_MAP_DATA_TYPE_UINT8},
    {"UINT16", CU_TENSOR_MAP_DATA_TYPE_UINT16},
    {"UINT32", CU_TENSOR_MAP_DATA_TYPE_UINT32},
    {"INT32", CU_TENSOR_MAP_DATA_TYPE_INT32},
    {"UINT64", CU_TENSOR_MAP_DATA_TYPE_UINT64},
    {"INT64", CU_TENSOR_MAP_DATA_TYPE_INT64},
    {"FLOAT16", CU_TENSOR_MAP_DATA_TYPE_FLOAT16},
    {"FLOAT32", CU_TENSOR_MAP_DATA_TYPE_FLOAT32},
    {"FLOAT64", CU_TENSOR_MAP_DATA_TYPE_FLOAT64},
    {"BFLOAT16", CU_TENSOR_MAP_DATA_TYPE_BFLOAT16},
    {"FLOAT32_FTZ", CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ},
    {"TFLOAT32", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32},
    {"TFLOAT32_FTZ", CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ},
    {"16U4_ALIGN8B", CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B},
    {"16U4_ALIGN16B", CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B},
    {"16U6_ALIGN16B", CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B},
};
const Names<CUtensorMapInterleave> interleaves = {
    {"NONE", CU_TENSOR_MAP_INTERLEAVE_NONE},
    {"16B", CU_TENSOR_MAP_INTERLEAVE_16B},
    {"32B", CU_TENSOR_MAP_INTERLEAVE_32B},
};
const Names<CUtensorMapSwizzle> swizzles = {
    {"NONE", CU_TENSOR_MAP_SWIZZLE_NONE},
    {"32B", CU_TENSOR_MAP_SWIZZLE_32B},
    {"64B", CU_TENSOR_MAP_SWIZZLE_64B},
    {"128B", CU_TENSOR_MAP_SWIZZLE_128B},
    {"128B_ATOM_32B", CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B},
    {"128B_ATOM_32B_FLIP_8B", CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B},
    {"128B_ATOM_64B", CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B},
};
const Names<CUtensorMapL2promotion> promotions = {
    {"NONE", CU_TENSOR_MAP_L2_PROMOTION_NONE},
    {"L2_64B", CU_TENSOR_MAP_L2_PROMOTION_L2_64B},
    {"L2_128B", CU_TENSOR_MAP_L2_PROMOTION_L2_128B},
    {"L2_256B", CU_TENSOR_MAP_L2_PROMOTION_L2_256B},
};
const Names<CUtensorMapFloatOOBfill> fills = {
    {"NONE", CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE},
    {"NAN_REQUEST_ZERO_FMA", CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA},
};

template <typename Enumerator>
Enumerator named(const Names<Enumerator>& names, const std::string& name) {
    const auto found = names.find(name);
    if (found == names.end()) throw Malformed("a tensor map has a field of value " + name);
    return found->second;
}

}  // namespace

CUtensorMap encode(const TensorMap& map, CUdeviceptr address) {
    CUtensorMap encoded{};
    // A tensor of rank 1 has no strides; the driver wants an array all the same.
    const std::uint64_t no_strides[1] = {};
    check(driver().cuTensorMapEncodeTiled(
              &encoded, named(data_types, map.data_type), static_cast<cuuint32_t>(map.global_dim.size()),
              reinterpret_cast<void*>(address), map.global_dim.data(),
              map.global_strides.empty() ? no_strides : map.global_strides.data(), map.box_dim.data(),
              map.element_strides.data(), named(interleaves, map.interleave), named(swizzles, map.swizzle),
              named(promotions, map.l2_promotion), named(fills, map.oob_fill)),
          "cuTensorMapEncodeTiled");
    return encoded;
}

}  // namespace executor
