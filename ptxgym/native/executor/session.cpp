#include "session.hpp"

#include <set>
#include <stdexcept>
#include <unistd.h>

#include "prepared.hpp"
#include "tensor_map.hpp"
#include "wrapped.hpp"

namespace executor {
namespace {

constexpr std::size_t printf_bytes = 64 << 10;
constexpr std::size_t device_heap_bytes = 1 << 20;
constexpr unsigned char workspace_poison = 0xFF;
constexpr std::uint64_t staging_alignment_bytes = 512;

int attribute(CUdevice_attribute which, CUdevice device) {
    int value = 0;
    check(driver().cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
    return value;
}

CUevent new_event(unsigned flags) {
    CUevent event;
    check(driver().cuEventCreate(&event, flags), "cuEventCreate");
    return event;
}

}  // namespace

Context::Context() {
    const Stage stage("start");
    check(driver().cuInit(0), "cuInit");
    check(driver().cuDeviceGet(&device_, 0), "cuDeviceGet");
    CUcontext context;
    check(driver().cuDevicePrimaryCtxRetain(&context, device_), "cuDevicePrimaryCtxRetain");
    check(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

Context::~Context() {
    driver().cuDevicePrimaryCtxRelease(device_);
}

void Context::require_none() {
    const Stage stage("start");
    unsigned flags = 0;
    int active = 0;
    check(driver().cuDevicePrimaryCtxGetState(0, &flags, &active), "cuDevicePrimaryCtxGetState");
    check(active ? CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE : CUDA_SUCCESS, "cuDevicePrimaryCtxRelease");
}

Session::Session(Printed& printed) : printed_(printed), device_(context_.device()) {
    const Stage stage("start");
    check(driver().cuDriverGetVersion(&driver_version_), "cuDriverGetVersion");
    check(driver().cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, printf_bytes), "cuCtxSetLimit");
    check(driver().cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, device_heap_bytes), "cuCtxSetLimit");
    l2_bytes_ = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device_);
    pageable_access_ = attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, device_) != 0;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_;
    std::size_t granularity = 0;
    check(driver().cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
          "cuMemGetAllocationGranularity");
    space_ = std::make_unique<AddressSpace>(device_, granularity);
    pool_ = std::make_unique<SlotPool>(*space_);
    gate_ = std::make_unique<Gate>(device_);
    translations_ = std::make_unique<Translations>(device_);
    main_ = stream(0);
    started_ = new_event(CU_EVENT_DEFAULT);
    ended_ = new_event(CU_EVENT_DEFAULT);
    printed_.clear();
}

void Session::load(Job job) {
    if (module_) throw Malformed("one context takes one submission");
    module_ = std::make_unique<Module>(std::move(job.cubin), std::move(job.kernels), std::move(job.variables),
                                       main_);
    residue_ = std::make_unique<Residue>(device_, job.frame_bytes);
    plans_ = std::move(job.plans);
    for (const Plan& plan : plans_) module_->apply(plan);  // a bad attribute is a fault of the load
}

void Session::add_region(std::uint32_t id, Region::Kind kind, std::uint64_t size, int descriptor) {
    const Stage stage("region");
    regions_[id] = std::make_unique<Region>(*space_, kind, size, descriptor);
}

const Region& Session::region(std::uint32_t id) const {
    const auto found = regions_.find(id);
    if (found == regions_.end()) throw Malformed("there is no region " + std::to_string(id));
    return *found->second;
}

