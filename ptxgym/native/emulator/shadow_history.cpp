#include "shadow_history.hpp"

namespace {

constexpr uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

uint64_t mix_access(uint64_t h, const Touch& a) {
  h = mix(h, a.time | static_cast<uint64_t>(static_cast<uint32_t>(a.inst)) << 32);
  return mix(h, a.component | static_cast<uint64_t>(a.warp) << 16 | static_cast<uint64_t>(a.kind) << 32 |
                    static_cast<uint64_t>(a.write) << 40 | static_cast<uint64_t>(a.lane) << 48);
}

}  // namespace

void Histories::reset(uint32_t smem_bytes) {
  granules_.assign((smem_bytes + 3) / 4, UNWRITTEN);
  histories_.clear();
  hashes_.clear();
  splits_.clear();
  table_.assign(1024, 0);
  intern(History{});  // number 0
}

uint64_t Histories::hash(const History& history) {
  uint64_t h = mix_access(1, history.write);
  for (const Touch& a : history.since) h = mix_access(h, a);
  return h;
}

uint32_t Histories::intern(const History& history) {
  const uint64_t h = hash(history);
  const size_t mask = table_.size() - 1;
  size_t i = h & mask;
  for (; table_[i]; i = (i + 1) & mask) {
    const uint32_t id = table_[i] - 1;
    if (hashes_[id] == h && histories_[id] == history) return id;
  }
  const auto id = static_cast<uint32_t>(histories_.size());
  histories_.push_back(history);
  hashes_.push_back(h);
  table_[i] = id + 1;
  if (histories_.size() * 2 > table_.size()) grow_table();
  return id;
}

void Histories::grow_table() {
  table_.assign(table_.size() * 2, 0);
  const size_t mask = table_.size() - 1;
  for (uint32_t id = 0; id < hashes_.size(); ++id) {
    size_t i = hashes_[id] & mask;
    while (table_[i]) i = (i + 1) & mask;
    table_[i] = id + 1;
  }
}

uint32_t Histories::intern_split(const Split& split) {
  const uint32_t* p = split.part;
  if (p[0] == p[1] && p[1] == p[2] && p[2] == p[3]) return p[0];
  // Neighbouring words of a byte or half-word array get the same parts one after the other: look at the latest first.
  const size_t recent = std::min<size_t>(splits_.size(), 8);
  for (size_t i = splits_.size(); i-- > splits_.size() - recent;) {
    if (std::equal(p, p + 4, splits_[i].part)) return static_cast<uint32_t>(i) | SPLIT;
  }
  splits_.push_back(split);
  return static_cast<uint32_t>(splits_.size() - 1) | SPLIT;
}

void Histories::compact() {
  const std::vector<History> old = std::move(histories_);
  const std::vector<Split> old_splits = std::move(splits_);
  std::vector<uint32_t> number(old.size(), UNWRITTEN);
  histories_.clear();
  hashes_.clear();
  splits_.clear();
  table_.assign(1024, 0);
  intern(History{});
  const auto keep = [&](uint32_t id) {
    if (id != UNWRITTEN && number[id] == UNWRITTEN) number[id] = intern(old[id]);
    return number[id];
  };
  for (uint32_t& slot : granules_) {
    if (slot & SPLIT) {
      Split split = old_splits[slot & ~SPLIT];
      for (uint32_t& part : split.part) part = keep(part);
      slot = intern_split(split);
    } else {
      slot = keep(slot);
    }
  }
}
