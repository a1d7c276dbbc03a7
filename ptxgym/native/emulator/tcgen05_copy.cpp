// tcgen05.cp and tcgen05.shift (PTX ISA 9.7.16.9).
//
// With .cta_group::2 both CTAs of the pair copy or shift. From which shared memory the peer copies the ISA does not say;
// it is its own, at the same offsets: in CUTLASS's block-scaled kernels (SM100_UTCCP_*_2cta) each CTA loads the scale
// factors of its own rows, and one thread of the pair issues the copy.
#include "tcgen05.hpp"
#include "tcgen05_formats.hpp"

namespace {

struct CopyShape {
  int rows, words;  // of the source: words of 32 bits
  const char* name;
};

constexpr CopyShape copy_shape(uint8_t shape) {
  switch (shape) {
    case TCP_128X256B: return {128, 8, "tcgen05.cp.128x256b"};
    case TCP_4X256B: return {4, 8, "tcgen05.cp.4x256b"};
    case TCP_128X128B: return {128, 4, "tcgen05.cp.128x128b"};
    case TCP_64X128B_02_13: return {64, 4, "tcgen05.cp.64x128b.warpx2::02_13"};
    case TCP_64X128B_01_23: return {64, 4, "tcgen05.cp.64x128b.warpx2::01_23"};
    default: return {32, 4, "tcgen05.cp.32x128b.warpx4"};
  }
}

// Lanes (relative to the address) that row `row` goes to: the first, the number of copies, and the distance between
// them. The ISA says which warps share data; lane by lane it is stated by CUTLASS (copy_traits_sm100.hpp, UTCCP) and TVM
// (tcgen05.cp) alike, 4x256b, whose rows refresh one lane of each quarter, included.
struct Replicas {
  int first, count, step;
};
constexpr Replicas replicas(uint8_t shape, int row) {
  switch (shape) {
    case TCP_4X256B: return {32 * row, 1, 0};
    case TCP_64X128B_02_13: return {row, 2, 64};
    case TCP_64X128B_01_23: return {64 * (row / 32) + row % 32, 2, 32};
    case TCP_32X128B: return {row, 4, 32};
    default: return {row, 1, 0};
  }
}

// Sixteen elements of 6 or 4 bits, which a padded chunk holds, become 8-bit containers as a product wants them (9.7.16.9.1
// has pictures only; that tcgen05.mma reads what was decompressed decides where the bits go).
void decompress(uint8_t unpack, uint8_t* chunk) {
  const int bits = unpack == TU_B6X16_P32 ? 6 : 4;
  uint8_t codes[CHUNK_BYTES];
  unpack_padded(chunk, bits, codes);
  for (uint32_t i = 0; i < CHUNK_BYTES; ++i) chunk[i] = static_cast<uint8_t>(codes[i] << container_shift(bits));
}

// The source as the K-major matrix that the descriptor describes: 16-byte chunks in rows (PTX ISA 9.7.16.9.2).
struct Copy final : TensorOp {
  uint8_t shape, unpack;
  int lane, column;
  const Warp* issuer;
  OperandBytes source;

