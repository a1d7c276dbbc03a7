// Interned histories of shared memory: every 4-byte granule holds the number of a history, so that a tile that was
// touched by the same accesses costs one comparison per word, and an access is checked once per distinct history.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>
#include "shadow_clock.hpp"

// The last write of some bytes, and what read them (or updated them atomically) since, at most one touch per component
// and kind: a chain of such touches from the newest back to the write itself.
struct History {
  Touch write;
  Touch newest;             // of the chain; Kind::None: nothing since the write
  uint32_t parent = 0;      // the history before `newest`
  uint32_t base = 0;        // the history of the write alone
  bool atomics = false;     // some touch of the chain is atomic
  uint64_t components = 0;  // of the chain, one bit per component modulo 64
};

class Histories {
 public:
  static constexpr uint32_t UNWRITTEN = 0;
  static constexpr uint32_t SPLIT = 1u << 31;  // a granule whose four bytes have different histories

  void reset(uint32_t smem_bytes);

  // Replaces the history h of every byte of [address, address + bytes) by next(h, first byte address).
  template <class Next>
  void apply(uint32_t address, uint32_t bytes, Next next) {
    const uint32_t end = address + bytes;
    for (uint32_t at = address; at < end;) {
      const uint32_t word = at >> 2, in_word = std::min(end, (word + 1) * 4) - at;
      uint32_t& slot = granules_[word];
      if (in_word < 4 || (slot & SPLIT)) {
        slot = apply_bytes(slot, word, at & 3, in_word, next);
        at += in_word;
        continue;
      }
      const uint32_t from = slot, to = next(from, at), last = end >> 2;
      uint32_t run = word;
      while (run < last && granules_[run] == from) granules_[run++] = to;
      at = run * 4;
    }
  }

  const History& at(uint32_t id) const { return histories_[id]; }
  uint32_t history_of_byte(uint32_t address) const {
    const uint32_t slot = granules_[address >> 2];
    return (slot & SPLIT) ? splits_[slot & ~SPLIT].part[address & 3] : slot;
  }
  // Calls visit(history) for every word, without those that are split by bytes.
  template <class Visit>
  void for_words(Visit visit) const {
    for (const uint32_t slot : granules_)
      if (!(slot & SPLIT)) visit(slot);
  }
  uint32_t written(const Touch& write);  // a write: what came before no longer matters
  uint32_t extended(uint32_t history,
                    const Touch& touch);  // a read or atomic; an older one by the same component gives way
  // Calls visit(touch) for everything since the write, the newest first.
  template <class Visit>
  void since(uint32_t id, Visit visit) const {
    for (const History* h = &histories_[id]; h->newest.kind != Kind::None; h = &histories_[h->parent]) visit(h->newest);
  }
  size_t size() const { return histories_.size(); }

  // Forgets histories that no granule has any more; the numbers change, so callers drop what they remember of them.
  bool crowded() const { return histories_.size() > LIMIT || splits_.size() > LIMIT; }
  void compact();

 private:
  static constexpr size_t LIMIT = 1u << 18;
  struct Split {
    uint32_t part[4];
  };

  template <class Next>
  uint32_t apply_bytes(uint32_t slot, uint32_t word, uint32_t first, uint32_t count, Next next) {
    Split split = (slot & SPLIT) ? splits_[slot & ~SPLIT] : Split{{slot, slot, slot, slot}};
    for (uint32_t i = first; i < first + count; ++i) split.part[i] = next(split.part[i], word * 4 + i);
    return intern_split(split);
  }
  uint32_t intern_split(const Split&);
  uint32_t intern(const History&);
  void grow_table();
  void clear_histories();

  std::vector<uint32_t> granules_;  // by address >> 2
  std::vector<History> histories_;
  std::vector<uint64_t> hashes_;
  std::vector<Touch> moved_;     // scratch of `extended`
  std::vector<uint32_t> table_;  // open addressing: id + 1, 0 empty
  std::vector<Split> splits_;
};

// What an access did to a history, remembered per (history, operation): a direct-mapped cache. It begins with `clear`.
class Memo {
 public:
  void clear() { entries_.assign(SIZE, Entry{}); }
  uint32_t* find(uint32_t history, uint32_t operation) {
    Entry& e = slot(history, operation);
    return e.operation == operation && e.history == history ? &e.next : nullptr;
  }
  void put(uint32_t history, uint32_t operation, uint32_t next) {
    slot(history, operation) = Entry{history, operation, next};
  }

 private:
  static constexpr uint32_t SIZE = 4096;
  struct Entry {
    uint32_t history = 0, operation = 0, next = 0;  // operations are numbered from 1
  };
  Entry& slot(uint32_t history, uint32_t operation) {
    return entries_[(history * 0x9e3779b1u ^ operation * 0x85ebca6bu) >> 20];
  }
  std::vector<Entry> entries_;
};
