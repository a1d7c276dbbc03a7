// The system calls that a recording may make, and what to say of the others.
#pragma once

namespace recorder {

struct RefusedSyscall {
    const char* code;
    const char* name;
    const char* advice;
    int path_index;  // which argument is a path; −1: none
};

RefusedSyscall describe_syscall(int number);

// Allow what loading a library and running plain host code needs; anything else ends the recording by name.
// Return false where the kernel has no filters.
bool install_loading_filter();

// From now on no file can be opened either.
bool install_running_filter();

}  // namespace recorder
