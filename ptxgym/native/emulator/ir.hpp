// What the decoder hands to the core: a kernel as fixed-size instructions over a warp's register file.
#pragma once
#include <cstdint>
#include "flags.hpp"

enum Op : uint16_t {
#define OP(name) OP_##name,
#include "ops.def"
#undef OP
  OP_COUNT
};

// numpy mirrors this as ir.INST_DTYPE; the core checks sizeof at load.
struct Inst {
  uint16_t op;
  uint8_t type, stype;
  uint32_t flags;
  uint32_t mods;
  int32_t guard;       // predicate register, -1: unconditional
  uint32_t guard_not;  // 1: executes where the predicate is false
  int32_t d, d2, a, b, c, e;
  int32_t vec, nvec, vec2, nvec2;
  int32_t target;
  int64_t imm;
};

// Registers: pred: one u32 lane mask. 8-, 16- and 32-bit: 32 u32 lanes (128 bytes). 64-bit: 32 u64 lanes (256). 128-bit: 32 × 16 bytes (512).
// Narrow values are kept zero-extended in their u32 lane; signed operations sign-extend on read.
struct Const { int32_t offset; uint32_t width; uint64_t lo, hi; };   // width in bytes; 1: predicate; | SHARED_ADDRESS
constexpr uint32_t SHARED_ADDRESS = 256;  // in Const::width: the value is a shared address, which differs from CTA to CTA of a cluster
struct SregInit { int32_t offset; uint32_t width; uint32_t sreg; uint32_t pad; };
struct EarlyRead { int32_t inst, offset; uint32_t width, pad; };     // a register that `inst` may read before anything wrote it
struct Extent { int32_t inst; uint32_t begin, end, pad; const char* name; };  // the shared array from whose address `inst` computes its own

struct Kernel {
  const Inst* inst; int64_t ninst;
  const int32_t* pool; int64_t npool;
  const Const* consts; int64_t nconst;
  const SregInit* sregs; int64_t nsreg;
  int64_t reg_bytes;          // per warp
  int64_t static_smem_bytes;  // module- and function-level .shared, laid out by the decoder from SMEM_BASE
  int64_t local_bytes;        // per-thread local depot
  int64_t param_bytes;        // size of the parameter block
  uint32_t features;          // bits of enum Feature
  const EarlyRead* early_reads; int64_t nearly_reads;  // ascending instructions
  const Extent* extents; int64_t nextents;             // ascending instructions, one each at most
};
enum Feature : uint32_t { FEAT_ASYNC = 1, FEAT_BARRIER = 2, FEAT_SHARED = 4, FEAT_COMMUNICATES = 8, FEAT_TARGET = 16, FEAT_PRINTF = 32 };

constexpr uint32_t SMEM_BASE = 1024;  // shared addresses start here: CUDA reserves 1 KiB per CTA on sm_90
// In every 32 bits of a register that may be read before it is written: NaN in fp32, bf16 and fp16, and a number that nobody computes.
constexpr uint32_t UNSET_REGISTER = 0xFFFDFFFB;
// A shared::cluster address holds the CTA's rank above its offset; so does a shared::cta address, whose own rank it is. Hence the
// addresses of one variable in the CTAs of a cluster differ by whole ranks, on which real kernels rely (measured: SASS of ptxas
// for sm_90a makes shared addresses as SR_CgaCtaId << 24 | offset).
constexpr uint32_t RANK_SHIFT = 24;
constexpr uint32_t MAX_CLUSTER = 16;
// Windows of the generic address space. Global addresses are themselves.
constexpr uint64_t SHARED_WINDOW = 0x0000'0100'0000'0000ull;
constexpr uint64_t LOCAL_WINDOW = 0x0000'0200'0000'0000ull;
constexpr uint64_t PARAM_WINDOW = 0x0000'0300'0000'0000ull;  // mov.u64 of a .param symbol; ld.param through a register
constexpr uint64_t CONST_WINDOW = 0x0000'0400'0000'0000ull;  // module .const data; also reached as symbol buffers
// Addresses of functions: handles that only calls understand, in the order of the module's functions whose address is taken.
constexpr uint64_t FUNCTION_WINDOW = 0x0000'0500'0000'0000ull;
constexpr uint64_t FUNCTION_STEP = 16;
constexpr uint64_t GLOBAL_BASE = 0x0000'1000'0000'0000ull;   // buffers are placed from here up, with guard gaps