  void execute(Cta& cta) override {
    if (group.count == 2) report_exited_peer(cta, *issuer, inst, "tcgen05.cp");
    for (int part = 0; part < group.count; ++part) copy(*group.ctas[part]);
  }
  void copy(Cta& cta) const {
    TensorMemory& memory = tensor_memory(cta);
    const CopyShape form = copy_shape(shape);
    const int chunks = form.words / 4;
    mark_operand_read(cta, source, inst);
    for (int row = 0; row < form.rows; ++row) {
      const Replicas to = replicas(shape, row);
      for (int i = 0; i < chunks; ++i) {
        uint8_t chunk[CHUNK_BYTES];
        std::memcpy(chunk, cta.shared(source.chunks[static_cast<size_t>(row * chunks + i)]), sizeof chunk);
        if (unpack != TU_NONE) decompress(unpack, chunk);
        uint32_t words[CHUNK_BYTES / 4];
        std::memcpy(words, chunk, sizeof words);
        for (int copy = 0; copy < to.count; ++copy)
          for (int word = 0; word < 4; ++word)
            memory.write(lane + to.first + copy * to.step, column + 4 * i + word, words[word]);
      }
    }
  }
};

bool group_allocated(Cta& cta, Warp& warp, const Inst& inst, int lane, const char* name, const CtaGroup& group,
                     int column, int columns) {
  for (int part = 0; part < group.count; ++part)
    if (!columns_allocated(cta, warp, inst, lane, name, *group.ctas[part], column, columns)) return false;
  return true;
}

// The ISA asks for no multiple of 4 (9.7.16.9.2); CUTLASS, though, has nothing else.
void warn_of_column(Cta& cta, const Warp& warp, int inst, int lane, const CopyShape& form, int column) {
  FindingRecord* f = cta.findings.add(cta, &warp, lane, "tmem.alignment", Severity::Warning, inst);
  if (!f) return;
  f->say("%s at column %d of tensor memory: the ISA names no alignment, but kernels that are known to run begin at a multiple "
         "of 4 (128 bits), and nothing says that a GPU copies to other columns",
         form.name, column);
  f->mend("let the copy begin at a column that is a multiple of 4");
}

Step cp(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  const uint8_t shape = mods_low(inst.mods);
  const CopyShape form = copy_shape(shape);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const TmemAddress address =
        TmemAddress::of(warp.reg<uint32_t>(inst.a)[lane] + static_cast<uint32_t>(inst.imm));
    auto copy = std::make_unique<Copy>();
    copy->inst = at;
    copy->issuer = &warp;
    copy->group = group_of(cta, warp, inst, lane, "tcgen05.cp");
    if (!copy->group.count) return Step::Fault;
    copy->shape = shape;
    copy->unpack = mods_space(inst.mods);
    copy->lane = address.lane;
    copy->column = address.column;
    const int highest = shape == TCP_4X256B ? 96 : 127;
    if (address.lane + highest >= TMEM_LANES) {
      return cta.fault(warp, inst, lane, "tmem.lanes", "%s at lane %d of tensor memory reaches lane %d: there are %d",
                       form.name, address.lane, address.lane + highest, TMEM_LANES);
    }
    if (address.column % 4) warn_of_column(cta, warp, at, lane, form, address.column);
    if (!group_allocated(cta, warp, inst, lane, form.name, copy->group, address.column, form.words)) return Step::Fault;
    TensorDescriptor descriptor;
    if (!sound_descriptor(cta, warp, inst, lane, warp.reg<uint64_t>(inst.b)[lane], "the source",
                          Atoms32::NotEmulated, descriptor))
      return Step::Fault;
    // Rows of 32 bytes are two chunks of a K-major operand, rows of 16 bytes the first of them.
    copy->source.operand = {descriptor.matrix, static_cast<uint32_t>(form.rows), false};
    std::vector<uint32_t> chunks;
    for (uint32_t row = 0; row < static_cast<uint32_t>(form.rows); ++row)
      for (uint32_t c = 0; c < static_cast<uint32_t>(form.words) / 4; ++c)
        chunks.push_back(copy->source.operand.chunk_address(row * 2 + c));
    copy->source.assign(std::move(chunks));
    if (!operand_inside(cta, warp, inst, lane, copy->source, "the source")) return Step::Fault;
    if (cta.shadow) cta.shadow->async_begin(warp, at, Async::Tcgen05, lane, nullptr, 0);
    for (int part = 0; cta.shadow && part < copy->group.count; ++part) {
      Shadow& shadow = *copy->group.ctas[part]->shadow;
      shadow.async_share(warp, Async::Tcgen05, lane);
      for (const OperandBytes::Range& range : copy->source.ranges)
        shadow.async_read(warp, at, Async::Tcgen05, range.address, range.bytes, nullptr);
      shadow.tmem_access(warp, at, TmemUse::Write, lane, address.column, form.words, 0xFF);
    }
    issue(cta, std::move(copy));
  }
  return Step::Next;
}

// 32 lanes × 32 bytes move down by one row, the last stays (PTX ISA 9.7.16.9.3). The text does not say which way "down"
// is. Row r takes what row r + 1 held: only then does the last row have nothing to take and is "except the last", and
// only then is it the row that a tcgen05.cp.4x256b, which is pipelined after a shift (9.7.16.6.2), brings.
struct Shift final : TensorOp {
  int lane, column;
  const Warp* issuer;
  void execute(Cta& cta) override {
    if (group.count == 2) report_exited_peer(cta, *issuer, inst, "tcgen05.shift");
    for (int part = 0; part < group.count; ++part) {
      TensorMemory& memory = tensor_memory(*group.ctas[part]);
      for (int row = lane; row < lane + 31; ++row) {
        for (int word = column; word < column + 8; ++word)
          if (memory.written(row + 1, word)) memory.write(row, word, memory.cell(row + 1, word));
      }
    }
  }
};

Step shift(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const TmemAddress address =
        TmemAddress::of(warp.reg<uint32_t>(inst.a)[lane] + static_cast<uint32_t>(inst.imm));
    if (address.lane % 32 || address.lane >= TMEM_LANES) {
      return cta.fault(warp, inst, lane, "tmem.lanes",
                       "tcgen05.shift at lane %d of tensor memory: the lane must be a multiple of 32 below %d",
                       address.lane, TMEM_LANES);
    }
    auto op = std::make_unique<Shift>();
    op->group = group_of(cta, warp, inst, lane, "tcgen05.shift");
    if (!op->group.count) return Step::Fault;
    if (!group_allocated(cta, warp, inst, lane, "tcgen05.shift", op->group, address.column, 8)) return Step::Fault;
    op->inst = at;
    op->issuer = &warp;
    op->lane = address.lane;
    op->column = address.column;
    if (cta.shadow) cta.shadow->async_begin(warp, at, Async::Tcgen05, lane, nullptr, 0);
    for (int part = 0; cta.shadow && part < op->group.count; ++part) {
      Shadow& shadow = *op->group.ctas[part]->shadow;
      shadow.async_share(warp, Async::Tcgen05, lane);
      shadow.tmem_access(warp, at, TmemUse::Write, lane, address.column, 8, 3u << address.lane / 16);
    }
    issue(cta, std::move(op));
  }
  return Step::Next;
}

}  // namespace

Handler bind_tcgen05_copy(const Inst& inst) {
  switch (inst.op) {
    case OP_TCGEN05_CP:
      return mods_low(inst.mods) <= TCP_32X128B && mods_space(inst.mods) <= TU_B4X16_P64 ? cp : nullptr;
    case OP_TCGEN05_SHIFT: return shift;
    default: return nullptr;
  }
}
