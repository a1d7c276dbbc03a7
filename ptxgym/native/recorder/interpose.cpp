// Definitions that take precedence over libc's for the submission and for the C++ library, since the program comes
// first in the dynamic linker's search. None of this is a wall (the system-call filter is): it makes recordings of
// honest host code deterministic, those of time-dependent host code differ, and failures speak.

#include "interpose.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/time.h>
#include <unistd.h>

#include "wire.hpp"

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
}

namespace recorder {
namespace {

constexpr std::uint64_t second_ns = 1'000'000'000;

std::uint64_t now_ns = 0;
std::uint64_t random_state = 1;
bool submission_runs = false;

std::uint64_t next_random() {  // splitmix64
    std::uint64_t z = random_state += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

timespec as_timespec(std::uint64_t ns) {
    return {static_cast<time_t>(ns / second_ns), static_cast<long>(ns % second_ns)};
}

void sleep_for(const timespec& wanted) {
    now_ns += static_cast<std::uint64_t>(wanted.tv_sec) * second_ns + static_cast<std::uint64_t>(wanted.tv_nsec);
}

void* checked(void* memory, std::size_t bytes) {
    if (memory == nullptr && bytes > 0 && submission_runs) {
        submission_runs = false;  // the message itself allocates
        fail("plan.host_memory",
             format("host code asked for %zu bytes of host memory, more than the recorder's limit leaves", bytes));
    }
    return memory;
}

[[noreturn]] void exited(const char* call, int status) {
    if (!submission_runs) ::_exit(status);
    fail("plan.host_exit",
         format("host code called %s(%d) before `run` returned; report errors by returning", call, status));
}

}  // namespace

void seed_clock_and_random(std::uint64_t seed) {
    // Seconds, milliseconds, microseconds and nanoseconds of two seeds all differ.
    now_ns = (1'000'000'000 + seed * 34'567'891) * second_ns + seed * 123'456'789;
    random_state = seed * 0x632be59bd9b4e019 + 1;
}

std::uint64_t fake_time_ns() { return now_ns += 1000; }

void submission_begins() { submission_runs = true; }

void* load_library(const char* file, int flags) {
    static const auto real = reinterpret_cast<void* (*)(const char*, int)>(dlsym(RTLD_NEXT, "dlopen"));
    return real(file, flags);
}

}  // namespace recorder

using namespace recorder;

extern "C" {

int clock_gettime(clockid_t, timespec* out) noexcept {
    *out = as_timespec(fake_time_ns());
    return 0;
}

int gettimeofday(timeval* __restrict out, void* __restrict) noexcept {
    const std::uint64_t ns = fake_time_ns();
    *out = {static_cast<time_t>(ns / second_ns), static_cast<suseconds_t>(ns % second_ns / 1000)};
    return 0;
}

time_t time(time_t* out) noexcept {
    const auto seconds = static_cast<time_t>(fake_time_ns() / second_ns);
    if (out != nullptr) *out = seconds;
    return seconds;
}

clock_t clock() noexcept { return static_cast<clock_t>(fake_time_ns() / (second_ns / CLOCKS_PER_SEC)); }

int timespec_get(timespec* out, int base) noexcept {
    *out = as_timespec(fake_time_ns());
    return base;
}

// Sleeping costs no time: the fake clock jumps.
int nanosleep(const timespec* wanted, timespec*) {
    sleep_for(*wanted);
    return 0;
}

int clock_nanosleep(clockid_t, int flags, const timespec* wanted, timespec*) {
    if ((flags & TIMER_ABSTIME) == 0) sleep_for(*wanted);
    return 0;
}

int usleep(useconds_t us) {
    now_ns += us * std::uint64_t{1000};
    return 0;
}

unsigned sleep(unsigned seconds) {
    now_ns += seconds * second_ns;
    return 0;
}

ssize_t getrandom(void* out, size_t size, unsigned) {
    for (size_t i = 0; i < size; ++i)
        static_cast<unsigned char*>(out)[i] = static_cast<unsigned char>(next_random());
    return static_cast<ssize_t>(size);
}

int getentropy(void* out, size_t size) { return getrandom(out, size, 0) < 0; }

void* malloc(size_t bytes) { return checked(__libc_malloc(bytes), bytes); }
void* calloc(size_t count, size_t bytes) { return checked(__libc_calloc(count, bytes), count * bytes); }
void* realloc(void* memory, size_t bytes) { return checked(__libc_realloc(memory, bytes), bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return checked(__libc_memalign(alignment, bytes), bytes); }

int posix_memalign(void** out, size_t alignment, size_t bytes) noexcept {
    *out = checked(__libc_memalign(alignment, bytes), bytes);
    return *out == nullptr ? ENOMEM : 0;
}

void exit(int status) noexcept { exited("exit", status); }
void quick_exit(int status) noexcept { exited("quick_exit", status); }
void _Exit(int status) noexcept { exited("_Exit", status); }

int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
    fail("plan.host_process", "host code started a thread; host code runs on one thread, without new processes");
}

int system(const char*) {
    fail("plan.host_process", "host code called system(); host code runs on one thread, without new processes");
}

// The CUDA libraries are this program; there are no others.
void* dlopen(const char* file, int flags) noexcept {
    if (!submission_runs || file == nullptr) return load_library(file, flags);
    for (const char* ours : {"libcuda.so", "libcuda.so.1", "libcudart.so", "libcudart.so.13"}) {
        if (std::strcmp(file, ours) == 0) return load_library(nullptr, RTLD_NOW);
    }
    fail("plan.refused_call", format("dlopen(\"%s\"): host code may load no library; write the kernel yourself", file));
}

}  // extern "C"
