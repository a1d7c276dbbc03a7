// Where Landlock is missing: a private mount namespace that holds nothing but the granted paths (user_namespaces(7)).

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "confine.hpp"

namespace sandbox {
namespace {

const char* const new_root = "/tmp";  // any folder does: it is covered by a tmpfs in this namespace only

void write_file(const char* path, const std::string& text) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) fail(std::string("write ") + path);
    close(fd);
}

void enter_namespace() {
    const uid_t uid = getuid();
    const gid_t gid = getgid();
    if (unshare(CLONE_NEWNS) == 0) return;  // a privileged process needs no user namespace
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) fail("create user and mount namespaces");
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", std::to_string(uid) + " " + std::to_string(uid) + " 1");
    write_file("/proc/self/gid_map", std::to_string(gid) + " " + std::to_string(gid) + " 1");
}

void make_parents(const std::string& path) {
    for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
        const std::string parent = path.substr(0, slash);
        if (mkdir(parent.c_str(), 0755) != 0 && errno != EEXIST) fail("mkdir " + parent);
    }
}

// Returns `path` without symbolic links; empty if nothing is there.
std::string real(const std::string& path) {
    char resolved[PATH_MAX];
    if (realpath(path.c_str(), resolved) != nullptr) return resolved;
    if (errno == ENOENT) return {};
    fail("resolve " + path);
}

struct Grant {
    int fd = -1;  // O_PATH of the source, opened before anything is covered
    bool folder = false;
    bool writable = false;
};

void create_mount_point(const std::string& target, const Grant& grant) {
    struct stat status {};
    if (lstat(target.c_str(), &status) == 0) return;  // it lies in a folder that is bound already
    make_parents(target);
    if (grant.folder) {
        if (mkdir(target.c_str(), 0755) != 0 && errno != EEXIST) fail("mkdir " + target);
    } else {
        const int fd = open(target.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) fail("create " + target);
        close(fd);
    }
}

void bind(const std::string& path, const Grant& grant) {
    const std::string target = new_root + path;
    create_mount_point(target, grant);
    const std::string source = "/proc/self/fd/" + std::to_string(grant.fd);
    if (mount(source.c_str(), target.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) fail("bind " + path);
    if (grant.writable) return;
    struct statvfs status {};
    if (statvfs(target.c_str(), &status) != 0) fail("statvfs " + path);
    unsigned long flags = MS_BIND | MS_REMOUNT | MS_RDONLY;  // flags that are set already must stay set
    if (status.f_flag & ST_NOSUID) flags |= MS_NOSUID;
    if (status.f_flag & ST_NODEV) flags |= MS_NODEV;
    if (status.f_flag & ST_NOEXEC) flags |= MS_NOEXEC;
    if (status.f_flag & ST_NOATIME) flags |= MS_NOATIME;
    if (status.f_flag & ST_RELATIME) flags |= MS_RELATIME;
    if (mount(nullptr, target.c_str(), nullptr, flags, nullptr) != 0) fail("make " + path + " read-only");
}

// Collects grants under their real paths, parents before children, and the links by which they were named.
struct Layout {
    std::map<std::string, Grant> grants;
    std::map<std::string, std::string> links;

    void add(const std::vector<std::string>& paths, bool writable) {
        for (const std::string& path : paths) {
            const std::string resolved = real(path);
            if (resolved.empty()) continue;
            add_links_of(path);
            Grant& grant = grants[resolved];
            grant.writable = grant.writable || writable;
            if (grant.fd >= 0) continue;
            grant.fd = open(resolved.c_str(), O_PATH | O_CLOEXEC);
            struct stat status {};
            if (grant.fd < 0 || fstat(grant.fd, &status) != 0) fail("open " + path);
            grant.folder = S_ISDIR(status.st_mode);
        }
    }

    // Every component of `path` that is a symbolic link is wanted too, as a link to where it leads in the end.
    void add_links_of(const std::string& path) {
        for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
            const std::string prefix = path.substr(0, end);
            struct stat status {};
            if (lstat(prefix.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
                const std::size_t slash = prefix.rfind('/');
                const std::string parent = slash == 0 ? "" : real(prefix.substr(0, slash));
                links[parent + prefix.substr(slash)] = real(prefix);
            }
            if (end == std::string::npos) return;
        }
    }

    // Whether a folder above `path` is granted with no fewer rights.
    bool covered(const std::string& path) const {
        for (std::size_t slash = path.rfind('/'); slash != 0 && slash != std::string::npos; slash = path.rfind('/', slash - 1)) {
            const auto above = grants.find(path.substr(0, slash));
            if (above != grants.end() && above->second.writable >= grants.at(path).writable) return true;
        }
        return false;
    }

    // Merged-usr systems reach the dynamic loader by /lib64 -> usr/lib64 and its kin.
    void add_system_links() {
        for (const char* path : {"/bin", "/lib", "/lib64", "/sbin"}) {
            char target[PATH_MAX];
            const ssize_t length = readlink(path, target, sizeof target - 1);
            if (length > 0) links[path] = std::string(target, length);
        }
    }
};

}  // namespace

void restrict_by_mount_namespace(const Options& options) {
    char here[PATH_MAX];
    if (getcwd(here, sizeof here) == nullptr) fail("getcwd");
    enter_namespace();
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) fail("make mounts private");
    Layout layout;
    layout.add(options.read, false);
    layout.add(options.execute, false);
    layout.add(options.write, true);
    layout.add_system_links();
    if (mount("tmpfs", new_root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755") != 0) fail("mount tmpfs");
    for (const auto& [path, grant] : layout.grants) {
        if (!layout.covered(path)) bind(path, grant);
    }
    for (const auto& [path, target] : layout.links) {
        const std::string link = new_root + path;
        struct stat status {};
        if (lstat(link.c_str(), &status) == 0) continue;
        make_parents(link);
        if (symlink(target.c_str(), link.c_str()) != 0) fail("symlink " + link);
    }
    if (chdir(new_root) != 0 || syscall(SYS_pivot_root, ".", ".") != 0) fail("pivot_root");
    if (umount2(".", MNT_DETACH) != 0) fail("detach the old root");
    if (mount(nullptr, "/", nullptr, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, nullptr) != 0)
        fail("make the new root read-only");
    if (chdir(here) != 0 && chdir("/") != 0) fail("chdir");
}

}  // namespace sandbox
