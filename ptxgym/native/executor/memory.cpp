#include "memory.hpp"

#include <algorithm>
#include <stdexcept>
#include <sys/mman.h>
#include <unistd.h>

#include "wire.hpp"
#include "wrapped.hpp"

namespace executor {
namespace {

constexpr std::uint64_t most_reserved_bytes = std::uint64_t{1} << 40;
constexpr std::uint64_t least_reserved_bytes = std::uint64_t{1} << 36;
constexpr std::uint64_t alignment_bytes = 512;
constexpr std::uint64_t watched_bytes = 64 << 10;  // of the canaries before a buffer
constexpr unsigned char canary = 0xA5;
constexpr int draws = 256;

CUmemAllocationProp on_device(CUdevice device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    return properties;
}

std::vector<unsigned char> read_back(CUdeviceptr address, std::uint64_t size, CUstream stream) {
    std::vector<unsigned char> bytes(size);
    if (size == 0) return bytes;
    check(driver().cuMemcpyDtoHAsync(bytes.data(), address, size, stream), "cuMemcpyDtoHAsync");
    check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
    return bytes;
}

}  // namespace

AddressSpace::AddressSpace(CUdevice device, std::uint64_t granularity_bytes)
    : device_(device), granularity_bytes_(granularity_bytes), random_(std::random_device{}()) {
    for (size_ = most_reserved_bytes; size_ >= least_reserved_bytes; size_ /= 2)
        if (driver().cuMemAddressReserve(&base_, size_, 0, 0, 0) == CUDA_SUCCESS) return;
    check(driver().cuMemAddressReserve(&base_, size_, 0, 0, 0), "cuMemAddressReserve");
}

AddressSpace::~AddressSpace() {
    driver().cuMemAddressFree(base_, size_);
}

bool AddressSpace::is_free(CUdeviceptr address, std::uint64_t size) const {
    const auto next = taken_.lower_bound(address);
    if (next != taken_.end() && next->first < address + size + granularity_bytes_) return false;
    if (next == taken_.begin()) return true;
    const auto& [before, before_size] = *std::prev(next);
    return before + before_size + granularity_bytes_ <= address;
}

CUdeviceptr AddressSpace::take(std::uint64_t size) {
    if (size + 2 * granularity_bytes_ <= size_) {
        const std::uint64_t places = (size_ - size) / granularity_bytes_ - 1;
        for (int draw = 0; draw < draws; ++draw) {
            const CUdeviceptr address = base_ + (1 + below(places)) * granularity_bytes_;
            if (!is_free(address, size)) continue;
            taken_.emplace(address, size);
            return address;
        }
    }
    check(CUDA_ERROR_OUT_OF_MEMORY, "placing a buffer in the reserved addresses");
    return 0;
}

Mapping::Mapping(AddressSpace& space, CUmemGenericAllocationHandle handle, std::uint64_t size)
    : space_(space), address_(space.take(size)), size_(size) {
    try {
        check(driver().cuMemMap(address_, size, 0, handle, 0), "cuMemMap");
        CUmemAccessDesc access{};
        access.location = on_device(space.device()).location;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        const CUresult granted = driver().cuMemSetAccess(address_, size, &access, 1);
        if (granted != CUDA_SUCCESS) driver().cuMemUnmap(address_, size);
        check(granted, "cuMemSetAccess");
    } catch (...) {
        space_.give_back(address_);
        throw;
    }
}

Mapping::~Mapping() {
    driver().cuMemUnmap(address_, size_);  // fails only in a context that a fault has ended
    space_.give_back(address_);
}

CUresult SlotPool::create(std::uint64_t size, CUmemGenericAllocationHandle* handle) const {
    const CUmemAllocationProp properties = on_device(space_.device());
    return driver().cuMemCreate(handle, size, &properties, 0);
}

CUmemGenericAllocationHandle SlotPool::take(std::uint64_t size, std::size_t spares) {
    std::vector<CUmemGenericAllocationHandle>& free = free_[size];
    while (free.size() < 1 + spares) {
        CUmemGenericAllocationHandle handle;
        CUresult created = create(size, &handle);
        if (created != CUDA_SUCCESS && !free.empty()) break;  // the spare one is worth less than the call
        if (created == CUDA_ERROR_OUT_OF_MEMORY && release_spares()) created = create(size, &handle);
        check(created, "cuMemCreate");
        free.push_back(handle);
    }
    std::swap(free[space_.below(free.size())], free.back());
    const CUmemGenericAllocationHandle taken = free.back();
    free.pop_back();
    return taken;
}

bool SlotPool::release_spares() {
    bool any = false;
    for (auto& [size, handles] : free_) {
        for (const auto handle : handles) driver().cuMemRelease(handle);
        any = any || !handles.empty();
        handles.clear();
    }
    return any;
}

void SlotPool::release_all() {
    release_spares();
    free_.clear();
}

PrivateBuffer::PrivateBuffer(AddressSpace& space, SlotPool& pool, std::uint64_t size, CUstream stream,
                             std::size_t spares)
    : pool_(&pool), size_(size), mapped_bytes_(space.round_up(std::max<std::uint64_t>(size, 1))) {
    if (allocates_exactly()) {
        check(driver().cuMemAlloc(&address_, std::max<std::uint64_t>(size, 1)), "cuMemAlloc");
        return;
    }
    handle_ = pool.take(mapped_bytes_, spares);
    try {
        place(space, handle_, stream);
    } catch (...) {
        mapping_.reset();
        pool.give_back(handle_, mapped_bytes_);
        throw;
    }
}

PrivateBuffer::PrivateBuffer(const Region& region, std::uint64_t size, CUstream stream)
    : pool_(nullptr), size_(size), mapped_bytes_(region.size()) {
    const std::uint64_t least_bytes = std::max<std::uint64_t>(size, 1);
    if (region.kind() != Region::Kind::device || mapped_bytes_ != region.space().round_up(least_bytes))
        throw Malformed("a place that does not fit its buffer");
    place(region.space(), region.handle(), stream);
}

void PrivateBuffer::place(AddressSpace& space, CUmemGenericAllocationHandle handle, CUstream stream) {
    mapping_ = std::make_unique<Mapping>(space, handle, mapped_bytes_);
    const CUdeviceptr end = mapping_->address() + mapped_bytes_;
    address_ = end - (size_ + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
    const std::uint64_t head = address_ - mapping_->address();
    const std::uint64_t tail = end - address_ - size_;
    if (head > 0) check(driver().cuMemsetD8Async(mapping_->address(), canary, head, stream), "cuMemsetD8Async");
    if (tail > 0) check(driver().cuMemsetD8Async(address_ + size_, canary, tail, stream), "cuMemsetD8Async");
}

PrivateBuffer::~PrivateBuffer() {
    if (!mapping_) {
        driver().cuMemFree(address_);
        return;
    }
    mapping_.reset();
    if (pool_ != nullptr) pool_->give_back(handle_, mapped_bytes_);
}

void PrivateBuffer::load_translations(const Translations& translations, CUstream stream) const {
    if (mapping_) translations.load(mapping_->address(), mapped_bytes_, stream);
}

bool PrivateBuffer::overrun(CUstream stream, Overrun& found) const {
    if (!mapping_) return false;
    const auto written = [](unsigned char byte) { return byte != canary; };
    const std::uint64_t head = std::min<std::uint64_t>(address_ - mapping_->address(), watched_bytes);
    const auto before = read_back(address_ - head, head, stream);
    const auto last = std::find_if(before.rbegin(), before.rend(), written);
    if (last != before.rend()) {
        found = {true, static_cast<std::uint64_t>(last - before.rbegin()) + 1};
        return true;
    }
    const CUdeviceptr stop = address_ + size_;
    const auto behind = read_back(stop, mapping_->address() + mapped_bytes_ - stop, stream);
    const auto first = std::find_if(behind.begin(), behind.end(), written);
    if (first == behind.end()) return false;
    found = {false, static_cast<std::uint64_t>(first - behind.begin()) + 1};
    return true;
}

Region::Region(AddressSpace& space, Kind kind, std::uint64_t size, int descriptor)
    : space_(space), kind_(kind), size_(size) {
    if (kind == Kind::host) {
        descriptor_ = descriptor;
        return;
    }
    void* handle_of_os = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
    const CUresult imported = driver().cuMemImportFromShareableHandle(
        &handle_, handle_of_os, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    close(descriptor);
    check(imported, "cuMemImportFromShareableHandle");
}

Region::~Region() {
    if (descriptor_ >= 0) close(descriptor_);
    if (kind_ == Kind::device) driver().cuMemRelease(handle_);
}

template <typename Copy>
void Region::with_host_mapping(std::uint64_t size, Copy copy) const {
    void* start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (start == MAP_FAILED) throw std::runtime_error("cannot map a file of the other side");
    const CUresult copied = copy(start);
    munmap(start, size);
    check(copied, "a copy between host and device");
}

void Region::read(CUdeviceptr target, std::uint64_t size, CUstream stream) const {
    if (size > size_) throw std::runtime_error("a region is smaller than its buffer");
    if (size == 0) return;
    if (kind_ == Kind::device) {
        const Mapping mapping(space_, handle_, size_);
        check(driver().cuMemcpyDtoDAsync(target, mapping.address(), size, stream), "cuMemcpyDtoDAsync");
        check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
        return;
    }
    with_host_mapping(size, [&](void* host) {
        const CUresult copied = driver().cuMemcpyHtoDAsync(target, host, size, stream);
        return copied == CUDA_SUCCESS ? driver().cuStreamSynchronize(stream) : copied;
    });
}

void Region::write(CUdeviceptr source, std::uint64_t size, CUstream stream) const {
    if (size > size_) throw std::runtime_error("a region is smaller than its buffer");
    if (size == 0) return;
    if (kind_ == Kind::device) {
        const Mapping mapping(space_, handle_, size_);
        check(driver().cuMemcpyDtoDAsync(mapping.address(), source, size, stream), "cuMemcpyDtoDAsync");
        check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
        return;
    }
    with_host_mapping(size, [&](void* host) {
        const CUresult copied = driver().cuMemcpyDtoHAsync(host, source, size, stream);
        return copied == CUDA_SUCCESS ? driver().cuStreamSynchronize(stream) : copied;
    });
}

}  // namespace executor