CUstream Session::stream(std::uint32_t number) {
    CUstream& stream = streams_[number];
    if (stream == nullptr) check(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return stream;
}

CUevent Session::event(std::size_t number) {
    while (events_.size() <= number) events_.push_back(new_event(CU_EVENT_DISABLE_TIMING));
    return events_[number];
}

Called Session::call(const Call& call, const std::function<void()>& launching) {
    if (!module_ || call.plan >= plans_.size()) throw Malformed("there is no plan " + std::to_string(call.plan));
    const Plan& plan = plans_[call.plan];
    if (last_plan_ != call.plan) pool_->release_all();  // sizes of another shape
    last_plan_ = call.plan;
    printed_.clear();
    Prepared prepared;
    try {
        prepare(plan, call, prepared);
        launching();
        const Called called = run(call, prepared);
        const Stage stage("collect");
        check_canaries(plan, prepared);
        collect(plan, call, prepared);
        return called;
    } catch (...) {
        driver().cuCtxSynchronize();  // what was enqueued still uses the buffers
        throw;
    }
}

void Session::prepare(const Plan& plan, const Call& call, Prepared& prepared) {
    const Stage stage("prepare");
    module_->restore(main_);
    module_->apply(plan);
    allocate(plan, call, prepared);
    fill(plan, call, prepared);
    for (std::size_t index = 0; index < plan.tensor_maps.size(); ++index) {
        const Stage inner("tensor_map", static_cast<int>(index));
        const TensorMap& map = plan.tensor_maps[index];
        prepared.tensor_maps.push_back(encode(map, address(plan, prepared, map.global_address)));
    }
    upload(plan, prepared);
    build_steps(plan, prepared);
    residue_->overwrite(main_);
    for (const auto& buffer : prepared.buffers)
        if (buffer) buffer->load_translations(*translations_, main_);
    check(driver().cuCtxResetPersistingL2Cache(), "cuCtxResetPersistingL2Cache");
    check(driver().cuCtxSynchronize(), "cuCtxSynchronize");
}

void Session::allocate(const Plan& plan, const Call& call, Prepared& prepared) {
    std::map<std::size_t, const Region*> places;
    for (const Bound& place : call.places) places[place.buffer] = &region(place.region);
    for (std::size_t index = 0; index < plan.buffers.size(); ++index) {
        const Stage stage("allocate", static_cast<int>(index));
        const Buffer& buffer = plan.buffers[index];
        const auto place = places.find(index);
        if (buffer.role == Role::symbol) {
            prepared.buffers.push_back(nullptr);
        } else if (place != places.end()) {
            prepared.buffers.push_back(std::make_unique<PrivateBuffer>(*place->second, buffer.size, main_));
        } else {
            prepared.buffers.push_back(std::make_unique<PrivateBuffer>(*space_, *pool_, buffer.size, main_));
        }
    }
    const Stage stage("allocate");
    if (call.flush && !flush_)
        flush_ = std::make_unique<PrivateBuffer>(*space_, *pool_, space_->round_up(std::uint64_t{2} * l2_bytes_), main_, 0);
    std::uint64_t staged_bytes = 0;
    for (const Operation& operation : plan.operations)
        if (operation.kind == Operation::Kind::upload && !operation.setup)
            staged_bytes += (operation.data.data.size() + staging_alignment_bytes - 1) / staging_alignment_bytes *
                            staging_alignment_bytes;
    if (staged_bytes > 0) prepared.staging = std::make_unique<PrivateBuffer>(*space_, *pool_, staged_bytes, main_);
}

void Session::fill(const Plan& plan, const Call& call, Prepared& prepared) {
    std::set<std::uint32_t> filled;
    for (const Bound& input : call.inputs) {
        const PrivateBuffer& buffer = *prepared.buffers.at(input.buffer);
        region(input.region).read(buffer.address(), buffer.size(), main_);
        filled.insert(input.buffer);
    }
    for (const Bound& place : call.places)
        if (plan.buffers.at(place.buffer).role == Role::input) filled.insert(place.buffer);
    const bool unfilled = leaves_unfilled();
    for (const Poison& poison : call.poisons) {
        if (unfilled) continue;
        const PrivateBuffer& buffer = *prepared.buffers.at(poison.buffer);
        fill_range(buffer.address(), buffer.size() / poison.width_bytes, poison.value, poison.width_bytes, main_);
        filled.insert(poison.buffer);
    }
    for (std::uint32_t index = 0; index < plan.buffers.size(); ++index) {
        if (!prepared.buffers[index] || filled.count(index) != 0) continue;
        if (plan.buffers[index].role == Role::input) throw Malformed("no region for " + plan.buffers[index].name);
        if (!unfilled)
            fill_range(prepared.buffers[index]->address(), plan.buffers[index].size, workspace_poison, 1, main_);
    }
}

CUdeviceptr Session::address(const Plan& plan, const Prepared& prepared, BufferRef ref) const {
    if (plan.buffers[ref.buffer].role != Role::symbol) return prepared.buffers[ref.buffer]->address() + ref.offset;
    const Stage stage("symbol", static_cast<int>(ref.buffer));
    return module_->variable(plan.buffers[ref.buffer].name) + ref.offset;
}

Bytes Session::patched(const Blob& blob, const Plan& plan, const Prepared& prepared) const {
    Bytes bytes = blob.data;
    for (const Ref& ref : blob.refs) {
        if (ref.kind == Ref::Kind::tensor_map) {
            std::memcpy(bytes.data() + ref.at, &prepared.tensor_maps[ref.tensor_map], sizeof(CUtensorMap));
        } else {
            const CUdeviceptr pointer = address(plan, prepared, ref.target);
            std::memcpy(bytes.data() + ref.at, &pointer, sizeof pointer);
        }
    }
    return bytes;
}

// Constants go to their place, where that is before the call, else to where a copy of the call takes them from.
void Session::upload(const Plan& plan, Prepared& prepared) {
    CUdeviceptr free = prepared.staging ? prepared.staging->address() : 0;
    for (const Operation& operation : plan.operations) {
        prepared.staged.push_back(free);
        if (operation.kind != Operation::Kind::upload) continue;
        const Bytes bytes = patched(operation.data, plan, prepared);
        const CUdeviceptr target = operation.setup ? address(plan, prepared, operation.target) : free;
        if (!bytes.empty()) {
            check(driver().cuMemcpyHtoDAsync(target, bytes.data(), bytes.size(), main_), "cuMemcpyHtoDAsync");
            check(driver().cuStreamSynchronize(main_), "cuStreamSynchronize");
        }
        if (!operation.setup)
            free += (bytes.size() + staging_alignment_bytes - 1) / staging_alignment_bytes * staging_alignment_bytes;
    }
}

void Session::check_canaries(const Plan& plan, const Prepared& prepared) {
    for (std::uint32_t index = 0; index < plan.buffers.size(); ++index) {
        Overrun found{index, {}};
        if (prepared.buffers[index] && prepared.buffers[index]->overrun(main_, found.place)) throw found;
    }
}

void Session::collect(const Plan& plan, const Call& call, const Prepared& prepared) {
    for (const Bound& result : call.results) {
        if (result.buffer >= plan.buffers.size() || !prepared.buffers[result.buffer])
            throw Malformed("results of a buffer that the plan does not have");
        const PrivateBuffer& buffer = *prepared.buffers[result.buffer];
        region(result.region).write(buffer.address(), buffer.size(), main_);
    }
}

}  // namespace executor
