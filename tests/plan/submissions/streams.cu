// Order between streams, one way to establish it (or not) per value of `mode`. A kernel's last argument is its number,
// so that plans can be read.
#include <cuda.h>
#include <cuda_runtime.h>

__constant__ float table[4];
__global__ void plain(const float* in, float* out, int number) { out[number] = in[0] + table[0]; }

static const float* in;
static float* out;
static void launch(int number, cudaStream_t stream) { plain<<<1, 32, 0, stream>>>(in, out, number); }

static cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
    cudaStream_t made;
    cudaStreamCreateWithFlags(&made, flags);
    return made;
}
static cudaEvent_t recorded(cudaStream_t stream) {
    cudaEvent_t made;
    cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    cudaEventRecord(made, stream);
    return made;
}
static void let_wait(cudaStream_t later, cudaStream_t earlier) { cudaStreamWaitEvent(later, recorded(earlier), 0); }

static void by_the_driver(CUstream stream) {
    CUstream side;
    CUevent fork, join;
    cuStreamCreate(&side, CU_STREAM_NON_BLOCKING);
    cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING);
    cuEventCreate(&join, CU_EVENT_DISABLE_TIMING);
    launch(0, stream);
    cuEventRecord(fork, stream);
    cuStreamWaitEvent(side, fork, 0);
    launch(1, side);
    cuEventRecordWithFlags(join, side, CU_EVENT_RECORD_DEFAULT);
    cuStreamWaitEvent(stream, join, 0);
    launch(2, stream);
}

static void diamond(cudaStream_t stream) {
    cudaStream_t left = new_stream(), right = new_stream();
    launch(0, stream);
    cudaEvent_t fork = recorded(stream);
    for (cudaStream_t side : {left, right}) {
        cudaStreamWaitEvent(side, fork, 0);
        launch(1, side);
        launch(2, side);
    }
    let_wait(right, left);
    launch(3, right);  // after both launches on the left
    let_wait(stream, left);
    let_wait(stream, right);
    launch(4, stream);  // after the right one, and so after the left
    launch(5, stream);
}

static void events_again(cudaStream_t stream) {
    cudaStream_t side = new_stream();
    cudaEvent_t event = recorded(stream);
    launch(0, stream);
    cudaStreamWaitEvent(side, event, 0);  // what the event stands for now: nothing before launch 0
    launch(1, side);
    cudaEventRecord(event, side);
    cudaStreamWaitEvent(stream, event, 0);
    cudaEventRecord(event, stream);  // a wait keeps what the event stood for
    cudaEventDestroy(event);
    cudaStreamDestroy(side);  // its work goes on
    launch(2, stream);
}

// A workspace is set up without a word to the given stream; whether a launch there may use it depends on n.
static void set_up(int n, cudaStream_t stream) {
    static float* kept = nullptr;
    float *workspace = nullptr, **holder = nullptr;
    cudaStream_t side = new_stream();
    if (n == 3)
        cudaMallocAsync(&workspace, 64, stream);
    else if (n != 9 || kept == nullptr)
        cudaMalloc(&workspace, 64);
    if (n == 9) workspace = kept = kept == nullptr ? workspace : kept;
    const float* const before = in;
    in = workspace;
    if (n == 4) launch(0, stream);
    if (n == 5) {
        cudaMemcpy(workspace, before, 64, cudaMemcpyDeviceToDevice);
    } else if (n == 7) {
        plain<<<1, 32>>>(workspace, workspace, 0);
    } else if (n == 2 || n == 6 || n == 8) {
        cudaMemsetAsync(workspace, 0, 64, side);
    } else {
        cudaMemset(workspace, 0, 64);
    }
    if (n == 2) cudaStreamSynchronize(side);
    if (n == 6) let_wait(stream, side);
    if (n == 8) {  // by a pointer in memory
        cudaMalloc(&holder, sizeof workspace);
        cudaMemcpy(holder, &workspace, sizeof workspace, cudaMemcpyHostToDevice);
        in = reinterpret_cast<float*>(holder);
    }
    if (n != 1 && n != 2 && n != 6 && n != 8) cudaDeviceSynchronize();
    launch(1, stream);
    cudaStreamSynchronize(side);
}

