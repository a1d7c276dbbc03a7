// Device memory by the CUDA virtual memory interface: physical slots, mapped at addresses that are drawn anew.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "driver.hpp"
#include "translations.hpp"

namespace executor {

// One reserved range of device addresses in which mappings are placed at random, with unmapped space around each.
class AddressSpace {
public:
    AddressSpace(CUdevice device, std::uint64_t granularity_bytes);
    ~AddressSpace();
    AddressSpace(const AddressSpace&) = delete;
    AddressSpace& operator=(const AddressSpace&) = delete;

    CUdeviceptr take(std::uint64_t size);
    void give_back(CUdeviceptr address) { taken_.erase(address); }
    std::uint64_t granularity_bytes() const { return granularity_bytes_; }
    std::uint64_t round_up(std::uint64_t size) const {
        return (size + granularity_bytes_ - 1) / granularity_bytes_ * granularity_bytes_;
    }
    CUdevice device() const { return device_; }
    std::size_t below(std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_); }

private:
    bool is_free(CUdeviceptr address, std::uint64_t size) const;

    CUdevice device_;
    std::uint64_t granularity_bytes_;
    CUdeviceptr base_ = 0;
    std::uint64_t size_ = 0;
    std::map<CUdeviceptr, std::uint64_t> taken_;
    std::mt19937_64 random_;
};

// A physical allocation that is mapped as long as this object lives.
class Mapping {
public:
    Mapping(AddressSpace& space, CUmemGenericAllocationHandle handle, std::uint64_t size);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    CUdeviceptr address() const { return address_; }
    std::uint64_t size() const { return size_; }

private:
    AddressSpace& space_;
    CUdeviceptr address_;
    std::uint64_t size_;
};

// Physical allocations by size. With one more than is in use, a buffer changes its place.
class SlotPool {
public:
    explicit SlotPool(AddressSpace& space) : space_(space) {}
    ~SlotPool() { release_all(); }
    SlotPool(const SlotPool&) = delete;
    SlotPool& operator=(const SlotPool&) = delete;

    // One of at least `spares` more than are in use.
    CUmemGenericAllocationHandle take(std::uint64_t size, std::size_t spares);
    void give_back(CUmemGenericAllocationHandle handle, std::uint64_t size) { free_[size].push_back(handle); }
    void release_all();

private:
    CUresult create(std::uint64_t size, CUmemGenericAllocationHandle* handle) const;
    bool release_spares();  // whether there were any, of whatever size
    AddressSpace& space_;
    std::map<std::uint64_t, std::vector<CUmemGenericAllocationHandle>> free_;
};

class Region;

// One buffer of a call: its bytes lie at the end of their mapping, so that an overrun meets unmapped space, and
// canaries fill what the mapping has before them and, to a multiple of 512, behind them. For a sanitizer that wants to
// know exact bounds it is a plain allocation instead.
class PrivateBuffer {
public:
    PrivateBuffer(AddressSpace& space, SlotPool& pool, std::uint64_t size, CUstream stream, std::size_t spares = 1);
    // In memory that the other side has made for it, and may have filled.
    PrivateBuffer(const Region& place, std::uint64_t size, CUstream stream);
    ~PrivateBuffer();

    CUdeviceptr address() const { return address_; }
    std::uint64_t size() const { return size_; }

    // Has the GPU know where its pages lie; where they have just been mapped, it does not.
    void load_translations(const Translations& translations, CUstream stream) const;

    struct Overrun {
        bool before;
        std::uint64_t distance_bytes;  // of the nearest overwritten byte, from the first or last byte of the buffer
    };
    // Whether the canaries near the buffer are intact; waits for the stream.
    bool overrun(CUstream stream, Overrun& found) const;

private:
    // Maps at a fresh address, and writes the canaries.
    void place(AddressSpace& space, CUmemGenericAllocationHandle handle, CUstream stream);

    SlotPool* pool_;  // null where the memory is not its
    std::uint64_t size_;
    std::uint64_t mapped_bytes_;
    CUmemGenericAllocationHandle handle_ = 0;
    std::unique_ptr<Mapping> mapping_;  // null for a plain allocation
    CUdeviceptr address_;
};

// Memory of the other side: an exported allocation of the GPU, or a file in host memory. It is mapped for the copies
// between calls alone, or as a buffer for the time of a call.
class Region {
public:
    enum class Kind : std::uint8_t { device = 0, host = 1 };

    // Takes over `descriptor`.
    Region(AddressSpace& space, Kind kind, std::uint64_t size, int descriptor);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    // Copies of `size` bytes from the region's start, or to it; over when they return.
    void read(CUdeviceptr target, std::uint64_t size, CUstream stream) const;
    void write(CUdeviceptr source, std::uint64_t size, CUstream stream) const;

    AddressSpace& space() const { return space_; }
    Kind kind() const { return kind_; }
    std::uint64_t size() const { return size_; }
    CUmemGenericAllocationHandle handle() const { return handle_; }

private:
    template <typename Copy>
    void with_host_mapping(std::uint64_t size, Copy copy) const;

    AddressSpace& space_;
    Kind kind_;
    std::uint64_t size_;
    int descriptor_ = -1;
    CUmemGenericAllocationHandle handle_ = 0;
};

}  // namespace executor
