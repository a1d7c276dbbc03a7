// Accesses to global memory as GlobalOrder keeps them: each is recorded once, whatever the number of its words, and named
// by a number there.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

constexpr uint8_t WHOLE_WORD = 15;  // every byte of a word

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
};

// All touches of a launch by their numbers; 0: nobody. Without clocks the touches of a CTA's warps by one instruction
// differ in nothing else: they share a record, and their numbers are neighbours.
class GlobalTouches {
 public:
  // Numbers are less than `limit`. `warps`: how many share a record.
  GlobalTouches(uint32_t limit, uint32_t warps) {
    while ((1u << shift_) < warps) ++shift_;
    most_ = limit >> shift_;
    chunks_.emplace_back(new GlobalTouch[CHUNK]);
    next() = GlobalTouch{};
    next().inst = -1;
    recent_.fill({&next(), 0});
    (void)keep();
  }

  GlobalTouch operator[](uint32_t number) const {
    GlobalTouch touch = record(number >> shift_);
    if (shift_) touch.warp = static_cast<uint16_t>(number & ((1u << shift_) - 1));
    return touch;
  }
  uint32_t cta_of(uint32_t number) const { return record(number >> shift_).cta; }
  // To be filled in. Copying what has just been stored field by field would make the CPU wait for all stores before.
  GlobalTouch& next() { return chunks_.back()[count_ % CHUNK]; }
  // The number of what was filled in; 0 where there are too many. Of warps that take turns in a loop, each finds its last
  // touches again.
  uint32_t number_of_next() {
    const GlobalTouch& touch = next();
    Recent& recent = recent_[slot_of(touch.inst, touch.warp, touch.mask)];
    if (!alike(*recent.record, touch)) {
      if (count_ == most_) return 0;
      recent = {&touch, keep()};
    }
    return number_of(recent, touch.warp);
  }
  // Without clocks, the number of a plain store of whole words; 0 where such a one of its CTA is not known yet.
  uint32_t number_of_store(uint32_t cta, uint16_t warp, int32_t inst) const {
    const Recent& recent = recent_[slot_of(inst, warp, WHOLE_WORD)];
    const GlobalTouch& t = *recent.record;
    const bool known = t.cta == cta && t.inst == inst && (shift_ || t.warp == warp) && t.kind == GlobalKind::Weak &&
                       t.write && !t.async && t.mask == WHOLE_WORD;
    return known ? number_of(recent, warp) : 0;
  }

 private:
  static constexpr uint32_t CHUNK = 1024, RECENT = 256;
  struct Recent {
    const GlobalTouch* record;
    uint32_t place;
  };

  uint32_t slot_of(int32_t inst, uint32_t warp, uint32_t mask) const {
    const uint32_t apart = shift_ ? mask : warp * 16 + mask;
    return (static_cast<uint32_t>(inst) * 0x9e3779b1u ^ apart * 0x85ebca6bu) >> 24;
  }
  uint32_t number_of(const Recent& recent, uint32_t warp) const { return recent.place << shift_ | (shift_ ? warp : 0); }
  const GlobalTouch& record(uint32_t place) const { return chunks_[place / CHUNK][place % CHUNK]; }
  bool alike(const GlobalTouch& a, const GlobalTouch& b) const {
    return a.cta == b.cta && a.inst == b.inst && a.time == b.time && a.component == b.component &&
           (shift_ || a.warp == b.warp) && a.unit == b.unit && a.kind == b.kind && a.write == b.write &&
           a.async == b.async && a.scope == b.scope && a.mask == b.mask;
  }
  uint32_t keep() {
    const uint32_t place = count_++;
    if (count_ % CHUNK == 0) chunks_.emplace_back(new GlobalTouch[CHUNK]);  // without values: next() gets them
    return place;
  }

  std::vector<std::unique_ptr<GlobalTouch[]>> chunks_;
  std::array<Recent, RECENT> recent_;  // by hash
  uint32_t count_ = 0, most_ = 0, shift_ = 0;
};
