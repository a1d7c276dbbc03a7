// sandbox [options] -- command [arguments]: run a command under limits and leave nothing of it behind.
//
//   --read P, --execute P, --write P   grants, repeatable; nothing else of the file system can be opened
//   --filesystem landlock|namespace|none, --seccomp, --deny network, --deny processes
//   --limit NAME=VALUE                 cpu (s), address-space, data, stack, file-size (bytes), open-files
//   --keep-fd N                        descriptor that the command inherits beside 0, 1, 2; repeatable
//   --directory P, --timeout-ms N
//   --status-fd N                      gets one line at the end (supervise.hpp)
//   --lifeline-fd N                    when its other end closes, everything is killed
// sandbox --probe: print what this kernel offers, one `name value` per line.

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "confine.hpp"
#include "supervise.hpp"

namespace {

using sandbox::Filesystem;
using sandbox::Options;

[[noreturn]] void usage(const std::string& problem) {
    std::fprintf(stderr, "sandbox: %s\n", problem.c_str());
    std::exit(125);
}

const std::map<std::string, int> limit_names = {
    {"cpu", RLIMIT_CPU},   {"address-space", RLIMIT_AS},  {"data", RLIMIT_DATA},
    {"stack", RLIMIT_STACK}, {"file-size", RLIMIT_FSIZE}, {"open-files", RLIMIT_NOFILE},
};

void add_limit(Options& options, const std::string& text) {
    const std::size_t equals = text.find('=');
    const auto found = limit_names.find(text.substr(0, equals));
    if (equals == std::string::npos || found == limit_names.end()) usage("unknown limit " + text);
    options.limits.emplace_back(found->second, std::strtoull(text.c_str() + equals + 1, nullptr, 10));
}

void add_denial(Options& options, const std::string& what) {
    if (what == "network")
        options.deny_network = true;
    else if (what == "processes")
        options.deny_processes = true;
    else
        usage("cannot deny " + what);
}

Filesystem filesystem_named(const std::string& name) {
    if (name == "landlock") return Filesystem::landlock;
    if (name == "namespace") return Filesystem::name_space;
    if (name == "none") return Filesystem::none;
    usage("unknown file-system restriction " + name);
}

Options parse(int count, char** arguments) {
    Options options;
    options.limits.emplace_back(RLIMIT_CORE, 0);
    for (int i = 1; i < count; ++i) {
        const std::string name = arguments[i];
        if (name == "--") {
            options.command.assign(arguments + i + 1, arguments + count);
            break;
        }
        if (name == "--probe") {
            options.probe = true;
            continue;
        }
        if (name == "--seccomp") {
            options.seccomp = true;
            continue;
        }
        if (i + 1 >= count) usage("no value for " + name);
        const std::string value = arguments[++i];
        if (name == "--read") options.read.push_back(value);
        else if (name == "--execute") options.execute.push_back(value);
        else if (name == "--write") options.write.push_back(value);
        else if (name == "--filesystem") options.filesystem = filesystem_named(value);
        else if (name == "--deny") add_denial(options, value);
        else if (name == "--limit") add_limit(options, value);
        else if (name == "--keep-fd") options.keep_fds.push_back(std::atoi(value.c_str()));
        else if (name == "--directory") options.directory = value;
        else if (name == "--timeout-ms") options.timeout_ms = std::atoll(value.c_str());
        else if (name == "--status-fd") options.status_fd = std::atoi(value.c_str());
        else if (name == "--lifeline-fd") options.lifeline_fd = std::atoi(value.c_str());
        else usage("unknown option " + name);
    }
    if (options.command.empty() && !options.probe) usage("no command");
    options.command.push_back(nullptr);
    return options;
}

// Tries a step in a child and returns "ok" or why it failed.
template <typename Step> std::string attempt(Step step) {
    int channel[2];
    if (pipe(channel) != 0) return std::strerror(errno);
    const pid_t child = fork();
    if (child == 0) {
        std::string answer = "ok";
        try {
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            step();
        } catch (const sandbox::Failed& failed) {
            answer = failed.message;
        }
        _exit(write(channel[1], answer.data(), answer.size()) < 0 ? 1 : 0);
    }
    close(channel[1]);
    char text[512] = "the attempt died";
    const ssize_t length = read(channel[0], text, sizeof text - 1);
    if (length > 0) text[length] = 0;
    close(channel[0]);
    waitpid(child, nullptr, 0);
    return text;
}

int probe() {
    Options nothing;
    nothing.read = {"/usr"};
    const int abi = sandbox::landlock_abi();
    std::printf("landlock_abi %d\n", abi > 0 ? abi : 0);
    std::printf("landlock %s\n", attempt([&] { sandbox::restrict_by_landlock(nothing); }).c_str());
    std::printf("namespace %s\n", attempt([&] { sandbox::restrict_by_mount_namespace(nothing); }).c_str());
    std::printf("seccomp %s\n", attempt([&] { sandbox::install_seccomp(nothing); }).c_str());
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    Options options = parse(count, arguments);
    return options.probe ? probe() : sandbox::supervise(options);
}
