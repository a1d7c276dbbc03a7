#include "wire.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "frames.hpp"
#include "state.hpp"

namespace recorder {
namespace {

constexpr std::size_t max_record_bytes = std::size_t{64} << 20;  // of each call
constexpr int quiet_fd = 100;  // out of the way of descriptors that host code might close by mistake

int record_fd = 1;

bool write_all(const char* data, std::size_t size) {
    while (size > 0) {
        const ssize_t done = write(record_fd, data, size);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        data += done;
        size -= static_cast<std::size_t>(done);
    }
    return true;
}

// Append `text` as the inside of a JSON string; bytes that are no printable ASCII become '?'.
template <typename Append>
void escape(const char* text, std::size_t size, Append append) {
    for (std::size_t i = 0; i < size; ++i) {
        const char c = text[i];
        if (c == '"' || c == '\\') append('\\');
        append(c >= ' ' && c <= '~' ? c : (c == '\n' ? ' ' : '?'));
    }
}

void write_hex(const void* data, std::size_t size, char* out) {
    static const char digits[] = "0123456789abcdef";
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < size; ++i) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
}

[[noreturn]] void leave(const char* status, const char* code, const std::string& message) {
    Line("failure").field("status", status).field("code", code).field("message", message).place().send();
    _exit(0);
}

}  // namespace

void open_record() {
    record_fd = fcntl(1, F_DUPFD_CLOEXEC, quiet_fd);
    if (record_fd < 0 || dup2(2, 1) < 0) _exit(120);
}

Line::Line(const char* event) : text_("{\"event\":\"") {
    text_ += event;
    text_ += '"';
}

void Line::key(const char* name) {
    text_ += ",\"";
    text_ += name;
    text_ += "\":";
}

Line& Line::field(const char* name, const std::string& text) {
    key(name);
    text_ += '"';
    escape(text.data(), text.size(), [this](char c) { text_ += c; });
    text_ += '"';
    return *this;
}

Line& Line::field(const char* name, std::uint64_t number) {
    key(name);
    text_ += std::to_string(number);
    return *this;
}
Line& Line::field(const char* name, std::int64_t number) {
    key(name);
    text_ += std::to_string(number);
    return *this;
}
Line& Line::field(const char* name, bool value) {
    key(name);
    text_ += value ? "true" : "false";
    return *this;
}

Line& Line::field(const char* name, const std::vector<std::uint64_t>& numbers) {
    key(name);
    text_ += '[';
    for (std::size_t i = 0; i < numbers.size(); ++i)
        text_ += (i ? "," : "") + std::to_string(numbers[i]);
    text_ += ']';
    return *this;
}

Line& Line::field(const char* name, const std::vector<std::string>& texts) {
    key(name);
    text_ += '[';
    for (std::size_t i = 0; i < texts.size(); ++i)
        text_ += (i ? ",\"" : "\"") + texts[i] + '"';
    text_ += ']';
    return *this;
}

Line& Line::bytes(const char* name, const void* data, std::size_t size) {
    key(name);
    const std::size_t start = text_.size() + 1;
    text_.resize(start + 2 * size + 1, '"');
    write_hex(data, size, &text_[start]);
    return *this;
}

Line& Line::place() {
    const Frames frames = here();
    return field("frames", std::vector<std::uint64_t>(frames.offsets, frames.offsets + frames.count));
}

void Line::send() {
    text_ += "}\n";
    if ((state().used.record_bytes += text_.size()) > max_record_bytes) {
        fail_in_handler("plan.record_limit",
                        "the host code asked for more than 64 MiB of recorded operations and uploads");
    }
    if (!write_all(text_.data(), text_.size())) _exit(121);
}

std::string hex(const void* data, std::size_t size) {
    std::string text(2 * size, '0');
    write_hex(data, size, text.data());
    return text;
}

std::string format(const char* pattern, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, pattern);
    std::vsnprintf(text, sizeof text, pattern, arguments);
    va_end(arguments);
    return text;
}

void fail(const char* code, const std::string& message) { leave("plan_error", code, message); }
void fail_launch(const char* code, const std::string& message) { leave("launch_error", code, message); }

void fail_in_handler(const char* code, const char* message) {
    // Walking a broken stack may fault, which leads here again: the first fault is the one to report, without frames.
    static const char *first_code = nullptr, *first_message = nullptr;
    Frames frames;
    if (first_code == nullptr) {
        first_code = code;
        first_message = message;
        frames = here();
    }
    char text[2400];
    // The line starts with a newline: the signal may have come while another line was being written.
    int length = std::snprintf(
        text, sizeof text, "\n{\"event\":\"failure\",\"status\":\"plan_error\",\"code\":\"%s\",\"message\":\"",
        first_code);
    escape(first_message, strnlen(first_message, 700), [&](char c) { text[length++] = c; });
    length += std::snprintf(text + length, 16, "\",\"frames\":[");
    for (std::size_t i = 0; i < frames.count; ++i)
        length += std::snprintf(text + length, 32, "%s%llu", i > 0 ? "," : "",
                                static_cast<unsigned long long>(frames.offsets[i]));
    std::memcpy(text + length, "]}\n", 3);
    write_all(text, static_cast<std::size_t>(length) + 3);
    _exit(0);
}

void finish() {
    Line("end").send();
    _exit(0);
}

}  // namespace recorder
