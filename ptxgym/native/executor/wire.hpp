// Frames over a Unix socket; their layout stands in ptxgym/device/cuda/wire.py.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace executor {

enum class Request : std::uint32_t { load = 1, region = 2, forget = 3, call = 4, begin = 5 };
enum class Answer : std::uint32_t { ready = 1, done = 2, called = 3, failed = 4, overrun = 5, launching = 6 };

// What arrived is not what wire.py describes.
struct Malformed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Reader {
public:
    explicit Reader(std::vector<unsigned char> bytes) : bytes_(std::move(bytes)) {}

    template <typename Number>
    Number number() {
        Number value;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }
    bool flag() { return number<std::uint8_t>() != 0; }
    std::string text() {
        const std::size_t size = number<std::uint32_t>();
        return std::string(reinterpret_cast<const char*>(take(size)), size);
    }
    std::vector<unsigned char> bytes() {
        const std::size_t size = number<std::uint32_t>();
        const unsigned char* start = take(size);
        return std::vector<unsigned char>(start, start + size);
    }
    // Items that `read` takes off this reader, preceded by their count.
    template <typename Read>
    auto list(Read read) {
        std::vector<decltype(read())> items;
        for (std::uint32_t left = number<std::uint32_t>(); left > 0; --left) items.push_back(read());
        return items;
    }
    void end() const {
        if (at_ != bytes_.size()) throw Malformed("a frame has bytes left over");
    }

private:
    const unsigned char* take(std::size_t size) {
        if (size > bytes_.size() - at_) throw Malformed("a frame ends early");
        const unsigned char* start = bytes_.data() + at_;
        at_ += size;
        return start;
    }
    std::vector<unsigned char> bytes_;
    std::size_t at_ = 0;
};

class Writer {
public:
    template <typename Number>
    Writer& number(Number value) {
        const auto* start = reinterpret_cast<const unsigned char*>(&value);
        bytes_.insert(bytes_.end(), start, start + sizeof value);
        return *this;
    }
    Writer& text(const std::string& value) {
        number(static_cast<std::uint32_t>(value.size()));
        bytes_.insert(bytes_.end(), value.begin(), value.end());
        return *this;
    }
    const std::vector<unsigned char>& bytes() const { return bytes_; }

private:
    std::vector<unsigned char> bytes_;
};

struct Frame {
    Request request;
    Reader body;
    int descriptor = -1;  // the receiver's to close
};

class Connection {
public:
    // Connects to the Unix socket at `path`; throws Malformed if nobody listens.
    explicit Connection(const std::string& path);

    // The next frame; false when the other side has gone.
    bool receive(Frame& frame);
    void send(Answer answer, const Writer& body);

private:
    bool read_all(unsigned char* target, std::size_t size, int* descriptor);
    int socket_;
};

}  // namespace executor
