// Global memory that more than one CTA of a launch touches: who wrote and read what, and whether anything ordered it.
//
// Every 4-byte word of a buffer that a kernel can write holds its last write and the reads since, as numbers of touches
// that all words of one instruction share; pages are made when they are touched. CTAs of a kernel that synchronises them
// run on one host thread and have clocks (shadow_global.cpp says what flags and fences hand over). CTAs of other kernels
// know nothing of each other, so that whatever two of them touch in common, and one writes, is a race; such launches
// are checked where they run on one host thread, and run again on one where threads meet (grid.cpp).
#pragma once
#include <memory>
#include <unordered_map>
#include <vector>

#include "core.hpp"
#include "shadow_clock.hpp"

enum class GlobalKind : uint8_t { Weak, Strong, Atomic };

struct GlobalTouch {
  uint32_t unit = 0, cta = 0;  // linear indices
  uint32_t time = 0;           // of the component of the unit's clock
  int32_t inst = -1;
  uint16_t component = 0, warp = 0;
  GlobalKind kind = GlobalKind::Weak;
  uint8_t write = 0, async = 0;  // async: a bulk or tensor copy
  uint8_t scope = 0;             // of strong accesses
  uint8_t mask = 15;             // bytes of the word

  bool operator==(const GlobalTouch& o) const {
    return unit == o.unit && cta == o.cta && time == o.time && inst == o.inst && component == o.component &&
           warp == o.warp && kind == o.kind && write == o.write && async == o.async && scope == o.scope &&
           mask == o.mask;
  }
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
  // An access is checked and kept. `know` is what its thread knows, nullptr: nothing of others.
  void access(Cta&, const GlobalTouch& now, const Knowledge* know, Buffer&, uint64_t offset, uint64_t bytes);
  // What was stored last has reached memory: was it the same as another CTA's?
  void settle();
  GlobalFlag* flag(uint64_t address);  // nullptr: nothing was released there
  GlobalFlag& make_flag(uint64_t address) { return flags_[address]; }
  bool flags_full() const { return flags_.size() > MOST_FLAGS; }

 private:
  static constexpr uint32_t PAGE_WORDS = 1024, READ_SET = 1u << 31;
  static constexpr size_t MOST_FLAGS = 1 << 16, MOST_READERS = 32, MOST_PENDING = 4096;
  struct Page {
    uint32_t write[PAGE_WORDS] = {}, read[PAGE_WORDS] = {};
  };
  struct Pending {  // two plain stores of different CTAs to one word
    GlobalTouch earlier, now;
    Cta* cta;
    const Buffer* buffer;
    uint64_t offset;
    uint8_t before[4];
  };

  struct Access {
    Cta& cta;
    const GlobalTouch& now;
    const Knowledge* know;
    Buffer& buffer;
    std::vector<std::unique_ptr<Page>>& pages;
  };

  void words(const Access&, uint64_t first, uint64_t end);
  uint32_t intern(const GlobalTouch&);
  void check(Cta&, const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge*, const Buffer&, uint64_t offset);
  bool ordered(const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge*) const;
  uint32_t with_reader(uint32_t readers, uint32_t touch, const Knowledge*);
  void report(Cta&, const GlobalTouch& earlier, const GlobalTouch& now, const Buffer&, uint64_t offset, Severity,
              const char* why);

  Grid& grid_;
  std::vector<std::vector<std::unique_ptr<Page>>> pages_;  // by buffer
  std::vector<GlobalTouch> touches_;                       // number 0: nobody
  std::vector<std::vector<uint32_t>> sets_;                // of readers
  std::unordered_map<uint64_t, uint32_t> grown_;           // set and touch to the set with it
  std::unordered_map<uint64_t, GlobalFlag> flags_;
  std::vector<Pending> pending_;
};
