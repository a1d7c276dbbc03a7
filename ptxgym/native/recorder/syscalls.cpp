#include "syscalls.hpp"

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace recorder {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t this_architecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr std::uint32_t this_architecture = AUDIT_ARCH_AARCH64;
#else
#error "the system-call filter knows x86-64 and aarch64"
#endif

// x32 calls need no rule: their numbers are in no list, so they are refused.
class Filter {
public:
    Filter() {
        add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch));
        code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 1, 0, this_architecture});
        add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    void rule(int number, std::uint32_t action) {
        load_number();
        code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(number)});
        add(BPF_RET | BPF_K, action);
    }
    // Holds where (argument & mask) == value, on the argument's low 32 bits.
    struct Condition {
        std::size_t argument;
        std::uint32_t mask, value;
    };
    // `action` where all conditions hold; later rules decide otherwise.
    void rule_if(int number, const std::vector<Condition>& conditions, std::uint32_t action) {
        const auto statements = static_cast<std::uint8_t>(3 * conditions.size() + 1);
        load_number();
        code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, statements, static_cast<std::uint32_t>(number)});
        std::uint8_t left = statements;
        for (const Condition& condition : conditions) {
            left = static_cast<std::uint8_t>(left - 3);
            add(BPF_LD | BPF_W | BPF_ABS,
                static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * condition.argument));
            add(BPF_ALU | BPF_AND | BPF_K, condition.mask);
            code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, left, condition.value});
        }
        add(BPF_RET | BPF_K, action);
    }
    bool install(std::uint32_t otherwise) {
        add(BPF_RET | BPF_K, otherwise);
        const sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    }

private:
    void add(std::uint16_t code, std::uint32_t value) { code_.push_back({code, 0, 0, value}); }
    void load_number() { add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)); }
    std::vector<sock_filter> code_;
};

constexpr std::uint32_t answer(int error) { return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error); }

// clang-format off
constexpr int plain_calls[] = {
    SYS_read, SYS_write, SYS_writev, SYS_pread64, SYS_close, SYS_lseek, SYS_fstat,
    SYS_mprotect, SYS_munmap, SYS_mremap, SYS_brk, SYS_madvise,
    SYS_sched_yield, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday,
    SYS_getrandom, SYS_getpid, SYS_getppid, SYS_gettid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getcpu,
    SYS_sched_getaffinity, SYS_uname, SYS_sysinfo, SYS_getrusage, SYS_times,
    SYS_rt_sigreturn, SYS_rt_sigprocmask, SYS_sigaltstack, SYS_restart_syscall, SYS_exit, SYS_exit_group,
#if defined(SYS_rseq)
    SYS_rseq,
#endif
    SYS_set_robust_list,
#if defined(SYS_time)
    SYS_time,
#endif
};

// Nothing may block: then wall-clock time that runs out is the machine's fault, and CPU time the host code's.
const std::vector<int>& calls_that_return_at_once() {
    static const std::vector<int> calls = {
        SYS_nanosleep, SYS_clock_nanosleep, SYS_ppoll, SYS_pselect6,
#if defined(SYS_poll)
        SYS_poll, SYS_select,
#endif
    };
    return calls;
}

constexpr std::uint32_t write_flags = O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND;

const std::vector<int>& calls_by_path() {
    static const std::vector<int> calls = {
#if defined(SYS_access)
        SYS_access,
#endif
#if defined(SYS_readlink)
        SYS_readlink,
#endif
#if defined(SYS_stat)
        SYS_stat,
#endif
        SYS_faccessat, SYS_readlinkat, SYS_newfstatat,
    };
    return calls;
}

struct Named {
    int number;
    const char* name;
    int path_index;
};

constexpr Named file_calls[] = {
#if defined(SYS_open)
    {SYS_open, "open", 0}, {SYS_creat, "creat", 0}, {SYS_unlink, "unlink", 0}, {SYS_mkdir, "mkdir", 0},
    {SYS_rename, "rename", 0}, {SYS_rmdir, "rmdir", 0}, {SYS_link, "link", 0}, {SYS_symlink, "symlink", 0},
    {SYS_chmod, "chmod", 0}, {SYS_access, "access", 0}, {SYS_stat, "stat", 0}, {SYS_lstat, "lstat", 0},
    {SYS_readlink, "readlink", 0}, {SYS_getdents, "getdents", -1},
#endif
    {SYS_openat, "openat", 1}, {SYS_unlinkat, "unlinkat", 1}, {SYS_mkdirat, "mkdirat", 1},
    {SYS_renameat2, "renameat2", 1},
    {SYS_linkat, "linkat", 1}, {SYS_symlinkat, "symlinkat", 0}, {SYS_fchmodat, "fchmodat", 1},
    {SYS_newfstatat, "newfstatat", 1}, {SYS_faccessat, "faccessat", 1}, {SYS_readlinkat, "readlinkat", 1},
    {SYS_getdents64, "getdents64", -1}, {SYS_truncate, "truncate", 0}, {SYS_chdir, "chdir", 0},
    {SYS_memfd_create, "memfd_create", 0}, {SYS_statfs, "statfs", 0}, {SYS_getcwd, "getcwd", -1},
    {437, "openat2", 1}, {439, "faccessat2", 1}, {SYS_statx, "statx", 1},
};
constexpr Named network_calls[] = {
    {SYS_socket, "socket", -1}, {SYS_socketpair, "socketpair", -1}, {SYS_connect, "connect", -1},
    {SYS_bind, "bind", -1},
    {SYS_listen, "listen", -1}, {SYS_accept, "accept", -1}, {SYS_accept4, "accept4", -1}, {SYS_sendto, "sendto", -1},
    {SYS_sendmsg, "sendmsg", -1}, {SYS_recvfrom, "recvfrom", -1}, {SYS_recvmsg, "recvmsg", -1},
};
constexpr Named process_calls[] = {
#if defined(SYS_fork)
    {SYS_fork, "fork", -1}, {SYS_vfork, "vfork", -1},
#endif
    {SYS_clone, "clone", -1}, {435, "clone3", -1}, {SYS_execve, "execve", 0}, {SYS_execveat, "execveat", 1},
    {SYS_kill, "kill", -1}, {SYS_tkill, "tkill", -1}, {SYS_tgkill, "tgkill", -1}, {SYS_ptrace, "ptrace", -1},
    {SYS_wait4, "wait4", -1}, {SYS_prctl, "prctl", -1}, {SYS_setsid, "setsid", -1},
    {SYS_process_vm_readv, "process_vm_readv", -1}, {SYS_process_vm_writev, "process_vm_writev", -1},
};
constexpr Named other_calls[] = {
    {SYS_rt_sigaction, "rt_sigaction", -1}, {SYS_prlimit64, "prlimit64", -1}, {SYS_pipe2, "pipe2", -1},
    {SYS_seccomp, "seccomp", -1}, {SYS_bpf, "bpf", -1}, {SYS_perf_event_open, "perf_event_open", -1},
    {SYS_mmap, "mmap with MAP_SHARED or MAP_GROWSDOWN", -1}, {SYS_shmget, "shmget", -1}, {SYS_setpriority, "setpriority", -1},
    {SYS_sched_setaffinity, "sched_setaffinity", -1},
    {SYS_timer_create, "timer_create", -1}, {SYS_setitimer, "setitimer", -1}, {425, "io_uring_setup", -1},
};

