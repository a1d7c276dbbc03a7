// Execution of a tcgen05.mma: what its operands tell, and the cells that it reads and writes; arithmetic is elsewhere.
#include "tcgen05_mma.hpp"
#include "wgmma_collective.hpp"

void Mma::note_operand(Cta& cta, const Warp& issuer, const OperandBytes& bytes, const char* name) const {
  check_operand_layout(cta, issuer, inst, bytes, name, "tcgen05.mma", "61-63");
  if (kind == KIND_F16) note_element_type(cta, issuer, inst, bytes, name, "tcgen05.mma", form.a_type == 1);
  mark_operand_read(cta, bytes, inst);
}

// body(lane, column) for the cells of D in one CTA that are written.
template <class Body>
void Mma::for_cells(int part, Body body) const {
  for (int split = 0; split < splits(); ++split) {
    for (int row = 0; row < rows(); ++row) {
      const int lane = accumulator_lane(path(), row, d.lane, split);
      for (int column = 0; enabled(part, lane) && column < width(); ++column) body(lane, d.column + column);
    }
  }
}

bool Mma::report_unwritten(Cta& owner, const Warp& issuer, int part) const {
  const TensorMemory& memory = tensor_memory(owner);
  TmemAddress missing{-1, 0};
  if (accumulate) {
    for_cells(part, [&](int lane, int column) {
      if (missing.lane < 0 && !memory.written(lane, column)) missing = {lane, column};
    });
  }
  const char* name = "tcgen05.mma (D)";
  for (int split = 0; a_in_tmem && split < splits(); ++split) {
    for (int row = 0; row < rows(); ++row) {
      const int lane = accumulator_lane(path(), row, a_cells.lane, split);
      for (int column = a_cells.column; column < a_cells.column + A_COLUMNS; ++column) {
        if (missing.lane >= 0 || !enabled(part, lane) || memory.written(lane, column)) continue;
        missing = {lane, column};
        name = "tcgen05.mma (A)";
      }
    }
  }
  if (missing.lane < 0) return false;
  report_unwritten_cells(owner, issuer, inst, missing.lane, missing.column, name);
  return true;
}

void Mma::execute(Cta& cta) {
  const Warp& issuer = cta.warps[static_cast<size_t>(warp)];
  if (group.count == 2) report_exited_peer(cta, issuer, inst, "tcgen05.mma");
  check_collected(cta, issuer, *this);
  bool reported = false;
  for (int part = 0; part < group.count; ++part) {
    Cta& owner = *group.ctas[part];
    if (!a_in_tmem) note_operand(owner, issuer, a, "A");
    note_operand(owner, issuer, b, "B");
    reported = reported || report_unwritten(owner, issuer, part);
    if (is_block_scaled(kind)) reported = reported || report_scales(*this, owner, issuer);
    if (cta.grid.zero_target_results) {
      TensorMemory& memory = tensor_memory(owner);
      for_cells(part, [&](int lane, int column) { memory.write(lane, column, 0); });
    }
  }
  if (cta.grid.zero_target_results) return;
  kind == KIND_F16 || kind == KIND_TF32 ? multiply_tiles(*this) : multiply_narrow(*this);
}
