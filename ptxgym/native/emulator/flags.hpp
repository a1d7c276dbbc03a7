// Modifier bits of Inst::flags and the small enumerations that share it. Python reads this file too: keep `NAME = value` forms.
#pragma once
#include <cstdint>

enum Type : uint8_t {
  T_NONE = 0, T_PRED = 1,
  T_U8 = 2, T_U16 = 3, T_U32 = 4, T_U64 = 5,
  T_S8 = 6, T_S16 = 7, T_S32 = 8, T_S64 = 9,
  T_B128 = 10,
  T_F16 = 11, T_F16X2 = 12, T_BF16 = 13, T_BF16X2 = 14, T_F32 = 15, T_F64 = 16, T_TF32 = 17,
  T_E4M3 = 18, T_E5M2 = 19, T_E4M3X2 = 20, T_E5M2X2 = 21, T_F32X2 = 22,
  T_E2M1X2 = 23, T_E2M3X2 = 24, T_E3M2X2 = 25, T_UE8M0X2 = 26, T_U16X2 = 27, T_S16X2 = 28, T_U4 = 29, T_S4 = 30, T_B1 = 31, T_U6 = 32,
};  // .bN decodes as the unsigned type of the same width

enum Flag : uint32_t {
  // rounding, 3 bits
  F_RN = 0, F_RZ = 1, F_RM = 2, F_RP = 3, F_RNI = 4, F_RZI = 5, F_RMI = 6, F_RPI = 7, F_RND_MASK = 7,
  F_FTZ = 1u << 3, F_SAT = 1u << 4, F_RELU = 1u << 5, F_APPROX = 1u << 6, F_NAN = 1u << 7,
  F_ABS = 1u << 8, F_XORSIGN = 1u << 9, F_CC_IN = 1u << 10, F_CC_OUT = 1u << 11,
  F_A_NOT = 1u << 12, F_C_NOT = 1u << 13, F_ALIGNED = 1u << 14, F_TRANS = 1u << 15, F_WS = F_TRANS,
  F_LEFT = 1u << 16, F_WRAP = 1u << 17, F_ROWS = F_WRAP, F_SHIFTAMT = 1u << 18, F_TO = 1u << 19, F_B_SIGNED = 1u << 20, F_B_E5M2 = F_B_SIGNED,
  F_PARITY = 1u << 21, F_DROP = 1u << 22, F_NOINC = 1u << 23, F_NOCOMPLETE = F_NOINC, F_READ = 1u << 24, F_PACK = F_READ, F_NC = F_READ, F_NO_ALLOCATE = F_DROP,
  F_NEG_A = 1u << 25, F_NEG_B = 1u << 26, F_TRANS_A = 1u << 27, F_TRANS_B = 1u << 28, F_HAS_C = 1u << 29, F_HI = 1u << 30, F_PAIR = F_HI,
  F_RNA = 1u << 31,        // nearest, ties away from zero (cvt.rna.tf32.f32)
};

enum Cmp : uint8_t { C_EQ = 0, C_NE = 1, C_LT = 2, C_LE = 3, C_GT = 4, C_GE = 5, C_EQU = 6, C_NEU = 7, C_LTU = 8, C_LEU = 9, C_GTU = 10, C_GEU = 11, C_NUM = 12, C_NANS = 13 };
enum BoolOp : uint8_t { B_NONE = 0, B_AND = 1, B_OR = 2, B_XOR = 3 };
enum Space : uint8_t { S_GENERIC = 0, S_GLOBAL = 1, S_SHARED = 2, S_LOCAL = 3, S_CONST = 4, S_PARAM = 5, S_CLUSTER = 6 };  // S_SHARED: shared::cta; S_CLUSTER: shared::cluster
enum Order : uint8_t { O_WEAK = 0, O_RELAXED = 1, O_ACQUIRE = 2, O_RELEASE = 3, O_ACQ_REL = 4, O_VOLATILE = 5, O_SC = 6 };
enum Scope : uint8_t { SC_NONE = 0, SC_CTA = 1, SC_CLUSTER = 2, SC_GPU = 3, SC_SYS = 4 };
enum AtomOp : uint8_t { A_ADD = 0, A_MIN = 1, A_MAX = 2, A_INC = 3, A_DEC = 4, A_CAS = 5, A_EXCH = 6, A_AND = 7, A_OR = 8, A_XOR = 9 };
enum FenceProxy : uint8_t { FP_ASYNC = 0, FP_ASYNC_GLOBAL = 1, FP_ASYNC_SHARED = 2, FP_ALIAS = 3, FP_TENSORMAP = 4, FP_ASYNC_GENERIC = 5 };
enum Sreg : uint8_t {
  SR_TID_X = 0, SR_TID_Y = 1, SR_TID_Z = 2, SR_NTID_X = 3, SR_NTID_Y = 4, SR_NTID_Z = 5,
  SR_CTAID_X = 6, SR_CTAID_Y = 7, SR_CTAID_Z = 8, SR_NCTAID_X = 9, SR_NCTAID_Y = 10, SR_NCTAID_Z = 11,
  SR_LANEID = 12, SR_WARPID = 13, SR_NWARPID = 14, SR_SMID = 15, SR_NSMID = 16, SR_GRIDID = 17,
  SR_LANEMASK_EQ = 18, SR_LANEMASK_LE = 19, SR_LANEMASK_LT = 20, SR_LANEMASK_GE = 21, SR_LANEMASK_GT = 22,
  SR_TOTAL_SMEM = 23, SR_DYNAMIC_SMEM = 24, SR_CLUSTER_CTARANK = 25, SR_CLUSTER_NCTARANK = 26,
  SR_CLUSTERID_X = 27, SR_CLUSTERID_Y = 28, SR_CLUSTERID_Z = 29, SR_NCLUSTERID_X = 30, SR_NCLUSTERID_Y = 31, SR_NCLUSTERID_Z = 32,
  SR_CLUSTER_CTAID_X = 33, SR_CLUSTER_CTAID_Y = 34, SR_CLUSTER_CTAID_Z = 35,
  SR_CLUSTER_NCTAID_X = 36, SR_CLUSTER_NCTAID_Y = 37, SR_CLUSTER_NCTAID_Z = 38,
  SR_CLOCK = 39, SR_CLOCK_HI = 40, SR_CLOCK64 = 41, SR_GLOBALTIMER = 42, SR_GLOBALTIMER_LO = 43, SR_GLOBALTIMER_HI = 44,
  SR_AGGR_SMEM = 45, SR_ENVREG1 = 46, SR_IS_EXPLICIT_CLUSTER = 47, SR_ENVREG2 = 48,
};

