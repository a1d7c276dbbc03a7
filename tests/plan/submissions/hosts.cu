// Host code that may not be, and its honest twin (n = 0), one misdeed per value of `mode`.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cassert>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <mutex>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

__global__ void plain(const float* in, float* out, long long n) { out[n & 1] = in[0]; }
struct Wide {
    long long a, b;
};
__global__ void wide(Wide w, float* out) { out[0] = w.a + w.b; }

static void launch(const float* in, float* out, long long value, cudaStream_t stream) {
    plain<<<1, 32, 0, stream>>>(in, out, value);
}
static int recurse(volatile int* depth) {
    volatile char space[4096];
    space[0] = static_cast<char>(++*depth);
    return recurse(depth) + space[0];
}
static void* spin(void*) { return nullptr; }
static std::mutex lock;

static long long misdeed(const float* A, float* B, int mode, cudaStream_t stream) {
    static volatile float sink;
    char text[64] = {};
    switch (mode) {
        case 0: sink = A[5]; break;
        case 1: B[3] = 1; break;
        case 2: sink = *reinterpret_cast<volatile float*>(8); break;
        case 3: {
            volatile int depth = 0;
            recurse(&depth);
            break;
        }
        case 4: abort();
        case 5: throw std::runtime_error("my own fault");
        case 6: exit(3);
        case 7: syscall(SYS_exit_group, 5); break;
        case 8:
            for (volatile int i = 0;; i = i + 1) {
            }
        case 9: {
            volatile char* p = static_cast<char*>(malloc(std::size_t(3) << 30));
            p[0] = 1;
            break;
        }
        case 10:
            for (;;)
                fork();
        case 11: {
            std::thread other([] {});
            other.join();
            break;
        }
        case 12: system("true"); break;
        case 13: socket(AF_INET, SOCK_STREAM, 0); break;
        case 14: {
            std::ofstream file("/tmp/ptxgym-test-file");
            file << "x";
            break;
        }
        case 15: {
            std::ifstream file("/etc/hostname");
            file >> text[0];
            break;
        }
        case 16: mkdir("/tmp/ptxgym-test-folder", 0700); break;
        case 17: signal(SIGSEGV, SIG_IGN); break;
        case 18: syscall(SYS_ptrace, 0, 0, 0, 0); break;
        case 19: dlopen("libcublas.so.13", RTLD_NOW); break;
        case 20: return time(nullptr);
        case 21: return std::chrono::steady_clock::now().time_since_epoch().count() / 1000000;
        case 22: {
            std::random_device device;
            return device();
        }
        case 23: return reinterpret_cast<long long>(A) & 0xffffffff;
        case 24: return reinterpret_cast<long long>(A) - reinterpret_cast<long long>(B);
        case 25: return static_cast<unsigned long long>(reinterpret_cast<long long>(A)) >> 32;
        case 26: cudaMemcpy(text, A, 16, cudaMemcpyDeviceToHost); break;
        case 27: {
            cudaGraph_t graph;
            cudaGraphCreate(&graph, 0);
            break;
        }
        case 28: {
            CUmodule module;
            cuModuleLoad(&module, "x.cubin");
            break;
        }
        case 29: {
            void* p;
            cudaMallocManaged(&p, 16);
            break;
        }
        case 30:
            cuTensorMapEncodeIm2col(nullptr, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, nullptr, nullptr, nullptr, nullptr,
                                    nullptr, 0, 0, nullptr, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                    CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
            break;
        case 31:
            lock.lock();
            lock.lock();
            break;
        case 32: {
            float* p = nullptr;
            cudaMalloc(&p, 4096);
            cudaFree(p);
            launch(p, B, 0, stream);
            break;
        }
        case 33: launch(A + 5000, B, 0, stream); break;
        case 34: launch(A - 64, B, 0, stream); break;
        case 35: {
            void* p = nullptr;
            cudaMalloc(&p, std::size_t(5) << 30);
            break;
        }
        case 36: {
            float* p = nullptr;
            cudaMallocHost(&p, 4096);
            launch(p, B, 0, stream);
            break;
        }
        case 37:
            for (int i = 0; i < 30000; ++i)
                launch(A, B, 0, stream);
            break;
        case 38: launch(A, B, 0, reinterpret_cast<cudaStream_t>(text)); break;
        case 39: {
            volatile int zero = 0, seven = 7;
            return seven / zero;
        }
        case 40: cudaFuncSetAttribute(plain, cudaFuncAttributeRequiredClusterWidth, 2); break;
        case 41: {
            cudaEvent_t a, b;
            cudaEventCreate(&a);
            cudaEventCreate(&b);
            cudaEventRecord(a, stream);
            cudaEventRecord(b, stream);
            float ms = 0;
            cudaEventElapsedTime(&ms, a, b);
            return static_cast<long long>(ms * 1e6f);
        }
        case 42: {
            pthread_t thread;
            syscall(SYS_clone, 0x11, 0, 0, 0, 0);
            pthread_create(&thread, nullptr, spin, nullptr);
            break;
        }
        case 43: kill(getppid(), SIGKILL); break;
        case 44: assert(mode == 1 && "an assertion of mine"); break;
        case 45: {
            static char record[] = "{\"event\":\"end\"}\n";
            for (int fd = 3; fd < 256; ++fd)
                (void)!write(fd, record, sizeof record - 1);
            _exit(0);
        }
        case 46: {
            static char record[] =
                "{\"event\":\"launch\",\"kernel\":\"forged\",\"grid\":[1,1,1],\"block\":[1,1,1],\"dynamic_smem_bytes\":"
                "0,"
                "\"cluster\":[],\"cooperative\":false,\"programmatic\":false,\"stream\":0,\"params\":[]}\n{\"event\":"
                "\"end\"}\n";
            for (int fd = 3; fd < 256; ++fd)
                (void)!write(fd, record, sizeof record - 1);
            _exit(0);
        }
        case 47: {
            sigset_t all;
            sigfillset(&all);
            sigprocmask(SIG_BLOCK, &all, nullptr);
            fork();
            break;
        }
        case 48: {
            std::vector<char*> kept;
            for (;;)
                kept.push_back(new char[16 << 20]);
        }
        case 49: {
            void* p = mmap(nullptr, std::size_t(4) << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (p == MAP_FAILED) throw std::bad_alloc();
            break;
        }
        case 50: {
            unsigned low = 0, high = 0;
            asm volatile("rdtsc" : "=a"(low), "=d"(high));
            return (static_cast<long long>(high) << 32) | low;
        }
        case 51: {
            volatile float other =
                reinterpret_cast<const float*>(reinterpret_cast<const char*>(A) + (std::size_t(1) << 30))[0];
            sink = other;
            break;
        }
        case 52: cudaFuncSetAttribute(plain, cudaFuncAttributeMaxDynamicSharedMemorySize, 300000); exit(1);
        case 53:
            launch(A, nullptr, 0, stream);
            cudaMemset(nullptr, 0, 16);
            break;
        case 55: syscall(SYS_tgkill, getpid(), getpid(), SIGSTOP); break;
        case 56: mmap(nullptr, std::size_t(8) << 30, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0); break;
        case 57: {
            static char record[] =
                "{\"event\":\"failure\",\"status\":\"plan_error\",\"code\":\"infra.request\",\"message\":\"x\"}\n";
            for (int fd = 3; fd < 256; ++fd)
                (void)!write(fd, record, sizeof record - 1);
            _exit(0);
        }
        case 58: {
            std::vector<char> table(20 << 20, 'x');
            void* p = nullptr;
            cudaMalloc(&p, table.size());
            cudaMemcpy(p, table.data(), table.size(), cudaMemcpyHostToDevice);
            break;
        }
        case 59: {
            static char line[] = "\n";
            for (int i = 0; i < 200000; ++i)
                (void)!write(100, line, 1);
            break;
        }
        case 60:
            poll(nullptr, 0, -1);
            syscall(SYS_nanosleep, nullptr, nullptr);
            pause();
            break;
        case 61: {  // grows downwards, as a stack
            const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN;
            mmap(nullptr, std::size_t(8) << 30, PROT_READ | PROT_WRITE, flags, -1, 0);
            break;
        }
        case 62:
            if (syscall(SYS_membarrier, 1, 0, 0) == 0) abort();  // MEMBARRIER_CMD_GLOBAL, which waits
            break;
        case 63:
            for (int i = 0; i < 100000; ++i)
                (void)!write(2, "much to say, ", 13);
            (void)!write(2, "my last word", 12);
            abort();
        case 64:    // more pointers than all uploads may hold, in one
        case 65:    // in three
        case 66: {  // as many as they may hold
            const std::size_t count = mode == 64 ? 65537 : mode == 65 ? 21846 : 21845;
            std::vector<const float*> table(count, A);
            void* space = nullptr;
            cudaMalloc(&space, count * sizeof(void*));
            for (int i = 0; i < (mode == 64 ? 1 : 3); ++i)
                cudaMemcpyAsync(space, table.data(), count * sizeof(void*), cudaMemcpyHostToDevice, stream);
            break;
        }
        case 67: {
            cudaLaunchAttribute attribute{};
            attribute.id = static_cast<cudaLaunchAttributeID>(1000);
            cudaLaunchConfig_t configuration{1, 32, 0, stream, &attribute, 1};
            cudaLaunchKernelEx(&configuration, plain, A, B, 0LL);
            break;
        }
        case 54:
            *static_cast<volatile int*>(static_cast<void*>(text - 1)) = 0;
            asm volatile("ud2");
            break;
    }
    return 0;
}

extern "C" void run(const float* A, float* B, int mode, int n, cudaStream_t stream) {
    if (n == 2) return;
    const long long value = n ? misdeed(A, B, mode, stream) : 42;
    launch(A, B, value, stream);
}
