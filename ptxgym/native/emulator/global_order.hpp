// Global memory that more than one CTA of a launch touches: who wrote and read what, and whether anything ordered it.
//
// Every 4-byte word of a buffer that a kernel can write has its last write and the reads since, as numbers of touches
// (global_touch.hpp) that all words of one instruction share (global_pages.hpp keeps them). CTAs of a kernel that synchronises them,
// and those of a cluster, run on one host thread and have clocks (shadow_global.cpp says what flags and fences hand over).
// CTAs of other kernels know nothing of each other, so that whatever two of them touch in common, and one writes, is a
// race; such launches are checked where they run on one host thread, and run again on one where threads meet (grid.cpp).
// Clusters that run on several host threads are each checked on their own meanwhile.
#pragma once
#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core.hpp"
#include "global_access.hpp"
#include "global_clock.hpp"
#include "global_pages.hpp"
#include "global_touch.hpp"

struct Knowledge;

// What strong accesses released at an address, by the width of their scope.
struct GlobalFlag {
  ForeignRef wide;    // .gpu and .sys
  ForeignRef near;    // the same and .cluster: counts among the CTAs of a cluster
  ForeignRef likely;  // whatever hardware hands over in practice
  ForeignRef shown;   // to the async proxy, whatever the scope
  uint32_t version = 0;
  bool strong = false;  // it is more than the target of a plain store
};

class GlobalOrder {
 public:
  // `units_apart`: other units are proved not to meet (grid.cpp), and not looked at.
  GlobalOrder(Grid&, bool clocks, bool units_apart = false);

  const bool clocks;
  GlobalTouch& next() { return touches_.next(); }  // to be filled in
  // What was filled in is checked and kept. `know` is what its thread knows, nullptr: nothing of others.
  void access(Cta&, const Knowledge* know, Buffer&, const Ranges&);
  // A plain store of a warp to lines that nobody has touched, by an instruction that the CTA has executed before: checked
  // and kept at once, since most stores of results are that. False: it must be told like any other access.
  bool fresh_store(const Cta& cta, const Warp& warp, int inst, const Buffer& buffer, uint64_t offset, uint64_t bytes) {
    if (clocks || !buffer.ordered || !pending_.empty()) return false;
    const uint32_t number =
        touches_.number_of_store(static_cast<uint32_t>(cta.linear), static_cast<uint16_t>(warp.id), inst);
    return number && pages_[static_cast<size_t>(&buffer - grid_.buffers.data())].claim(offset, bytes, {number, 0});
  }
  // What was stored last has reached memory: was it the same as another CTA's?
  void settle();
  void end_unit();  // settles, and forgets what only its own CTAs could ask for
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
  class Update;
  // Bits of the numbers of touches in GlobalPages. Atomics that reach every CTA never race with each other.
  static constexpr uint32_t SET = 1u << 31, WIDE_ATOMIC = 1u << 30, NUMBER = WIDE_ATOMIC - 1;
  static constexpr uint32_t FLAG_LINES = 4096;
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
  GlobalTouch touch_of(uint32_t past) const { return touches_[past & NUMBER]; }
  uint32_t number_of_next();
  void check(Cta&, const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge*, const Buffer&, uint64_t offset,
             uint64_t bytes);
  bool ordered(const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge*) const;
  void check_proxy(Cta&, const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge*, const Buffer&,
                   uint64_t offset);
  void check_read_only(Cta&, const GlobalTouch& earlier, const GlobalTouch& now, const Buffer&, uint64_t offset);
  uint32_t with_reader(uint32_t readers, uint32_t touch, const Knowledge*);
  uint32_t with_writer(uint32_t writers, uint32_t touch);
  void report(Cta&, const GlobalTouch& earlier, const GlobalTouch& now, const Buffer&, uint64_t offset, Severity,
              const char* why);

  Grid& grid_;
  const bool units_apart_;
  std::vector<GlobalPages> pages_;                // by buffer
  GlobalTouches touches_;
  std::vector<std::vector<uint32_t>> sets_;       // of readers of words, or of writers of their parts
  std::unordered_map<uint64_t, uint32_t> grown_;  // readers and touch to the set with it
  std::unordered_map<uint64_t, uint32_t> left_;   // writers and touch to those of them whose bytes it leaves, and it
  std::array<uint64_t, FLAG_LINES / 64> flag_lines_{};  // a bit for each line that may hold a flag
  std::unordered_map<uint64_t, GlobalFlag> flags_;
  std::vector<Pending> pending_;
};
