#include "printed.hpp"

#include <algorithm>
#include <cstdio>
#include <fcntl.h>
#include <stdexcept>
#include <stdio_ext.h>
#include <sys/mman.h>
#include <unistd.h>

namespace executor {

Printed::Printed()
    : file_(memfd_create("printed", MFD_CLOEXEC | MFD_ALLOW_SEALING)), complaints_(fcntl(2, F_DUPFD_CLOEXEC, 3)) {
    // Sealed against growth, the file takes no more than fits: further writes fail, and nobody waits for a reader.
    if (file_ < 0 || ftruncate(file_, max_printed_bytes) < 0 || fcntl(file_, F_ADD_SEALS, F_SEAL_GROW) < 0 ||
        dup2(file_, 1) < 0 || dup2(file_, 2) < 0)
        throw std::runtime_error("cannot take over standard output");
}

void Printed::clear() {
    __fpurge(stdout);  // also what a full file did not take
    std::clearerr(stdout);
    lseek(file_, 0, SEEK_SET);
}

std::string Printed::text() {
    std::fflush(stdout);
    std::string text(std::clamp<off_t>(lseek(file_, 0, SEEK_CUR), 0, max_printed_bytes), '\0');
    const ssize_t got = pread(file_, text.data(), text.size(), 0);
    text.resize(std::max<ssize_t>(got, 0));
    return text;
}

}  // namespace executor