// clang-format on

template <std::size_t n>
const Named* find(const Named (&calls)[n], int number) {
    for (const Named& call : calls) {
        if (call.number == number) return &call;
    }
    return nullptr;
}

}  // namespace

RefusedSyscall describe_syscall(int number) {
    if (number == SYS_futex) {
        return {"plan.host_hang", "futex",
                "it waits for ever on a lock or condition: there is no other thread to release it", -1};
    }
    if (const Named* call = find(file_calls, number)) {
        return {"plan.host_file", call->name, "host code may not use files; keep tables in the source",
                call->path_index};
    }
    if (const Named* call = find(network_calls, number)) {
        return {"plan.host_network", call->name, "host code may not use the network", call->path_index};
    }
    if (const Named* call = find(process_calls, number)) {
        return {"plan.host_process", call->name, "host code runs on one thread, without new processes",
                call->path_index};
    }
    constexpr const char* advice = "it may allocate memory, compute, call CUDA and return";
    if (const Named* call = find(other_calls, number)) return {"plan.host_syscall", call->name, advice, -1};
    static char unnamed[40];
    std::snprintf(unnamed, sizeof unnamed, "system call %d", number);
    return {"plan.host_syscall", unnamed, advice, -1};
}

bool install_loading_filter() {
    constexpr std::uint32_t all = 0xffffffff;
    const auto self = static_cast<std::uint32_t>(getpid());
    Filter filter;
    for (int number : plain_calls)
        filter.rule(number, SECCOMP_RET_ALLOW);
    for (int number : calls_by_path())
        filter.rule(number, SECCOMP_RET_ALLOW);
    for (int number : calls_that_return_at_once())
        filter.rule(number, answer(0));
    filter.rule(SYS_membarrier, answer(ENOSYS));  // it waits for other processors, and other threads there are none
    filter.rule_if(SYS_openat, {{2, write_flags, O_RDONLY}}, SECCOMP_RET_ALLOW);
#if defined(SYS_open)
    filter.rule_if(SYS_open, {{1, write_flags, O_RDONLY}}, SECCOMP_RET_ALLOW);
#endif
    // The limit counts private memory only, and takes what grows downwards for a stack.
    filter.rule_if(SYS_mmap, {{3, MAP_SHARED | MAP_GROWSDOWN, 0}}, SECCOMP_RET_ALLOW);
    filter.rule_if(SYS_futex, {{1, static_cast<std::uint32_t>(FUTEX_CMD_MASK), FUTEX_WAKE}}, SECCOMP_RET_ALLOW);
    filter.rule(SYS_ioctl, answer(ENOTTY));  // isatty of the C library's streams
    filter.rule(SYS_fcntl, answer(EINVAL));
    filter.rule_if(SYS_tgkill, {{0, all, self}, {2, all, SIGABRT}}, SECCOMP_RET_ALLOW);  // abort
    // The second filter must still be installable; what it adds only takes away.
    filter.rule_if(SYS_prctl, {{0, all, PR_SET_SECCOMP}}, SECCOMP_RET_ALLOW);
    filter.rule_if(SYS_prctl, {{0, all, PR_SET_NO_NEW_PRIVS}}, SECCOMP_RET_ALLOW);
    filter.rule_if(SYS_prlimit64, {{2, all, 0}}, SECCOMP_RET_ALLOW);  // reading a limit
    return filter.install(SECCOMP_RET_TRAP);
}

bool install_running_filter() {
    Filter filter;
    // fstat() of the C library is newfstatat with an empty path.
    filter.rule_if(SYS_newfstatat, {{3, AT_EMPTY_PATH, AT_EMPTY_PATH}}, SECCOMP_RET_ALLOW);
    for (int number : calls_by_path())
        filter.rule(number, SECCOMP_RET_TRAP);
    filter.rule(SYS_openat, SECCOMP_RET_TRAP);
#if defined(SYS_open)
    filter.rule(SYS_open, SECCOMP_RET_TRAP);
#endif
    filter.rule(SYS_prctl, SECCOMP_RET_TRAP);
    return filter.install(SECCOMP_RET_ALLOW);
}

}  // namespace recorder
