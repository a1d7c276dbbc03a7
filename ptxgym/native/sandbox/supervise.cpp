// The supervisor stays single-threaded and unconfined: it is the subreaper of everything that the command starts, so
// that a daemon which forked twice and left its session becomes its child and is found.

#include "supervise.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <map>
#include <poll.h>
#include <set>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "confine.hpp"

namespace sandbox {
namespace {

void say(int fd, const std::string& line) {
    if (fd >= 0 && write(fd, line.data(), line.size()) < 0) std::abort();  // nobody is left to tell
}

[[noreturn]] void become_command(Options& options, const sigset_t& original_mask, pid_t supervisor, int error_fd) {
    try {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail("PR_SET_PDEATHSIG");
        if (getppid() != supervisor) _exit(125);
        setsid();
        sigprocmask(SIG_SETMASK, &original_mask, nullptr);
        if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) fail("chdir " + options.directory);
        std::vector<int> keep = options.keep_fds;
        keep.push_back(error_fd);
        close_other_fds(keep);
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("PR_SET_NO_NEW_PRIVS");
        if (options.filesystem == Filesystem::name_space) restrict_by_mount_namespace(options);
        if (options.filesystem == Filesystem::landlock) restrict_by_landlock(options);
        drop_capabilities();
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail("PR_SET_PDEATHSIG");  // a new user namespace resets it
        set_limits(options);
        if (options.seccomp) install_seccomp(options);
        execvp(options.command[0], options.command.data());
        fail(std::string("execute ") + options.command[0]);
    } catch (const Failed& failed) {
        say(error_fd, failed.message);
    }
    _exit(125);
}

struct Kin {
    pid_t parent = 0, group = 0;
};

// Parent and group of every process: /proc/<pid>/stat, fields 4 and 5 (proc(5)); the name in field 2 may hold anything.
std::map<pid_t, Kin> all_kin() {
    std::map<pid_t, Kin> kin;
    DIR* proc = opendir("/proc");
    if (proc == nullptr) return kin;  // then only the group of the command can be killed
    while (const dirent* item = readdir(proc)) {
        const pid_t pid = std::atoi(item->d_name);
        if (pid <= 0) continue;
        char text[512];
        const int fd = open(("/proc/" + std::string(item->d_name) + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        const ssize_t length = read(fd, text, sizeof text - 1);
        close(fd);
        if (length <= 0) continue;
        text[length] = 0;
        const char* after_name = std::strrchr(text, ')');
        char state = 0;
        Kin found;
        if (after_name != nullptr && std::sscanf(after_name + 1, " %c %d %d", &state, &found.parent, &found.group) == 3)
            kin[pid] = found;
    }
    closedir(proc);
    return kin;
}

std::set<pid_t> descendants(const std::map<pid_t, Kin>& kin) {
    std::set<pid_t> found;
    const pid_t self = getpid();
    for (const auto& [pid, unused] : kin) {
        std::set<pid_t> chain;
        pid_t at = pid;
        while (at != self && at > 1 && chain.insert(at).second && found.count(at) == 0) {
            const auto next = kin.find(at);
            if (next == kin.end()) break;
            at = next->second.parent;
        }
        if (at == self || found.count(at) != 0) found.insert(chain.begin(), chain.end());
    }
    return found;
}

// Kills until no child is left. The kernel signals a process group at one stroke, children that are just being forked
// included, so a fork bomb dies with its group however fast it grows. Whoever left the group is found by descent: a
// killed process cannot fork and its children become ours, so every round sees all that were alive at its start.
void kill_tree(pid_t command_group, rusage& usage) {
    setpriority(PRIO_PROCESS, 0, -20);  // where we may: thousands of others want the processor just now
    for (;;) {
        kill(-command_group, SIGKILL);
        const std::map<pid_t, Kin> kin = all_kin();
        std::set<pid_t> groups;
        for (pid_t pid : descendants(kin)) {
            const pid_t group = kin.at(pid).group;
            if (group > 1 && group != getpgrp() && groups.insert(group).second) kill(-group, SIGKILL);
            kill(pid, SIGKILL);
        }
        pid_t reaped;
        while ((reaped = wait4(-1, nullptr, WNOHANG, &usage)) > 0) {}
        if (reaped < 0 && errno == ECHILD) return;
        const timespec pause{0, 1'000'000};
        nanosleep(&pause, nullptr);
    }
}

std::int64_t now_ms() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return std::int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

// Waits until the command ends, time is up, or whoever started us closes the lifeline or sends SIGTERM.
std::string wait_for_end(pid_t command, const Options& options, int signal_fd) {
    const std::int64_t deadline = options.timeout_ms < 0 ? -1 : now_ms() + options.timeout_ms;
    for (;;) {
        std::int64_t left = -1;
        if (deadline >= 0) {
            left = deadline - now_ms();
            if (left <= 0) return "timeout";
        }
        pollfd watched[2] = {{signal_fd, POLLIN, 0}, {options.lifeline_fd, POLLIN, 0}};
        if (poll(watched, options.lifeline_fd >= 0 ? 2 : 1, static_cast<int>(std::min<std::int64_t>(left, 1 << 30))) < 0)
            continue;
        if (watched[1].revents != 0 && options.lifeline_fd >= 0) return "abandoned";
        signalfd_siginfo info{};
        if (watched[0].revents == 0 || read(signal_fd, &info, sizeof info) != sizeof info) continue;
        if (info.ssi_signo != SIGCHLD) return "abandoned";
        int status = 0;
        pid_t reaped;
        while ((reaped = waitpid(-1, &status, WNOHANG)) > 0) {
            if (reaped != command) continue;
            if (WIFSIGNALED(status)) return "signalled " + std::to_string(WTERMSIG(status));
            return "exited " + std::to_string(WEXITSTATUS(status));
        }
    }
}

std::string read_all(int fd) {
    std::string text;
    char buffer[1024];
    ssize_t length;
    while ((length = read(fd, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<std::size_t>(length));
    return text;
}

}  // namespace

int supervise(Options& options) {
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return 125;
    if (options.status_fd >= 0) fcntl(options.status_fd, F_SETFD, FD_CLOEXEC);
    if (options.lifeline_fd >= 0) fcntl(options.lifeline_fd, F_SETFD, FD_CLOEXEC);
    std::signal(SIGPIPE, SIG_DFL);
    sigset_t handled, original;
    sigemptyset(&handled);
    for (int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&handled, signal);
    sigprocmask(SIG_BLOCK, &handled, &original);
    const int signal_fd = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    int error_pipe[2];
    if (signal_fd < 0 || pipe2(error_pipe, O_CLOEXEC) != 0) {
        say(options.status_fd, std::string("error the launcher cannot start: ") + std::strerror(errno) + "\n");
        return 125;
    }
    const pid_t self = getpid();
    const pid_t command = fork();
    if (command == 0) become_command(options, original, self, error_pipe[1]);
    if (command < 0) {
        say(options.status_fd, std::string("error fork: ") + std::strerror(errno) + "\n");
        return 125;
    }
    close(error_pipe[1]);
    for (int fd : {0, 1, 2}) close(fd);  // so that whoever reads the command's output sees its end
    for (int fd : options.keep_fds) close(fd);
    const std::string error = read_all(error_pipe[0]);  // ends when the command is executed
    std::string ended = wait_for_end(command, options, signal_fd);
    rusage usage{};
    kill_tree(command, usage);
    if (!error.empty()) {
        say(options.status_fd, "error " + error + "\n");
        return 125;
    }
    getrusage(RUSAGE_CHILDREN, &usage);
    const std::int64_t cpu_ms = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * std::int64_t{1000} +
                                (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
    say(options.status_fd, ended + " " + std::to_string(cpu_ms) + " " + std::to_string(usage.ru_maxrss) + "\n");
    return 0;
}

}  // namespace sandbox
