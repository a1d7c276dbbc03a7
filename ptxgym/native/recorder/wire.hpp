// The record: one JSON object per line on a descriptor that the parent reads.
// Nothing here is trusted by the parent: after the submission is loaded, anything in this process may have written it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace recorder {

// Take descriptor 1 as the record and give the host code its standard error in place of standard output.
void open_record();

// One event under construction.
class Line {
public:
    explicit Line(const char* event);
    Line& field(const char* key, const std::string& text);
    Line& field(const char* key, const char* text) { return field(key, std::string(text)); }
    Line& field(const char* key, std::uint64_t number);
    Line& field(const char* key, std::int64_t number);
    Line& field(const char* key, int number) { return field(key, static_cast<std::int64_t>(number)); }
    Line& field(const char* key, unsigned number) { return field(key, static_cast<std::uint64_t>(number)); }
    Line& field(const char* key, bool value);
    Line& field(const char* key, const std::vector<std::uint64_t>& numbers);
    Line& field(const char* key, const std::vector<std::string>& texts);
    Line& bytes(const char* key, const void* data, std::size_t size);  // as hex
    // Which calls of the submission led here.
    Line& place();
    void send();

private:
    void key(const char* name);
    std::string text_;
};

std::string hex(const void* data, std::size_t size);
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

// Report that the recording ends here, why, and leave. `status` is "plan_error" or "launch_error".
[[noreturn]] void fail(const char* code, const std::string& message);
[[noreturn]] void fail_launch(const char* code, const std::string& message);

// The same from a signal handler: no allocation, `message` is cut at 700 bytes.
[[noreturn]] void fail_in_handler(const char* code, const char* message);

// Report that the recording is complete, and leave without running destructors of the submission.
[[noreturn]] void finish();

}  // namespace recorder
