// Tensor copies in tile mode: cp.async.bulk.tensor between global and shared memory (PTX ISA 9.7.9.25.5.2, 5.5), also of
// four rows of a matrix that lie anywhere (.tile::gather4, .tile::scatter4, 5.5.3.4).
#include <algorithm>
#include "global_access.hpp"
#include "matrix_types.hpp"
#include "tensor.hpp"

namespace {

constexpr uint32_t SHARED_ALIGN = 128;
constexpr uint32_t MAP_ALIGN = 64;
constexpr uint32_t MAX_LINE_BYTES = 256 * 8;
constexpr int ROWS = 4;  // of a gather or scatter

// A line of a box with its global bytes resolved to host memory, and where they stand within the line as it lies there.
struct Line {
  uint8_t* data;
  uint32_t at, bytes;
};

struct Box {
  TensorMap map;
  uint32_t shared;
  std::vector<Line> lines;

  uint32_t chunk(uint32_t line, uint32_t index) const {
    return swizzled(shared + line * box_pitch_bytes(map) + index * CHUNK_BYTES, map.swizzle);
  }
  // Address of byte `at` of a line that has no padding.
  uint32_t byte(uint32_t line, uint32_t at) const {
    const uint32_t address = chunk(line, at / CHUNK_BYTES);
    return address + (at % CHUNK_BYTES ^ (flips_halves(address, map.swizzle) ? CHUNK_BYTES / 2 : 0));
  }
};

// Exchanges the halves of a chunk, where the swizzle says so.
void place_halves(uint8_t* chunk, uint32_t address, Swizzle swizzle) {
  if (flips_halves(address, swizzle)) std::swap_ranges(chunk, chunk + CHUNK_BYTES / 2, chunk + CHUNK_BYTES / 2);
}

// Copies what a chunk holds, `bytes` of it. All but padded types fill it, and a copy of so many that the compiler knows is
// no call.
void copy_chunk(uint8_t* to, const uint8_t* from, uint32_t bytes) {
  if (bytes == CHUNK_BYTES)
    std::memcpy(to, from, CHUNK_BYTES);
  else
    std::memcpy(to, from, bytes);
}

// Sixteen bytes to sixteen 6-bit elements side by side (.b6p2x16).
void pack_six_bits(const uint8_t* chunk, uint8_t* packed) {
  std::memset(packed, 0, 12);
  for (int i = 0; i < 16; ++i) {
    const unsigned bits = (chunk[i] & 63u) << i * 6 % 8;
    packed[i * 6 / 8] |= static_cast<uint8_t>(bits);
    if (bits >> 8) packed[i * 6 / 8 + 1] |= static_cast<uint8_t>(bits >> 8);
  }
}

// Elements outside of a tensor of floating-point numbers under NaN fill: this pattern in every half word (measured on
// an H200).
constexpr uint16_t OUT_OF_BOUNDS_NAN = 0x7FF7;

bool is_floating(TensorType type) {
  switch (type) {
    case TensorType::F16:
    case TensorType::F32:
    case TensorType::F64:
    case TensorType::BF16:
    case TensorType::F32_FTZ:
    case TensorType::TF32:
    case TensorType::TF32_FTZ: return true;
    default: return false;
  }
}

void fill_line(const TensorMap& map, uint8_t* bytes, uint32_t count) {
  std::memset(bytes, 0, count);
  if (map.fill == OutOfBounds::Zero) return;
  for (uint32_t i = 0; i < count; i += 2) std::memcpy(bytes + i, &OUT_OF_BOUNDS_NAN, 2);
}

// Loads of tf32 round to ten mantissa bits, nearest even, and make every NaN the same one; the FTZ types do not flush
// on loads (measured on an H200).
bool rounds(TensorType type) { return type == TensorType::TF32 || type == TensorType::TF32_FTZ; }

uint32_t to_tf32(uint32_t bits) {
  if ((bits & 0x7FFF'FFFF) > 0x7F80'0000) return 0x7FFF'E000;
  if ((bits & 0x7F80'0000) == 0x7F80'0000) return bits;
  return (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFFu;
}

void round_line(uint8_t* bytes, uint32_t count) {
  for (uint32_t i = 0; i < count; i += 4) {
    uint32_t value;
    std::memcpy(&value, bytes + i, 4);
    value = to_tf32(value);
    std::memcpy(bytes + i, &value, 4);
  }
}

struct BoxLoad : AsyncOp {
  Box box;
  std::vector<CopyTarget> targets;

  void run(Cta& cta) override {
    for (const CopyTarget& target : targets) {
      deliver(*target.cta);
      cta.tma_bytes += box_bytes(box.map);
      complete_transaction(*target.mbar->home, *target.mbar, box_bytes(box.map));
    }
  }

  void deliver(Cta& cta) const {
    const TensorMap& map = box.map;
    const uint32_t data_bytes = box_data_bytes(map), chunks = box_line_bytes(map) / CHUNK_BYTES;
    const uint32_t piece = chunk_data_bytes(map.type);  // what lies behind it in a chunk, padding, stays as it was
    alignas(16) uint8_t staged[MAX_LINE_BYTES];
    for (uint32_t index = 0; index < box.lines.size(); ++index) {
      const Line& line = box.lines[index];
      const uint8_t* source = line.data;
      if (line.bytes != data_bytes || rounds(map.type)) {
        fill_line(map, staged, data_bytes);
        if (line.bytes) std::memcpy(staged + line.at, line.data, line.bytes);
        if (rounds(map.type)) round_line(staged + line.at, line.bytes);
        source = staged;
      }
      for (uint32_t c = 0; c < chunks; ++c) {
        const uint32_t address = box.chunk(index, c);
        uint8_t* chunk = cta.shared(address);
        copy_chunk(chunk, source + c * piece, piece);
        place_halves(chunk, address, map.swizzle);
      }
    }
    record_layout(cta);
  }

  // A line that the box fills only in part has no one layout.
  void record_layout(Cta& cta) const {
    std::vector<LineLayout>& lines = tensor_state(cta).lines;
    const uint32_t end = box.shared + box_span_bytes(box.map);
    const bool dense = box_pitch_bytes(box.map) == box_line_bytes(box.map);
    report_unread(cta, box.shared / LINE_BYTES, (end + LINE_BYTES - 1) / LINE_BYTES);
    for (uint32_t at = box.shared; at < end; at += LINE_BYTES) {
      const bool whole = dense && at + LINE_BYTES <= end;
      const uint64_t hash = whole ? line_hash(cta.shared(at)) : 0;
      lines[at / LINE_BYTES] = {hash, ticket, whole ? inst : -1, -1, box.map.swizzle, 0, box.map.type};
    }
  }
};

// How reductions read the elements of a tensor map; T_NONE: not at all (PTX ISA 9.7.9.25.5.4, table of element types). Of
// INT64 an H200 takes least and greatest alone, and faults on a sum and on bits; TFLOAT32, which the table leaves out, it
// adds as fp32 (tests/golden, reduce/tensor and reduce/open). Of TFLOAT32_FTZ nothing is known.
uint8_t reduced_type(TensorType type, uint8_t op) {
  const bool sums = op == A_ADD, orders = op == A_MIN || op == A_MAX, wraps = op == A_INC || op == A_DEC;
  const bool bits = op == A_AND || op == A_OR || op == A_XOR;
  switch (type) {
    case TensorType::U32: return T_U32;
    case TensorType::S32: return sums || orders ? T_S32 : bits ? T_U32 : T_NONE;
    case TensorType::U64: return wraps ? T_NONE : T_U64;
    case TensorType::S64: return orders ? T_S64 : T_NONE;
    case TensorType::F16: return sums || orders ? T_F16 : T_NONE;
    case TensorType::BF16: return sums || orders ? T_BF16 : T_NONE;
    case TensorType::F32:
    case TensorType::F32_FTZ:
    case TensorType::TF32: return sums ? T_F32 : T_NONE;
    case TensorType::F64: return sums ? T_F64 : T_NONE;
    default: return T_NONE;
  }
}

struct BoxStore : GroupCopy {
  Box box;
  uint8_t reduced = T_NONE, op = 0;  // TMA_REDUCE
  std::vector<uint8_t> staged;  // the box in line order, once its source has been read

  void read_source(Cta& cta) override {
    if (!staged.empty()) return;
    const TensorMap& map = box.map;
    const uint32_t data_bytes = box_data_bytes(map), chunks = box_line_bytes(map) / CHUNK_BYTES;
    const uint32_t piece = chunk_data_bytes(map.type);
    staged.resize(box_bytes(map));
    for (uint32_t index = 0; index < box.lines.size(); ++index) {
      for (uint32_t c = 0; c < chunks; ++c) {
        const uint32_t address = box.chunk(index, c);
        uint8_t chunk[CHUNK_BYTES];
        std::memcpy(chunk, cta.shared(address), CHUNK_BYTES);
        place_halves(chunk, address, map.swizzle);
        uint8_t* to = &staged[index * data_bytes + c * piece];
        if (map.type == TensorType::U6_ALIGN)
          pack_six_bits(chunk, to);
        else
          copy_chunk(to, chunk, piece);
      }
    }
  }

  void run(Cta& cta) override {
    read_source(cta);
    const uint32_t data_bytes = box_data_bytes(box.map);
    for (uint32_t index = 0; index < box.lines.size(); ++index) {
      const Line& line = box.lines[index];
      if (!line.bytes) continue;
      const uint8_t* source = &staged[index * data_bytes + line.at];
      if (reduced == T_NONE)
        std::memcpy(line.data, source, line.bytes);
      else
        reduce(reduced, op, box.map.type == TensorType::F32_FTZ, line.data, source, line.bytes);
    }
    cta.tma_bytes += box_bytes(box.map);
  }
};

const uint8_t* map_bytes(Cta& cta, uint64_t address) {
  const uint64_t size = static_cast<uint64_t>(cta.program.kernel.param_bytes);
  if (address >= PARAM_WINDOW && address - PARAM_WINDOW + TENSOR_MAP_BYTES <= size)
    return cta.grid.params + (address - PARAM_WINDOW);
  return cta.global(address, TENSOR_MAP_BYTES, Access::Read);
}

// A box without one element of the tensor: it delivers fill only, or stores nothing. Legal, but seldom what was meant.
void note_outside(Cta& cta, Warp& warp, const Inst& inst, int lane, const TensorMap& map, const int32_t* coords,
                  Access access) {
  FindingRecord* finding = cta.findings.add(cta, &warp, lane, "tma.box_outside", Severity::Note, cta.index_of(inst));
  if (!finding) return;
  std::string box, sizes;
  for (int i = 0; i < inst.nvec; ++i) box += (i ? ", " : "") + std::to_string(coords[i]);
  for (int dim = 0; dim < map.rank; ++dim) sizes += (dim ? ", " : "") + std::to_string(uint64_t{map.last[dim]} + 1);
  const bool writes = access != Access::Read;
  finding->say("the box at coordinates {%s} lies outside of the tensor, whose sizes are {%s}: %s", box.c_str(),
               sizes.c_str(), writes ? "the copy stores nothing" : "the copy delivers zeros or the fill value only");
  finding->party(0, writes ? "TMA store" : "TMA load", "has a box at {%s}", box.c_str());
  finding->mend("check the coordinates (innermost first, in elements) and the globalDim of the tensor map");
}

// Copies and descriptors agree wherever a tile begins, since both swizzle by address; offsets computed by hand from the
// tile's start do not.
void note_swizzle_base(Cta& cta, Warp& warp, const Inst& inst, int lane, const TensorMap& map, uint32_t shared) {
  const uint32_t period = swizzle_period_bytes(map.swizzle);
  if (map.swizzle == Swizzle::None || shared % period == 0) return;
  FindingRecord* finding = cta.findings.add(cta, &warp, lane, "tma.swizzle_base", Severity::Note, cta.index_of(inst));
  if (!finding) return;
  finding->say(
      "the box starts at shared 0x%x, which is no multiple of %u bytes: the %s follows the bits of the address, so the "
      "tile does not begin with the first line of the pattern",
      shared, period, swizzle_name(map.swizzle));
  finding->party(0, "tensor copy", "starts at shared 0x%x", shared);
  finding->mend("align the tile to %u bytes: round the start of dynamic shared memory up", period);
}

// Rows that overlap in global memory: strides that count elements, or belong to another matrix. Windows over a sequence
// are made so on purpose.
void note_overlap(Cta& cta, Warp& warp, const Inst& inst, int lane, const TensorMap& map) {
  const int dim = overlapping_dimension(map);
  if (dim < 0) return;
  FindingRecord* finding = cta.findings.add(cta, &warp, lane, "tma.overlapping_rows", Severity::Note, cta.index_of(inst));
  if (!finding) return;
  const auto stride = static_cast<unsigned long long>(map.strides[dim - 1]);
  const unsigned long long row = elements_bytes(map.type, uint64_t{map.last[0]} + 1);
  finding->say(
      "the tensor map's stride of dimension %d is %llu bytes, within what the smaller strides span (a row has %llu): "
      "different coordinates are the same bytes",
      dim, stride, row);
  finding->party(0, "tensor copy", "uses the tensor map");
  finding->mend("globalStrides counts bytes, not elements: of a row-major matrix it is columns * sizeof(element)");
}

// Builds the box of one lane; false after a fault was recorded.
bool resolve(Cta& cta, Warp& warp, const Inst& inst, int lane, uint64_t map_address, uint64_t shared, Access access,
             Box& box) {
  const auto refuse = [&](const char* code, const char* format, auto... values) {
    cta.fault(warp, inst, lane, code, format, values...);
    return false;
  };
  const auto hex = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  const uint8_t* bytes = map_bytes(cta, map_address);
  TensorMap& map = box.map;
  if (bytes) std::memcpy(&map, bytes, sizeof map);
  if (!bytes || !is_tensor_map(map)) {
    return refuse("tma.not_a_tensor_map",
                  "the address 0x%llx does not hold a tensor map; pass a CUtensorMap made by "
                  "cuTensorMapEncodeTiled, as a __grid_constant__ parameter or in global memory",
                  hex(map_address));
  }
  if (map_address >= GLOBAL_BASE && bytes) use_tensor_map(cta, warp, inst, lane, map_address, bytes);
  if (map_address % MAP_ALIGN) {
    return refuse("tma.misaligned_map", "the tensor map at 0x%llx is not aligned to %u bytes", hex(map_address),
                  MAP_ALIGN);
  }
  const bool by_row = inst.flags & F_ROWS;
  const int rank = by_row ? 2 : inst.nvec;
  if (map.rank != rank) {
    return refuse("tma.rank_mismatch", "the instruction gives %d coordinates, but its tensor map has rank %d",
                  inst.nvec, map.rank);
  }
  if (by_row) {  // the box of all four rows
    if (map.box[1] != 1)
      return refuse("tma.box",
                    "the box of the tensor map has %u rows, but one of .tile::gather4 or .tile::scatter4 must have one: set "
                    "boxDim[1] to 1",
                    map.box[1]);
    map.box[1] = ROWS;
    map.element_strides[1] = 1;
  }
  const uint32_t span = box_span_bytes(map);
  if (box_line_bytes(map) % CHUNK_BYTES ||
      (map.swizzle != Swizzle::None && box_line_bytes(map) > swizzle_bytes(map.swizzle))) {
    return refuse("tma.box", "the inner box dimension of %u bytes does not fit a tensor map with %s",
                  box_line_bytes(map), swizzle_name(map.swizzle));
  }
  if (map.fill == OutOfBounds::Nan && !is_floating(map.type)) {  // so an H200 (tests/golden, tensormap/type)
    return refuse("tma.fill_mode",
                  "the tensor map fills with NaN what lies outside, but its elements are integers: replace fill_mode by 0, or "
                  "elemtype by a floating-point one");
  }
  if (access != Access::Read && map.type == TensorType::U4_ALIGN) {
    return refuse("tma.element_type",
                  "a store through a tensor map of 16U4_ALIGN16B, which loads alone can use; encode one of 16U4_ALIGN8B or "
                  "UINT8 for stores");
  }
  if (shared % SHARED_ALIGN) {
    return refuse("tma.misaligned", "the shared address 0x%llx of a tensor copy is not aligned to %u bytes",
                  hex(shared), SHARED_ALIGN);
  }
  if (!cta.shared_ok(shared, span)) {
    return refuse("tma.out_of_bounds",
                  "the box takes %u bytes at shared address 0x%llx, but shared memory of this CTA ends at 0x%x", span,
                  hex(shared), cta.smem_end);
  }
  box.shared = static_cast<uint32_t>(shared);
  note_swizzle_base(cta, warp, inst, lane, map, box.shared);
  note_overlap(cta, warp, inst, lane, map);
  int32_t coords[MAX_RANK] = {};
  for (int dim = 0; dim < inst.nvec; ++dim) coords[dim] = warp.reg<int32_t>(cta.pool(inst.vec)[dim])[lane];
  const auto bytes_of = [&](uint64_t count) { return elements_bytes(map.type, count); };
  const uint32_t unit = coordinate_unit(map.type);
  // An H200 raises "illegal instruction" for both of these, which the ISA mentions only for padded types.
  if (coords[0] % static_cast<int32_t>(unit)) {
    return refuse("tma.coordinate",
                  "coordinate %d of the innermost dimension is not a multiple of %u bytes (%u elements)", coords[0],
                  static_cast<unsigned>(bytes_of(unit)), unit);
  }
  for (int i = 0; access != Access::Read && i < inst.nvec; ++i) {
    if (coords[i] >= 0) continue;
    return refuse("tma.coordinate",
                  "coordinate %d of dimension %d is negative: a store may end outside of the tensor but not begin "
                  "before it",
                  coords[i], std::min(i, rank - 1));
  }
  box.lines.resize(box_lines(map));
  bool inside = false, told = access != Access::Read;
  for (uint32_t index = 0; index < box.lines.size(); ++index) {
    const int32_t row[] = {coords[0], coords[by_row ? 1 + index : 1]};
    const BoxLine line = by_row ? box_line(map, row, 0) : box_line(map, coords, index);
    const auto size = static_cast<uint32_t>(bytes_of(line.count));
    box.lines[index] = {nullptr, static_cast<uint32_t>(bytes_of(line.first)), size};
    if (!line.count) continue;
    inside = true;
    if (access == Access::Atomic) note_unwritten_target(cta, warp, inst, lane, line.address, size);
    box.lines[index].data = cta.global(line.address, size, access);
    if (!box.lines[index].data) {
      return refuse("tma.global_out_of_bounds",
                    "%u bytes at global address 0x%llx lie inside the sizes of the tensor map but outside "
                    "of every buffer; check its globalDim and globalStrides",
                    size, hex(line.address));
    }
    if (!told) told = note_unwritten(cta, warp, inst, lane, line.address, size, "tensor copy");
    if (cta.order) order_copy(cta, warp, inst, lane, line.address, size, access);
  }
  if (!inside) note_outside(cta, warp, inst, lane, map, coords, access);
  return true;
}

// Calls body(address, bytes) for the shared ranges of a box: one where lines fill their pitch, else one per 16-byte
// chunk.
template <class Body>
void footprint(const Box& box, Body body) {
  const uint32_t line_bytes = box_line_bytes(box.map), lines = box_lines(box.map);
  if (box_pitch_bytes(box.map) == line_bytes) {
    body(box.shared, lines * line_bytes);
    return;
  }
  for (uint32_t index = 0; index < lines; ++index) {
    for (uint32_t c = 0; c < line_bytes / CHUNK_BYTES; ++c) body(box.chunk(index, c), CHUNK_BYTES);
  }
}

// The same for what a store moves: bytes of the box outside of the tensor are not used, whatever they are. Lines of
// padded types are whole or outside.
template <class Body>
void stored(const Box& box, Body body) {
  const uint32_t data_bytes = box_data_bytes(box.map);
  const auto whole = [&](const Line& line) { return line.bytes == data_bytes; };
  if (std::all_of(box.lines.begin(), box.lines.end(), whole)) return footprint(box, body);
  constexpr uint32_t half = CHUNK_BYTES / 2;
  for (uint32_t index = 0; index < box.lines.size(); ++index) {
    const Line& line = box.lines[index];
    if (is_padded(box.map.type)) {
      for (uint32_t c = 0; line.bytes && c < box_line_bytes(box.map) / CHUNK_BYTES; ++c)
        body(box.chunk(index, c), CHUNK_BYTES);
      continue;
    }
    const uint32_t end = line.at + line.bytes, step = box.map.swizzle == Swizzle::B128Atom32Flip8 ? half : CHUNK_BYTES;
    for (uint32_t at = line.at; at < end;) {
      const uint32_t bytes = std::min(step - at % step, end - at);
      body(box.byte(index, at), bytes);
      at += bytes;
    }
  }
}

Step tma_load(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, warp, inst);
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    auto load = std::make_unique<BoxLoad>();
    load->inst = at;
    uint64_t shared;
    const bool multicast = inst.e >= 0;
    const uint32_t ctas = multicast ? warp.reg<uint32_t>(inst.e)[lane] : 0;
    load->targets =
        copy_targets(cta, warp, inst, lane, addresses.a(lane), addresses.c(lane), multicast, ctas, inst.imm, shared);
    if (load->targets.empty()) return Step::Fault;
    if (!resolve(cta, warp, inst, lane, addresses.b(lane), shared, Access::Read, load->box)) return Step::Fault;
    for (const CopyTarget& target : load->targets) {
      if (!target.cta->shadow) continue;
      Shadow& counter = *target.mbar->home->shadow;
      counter.mbar_use(warp, at, *target.mbar);
      counter.async_begin(warp, at, Async::TmaLoad, lane, target.mbar, box_bytes(load->box.map));
      footprint(load->box, [&](uint32_t address, uint32_t bytes) {
        target.cta->shadow->async_write(warp, at, Async::TmaLoad, address, bytes, target.mbar);
      });
    }
    cta.async.post(cta, std::move(load));
  }
  return Step::Next;
}

Step tma_store(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, warp, inst);
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    auto store = std::make_unique<BoxStore>();
    store->inst = at;
    const uint64_t shared = cta.own(addresses.a(lane));
    const bool reduces = inst.op == OP_TMA_REDUCE;
    const Access access = reduces ? Access::Atomic : Access::Write;
    if (!resolve(cta, warp, inst, lane, addresses.b(lane), shared, access, store->box)) return Step::Fault;
    if (reduces) {
      store->op = mods_low(inst.mods);
      store->reduced = reduced_type(store->box.map.type, store->op);
      if (store->reduced == T_NONE)
        return cta.fault(warp, inst, lane, "tma.reduction_type",
                         "this reduction does not exist for the element type of the tensor map (type %u of "
                         "CUtensorMapDataType)",
                         static_cast<unsigned>(store->box.map.type));
    }
    if (Shadow* shadow = cta.shadow.get()) {
      shadow->async_begin(warp, at, Async::TmaStore, lane, nullptr, 0);
      stored(store->box, [&](uint32_t address, uint32_t bytes) {
        shadow->async_read(warp, at, Async::TmaStore, address, bytes, nullptr);
      });
    }
    GroupCopy* op = store.get();
    const uint64_t ticket = cta.async.post(cta, std::move(store));
    tensor_state(cta).bulk_stores[static_cast<size_t>(warp.id)].issued(cta, ticket, 1u << lane, op);
  }
  return Step::Next;
}

Step tma_prefetch(Cta&, Warp&, const Inst&, uint32_t) { return Step::Next; }

}  // namespace

Handler bind_tma(const Inst& inst) {
  switch (inst.op) {
    case OP_TMA_LOAD: return tma_load;
    case OP_TMA_STORE:
    case OP_TMA_REDUCE: return tma_store;
    case OP_TMA_PREFETCH: return tma_prefetch;
    default: return nullptr;
  }
}
