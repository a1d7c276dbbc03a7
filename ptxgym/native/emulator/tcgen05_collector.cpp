// Collector buffers of tcgen05.mma: the A, or of .ws one of four B, that the tensor core may keep for the next product
// (PTX ISA 9.7.16.10, 9.7.16.10.9.1, 9.7.16.10.9.3).
//
// Products here always read memory, and so may those of a GPU. Whether they do is up to it: a product that may take a
// matrix from a buffer must find there what it would read.
#include "tcgen05_mma.hpp"

namespace {

// A matrix as its product reads it.
struct Matrix {
  std::vector<uint32_t> chunks;  // in shared memory,
  int lane = -1, column = -1;    // or in tensor memory
  MmaKind kind = KIND_F16;
  int extent = 0, ctas = 0;
  bool mn_major = false;

  bool operator==(const Matrix& o) const {
    return lane == o.lane && column == o.column && kind == o.kind && extent == o.extent && ctas == o.ctas &&
           mn_major == o.mn_major && chunks == o.chunks;
  }
};

struct CollectorBuffer {
  uint64_t fill = 0;  // number of the last one that was issued
  int fill_inst = -1;
  Matrix matrix;
  int ended_inst = -1;      // that let go of it; -1: none
  bool ended_alike = true;  // with this same matrix, as all that came since
  uint64_t content = 0, content_of = 0;  // what the fill of that number read, as a hash
};

bool is_use(uint8_t collector) { return collector == COLLECTOR_USE || collector == COLLECTOR_LASTUSE; }
const char* letter(const Mma& op) { return op.buffer ? "B" : "A"; }

Matrix matrix_of(const Mma& op) {
  Matrix m;
  m.kind = op.kind;
  m.ctas = op.group.count;
  m.extent = op.buffer ? op.form.columns : op.form.rows;
  m.mn_major = op.buffer ? op.form.mn_major_b : op.form.mn_major_a;
  if (!op.buffer && op.a_in_tmem) {
    m.lane = op.a_cells.lane;
    m.column = op.a_cells.column;
  } else {
    m.chunks = (op.buffer ? op.b : op.a).chunks;
  }
  return m;
}

uint64_t content_of(const Mma& op) {
  uint64_t hash = 0xcbf29ce484222325ull;
  const auto add = [&](uint64_t value) { hash = (hash ^ value) * 0x100000001b3ull; };
  for (int part = 0; part < op.group.count; ++part) {
    Cta& owner = *op.group.ctas[part];
    if (!op.buffer && op.a_in_tmem) {
      const TensorMemory& memory = tensor_memory(owner);
      for (int split = 0; split < op.splits(); ++split)
        for (int row = 0; row < op.rows(); ++row)
          for (int column = 0; column < A_COLUMNS; ++column)
            add(memory.cell(accumulator_lane(op.path(), row, op.a_cells.lane, split), op.a_cells.column + column));
    } else {
      for (const uint32_t chunk : (op.buffer ? op.b : op.a).chunks) {
        uint64_t words[CHUNK_BYTES / 8];
        std::memcpy(words, owner.shared(chunk), sizeof words);
        for (const uint64_t word : words) add(word);
      }
    }
  }
  return hash;
}

template <class... Values>
void report(Cta& cta, const Warp& warp, int lane, const Mma& op, Severity severity, int other, const char* format,
            Values... values) {
  FindingRecord* f = cta.findings.add(cta, &warp, lane, "tcgen05.collector", severity, op.inst, other);
  if (!f) return;
  f->say(format, values...);
  const char* operation = op.collector == COLLECTOR_USE ? "use" : "lastuse";
  f->party(0, "tcgen05.mma", "may take %s from the collector buffer (::%s)", letter(op), operation);
  f->mend("::fill with the %s that the next products share, ::use by them, ::lastuse by the last; or leave the qualifier out",
          letter(op));
}

}  // namespace

struct Collectors {
  uint64_t fills = 0;
  CollectorBuffer buffers[1 + COLLECTOR_BUFFERS_B];
};

void collect(Cta& cta, const Warp& warp, int lane, Mma& op) {
  std::shared_ptr<Collectors>& all = tensor_state(*op.group.ctas[0]).collectors;
  const bool uses = is_use(op.collector);
  if (!all && !uses && op.collector != COLLECTOR_FILL) return;
  if (!all) all = std::make_shared<Collectors>();
  CollectorBuffer& buffer = all->buffers[op.buffer];
  Matrix matrix = matrix_of(op);
  if (op.collector == COLLECTOR_FILL) {
    buffer.fill = op.fill = ++all->fills;
    buffer.fill_inst = op.inst;
    buffer.matrix = std::move(matrix);
    buffer.ended_inst = -1;
    buffer.ended_alike = true;
    return;
  }
  const bool alike = buffer.fill && matrix == buffer.matrix;
  const char* what = letter(op);
  if (uses && !buffer.fill) {
    report(cta, warp, lane, op, Severity::Error, -1,
           "a tcgen05.mma may take %s from a collector buffer that no product has filled: it may multiply by what lies "
           "there, where it reads memory here",
           what);
  } else if (uses && !alike) {
    report(cta, warp, lane, op, Severity::Error, buffer.fill_inst,
           "a tcgen05.mma may take %s from the collector buffer, which line {@%d} filled with another %s (another place, "
           "shape or kind): it may multiply by that one, where it reads its own here",
           what, buffer.fill_inst, what);
  } else if (uses && buffer.ended_inst >= 0) {
    report(cta, warp, lane, op, buffer.ended_alike ? Severity::Warning : Severity::Error, buffer.ended_inst,
           "a tcgen05.mma may take %s from the collector buffer that line {@%d} filled, but line {@%d} has let go of it since "
           "(::lastuse, ::discard, or no qualifier, which is ::discard)%s",
           what, buffer.fill_inst, buffer.ended_inst, buffer.ended_alike ? "" : ": it may hold another matrix by now");
  } else if (uses) {
    op.fill = buffer.fill;
  }
  if (buffer.ended_inst >= 0) {
    buffer.ended_alike = buffer.ended_alike && alike;
  } else if (op.collector != COLLECTOR_USE) {
    buffer.ended_inst = op.inst;
    buffer.ended_alike = alike;
  }
}

void check_collected(Cta& cta, const Warp& warp, const Mma& op) {
  if (!op.fill) return;
  CollectorBuffer& buffer = tensor_state(*op.group.ctas[0]).collectors->buffers[op.buffer];
  const uint64_t content = content_of(op);
  if (op.collector == COLLECTOR_FILL) {
    buffer.content = content;
    buffer.content_of = op.fill;
  } else if (buffer.content_of == op.fill && buffer.content != content) {
    report(cta, warp, -1, op, Severity::Error, buffer.fill_inst,
           "a tcgen05.mma may take %s from the collector buffer, but %s has changed since line {@%d} filled it: the product may "
           "be that of the old one, where it is that of the new one here",
           letter(op), letter(op), buffer.fill_inst);
  }
}
