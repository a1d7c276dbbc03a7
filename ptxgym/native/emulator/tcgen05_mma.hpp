// One product that a thread issued with tcgen05.mma, and what its kinds share.
//
// A pair of CTAs (.cta_group::2) shares one product: each holds half the rows of A and D, and half the columns of B, at
// the same addresses (PTX ISA 9.7.16.10.5; CUTLASS, mma_traits_sm100.hpp: the even CTA the first halves).
#pragma once
#include "tcgen05.hpp"

constexpr int A_COLUMNS = 8;  // of tensor memory: a row of A takes 32 bytes whatever the kind
constexpr int DISABLE_MASKS = 4;  // of disabled lanes, per CTA

struct Mma final : TensorOp {
  int warp = 0;
  MmaKind kind = KIND_F16;
  bool ws = false;
  InstructionDescriptor form{};
  TmemAddress d{}, a_cells{}, scale_a{}, scale_b{};
  bool a_in_tmem = false, accumulate = false;
  int scale = 0;   // D is multiplied by 2^-scale before
  int scales = 0;  // scale factors of a row, of block-scaled kinds
  uint32_t disabled[2 * DISABLE_MASKS] = {};
  ColumnMask zero_columns{};  // of B
  OperandBytes a, b;          // the parts of one CTA
  uint8_t collector = COLLECTOR_NONE;
  int buffer = 0;     // that of A; of .ws 1 … 4, those of B
  uint64_t fill = 0;  // the fill that it is, or whose matrix it may take

  void execute(Cta&) override;

  int depth() const { return depth_of(kind); }
  int rows() const { return form.rows / group.count; }  // of one CTA
  int columns_of_b() const { return form.columns / group.count; }
  DataPath path() const { return data_path(form.rows, group.count == 2, ws); }
  int splits() const { return accumulator_splits(path()); }
  int width() const { return accumulator_columns(path(), form.columns); }  // columns of tensor memory
  int scale_columns_a() const { return (rows() + 31) / 32; }
  int scale_columns_b() const { return (width() + 31) / 32; }
  bool zero_column(int column) const { return zero_columns[static_cast<size_t>(column / 64)] >> column % 64 & 1; }
  // Masks of the even CTA come first: the ISA numbers lanes from the first bit on and says no more of a pair.
  bool enabled(int part, int lane) const { return !(disabled[part * DISABLE_MASKS + lane / 32] >> lane % 32 & 1); }

 private:
  void note_operand(Cta&, const Warp&, const OperandBytes&, const char* name) const;
  bool report_unwritten(Cta& owner, const Warp& issuer, int part) const;
  template <class Body>
  void for_cells(int part, Body body) const;
};

// ---- collector buffers (tcgen05_collector.cpp)
constexpr int COLLECTOR_BUFFERS_B = 4;
void collect(Cta&, const Warp&, int lane, Mma&);              // as it is issued
void check_collected(Cta&, const Warp& issuer, const Mma&);  // as it executes: is the matrix still that of the fill?

void multiply_tiles(const Mma&);   // f16 and tf32 (tcgen05_tiles.cpp)
void multiply_narrow(const Mma&);  // elements of 8 bits and less (tcgen05_narrow.cpp)

// ---- scale factors (tcgen05_scale.cpp)

struct ScaleFactor {
  float significand;  // 1 of ue8m0; 0 … 1.875 of ue4m3
  int exponent;
  bool nan;
};
// Number `which` of the scale factors of row (or column) `index`, from the copy in one quarter of the lanes.
ScaleFactor scale_factor(const TensorMemory&, TmemAddress, int quarter, int index, uint32_t id, int which, bool ue8m0);
// Warns of scale factors that nothing has written, or whose copies differ; true after a finding.
bool report_scales(const Mma&, Cta& owner, const Warp& issuer);
