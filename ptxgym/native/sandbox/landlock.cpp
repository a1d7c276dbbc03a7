// Landlock: file-system, network and signal rules that an unprivileged process sets on itself (landlock(7)).
// The structures are spelled out here because the kernel headers of the build machine may be older than its kernel.

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "confine.hpp"

namespace sandbox {
namespace {

constexpr long sys_create_ruleset = 444, sys_add_rule = 445, sys_restrict_self = 446;  // the same on every architecture
constexpr std::uint32_t create_ruleset_version = 1;
constexpr int rule_path_beneath = 1;

struct RulesetAttributes {  // struct landlock_ruleset_attr; older kernels take a prefix of it
    std::uint64_t handled_access_fs;
    std::uint64_t handled_access_net;  // ABI 4
    std::uint64_t scoped;              // ABI 6
};

struct __attribute__((packed)) PathBeneath {  // struct landlock_path_beneath_attr
    std::uint64_t allowed_access;
    std::int32_t parent_fd;
};

constexpr std::uint64_t bit(int n) { return std::uint64_t{1} << n; }
constexpr std::uint64_t fs_execute = bit(0), fs_write_file = bit(1), fs_read_file = bit(2), fs_read_dir = bit(3);
constexpr std::uint64_t fs_refer = bit(13), fs_truncate = bit(14), fs_ioctl_dev = bit(15);
constexpr std::uint64_t fs_first_abi = bit(13) - 1;
constexpr std::uint64_t fs_of_files = fs_execute | fs_write_file | fs_read_file | fs_truncate | fs_ioctl_dev;
constexpr std::uint64_t net_bind_and_connect_tcp = 3, scope_abstract_sockets_and_signals = 3;

std::uint64_t handled_fs(int abi) {
    std::uint64_t all = fs_first_abi;
    if (abi >= 2) all |= fs_refer;
    if (abi >= 3) all |= fs_truncate;
    if (abi >= 5) all |= fs_ioctl_dev;
    return all;
}

void allow(int ruleset, const std::string& path, std::uint64_t access) {
    const int fd = open(path.c_str(), O_PATH | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT) return;  // what is not there needs no rule
        fail("open " + path + " for a Landlock rule");
    }
    struct stat status {};
    if (fstat(fd, &status) != 0) fail("stat " + path);
    if (!S_ISDIR(status.st_mode)) access &= fs_of_files;
    const PathBeneath rule{access, fd};
    if (syscall(sys_add_rule, ruleset, rule_path_beneath, &rule, 0) != 0) fail("Landlock rule for " + path);
    close(fd);
}

}  // namespace

int landlock_abi() {
    const long version = syscall(sys_create_ruleset, nullptr, 0, create_ruleset_version);
    return version < 0 ? -errno : static_cast<int>(version);
}

void restrict_by_landlock(const Options& options) {
    const int abi = landlock_abi();
    if (abi < 1) {
        errno = -abi;
        fail("Landlock");
    }
    RulesetAttributes attributes{handled_fs(abi), 0, 0};
    std::size_t size = sizeof attributes.handled_access_fs;
    if (abi >= 4 && options.deny_network) {
        attributes.handled_access_net = net_bind_and_connect_tcp;
        size = 2 * sizeof(std::uint64_t);
    }
    if (abi >= 6) {
        attributes.scoped = scope_abstract_sockets_and_signals;
        size = sizeof attributes;
    }
    const int ruleset = static_cast<int>(syscall(sys_create_ruleset, &attributes, size, 0));
    if (ruleset < 0) fail("create a Landlock ruleset");
    const std::uint64_t reading = fs_read_file | fs_read_dir;
    for (const std::string& path : options.read) allow(ruleset, path, reading);
    for (const std::string& path : options.execute) allow(ruleset, path, reading | fs_execute);
    for (const std::string& path : options.write) allow(ruleset, path, attributes.handled_access_fs & ~fs_execute);
    if (syscall(sys_restrict_self, ruleset, 0) != 0) fail("enter the Landlock domain");
    close(ruleset);
}

}  // namespace sandbox
