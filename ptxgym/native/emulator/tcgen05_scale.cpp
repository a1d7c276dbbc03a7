// Scale factors of block-scaled products in tensor memory (PTX ISA 9.7.16.10.7).
//
// The factors of row r (of A) or column c (of B) are bytes of one 32-bit cell: of lane r % 32, column r / 32 from the
// address on, from the byte that the instruction descriptor names. Each of the four quarters of the lanes needs a copy;
// where the columns of D lie in two halves of the lanes, a quarter holds the factors of the columns of its half. The ISA
// has pictures only; CUTLASS states it (tmem_sf_frg of mma_traits_sm100_frag.hpp). Each quarter of the tensor core reads
// its own copy here.
#include <cmath>
#include "tcgen05_formats.hpp"
#include "tcgen05_mma.hpp"

namespace {

constexpr int QUARTERS = 4, QUARTER_LANES = 32;

struct Place {
  int lane, column;
};
Place place_of(TmemAddress address, int quarter, int index) {
  return {quarter * QUARTER_LANES + index % QUARTER_LANES, address.column + index / QUARTER_LANES};
}

}  // namespace

ScaleFactor scale_factor(const TensorMemory& memory, TmemAddress address, int quarter, int index, uint32_t id, int which,
                         bool ue8m0) {
  const Place at = place_of(address, quarter, index);
  const uint32_t byte = memory.cell(at.lane, at.column) >> 8 * (id + static_cast<uint32_t>(which)) & 0xFF;
  if (ue8m0) return {1.0f, static_cast<int>(byte) - 127, byte == 0xFF};
  // ue4m3 has no sign: bit 7 is not read (MMA-Sim takes the magnitude).
  const uint32_t field = byte >> 3 & 15, mantissa = byte & 7;
  const float significand = static_cast<float>((field ? 8 : 0) + mantissa) / 8;
  return {significand, static_cast<int>(field ? field : 1) - 7, (byte & 0x7F) == 0x7F};
}

bool report_scales(const Mma& op, Cta& owner, const Warp& issuer) {
  const TensorMemory& memory = tensor_memory(owner);
  const struct {
    const char* name;
    TmemAddress address;
    int count, groups;
    uint32_t id;
  } sides[] = {{"tcgen05.mma (scale factors of A)", op.scale_a, op.rows(), 1, op.form.scale_a_id},
               {"tcgen05.mma (scale factors of B)", op.scale_b, op.width(), op.splits(), op.form.scale_b_id}};
  for (const auto& side : sides) {
    const uint32_t used = (op.scales == 4 ? ~0u : (1u << 8 * op.scales) - 1) << 8 * side.id;
    for (int quarter = 0; quarter < QUARTERS; ++quarter) {
      const int original = quarter / (QUARTERS / side.groups) * (QUARTERS / side.groups);
      for (int index = 0; index < side.count; ++index) {
        const Place at = place_of(side.address, quarter, index), first = place_of(side.address, original, index);
        if (!memory.written(at.lane, at.column)) {
          report_unwritten_cells(owner, issuer, op.inst, at.lane, at.column, side.name);
          return true;
        }
        if (!((memory.cell(at.lane, at.column) ^ memory.cell(first.lane, first.column)) & used)) continue;
        Cta& cta = *issuer.home;
        FindingRecord* f = cta.findings.add(cta, &issuer, -1, "tmem.scale_copies", Severity::Warning, op.inst);
        if (!f) return true;
        f->say("%s: lane %d and lane %d of column %d hold different factors of one row or column: each quarter of the "
               "lanes needs the same copy",
               side.name, first.lane, at.lane, at.column);
        f->party(0, "tcgen05.mma", "scales by the copies of each quarter");
        f->mend("Let tcgen05.cp copy scale factors with .warpx4 (or .warpx2 where M = 128 with .cta_group::2).");
        return true;
      }
    }
  }
  return false;
}
