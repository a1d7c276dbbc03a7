// The restrictions that a process puts on itself before it executes the command.
#pragma once

#include <string>
#include <vector>

#include "options.hpp"

namespace sandbox {

// Thrown by every step that fails: the message says which, with the reason of the system.
struct Failed {
    std::string message;
};

[[noreturn]] void fail(const std::string& what);  // with strerror(errno)

int landlock_abi();  // version of the kernel's Landlock, or −errno where there is none
bool seccomp_available();

void set_limits(const Options& options);
void close_other_fds(const std::vector<int>& keep);
void restrict_by_landlock(const Options& options);
void restrict_by_mount_namespace(const Options& options);
void drop_capabilities();
void install_seccomp(const Options& options);

}  // namespace sandbox
