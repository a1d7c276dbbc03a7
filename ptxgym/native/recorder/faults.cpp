#include "faults.hpp"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <sys/resource.h>
#include <ucontext.h>
#include <unistd.h>

#include "memory.hpp"
#include "syscalls.hpp"
#include "wire.hpp"

namespace recorder {
namespace {

constexpr std::size_t handler_stack_bytes = 128 << 10;
constexpr std::uint64_t stack_overflow_reach = 1 << 20;

unsigned long long cpu_limit_s = 0;  // read early: the kernel raises the soft limit each time it sends SIGXCPU

const char* what_it_did(const ucontext_t* context) {
#if defined(__x86_64__)
    constexpr greg_t write_bit = 2;  // of the page-fault error code
    return (context->uc_mcontext.gregs[REG_ERR] & write_bit) != 0 ? "wrote" : "read";
#else
    (void)context;
    return "touched";
#endif
}

std::uint64_t stack_pointer(const ucontext_t* context) {
#if defined(__x86_64__)
    return static_cast<std::uint64_t>(context->uc_mcontext.gregs[REG_RSP]);
#else
    return context->uc_mcontext.sp;
#endif
}

void device_access(std::uint64_t address, const ucontext_t* context) {
    char text[512];
    const char* verb = what_it_did(context);
    const Buffer* buffer = nearest_buffer(address);
    if (buffer == nullptr) {
        std::snprintf(text, sizeof text,
                      "host code %s device memory outside every buffer; only kernels can reach device memory", verb);
    } else {
        std::snprintf(text, sizeof text,
                      "host code %s device memory of buffer %s at offset %llu; only kernels can reach device memory",
                      verb, buffer->name.c_str(), static_cast<unsigned long long>(address - buffer->address));
    }
    fail_in_handler("plan.device_pointer_access", text);
}

void on_memory_fault(int signal, siginfo_t* info, void* raw) {
    const auto* context = static_cast<const ucontext_t*>(raw);
    const auto address = reinterpret_cast<std::uint64_t>(info->si_addr);
    if (in_device_range(address)) device_access(address, context);
    char text[256];
    if (stack_pointer(context) - address + stack_overflow_reach / 2 < stack_overflow_reach) {
        std::snprintf(text, sizeof text, "host code overflowed its stack (endless recursion, or a large local array)");
    } else if (address < 4096) {
        std::snprintf(text, sizeof text, "host code used a null pointer");
    } else {
        std::snprintf(text, sizeof text, "host code crashed with %s on a bad address",
                      signal == SIGBUS ? "SIGBUS" : "SIGSEGV");
    }
    fail_in_handler("plan.host_fault", text);
}

void on_other_fault(int signal, siginfo_t*, void*) {
    switch (signal) {
        case SIGABRT:
            fail_in_handler("plan.host_abort", "host code aborted (abort(), a failed assert or an uncaught exception)");
        case SIGFPE: fail_in_handler("plan.host_fault", "host code divided an integer by zero");
        case SIGXCPU: {
            char text[256];
            std::snprintf(text, sizeof text, "host code used %llu s of CPU time without returning from `run` (constructors of static objects "
                          "count): look for a loop that never ends; host code prepares launches, kernels do the work",
                          cpu_limit_s);
            fail_in_handler("plan.host_hang", text);
        }
        default: fail_in_handler("plan.host_fault", "host code executed an illegal or trapping instruction");
    }
}

void on_refused_syscall(int, siginfo_t* info, void* raw) {
    const auto* context = static_cast<const ucontext_t*>(raw);
#if defined(__x86_64__)
    const auto path_argument = [&](int index) {
        return static_cast<std::uint64_t>(context->uc_mcontext.gregs[index == 0 ? REG_RDI : REG_RSI]);
    };
#else
    const auto path_argument = [&](int index) { return context->uc_mcontext.regs[index]; };
#endif
    const RefusedSyscall refused = describe_syscall(info->si_syscall);
    char path[128] = "";
    if (refused.path_index >= 0) {
        const auto* text = reinterpret_cast<const char*>(path_argument(refused.path_index));
        std::snprintf(path, sizeof path, " (\"%.100s\")", text == nullptr ? "" : text);
    }
    char text[400];
    std::snprintf(text, sizeof text, "host code called %s%s; %s", refused.name, path, refused.advice);
    fail_in_handler(refused.code, text);
}

void handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
    struct sigaction action{};
    action.sa_sigaction = handler;
    // SA_NODEFER: a fault inside a handler is reported too, instead of ending the process without a word.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(signal, &action, nullptr);
}

}  // namespace

void install_fault_handlers() {
    rlimit limit{};
    getrlimit(RLIMIT_CPU, &limit);
    cpu_limit_s = limit.rlim_cur;
    void* memory = mmap(nullptr, handler_stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const stack_t stack{memory, 0, handler_stack_bytes};
    sigaltstack(&stack, nullptr);
    for (int signal : {SIGSEGV, SIGBUS})
        handle(signal, on_memory_fault);
    for (int signal : {SIGABRT, SIGFPE, SIGILL, SIGTRAP, SIGXCPU})
        handle(signal, on_other_fault);
    handle(SIGSYS, on_refused_syscall);
}

}  // namespace recorder
