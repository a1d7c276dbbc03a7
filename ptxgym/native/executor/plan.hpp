// A launch plan as the executor receives it: names are resolved to indices, bytes are ready to be patched.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "wire.hpp"

namespace executor {

using Bytes = std::vector<unsigned char>;
using Dim3 = std::array<std::uint32_t, 3>;

enum class Role : std::uint8_t { input = 0, output = 1, workspace = 2, symbol = 3 };

struct Buffer {
    std::string name;
    Role role;
    std::uint64_t size;
};

struct BufferRef {
    std::uint32_t buffer;
    std::uint64_t offset;
};

struct Ref {
    enum class Kind : std::uint8_t { pointer = 0, tensor_map = 1 };
    Kind kind;
    std::uint32_t at;
    BufferRef target;          // of a pointer
    std::uint32_t tensor_map;  // index
};

struct Blob {
    Bytes data;
    std::vector<Ref> refs;
};

struct TensorMap {
    std::string data_type, interleave, swizzle, l2_promotion, oob_fill;
    BufferRef global_address;
    std::vector<std::uint64_t> global_dim, global_strides;
    std::vector<std::uint32_t> box_dim, element_strides;
};

struct FunctionAttributes {
    std::uint32_t kernel;
    std::int32_t max_dynamic_smem_bytes;
    std::int32_t preferred_smem_carveout;
    bool non_portable_cluster;
};

struct Operation {
    enum class Kind : std::uint8_t { launch = 0, memset = 1, copy = 2, upload = 3 };
    Kind kind;
    bool setup;  // an upload that is done before the call is timed
    std::uint32_t stream;
    std::vector<std::uint32_t> after;  // earlier operations of other streams

    // launch
    std::uint32_t kernel = 0;
    Dim3 grid{}, block{}, cluster{};  // cluster is zero where none is asked for, or compiled in
    std::uint32_t dynamic_smem_bytes = 0;
    bool cooperative = false, programmatic = false;
    std::vector<Blob> params;

    // memset, copy, upload
    BufferRef target{}, source{};
    std::uint64_t size = 0;  // bytes of a copy, elements of a memset
    std::uint32_t value = 0, width_bytes = 0;
    Blob data;
};

struct Plan {
    std::vector<Buffer> buffers;
    std::vector<TensorMap> tensor_maps;
    std::vector<FunctionAttributes> functions;
    std::vector<Operation> operations;
};

// What kernels can write of their module.
struct Variable {
    std::string name;
    bool zeros;  // whether it starts as zeros
};

struct Job {
    Bytes cubin;
    std::uint32_t frame_bytes;  // of the kernel with the largest stack
    std::vector<std::string> kernels;
    std::vector<Variable> variables;
    std::vector<Plan> plans;
};

struct Bound {
    std::uint32_t buffer;
    std::uint32_t region;
};

struct Poison {
    std::uint32_t buffer;
    std::uint32_t width_bytes;
    std::uint32_t value;
};

struct Call {
    std::uint32_t plan;
    bool flush, profile;
    std::vector<Bound> inputs, results;
    std::vector<Bound> places;  // buffers that lie in a region, with the inputs that they hold
    std::vector<Poison> poisons;
};

Job read_job(Reader& reader);
Call read_call(Reader& reader);

}  // namespace executor