enum MmaShape : uint8_t { MMA_M16N8K4 = 0, MMA_M16N8K8 = 1, MMA_M16N8K16 = 2, MMA_M16N8K32 = 3, MMA_M8N8K16 = 4, MMA_M8N8K4 = 5, MMA_M8N8K32 = 6, MMA_M16N8K64 = 7, MMA_M8N8K128 = 8, MMA_M16N8K128 = 9, MMA_M16N8K256 = 10 };
enum MapField : uint8_t {
  MF_GLOBAL_ADDRESS = 0, MF_RANK = 1, MF_BOX_DIM = 2, MF_GLOBAL_DIM = 3, MF_GLOBAL_STRIDE = 4, MF_ELEMENT_STRIDE = 5,
  MF_ELEMTYPE = 6, MF_INTERLEAVE_LAYOUT = 7, MF_SWIZZLE_MODE = 8, MF_SWIZZLE_ATOMICITY = 9, MF_FILL_MODE = 10,
};
enum Fragment : uint8_t { FRAGMENT_A = 0, FRAGMENT_B = 1, FRAGMENT_C = 2 };
enum GridDependency : uint8_t { GRIDDEP_LAUNCH_DEPENDENTS = 0, GRIDDEP_WAIT = 1 };
enum TmemShape : uint8_t { TMEM_32X32B = 0, TMEM_16X64B = 1, TMEM_16X128B = 2, TMEM_16X256B = 3, TMEM_16X32BX2 = 4 };
enum TmemCopy : uint8_t {
  TCP_128X256B = 0, TCP_4X256B = 1, TCP_128X128B = 2, TCP_64X128B_02_13 = 3, TCP_64X128B_01_23 = 4, TCP_32X128B = 5,
};
enum TmemUnpack : uint8_t { TU_NONE = 0, TU_B6X16_P32 = 1, TU_B4X16_P64 = 2 };  // source formats that tcgen05.cp makes .b8x16 of
enum MmaKind : uint8_t {  // .kind of tcgen05.mma
  KIND_F16 = 0, KIND_TF32 = 1, KIND_F8F6F4 = 2, KIND_I8 = 3, KIND_MXF8F6F4 = 4, KIND_MXF4 = 5, KIND_MXF4NVF4 = 6,
};
// .collector of tcgen05.mma stands where Space does, the number of the buffer of B where Order does.
enum Collector : uint8_t { COLLECTOR_NONE = 0, COLLECTOR_FILL = 1, COLLECTOR_USE = 2, COLLECTOR_LASTUSE = 3, COLLECTOR_DISCARD = 4 };
enum NopReason : uint8_t {
  NOP_PRAGMA = 0, NOP_PREFETCH = 2, NOP_CREATEPOLICY = 4, NOP_DISCARD = 5, NOP_PMEVENT = 6,
};

// Inst::mods packs what would not fit into flags: bits 0-3 Cmp or AtomOp, 4-7 BoolOp or Space, 8-11 Order, 12-15 Scope,
// 16-18: the address register in a, b, c is 64 bits wide (otherwise 32).
enum RegisterCount : uint8_t { SETMAXNREG_DEC = 0, SETMAXNREG_INC = 1 };
enum AddressWidth : uint32_t { M_A64 = 1u << 16, M_B64 = 1u << 17, M_C64 = 1u << 18 };
inline uint8_t mods_low(uint32_t m) { return m & 15; }
inline uint8_t mods_space(uint32_t m) { return (m >> 4) & 15; }
inline uint8_t mods_order(uint32_t m) { return (m >> 8) & 15; }
inline uint8_t mods_scope(uint32_t m) { return (m >> 12) & 15; }
