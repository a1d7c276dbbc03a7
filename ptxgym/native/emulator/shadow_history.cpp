#include "shadow_history.hpp"

namespace {

constexpr uint64_t mix(uint64_t h, uint64_t v) {
  h = (h ^ v) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

uint64_t mix_touch(uint64_t h, const Touch& t) {
  h = mix(h, t.time | static_cast<uint64_t>(static_cast<uint32_t>(t.inst)) << 32);
  return mix(h, t.component | static_cast<uint64_t>(t.warp) << 16 | static_cast<uint64_t>(t.kind) << 32 |
                    static_cast<uint64_t>(t.write) << 40 | static_cast<uint64_t>(t.lane) << 48);
}

constexpr uint64_t bit_of(const Touch& t) { return 1ull << (t.component & 63); }

// Two touches of which the newer one says all.
bool same_party(const Touch& a, const Touch& b) {
  return a.component == b.component && (a.kind == Kind::Atomic) == (b.kind == Kind::Atomic);
}

}  // namespace

void Histories::clear_histories() {
  histories_.clear();
  hashes_.clear();
  splits_.clear();
  table_.assign(1024, 0);
  written(Touch{});  // number 0
}

void Histories::reset(uint32_t smem_bytes) {
  granules_.assign((smem_bytes + 3) / 4, UNWRITTEN);
  clear_histories();
}

uint32_t Histories::written(const Touch& write) {
  History history;
  history.write = write;
  return intern(history);
}

uint32_t Histories::extended(uint32_t id, const Touch& touch) {
  const History& old = histories_[id];
  uint32_t from = id;
  if (old.components & bit_of(touch)) {
    // Rebuild the chain without the older touch of the same party, if there is one.
    moved_.clear();
    bool found = false;
    bool known = false;
    since(id, [&](const Touch& t) {
      const bool same = same_party(t, touch);
      found |= same;
      known |= same && t.time == touch.time;
      if (!same) moved_.push_back(t);
    });
    if (known) return id;
    if (found) {
      from = old.base;
      const std::vector<Touch> keep = moved_;
      for (size_t i = keep.size(); i-- > 0;) from = extended(from, keep[i]);
    }
  }
  const History& parent = histories_[from];
  History next;
  next.write = parent.write;
  next.newest = touch;
  next.parent = from;
  next.base = parent.newest.kind == Kind::None ? from : parent.base;
  next.atomics = parent.atomics || touch.kind == Kind::Atomic;
  next.components = parent.components | bit_of(touch);
  return intern(next);
}

uint32_t Histories::intern(const History& history) {
  const bool alone = history.newest.kind == Kind::None;
  const uint64_t h = alone ? mix_touch(1, history.write) : mix_touch(mix(2, history.parent), history.newest);
  const size_t mask = table_.size() - 1;
  size_t i = h & mask;
  for (; table_[i]; i = (i + 1) & mask) {
    const uint32_t id = table_[i] - 1;
    const History& other = histories_[id];
    if (hashes_[id] != h || !(other.newest == history.newest)) continue;
    if (alone ? other.write == history.write : other.parent == history.parent) return id;
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
  std::vector<uint8_t> used(old.size(), 0);
  for (const uint32_t slot : granules_) {
    if (!(slot & SPLIT))
      used[slot] = 1;
    else
      for (const uint32_t part : old_splits[slot & ~SPLIT].part) used[part] = 1;
  }
  for (size_t id = old.size(); id-- > 0;) {  // parents have smaller numbers
    if (used[id] && old[id].newest.kind != Kind::None) used[old[id].parent] = 1;
  }
  clear_histories();
  std::vector<uint32_t> number(old.size(), UNWRITTEN);
  for (size_t id = 0; id < old.size(); ++id) {
    if (!used[id]) continue;
    number[id] =
        old[id].newest.kind == Kind::None ? written(old[id].write) : extended(number[old[id].parent], old[id].newest);
  }
  for (uint32_t& slot : granules_) {
    if (slot & SPLIT) {
      Split split = old_splits[slot & ~SPLIT];
      for (uint32_t& part : split.part) part = number[part];
      slot = intern_split(split);
    } else {
      slot = number[slot];
    }
  }
}
