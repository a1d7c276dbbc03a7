// State of the asynchronous engines, and the completion of copies by groups.
#include "tensor.hpp"
#include <algorithm>
#include "wgmma_collective.hpp"

void CopyQueue::issued(Cta& cta, uint64_t ticket, uint32_t lanes, GroupCopy* op) {
  if (cta.async.pending(ticket)) copies_.push_back({ticket, lanes, op});
}

void CopyQueue::commit(const Cta& cta, int lane) { groups_[lane].push_back(newest(cta)); }

void CopyQueue::wait(Cta& cta, int lane, int64_t pending, bool read_only) {
  std::vector<uint64_t>& groups = groups_[lane];
  if (static_cast<int64_t>(groups.size()) <= pending) return;
  const size_t covered = groups.size() - static_cast<size_t>(pending);
  complete(cta, 1u << lane, groups[covered - 1], read_only);
  // After .read the writes are still pending, so a later wait without .read must find the groups.
  if (!read_only) groups.erase(groups.begin(), groups.begin() + static_cast<int64_t>(covered));
}

void CopyQueue::complete(Cta& cta, uint32_t lanes, uint64_t last_ticket, bool read_only) {
  for (size_t i = 0; i < copies_.size() && copies_[i].ticket <= last_ticket; ++i) {
    const Copy copy = copies_[i];
    if (!(copy.lanes & lanes) || !cta.async.pending(copy.ticket)) continue;
    if (read_only) {
      copy.op->read_source(cta);
    } else {
      cta.async.complete(cta, copy.ticket);
    }
  }
  copies_.erase(
      std::remove_if(copies_.begin(), copies_.end(), [&](const Copy& copy) { return !cta.async.pending(copy.ticket); }),
      copies_.end());
}

uint64_t line_hash(const uint8_t* line) {
  constexpr int words = LINE_BYTES / 8;
  uint64_t value[words], sum = 0;
  std::memcpy(value, line, LINE_BYTES);
  for (int i = 0; i < words; ++i)
    sum += (value[i] ^ value[i] >> 29) * (0x9E37'79B9'7F4A'7C15ull * static_cast<uint64_t>(2 * i + 1));
  return sum;
}

void report_unread(Cta& cta, uint32_t begin, uint32_t end) {
  const std::vector<LineLayout>& lines = tensor_state(cta).lines;
  for (uint32_t at = begin; at < end;) {
    const uint64_t copy = lines[at].copy;
    const int inst = lines[at].inst;
    int reader = -1;
    uint32_t read = 0, first = at;
    for (; at < end && lines[at].copy == copy && lines[at].inst == inst; ++at) {
      read += static_cast<uint32_t>(__builtin_popcount(lines[at].read));
      reader = std::max(reader, lines[at].reader);
    }
    const uint32_t bytes = (at - first) * LINE_BYTES;
    if (inst < 0 || reader < 0 || read * CHUNK_BYTES == bytes) continue;
    FindingRecord* finding = cta.findings.add("descriptor.unread", Severity::Note, reader, inst);
    if (!finding) continue;
    finding->cta = cta.linear;
    const bool hopper = cta.program.kernel.inst[reader].op == OP_WGMMA;
    const char* name = hopper ? "wgmma" : "the tensor core";
    finding->say("of the %u bytes that a tensor copy of line {@%d} brought, %s read %u, and never the rest", bytes,
                 inst, name, read * CHUNK_BYTES);
    finding->party(0, name, "read %u bytes of the tile", read * CHUNK_BYTES);
    finding->party(1, "tensor copy", "brought %u bytes", bytes);
    finding->mend(
        "check the descriptor's step along K (K-major: 32 bytes for 16 elements of 16 bits, so +2 in its address "
        "field), its stride offset, and the number of steps");
  }
}

void TensorState::cta_exit(Cta& cta) {
  report_unread(cta, 0, static_cast<uint32_t>(lines.size()));
  report_tensor_memory_leaks(cta);
}

void complete_transaction(Cta& cta, Mbar& mbar, uint32_t bytes) {
  const uint32_t expected = mbar.tx > 0 && mbar.tx < bytes ? static_cast<uint32_t>(mbar.tx) : bytes;
  cta.mbar_complete_tx(mbar, expected);
  if (expected != bytes) cta.mbar_complete_tx(mbar, bytes - expected);
}

TensorState::TensorState(Cta& cta)
    : bulk_stores(cta.warps.size()),
      cp_async(cta.warps.size()),
      warpgroups((cta.warps.size() + 3) / 4),
      lines(cta.smem.size() / LINE_BYTES + 1, LineLayout{0, 0, -1, -1, Swizzle::None, 0}),
      tmem_stores(cta.warps.size(), 0) {}

namespace {

bool needs_state(const Inst& inst) {
  return (inst.op >= OP_CP_ASYNC && inst.op <= OP_CP_ASYNC_MBAR) ||
         (inst.op >= OP_TMA_LOAD && inst.op <= OP_BULK_WAIT) || (inst.op >= OP_WGMMA && inst.op <= OP_WGMMA_WAIT) ||
         (inst.op >= OP_TCGEN05_ALLOC && inst.op <= OP_TCGEN05_FENCE);
}

}  // namespace

std::unique_ptr<Extension> make_tensor_state(Cta& cta) {
  const Kernel& kernel = cta.program.kernel;
  if (std::none_of(kernel.inst, kernel.inst + kernel.ninst, needs_state)) return nullptr;
  return std::make_unique<TensorState>(cta);
}

Handler bind_tensor(const Inst& inst) {
  for (Handler (*bind)(const Inst&) : {bind_tma, bind_copies, bind_wgmma, bind_tcgen05, bind_mma, bind_wmma, bind_matrix, bind_tensor_map}) {
    if (Handler handler = bind(inst)) return handler;
  }
  return nullptr;
}
