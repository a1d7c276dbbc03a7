#include "transfer.hpp"

#include <cstring>

#include "memory.hpp"
#include "state.hpp"
#include "wire.hpp"

namespace recorder {
namespace {

using ull = unsigned long long;

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

std::string outside(const char* what, std::uint64_t address, std::size_t bytes) {
    const Buffer* near = nearest_buffer(address);
    if (near == nullptr) return format("%s is no device memory", what);
    return format("%s: %zu bytes at offset %llu of %s, which has %llu bytes%s", what, bytes,
                  static_cast<ull>(address - near->address), near->name.c_str(), static_cast<ull>(near->bytes),
                  near->freed ? " and was freed" : "");
}

Direction by_address(const void* target, const void* source) {
    const bool to = in_device_range(number(target)), from = in_device_range(number(source));
    if (to) return from ? Direction::on_device : Direction::to_device;
    return from ? Direction::from_device : Direction::on_host;
}

}  // namespace

std::string transfer(const char* call, const void* target, const void* source, std::size_t bytes, Direction direction,
                     Queue queue) {
    if (bytes == 0) return "";
    const Direction actual = by_address(target, source);
    // As on a device with unified addressing, a wrong kind passes where the addresses are both of the device.
    if (actual == Direction::on_device && direction != Direction::from_device) direction = actual;
    if (direction == Direction::by_address) direction = actual;
    if (direction == Direction::from_device) {
        fail("plan.device_to_host", format("%s copies device memory to the host; a plan is recorded without data, so "
                                           "keep results and decisions on the device",
                                           call));
    }
    if (direction != actual) return "source and target do not lie where the kind of the copy says";
    if (direction == Direction::on_host) {
        std::memmove(const_cast<void*>(target), source, bytes);
        return "";
    }
    if (find_buffer(number(target), bytes) == nullptr) return outside("target", number(target), bytes);
    if (direction == Direction::on_device) {
        if (find_buffer(number(source), bytes) == nullptr) return outside("source", number(source), bytes);
        count_operation();
        Line("copy")
            .field("target", number(target))
            .field("source", number(source))
            .field("bytes", static_cast<std::uint64_t>(bytes))
            .field("stream", queue.stream)
            .place()
            .send();
        return "";
    }
    count_operation();
    Line("upload")
        .field("target", number(target))
        .bytes("data", source, bytes)
        .field("stream", queue.stream)
        .field("host_waits", queue.host_waits)
        .place()
        .send();
    return "";
}

std::string fill(std::uint64_t target, std::uint32_t value, unsigned width_bytes, std::size_t count, std::size_t rows,
                 std::size_t pitch_bytes, int stream) {
    if (count == 0 || rows == 0) return "";
    constexpr std::size_t sane = std::size_t{1} << 40;
    if (count > sane || rows > sane || pitch_bytes > sane) return "the fill is larger than any device";
    if (target % width_bytes != 0 || (rows > 1 && pitch_bytes % width_bytes != 0))
        return format("target or pitch is not a multiple of %u bytes", width_bytes);
    if (rows > 1 && pitch_bytes < count * width_bytes)
        return format("pitch %zu is less than a row of %zu bytes", pitch_bytes, count * width_bytes);
    if (rows > 1 && pitch_bytes == count * width_bytes) {
        count *= rows;
        rows = 1;
    }
    const std::size_t all_bytes = (rows - 1) * pitch_bytes + count * width_bytes;
    if (find_buffer(target, all_bytes) == nullptr) return outside("target", target, all_bytes);
    const std::string hint =
        rows > 1 ? format("; a memset of %zu rows apart counts as so many: fill them in a kernel", rows) : "";
    for (std::size_t row = 0; row < rows; ++row) {
        count_operation(hint);
        Line("memset")
            .field("target", target + row * pitch_bytes)
            .field("value", static_cast<std::uint64_t>(value))
            .field("width_bytes", width_bytes)
            .field("count", static_cast<std::uint64_t>(count))
            .field("stream", stream)
            .place()
            .send();
    }
    return "";
}

}  // namespace recorder
