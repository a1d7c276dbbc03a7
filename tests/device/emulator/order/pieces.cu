// Who touched what is kept for lines of 128 bytes, for pieces of 16, for words and for bytes of words. CTAs of these
// kernels meet, or just do not meet, in a part of what one of them touched as a whole.
#include <cstdint>

constexpr int kPart = 256;  // bytes that belong to a CTA

template <int WIDTH>
__device__ void store(uint8_t* at, uint32_t value) {
  if constexpr (WIDTH == 16)
    *reinterpret_cast<uint4*>(at) = make_uint4(value, value, value, value);
  else if constexpr (WIDTH == 4)
    *reinterpret_cast<uint32_t*>(at) = value;
  else if constexpr (WIDTH == 2)
    *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(value);
  else
    *at = static_cast<uint8_t>(value);
}
template <int WIDTH>
__device__ uint32_t load(const uint8_t* at) {
  if constexpr (WIDTH == 16) {
    uint32_t value[4];
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
                 : "l"(at));
    return value[0] ^ value[3];
  } else if constexpr (WIDTH == 4)
    return *reinterpret_cast<const uint32_t*>(at);
  else if constexpr (WIDTH == 2)
    return *reinterpret_cast<const uint16_t*>(at);
  else
    return *at;
}

// Every CTA stores whole lines. FAULT 1 to 4: one thread stores (1, 2) or loads (3, 4) WIDTH bytes of its neighbour, which
// has stored its lines before (1, 3) or will (2, 4; 6: the last bytes). 0: nobody does. 5: pieces and lines of the own part, over and over.
// With TALKS the CTAs take turns, and what they know of each other is kept.
template <int WIDTH, int FAULT, int TALKS>
__global__ void pieces(uint8_t* out) {
  const uint32_t t = threadIdx.x, b = blockIdx.x, n = gridDim.x;
  uint8_t* const own = out + b * kPart;
  uint32_t value = b + 1;
  if (TALKS) __threadfence();
  if (FAULT == 1 && t == 0 && b > 0) store<WIDTH>(own - WIDTH, 200 + b);       // !1
  if (FAULT == 2 && t == 0 && b + 1 < n) store<WIDTH>(own + kPart, 200 + b);  // !2
  if (FAULT == 6 && t == 0 && b + 1 < n) store<WIDTH>(own + 2 * kPart - WIDTH, 200 + b);  // !6
  if (FAULT == 3 && t == 0 && b > 0) value += load<WIDTH>(own - WIDTH);        // !3
  if (FAULT == 4 && t == 0 && b + 1 < n) value += load<WIDTH>(own + kPart);   // !4
  if (FAULT == 5) {
    for (uint32_t i = t * WIDTH; i < kPart; i += blockDim.x * WIDTH) store<WIDTH>(own + i, value);
    __syncthreads();
    value += load<WIDTH>(own + kPart - WIDTH);
    __syncthreads();
  }
  reinterpret_cast<uint32_t*>(own)[t] = value;  // !1 !2 !3 !4 !6
  if (FAULT == 5) {
    for (uint32_t i = t * WIDTH; i < kPart; i += blockDim.x * WIDTH) store<WIDTH>(own + i, value);
  }
}

// Two warps a CTA, a line each, which both store by the same instruction. 1: CTA 0 stores the second line of CTA 1 before;
// 2: CTA 1 stores the second line of CTA 0 afterwards.
template <int FAULT>
__global__ void lines(uint32_t* out) {
  const uint32_t t = threadIdx.x, b = blockIdx.x;
  if (FAULT == 1 && b == 0 && t < 32) out[96 + t] = 7;  // !1
  out[b * 64 + t] = b + 1;                              // !1 !2
  if (FAULT == 2 && b == 1 && t < 32) out[32 + t] = 7;  // !2
}

// Rows that begin in the middle of a piece and go on over a multiple of 4096 bytes. 1: they overlap by a word.
template <int FAULT>
__global__ void across(uint32_t* out) {
  const uint32_t t = threadIdx.x, b = blockIdx.x;
  out[999 + b * (64 - FAULT) + t] = 100 * b + t;  // !1
}

// All CTAs store the same words, next to each other or apart (APART). DIFFERS: all but one with the same value.
template <int APART, int DIFFERS>
__global__ void rows(uint32_t* out) {
  const uint32_t t = threadIdx.x, b = blockIdx.x;
  const uint32_t at = APART ? t * 5 % 64 : t;
  out[at] = DIFFERS && t == 9 ? b : t;  // !1
}

// A histogram whose bins are apart. 1: the last CTA looks at a bin meanwhile. 2: it stores to one.
template <int FAULT>
__global__ void tally(uint32_t* out, uint32_t* seen) {
  const uint32_t t = threadIdx.x, b = blockIdx.x;
  if (b + 1 == gridDim.x && FAULT) {
    if (t == 0 && FAULT == 1) *seen = out[35];  // !1
    if (t == 0 && FAULT == 2) out[35] = 0;      // !2
    return;
  }
  atomicAdd(out + t * 5 % 64, 1);  // !1 !2
}

// Two CTAs share words, a half each. The next one stores (1) or loads (2) the half of the one that stored first.
template <int FAULT>
__global__ void halves(uint16_t* out, uint32_t* seen) {
  const uint32_t t = threadIdx.x, b = blockIdx.x;
  uint16_t* const half = out + 2 * t;
  if (b == 0) half[0] = 1;                     // !1 !2
  if (b == 1) half[1] = 2;
  if (b == 2 && FAULT == 1) half[0] = 3;       // !1
  if (b == 2 && FAULT == 2) seen[t] = half[0];  // !2
}

#define WIDTHS(fault, talks)                                                \
  template __global__ void pieces<1, fault, talks>(uint8_t*);               \
  template __global__ void pieces<2, fault, talks>(uint8_t*);               \
  template __global__ void pieces<4, fault, talks>(uint8_t*);               \
  template __global__ void pieces<16, fault, talks>(uint8_t*)
#define FAULTS(talks)                                                                                                    \
  WIDTHS(0, talks); WIDTHS(1, talks); WIDTHS(2, talks); WIDTHS(3, talks); WIDTHS(4, talks); WIDTHS(5, talks); WIDTHS(6, talks)
FAULTS(0);
FAULTS(1);
template __global__ void lines<0>(uint32_t*);
template __global__ void lines<1>(uint32_t*);
template __global__ void lines<2>(uint32_t*);
template __global__ void across<0>(uint32_t*);
template __global__ void across<1>(uint32_t*);
template __global__ void rows<0, 0>(uint32_t*);
template __global__ void rows<0, 1>(uint32_t*);
template __global__ void rows<1, 0>(uint32_t*);
template __global__ void rows<1, 1>(uint32_t*);
template __global__ void tally<0>(uint32_t*, uint32_t*);
template __global__ void tally<1>(uint32_t*, uint32_t*);
template __global__ void tally<2>(uint32_t*, uint32_t*);
template __global__ void halves<0>(uint16_t*, uint32_t*);
template __global__ void halves<1>(uint16_t*, uint32_t*);
template __global__ void halves<2>(uint16_t*, uint32_t*);
