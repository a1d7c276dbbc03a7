// What the launcher was asked to do; see main.cpp for the command line.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sandbox {

enum class Filesystem { none, landlock, name_space };

struct Options {
    std::vector<std::string> read;     // files and folders: open for reading, list
    std::vector<std::string> execute;  // the same, and execute
    std::vector<std::string> write;    // everything: create, write, rename, remove
    Filesystem filesystem = Filesystem::none;
    bool seccomp = false;        // install the filter; the next two say what else it denies
    bool deny_network = false;   // creation of sockets
    bool deny_processes = false; // fork, vfork, clone without CLONE_THREAD, and signals to others
    std::vector<std::pair<int, std::uint64_t>> limits;  // RLIMIT_*, value
    std::vector<int> keep_fds;
    std::string directory;
    std::int64_t timeout_ms = -1;
    int status_fd = -1;
    int lifeline_fd = -1;
    bool probe = false;
    std::vector<char*> command;  // ends with nullptr
};

}  // namespace sandbox
