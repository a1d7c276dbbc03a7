// Where copies into shared memory go: one CTA, or several at once (multicast), and reductions on the way.
#include "reduction.hpp"
#include "tensor.hpp"

namespace {

bool refuse_place(Cta& cta, Warp& warp, const Inst& inst, int lane, const char* what, uint64_t address) {
  cta.fault(warp, inst, lane, "memory.out_of_bounds",
            "the %s of a copy is shared::cluster address 0x%llx, but there is no CTA %llu in a cluster of %u", what,
            static_cast<unsigned long long>(address & 0xffff'ffff),
            static_cast<unsigned long long>((address & 0xffff'ffff) >> RANK_SHIFT), cta.grid.cluster_size);
  return false;
}

// The mbarrier at the same offset in the CTA of another rank.
Mbar* barrier_in(Cta& cta, Warp& warp, const Inst& inst, int lane, const Cta& where, uint64_t offset) {
  return cta.mbar_near(warp, inst, lane, where.tag | offset);
}

}  // namespace

std::vector<CopyTarget> copy_targets(Cta& cta, Warp& warp, const Inst& inst, int lane, uint64_t shared, uint64_t mbar,
                                     bool multicast, uint32_t mask, int64_t group, uint64_t& offset) {
  const bool stays = !multicast && mods_space(inst.mods) == S_SHARED;  // in the executing CTA, wherever the signal goes
  if (!multicast && (!cta.cluster || (stays && group != 2))) {
    offset = cta.own(shared);
    Mbar* own = cta.mbar_at(warp, inst, lane, cta.own(mbar));
    return own ? std::vector<CopyTarget>{{&cta, own}} : std::vector<CopyTarget>{};
  }
  if (stays && cta.own(shared) >> RANK_SHIFT) {
    cta.fault(warp, inst, lane, "memory.out_of_bounds",
              "the destination of a copy to .shared::cta, shared 0x%llx, lies in CTA %llu of the cluster: it must lie in the "
              "CTA that executes the copy, %u",
              static_cast<unsigned long long>(shared & 0xffff'ffff),
              static_cast<unsigned long long>((shared & 0xffff'ffff) >> RANK_SHIFT), cta.rank);
    return {};
  }
  const SharedPlace to = stays ? SharedPlace{&cta, cta.own(shared)} : locate(cta, shared), signal = locate(cta, mbar);
  offset = to.offset;
  if (!to.owner) return refuse_place(cta, warp, inst, lane, "destination", shared), std::vector<CopyTarget>{};
  if (!signal.owner) return refuse_place(cta, warp, inst, lane, "mbarrier", mbar), std::vector<CopyTarget>{};
  const bool pair = group == 2 && (to.owner->rank ^ signal.owner->rank) == 1;
  if (to.owner != signal.owner && !pair) {
    cta.fault(warp, inst, lane, "cluster.mbarrier_elsewhere",
              "a copy goes to CTA %u of the cluster but signals an mbarrier of CTA %u: both must lie in the same CTA%s",
              to.owner->rank, signal.owner->rank, group == 2 ? ", or in the two of a pair" : "");
    return {};
  }
  const uint32_t size = cta.cluster ? static_cast<uint32_t>(cta.cluster->ctas.size()) : 1;
  if (!multicast) mask = 1u << to.owner->rank;
  if (!mask || mask >> size) {
    cta.fault(warp, inst, lane, "cluster.bad_mask",
              "multicast to the CTAs of mask 0x%x, but the cluster has %u CTA%s: bits 0 to %u", mask, size,
              size == 1 ? "" : "s", size - 1);
    return {};
  }
  std::vector<CopyTarget> targets;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const uint32_t rank = static_cast<uint32_t>(first_lane(rest));
    Cta& target = cta.cluster ? *cta.cluster->ctas[rank] : cta;
    // Of a pair the signal goes to the CTA whose rank has the parity of that which holds the named mbarrier.
    const uint32_t signalled = group == 2 ? (rank & ~1u) | (signal.owner->rank & 1) : rank;
    if (signalled >= size) return refuse_place(cta, warp, inst, lane, "mbarrier", mbar), std::vector<CopyTarget>{};
    const Cta& counter = cta.cluster ? *cta.cluster->ctas[signalled] : cta;
    reach(cta, warp, inst, lane, target);
    Mbar* m = barrier_in(cta, warp, inst, lane, counter, signal.offset);
    if (!m) return {};
    targets.push_back({&target, m});
  }
  return targets;
}

void reduce(uint8_t type, uint8_t op, bool flush, uint8_t* target, const uint8_t* source, uint32_t bytes) {
  const uint32_t size = type == T_U64 || type == T_S64 || type == T_F64   ? 8
                        : type == T_F16 || type == T_BF16 || type == T_U16 ? 2
                                                                           : 4;
  for (uint32_t at = 0; at < bytes; at += size) {
    uint64_t old = 0, value = 0;
    std::memcpy(&old, target + at, size);
    std::memcpy(&value, source + at, size);
    const uint64_t fresh = combined(type, op, old, value, 0, flush);
    std::memcpy(target + at, &fresh, size);
  }
}

void note_unwritten_target(Cta& cta, Warp& warp, const Inst& inst, int lane, uint64_t address, uint64_t bytes) {
  const Buffer* buffer = cta.find_buffer(address, bytes);
  if (!buffer || !buffer->initialised || !bytes) return;
  const uint64_t offset = address - buffer->base;
  if (!std::memchr(buffer->initialised + offset, 0, bytes)) return;
  if (FindingRecord* f =
          cta.findings.add(cta, &warp, lane, "memory.uninitialised", Severity::Warning, cta.index_of(inst))) {
    f->address = address;
    f->say("a reduction combines with bytes of %s that nothing has written (from byte %llu)", buffer->name,
           static_cast<unsigned long long>(offset));
    f->mend("write %s (a kernel or a memset) before it is reduced into", buffer->name);
  }
}
