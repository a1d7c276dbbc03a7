#include "plan.hpp"

namespace executor {
namespace {

BufferRef read_buffer_ref(Reader& in) {
    BufferRef ref;
    ref.buffer = in.number<std::uint32_t>();
    ref.offset = in.number<std::uint64_t>();
    return ref;
}

Ref read_ref(Reader& in) {
    Ref ref{};
    ref.kind = static_cast<Ref::Kind>(in.number<std::uint8_t>());
    ref.at = in.number<std::uint32_t>();
    if (ref.kind == Ref::Kind::pointer) ref.target = read_buffer_ref(in);
    else ref.tensor_map = in.number<std::uint32_t>();
    return ref;
}

Blob read_blob(Reader& in) {
    Blob blob;
    blob.data = in.bytes();
    blob.refs = in.list([&] { return read_ref(in); });
    for (const Ref& ref : blob.refs) {
        const std::size_t size = ref.kind == Ref::Kind::pointer ? 8 : 128;
        if (ref.at + size > blob.data.size()) throw Malformed("a reference lies outside its bytes");
    }
    return blob;
}

Dim3 read_dim3(Reader& in) {
    Dim3 dim;
    for (auto& extent : dim) extent = in.number<std::uint32_t>();
    return dim;
}

TensorMap read_tensor_map(Reader& in) {
    TensorMap map;
    for (auto* text : {&map.data_type, &map.interleave, &map.swizzle, &map.l2_promotion, &map.oob_fill})
        *text = in.text();
    map.global_address = read_buffer_ref(in);
    map.global_dim = in.list([&] { return in.number<std::uint64_t>(); });
    map.global_strides = in.list([&] { return in.number<std::uint64_t>(); });
    map.box_dim = in.list([&] { return in.number<std::uint32_t>(); });
    map.element_strides = in.list([&] { return in.number<std::uint32_t>(); });
    const std::size_t rank = map.global_dim.size();
    if (rank < 1 || rank > 5 || map.global_strides.size() + 1 != rank || map.box_dim.size() != rank ||
        map.element_strides.size() != rank)
        throw Malformed("a tensor map's ranks differ");
    return map;
}

FunctionAttributes read_function(Reader& in) {
    FunctionAttributes function;
    function.kernel = in.number<std::uint32_t>();
    function.max_dynamic_smem_bytes = in.number<std::int32_t>();
    function.preferred_smem_carveout = in.number<std::int32_t>();
    function.non_portable_cluster = in.flag();
    return function;
}

Operation read_operation(Reader& in) {
    Operation operation;
    operation.kind = static_cast<Operation::Kind>(in.number<std::uint8_t>());
    operation.setup = in.flag();
    operation.stream = in.number<std::uint32_t>();
    operation.after = in.list([&] { return in.number<std::uint32_t>(); });
    switch (operation.kind) {
        case Operation::Kind::launch:
            operation.kernel = in.number<std::uint32_t>();
            operation.grid = read_dim3(in);
            operation.block = read_dim3(in);
            operation.cluster = read_dim3(in);
            operation.dynamic_smem_bytes = in.number<std::uint32_t>();
            operation.cooperative = in.flag();
            operation.programmatic = in.flag();
            operation.params = in.list([&] { return read_blob(in); });
            return operation;
        case Operation::Kind::memset:
            operation.target = read_buffer_ref(in);
            operation.value = in.number<std::uint32_t>();
            operation.width_bytes = in.number<std::uint32_t>();
            operation.size = in.number<std::uint64_t>();
            return operation;
        case Operation::Kind::copy:
            operation.target = read_buffer_ref(in);
            operation.source = read_buffer_ref(in);
            operation.size = in.number<std::uint64_t>();
            return operation;
        case Operation::Kind::upload:
            operation.target = read_buffer_ref(in);
            operation.data = read_blob(in);
            return operation;
    }
    throw Malformed("an operation of no known kind");
}

void check_indices(const Plan& plan, std::size_t kernels) {
    const auto in_range = [](std::size_t index, std::size_t count) {
        if (index >= count) throw Malformed("a plan refers to what it does not have");
    };
    const auto check_blob = [&](const Blob& blob) {
        for (const Ref& ref : blob.refs) {
            if (ref.kind == Ref::Kind::pointer) in_range(ref.target.buffer, plan.buffers.size());
            else in_range(ref.tensor_map, plan.tensor_maps.size());
        }
    };
    for (const TensorMap& map : plan.tensor_maps) in_range(map.global_address.buffer, plan.buffers.size());
    for (const FunctionAttributes& function : plan.functions) in_range(function.kernel, kernels);
    for (std::size_t index = 0; index < plan.operations.size(); ++index) {
        const Operation& operation = plan.operations[index];
        for (const std::uint32_t earlier : operation.after) in_range(earlier, index);
        for (const Blob& blob : operation.params) check_blob(blob);
        check_blob(operation.data);
        if (operation.kind == Operation::Kind::launch) in_range(operation.kernel, kernels);
        else in_range(operation.target.buffer, plan.buffers.size());
        if (operation.kind == Operation::Kind::copy) in_range(operation.source.buffer, plan.buffers.size());
    }
}

Plan read_plan(Reader& in, std::size_t kernels) {
    Plan plan;
    plan.buffers = in.list([&] {
        Buffer buffer;
        buffer.name = in.text();
        buffer.role = static_cast<Role>(in.number<std::uint8_t>());
        buffer.size = in.number<std::uint64_t>();
        return buffer;
    });
    plan.tensor_maps = in.list([&] { return read_tensor_map(in); });
    plan.functions = in.list([&] { return read_function(in); });
    plan.operations = in.list([&] { return read_operation(in); });
    check_indices(plan, kernels);
    return plan;
}

Bound read_bound(Reader& in) {
    Bound bound;
    bound.buffer = in.number<std::uint32_t>();
    bound.region = in.number<std::uint32_t>();
    return bound;
}

}  // namespace

Job read_job(Reader& in) {
    Job job;
    job.cubin = in.bytes();
    job.frame_bytes = in.number<std::uint32_t>();
    job.kernels = in.list([&] { return in.text(); });
    job.variables = in.list([&] {
        Variable variable;
        variable.name = in.text();
        variable.zeros = in.flag();
        return variable;
    });
    job.plans = in.list([&] { return read_plan(in, job.kernels.size()); });
    in.end();
    return job;
}

Call read_call(Reader& in) {
    Call call;
    call.plan = in.number<std::uint32_t>();
    call.flush = in.flag();
    call.profile = in.flag();
    call.inputs = in.list([&] { return read_bound(in); });
    call.results = in.list([&] { return read_bound(in); });
    call.places = in.list([&] { return read_bound(in); });
    call.poisons = in.list([&] {
        Poison poison;
        poison.buffer = in.number<std::uint32_t>();
        poison.width_bytes = in.number<std::uint32_t>();
        poison.value = in.number<std::uint32_t>();
        return poison;
    });
    in.end();
    return call;
}

}  // namespace executor
