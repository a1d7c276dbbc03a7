// recorder [--unconfined]: run a submission's host code without a GPU, and record what it asks of the driver. One process
// makes all the calls of a request, as a caller would.
//
// The request (see state.cpp) comes on standard input, the record (one JSON object per line) goes to standard output;
// what the host code prints goes to standard error. `--unconfined` does without the system-call filter, for machines
// that have none. Limits of memory and CPU time, the file system and the death of the tree are the launcher's business.

#include <cstring>
#include <exception>
#include <new>
#include <string>

#include <dlfcn.h>
#include <sys/personality.h>
#include <unistd.h>

#include "faults.hpp"
#include "frames.hpp"
#include "interpose.hpp"
#include "state.hpp"
#include "syscalls.hpp"
#include "wire.hpp"

namespace {

using namespace recorder;

constexpr std::size_t max_arguments = 48;
constexpr std::size_t cleared_stack_bytes = 256 << 10;

// Padding of structs that host code passes to kernels holds whatever the stack held. With a fixed memory layout and a
// stack of zeros that is the same in every recording.
void fix_memory_layout(char** arguments) {
    const int current = personality(0xffffffff);
    if (current < 0 || (current & ADDR_NO_RANDOMIZE) != 0) return;
    if (personality(static_cast<unsigned>(current) | ADDR_NO_RANDOMIZE) < 0) return;
    execv(arguments[0], arguments);  // a path; where this fails, recording goes on with a random layout
}

__attribute__((noinline)) void clear_stack() {
    char space[cleared_stack_bytes];
    std::memset(space, 0, sizeof space);
    asm volatile("" : : "r"(space) : "memory");  // the stores stay, though nobody reads them
}

[[noreturn]] void cannot_load() {
    const std::string why = dlerror();
    const std::string marker = "undefined symbol: ";
    const std::size_t at = why.find(marker);
    if (at == std::string::npos) fail("plan.load_failed", "the host library does not load: " + why);
    const std::string symbol =
        why.substr(at + marker.size(), why.find_first_of(" ,(\n", at + marker.size()) - at - marker.size());
    fail("plan.unresolved_symbol",
         "the host code needs `" + symbol +
             "`, which neither the CUDA runtime and driver nor the C and C++ libraries define; "
             "library calls (cuBLAS, cuDNN, ...) are not allowed: the kernels must be the submission's own");
}

// Every argument of `run` is a pointer or an int, so all go to integer registers and stack slots of eight bytes, on
// x86-64 (System V) and AArch64 alike, and surplus ones are ignored.
template <std::size_t... i>
void call(void* entry, const std::uint64_t* arguments, std::index_sequence<i...>) {
    reinterpret_cast<void (*)(decltype((void)i, std::uint64_t{})...)>(entry)(arguments[i]...);
}

void call_run(void* entry, const std::vector<std::uint64_t>& given) {
    std::uint64_t arguments[max_arguments] = {};
    if (given.size() >= max_arguments) fail("infra.request", "too many arguments of run");
    std::memcpy(arguments, given.data(), given.size() * sizeof(std::uint64_t));
    arguments[given.size()] = reinterpret_cast<std::uint64_t>(&state().streams[0]);
    clear_stack();
    try {
        call(entry, arguments, std::make_index_sequence<max_arguments>{});
    } catch (const std::bad_alloc&) {
        fail("plan.host_memory", "host code ran out of host memory (std::bad_alloc)");
    } catch (const std::exception& thrown) {
        fail("plan.host_abort", std::string("host code threw an exception out of `run`: ") + thrown.what());
    } catch (...) {
        fail("plan.host_abort", "host code threw something out of `run` that is no std::exception");
    }
}

}  // namespace

int main(int count, char** arguments) {
    fix_memory_layout(arguments);
    const bool confined = !(count > 1 && std::strcmp(arguments[1], "--unconfined") == 0);
    open_record();
    read_request();
    close(0);
    install_fault_handlers();
    if (confined && !install_loading_filter()) fail("infra.no_seccomp", "this kernel installs no system-call filter");
    Line("start").field("confined", confined).send();
    submission_begins();
    void* library = load_library(state().library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) cannot_load();
    watch_library(library);
    void* entry = dlsym(library, "run");
    if (entry == nullptr)
        fail("plan.no_entry",
             "the submission exports no function `run` with C linkage; write extern \"C\" void run(...)");
    if (confined && !install_running_filter())
        fail("infra.no_seccomp", "this kernel installs no second system-call filter");
    for (std::size_t index = 0; index < state().calls.size(); ++index) {
        begin_call(index);
        call_run(entry, state().calls[index]);
    }
    finish();
}
