// What kernels print: standard output and error of this process, as a bounded file in memory.
#pragma once

#include <string>

namespace executor {

constexpr int max_printed_bytes = 64 << 10;

class Printed {
public:
    // Takes over descriptors 1 and 2; the former standard error stays for this program's own complaints.
    Printed();
    // Forgets what was printed so far.
    void clear();
    // What was printed since `clear`; what did not fit is lost.
    std::string text();
    int complaints() const { return complaints_; }

private:
    int file_;
    int complaints_;
};

}  // namespace executor
