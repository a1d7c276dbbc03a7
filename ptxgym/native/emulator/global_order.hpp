// Global memory that more than one CTA of a launch touches: who wrote and read what, and whether anything ordered it.
//
// Every 4-byte word of a buffer that a kernel can write has its last write and the reads since, as numbers of touches
// that all words of one instruction share (global_pages.hpp keeps them). CTAs of a kernel that synchronises them
// run on one host thread and have clocks (shadow_global.cpp says what flags and fences hand over). CTAs of other kernels
// know nothing of each other, so that whatever two of them touch in common, and one writes, is a race; such launches
// are checked where they run on one host thread, and run again on one where threads meet (grid.cpp).
#pragma once
#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core.hpp"
#include "global_access.hpp"
#include "global_pages.hpp"
#include "shadow_clock.hpp"

enum class GlobalKind : uint8_t { Weak, Strong, Atomic };

struct GlobalTouch {
  uint32_t unit, cta;  // linear indices
  uint32_t time;       // of the component of the unit's clock
  int32_t inst;
  uint16_t component, warp;
  GlobalKind kind;
  uint8_t write, async;  // async: a bulk or tensor copy
  uint8_t scope;         // of strong accesses
  uint8_t mask;          // bytes of the word

  bool operator==(const GlobalTouch& o) const {
    return unit == o.unit && cta == o.cta && time == o.time && inst == o.inst && component == o.component &&
           warp == o.warp && kind == o.kind && write == o.write && async == o.async && scope == o.scope &&
           mask == o.mask;
  }
};

// All touches of a launch by their numbers, from 1. The next one is filled in in its place: copying what has just been
// stored field by field would make the CPU wait for the stores.
class GlobalTouches {
 public:
  GlobalTouches() {
    chunks_.emplace_back(new GlobalTouch[CHUNK]);
    next() = GlobalTouch{};
    next().inst = -1;
    (void)add();  // number 0: nobody
  }

  const GlobalTouch& operator[](uint32_t number) const { return chunks_[number / CHUNK][number % CHUNK]; }
  GlobalTouch& next() { return chunks_[count_ / CHUNK][count_ % CHUNK]; }
  uint32_t add() {  // the number of what was filled in
    const uint32_t number = count_++;
    if (count_ % CHUNK == 0) chunks_.emplace_back(new GlobalTouch[CHUNK]);  // without values: next() gets them
    return number;
  }

 private:
  static constexpr uint32_t CHUNK = 1024;
  std::vector<std::unique_ptr<GlobalTouch[]>> chunks_;
  uint32_t count_ = 0;
};

// What strong accesses released at an address, by the width of their scope.
struct GlobalFlag {
  ForeignRef wide;    // .gpu and .sys
  ForeignRef near;    // the same and .cluster: counts among the CTAs of a cluster
  ForeignRef likely;  // whatever hardware hands over in practice
  uint32_t version = 0;
  bool strong = false;  // it is more than the target of a plain store
};

class GlobalOrder {
 public:
  GlobalOrder(Grid&, bool communicating);

  const bool communicating;
  GlobalTouch& next() { return touches_.next(); }  // to be filled in
  // What was filled in is checked and kept. `know` is what its thread knows, nullptr: nothing of others.
  void access(Cta&, const Knowledge* know, Buffer&, const Ranges&);
  // What was stored last has reached memory: was it the same as another CTA's?
  void settle();
  GlobalFlag& make_flag(uint64_t address) {
    flag_lines_[line_of(address) / 64] |= 1ull << line_of(address) % 64;
    return flags_[address];
  }
  bool flags_full() const { return flags_.size() > MOST_FLAGS; }
  // Calls visit(address, flag) for the flags that lanes of `each` bytes find in a range.
  template <class Visit>
  void for_flags(Range range, uint64_t each, Visit visit) {
    for (uint64_t at = range.address; at < range.address + range.bytes; at += each) {
      if (!(flag_lines_[line_of(at) / 64] >> line_of(at) % 64 & 1)) continue;
      const auto found = flags_.find(at);
      if (found != flags_.end()) visit(at, found->second);
    }
  }

 private:
  // Bits of the numbers of touches in GlobalPages. Atomics that reach every CTA never race with each other.
  static constexpr uint32_t SET = 1u << 31, WIDE_ATOMIC = 1u << 30, NUMBER = WIDE_ATOMIC - 1;
  static constexpr uint32_t RECENT = 256, FLAG_LINES = 4096;
  static constexpr size_t MOST_FLAGS = 1 << 16, MOST_READERS = 32, MOST_PENDING = 4096;
  struct Pending {  // two plain stores of different CTAs to the same bytes
    GlobalTouch earlier, now;
    Cta* cta;
    const Buffer* buffer;
    uint64_t offset;
    std::vector<uint8_t> before;
  };

  // Lines of 128 bytes, modulo their number: most accesses meet no flag.
  static uint32_t line_of(uint64_t address) { return static_cast<uint32_t>(address >> 7) % FLAG_LINES; }
  const GlobalTouch& touch_of(uint32_t past) const { return touches_[past & NUMBER]; }
  uint32_t number_of_next();
  void check(Cta&, const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge*, const Buffer&, uint64_t offset,
             uint64_t bytes);
  bool ordered(const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge*) const;
  uint32_t with_reader(uint32_t readers, uint32_t touch, const Knowledge*);
  uint32_t with_writer(uint32_t writers, uint32_t touch);
  void report(Cta&, const GlobalTouch& earlier, const GlobalTouch& now, const Buffer&, uint64_t offset, Severity,
              const char* why);

  Grid& grid_;
  std::vector<GlobalPages> pages_;                // by buffer
  GlobalTouches touches_;
  std::array<uint32_t, RECENT> recent_{};         // numbers of touches, by hash
  std::vector<std::vector<uint32_t>> sets_;       // of readers of words, or of writers of their parts
  std::unordered_map<uint64_t, uint32_t> grown_;  // readers and touch to the set with it
  std::unordered_map<uint64_t, uint32_t> left_;   // writers and touch to those of them whose bytes it leaves, and it
  std::array<uint64_t, FLAG_LINES / 64> flag_lines_{};  // a bit for each line that may hold a flag
  std::unordered_map<uint64_t, GlobalFlag> flags_;
  std::vector<Pending> pending_;
};