extern "C" void run(const float* A, float* B, int mode, int n, cudaStream_t stream) {
    in = A;
    out = B;
    cudaStream_t side = nullptr;
    const float values[4] = {1, 2, 3, 4};
    switch (mode) {
        case 0: by_the_driver(stream); break;
        case 1: diamond(stream); break;
        case 2: events_again(stream); break;
        case 3:  // the host waits: for a stream, an event, the device, an answer
            side = new_stream();
            cudaStreamSynchronize(stream);
            launch(0, side);
            if (n == 0) cudaStreamSynchronize(side);
            if (n == 1) cudaEventSynchronize(recorded(side));
            if (n == 2) cudaDeviceSynchronize();
            if (n == 3 && cudaStreamQuery(side) != cudaSuccess) return;
            if (n == 4 && cudaEventQuery(recorded(side)) != cudaSuccess) return;
            if (n == 5) cuCtxSynchronize();
            launch(1, stream);
            break;
        case 4:  // the legacy default stream waits for blocking streams and they for it
            side = new_stream(cudaStreamDefault);
            let_wait(side, stream);
            launch(0, side);
            launch(1, nullptr);
            launch(2, cudaStreamPerThread);
            launch(3, side);
            let_wait(stream, cudaStreamPerThread);
            let_wait(stream, side);
            launch(4, stream);
            break;
        case 5:  // but not for others
            side = new_stream(n ? cudaStreamNonBlocking : cudaStreamDefault);
            let_wait(side, stream);
            launch(0, side);
            launch(1, nullptr);
            let_wait(stream, nullptr);
            break;
        case 6: launch(0, nullptr); break;
        case 7: launch(0, cudaStreamPerThread); break;
        case 8:
            launch(0, stream);
            launch(1, new_stream());
            break;
        case 9:  // forked, and joined if n
            side = new_stream();
            let_wait(side, stream);
            launch(0, side);
            if (n) let_wait(stream, side);
            launch(1, stream);
            if (n == 2) launch(2, side);
            break;
        case 10:  // forked from a stream that is not forked
            side = new_stream();
            let_wait(side, new_stream());
            launch(0, side);
            let_wait(stream, side);
            break;
        case 11:  // constants first, by a call that waits; then what a kernel may still use
            cudaMemcpyToSymbol(table, values, sizeof values);
            launch(0, stream);
            if (n == 1) cudaMemcpyToSymbol(table, values, sizeof values);
            if (n == 2) {
                cudaStreamSynchronize(stream);
                cudaMemcpyToSymbol(table, values, sizeof values);
            }
            if (n == 3) cudaMemcpyToSymbolAsync(table, values, sizeof values, 0, cudaMemcpyHostToDevice);
            launch(1, stream);
            break;
        case 12: {  // a workspace of its own may be filled while others run; an output may not
            float* workspace = nullptr;
            launch(0, stream);
            cudaMalloc(&workspace, sizeof values);
            cudaMemcpy(n ? out : workspace, values, sizeof values, cudaMemcpyHostToDevice);
            in = workspace;
            launch(1, stream);
            break;
        }
        case 13:
            cudaMemset(out, 0, 64);
            launch(0, stream);
            break;
        case 14:
            cudaMemcpy(out, in, 64, cudaMemcpyDeviceToDevice);
            launch(0, stream);
            break;
        case 15: {  // a host function between: refused
            launch(0, stream);
            cudaLaunchHostFunc(stream, [](void*) {}, nullptr);
            break;
        }
        case 16: {  // many streams, many questions
            for (int i = 0; i < (n & 1 ? 126 : 125); ++i)
                side = new_stream();
            for (int i = 0; i < (n & 2 ? 20001 : 20000); ++i)
                cudaStreamQuery(stream);
            launch(0, stream);
            break;
        }
        case 17: {  // flags of the given stream and of a created one; flags that there are not
            unsigned given = 9, made = 9;
            cudaStreamGetFlags(stream, &given);
            cudaStreamGetFlags(new_stream(cudaStreamDefault), &made);
            const int refused = cudaStreamCreateWithFlags(&side, 2);
            plain<<<dim3(given + 1, made + 1, refused + 1), 32, 0, stream>>>(in, out, 0);
            break;
        }
        case 19: set_up(n, stream); break;
        case 18:  // an event that was never recorded orders nothing
            side = new_stream();
            cudaEvent_t event;
            cudaEventCreate(&event);
            cudaStreamWaitEvent(side, event, 0);
            cudaEventSynchronize(event);
            launch(0, side);
            break;
    }
}
