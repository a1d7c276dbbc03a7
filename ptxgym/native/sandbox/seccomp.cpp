// A system-call filter that refuses, with EPERM, what no compiler, recorder or emulator needs: other processes' memory,
// kernel facilities, mounts; on request sockets and new processes. The kernel applies it to all descendants.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include "confine.hpp"

namespace sandbox {
namespace {

#if defined(__x86_64__)
constexpr std::uint32_t this_architecture = AUDIT_ARCH_X86_64;
constexpr std::uint32_t foreign_abi_bit = 0x40000000;  // x32 calls carry it
#elif defined(__aarch64__)
constexpr std::uint32_t this_architecture = AUDIT_ARCH_AARCH64;
constexpr std::uint32_t foreign_abi_bit = 0;
#else
#error "the system-call filter knows x86-64 and aarch64"
#endif

// Numbers above 424 are the same on every architecture; they may be missing from old headers.
constexpr int clone3_number = 435;
const std::vector<int> always_denied = {
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_bpf, SYS_perf_event_open, SYS_userfaultfd,
    SYS_add_key, SYS_request_key, SYS_keyctl, SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_unshare, SYS_setns,
    SYS_swapon, SYS_swapoff, SYS_reboot, SYS_kexec_load, SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_acct,
    SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime, SYS_syslog, SYS_quotactl, SYS_sethostname,
    SYS_setdomainname, SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_vhangup,
    425, 426, 427,                      // io_uring_setup, _enter, _register
    428, 429, 430, 431, 432, 433, 442,  // open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr
    438,                                // pidfd_getfd
};
const std::vector<int> process_denied = {
#if defined(__x86_64__)
    SYS_fork, SYS_vfork,
#endif
    SYS_tkill, SYS_rt_sigqueueinfo, 424,  // pidfd_send_signal
};
const std::vector<int> signals_by_pid = {SYS_kill, SYS_tgkill, SYS_rt_tgsigqueueinfo};

class Program {
public:
    void statement(std::uint16_t code, std::uint32_t k) { code_.push_back({code, 0, 0, k}); }
    void load(std::size_t offset) { statement(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)); }
    void give(std::uint32_t action) { statement(BPF_RET | BPF_K, action); }

    // Return `action` if the accumulator equals `value`, else go on.
    void if_equal(std::uint32_t value, std::uint32_t action) {
        code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 1, value});
        give(action);
    }
    // Skip the next `count` statements unless the accumulator equals `value`.
    void unless_equal_skip(std::uint32_t value, std::uint8_t count) {
        code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, count, value});
    }
    // Return `action` if any bit of `mask` is set (or, with `wanted` false, if none is).
    void if_bits(std::uint32_t mask, bool wanted, std::uint32_t action) {
        const std::uint8_t skip_if_set = wanted ? 0 : 1, skip_if_clear = wanted ? 1 : 0;
        code_.push_back({BPF_JMP | BPF_JSET | BPF_K, skip_if_set, skip_if_clear, mask});
        give(action);
    }
    sock_fprog done() { return {static_cast<unsigned short>(code_.size()), code_.data()}; }

private:
    std::vector<sock_filter> code_;
};

constexpr std::uint32_t refuse(int error) { return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error); }
constexpr std::size_t number_offset = offsetof(seccomp_data, nr);
constexpr std::size_t argument_offset(int index) { return offsetof(seccomp_data, args) + 8 * index; }  // low half

void deny_new_processes(Program& program) {
    for (int number : process_denied) program.if_equal(number, refuse(EPERM));
    program.if_equal(clone3_number, refuse(ENOSYS));  // its flags lie in memory; libc falls back to clone
    program.unless_equal_skip(SYS_clone, 4);
    program.load(argument_offset(0));
    program.if_bits(CLONE_THREAD, false, refuse(EPERM));
    program.give(SECCOMP_RET_ALLOW);
    const std::uint32_t self = static_cast<std::uint32_t>(getpid());
    for (int number : signals_by_pid) {
        program.unless_equal_skip(number, 4);
        program.load(argument_offset(0));
        program.if_equal(self, SECCOMP_RET_ALLOW);
        program.give(refuse(EPERM));
    }
}

void deny_new_namespaces(Program& program) {
    constexpr std::uint32_t namespaces = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                         CLONE_NEWPID | CLONE_NEWNET;
    program.unless_equal_skip(SYS_clone, 4);
    program.load(argument_offset(0));
    program.if_bits(namespaces, true, refuse(EPERM));
    program.give(SECCOMP_RET_ALLOW);
    program.if_equal(clone3_number, refuse(ENOSYS));
}

}  // namespace

bool seccomp_available() {
    const std::uint32_t action = SECCOMP_RET_ERRNO;
    return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

void install_seccomp(const Options& options) {
    Program program;
    program.load(offsetof(seccomp_data, arch));
    program.unless_equal_skip(this_architecture, 1);
    program.statement(BPF_JMP | BPF_JA, 1);
    program.give(SECCOMP_RET_KILL_PROCESS);
    program.load(number_offset);
    if (foreign_abi_bit != 0) program.if_bits(foreign_abi_bit, true, refuse(ENOSYS));
    for (int number : always_denied) program.if_equal(number, refuse(EPERM));
    if (options.deny_network) program.if_equal(SYS_socket, refuse(EPERM));
    if (options.deny_processes)
        deny_new_processes(program);
    else
        deny_new_namespaces(program);
    program.give(SECCOMP_RET_ALLOW);
    sock_fprog filter = program.done();
    // Kernels before 5.16 would otherwise switch on costly mitigations for speculative execution.
    constexpr unsigned long allow_speculation = 1UL << 2;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, allow_speculation, &filter) == 0) return;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0) fail("install the system-call filter");
}

}  // namespace sandbox
