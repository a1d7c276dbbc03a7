// The past of the bytes of a buffer, in three sizes: lines of 128 bytes while instructions cover whole lines, grains of
// 16 bytes in pages where one did not, and words in grains that were touched in part. So a store of a full warp costs
// one comparison, and pages take little memory until somebody writes to them piece by piece.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "global_access.hpp"
#include "global_touch.hpp"

// Numbers that the user of GlobalPages gives; 0: nobody. In one 64-bit word: the CPU waits where two halves that have just
// been stored are loaded as one.
class Past {
 public:
  Past() = default;
  Past(uint32_t write, uint32_t read) : both_(uint64_t{read} << 32 | write) {}

  uint32_t write() const { return static_cast<uint32_t>(both_); }
  uint32_t read() const { return static_cast<uint32_t>(both_ >> 32); }
  bool operator==(const Past& o) const { return both_ == o.both_; }
  bool operator!=(const Past& o) const { return both_ != o.both_; }

 private:
  uint64_t both_ = 0;
};

class GlobalPages {
 public:
  static constexpr uint64_t WORD = 4, GRAIN = 16, LINE = 128, PAGE = 4096;
  static constexpr uint8_t WHOLE = WHOLE_WORD;

  explicit GlobalPages(uint64_t bytes) : pages_(bytes / PAGE + 1) {}

  // Replaces the past of every word of the ranges, addresses in a buffer at `base`, by next(past, offset, bytes, mask),
  // which is called once for neighbours that have one past. `mask` has a bit for each byte that is meant of a word; the
  // past of a word is one for all its bytes.
  template <class Next>
  void apply(const Ranges& ranges, uint64_t base, Next& next) {
    Page* page = nullptr;  // of the range before, nullptr: there is none
    uint64_t start = 0;
    for (const Range& range : ranges) {
      const uint64_t offset = range.address - base, inside = offset - start;
      if (page && page->grains && inside < PAGE && range.bytes == GRAIN && offset % GRAIN == 0) {
        Past& grain = (*page->grains)[inside / GRAIN];
        if (grain.read() != SPLIT) {
          grain = next(grain, offset, GRAIN, WHOLE);
          continue;
        }
      }
      apply(offset, range.bytes, next);
      start = offset / PAGE * PAGE;
      page = pages_[offset / PAGE];
    }
  }
  // Gives lines of one page, which nobody has touched, their first past. False: they are something else.
  bool claim(uint64_t offset, uint64_t bytes, Past past) {
    Page* page = pages_[offset / PAGE];
    if (!page || page->grains || offset % LINE || bytes % LINE || offset % PAGE + bytes > PAGE) return false;
    Past *const first = &page->lines[offset % PAGE / LINE], *const last = first + bytes / LINE;
    if (std::any_of(first, last, [](Past line) { return line != Past(); })) return false;
    std::fill(first, last, past);
    return true;
  }

 private:
  static constexpr uint32_t SPLIT = ~0u;  // as `read` of a grain: `write` is a place in words_
  static constexpr uint32_t BLOCK = 8;    // units that are compared at a time
  static constexpr uint32_t CHUNK = 32;   // pages that are allocated at a time

  template <class Next>
  void apply(uint64_t offset, uint64_t bytes, Next& next) {
    if (one(offset, bytes, next)) return;
    const uint64_t end = offset + bytes;
    for (uint64_t at = offset; at < end;) {
      Page*& slot = pages_[at / PAGE];
      if (!slot) slot = &fresh_page();
      Page& page = *slot;
      const uint64_t start = at / PAGE * PAGE, stop = std::min(end, start + PAGE);
      if (!page.grains && at % LINE == 0 && stop - at >= LINE) {
        const uint64_t to = stop / LINE * LINE;
        replace(page.lines, unit(start, at, LINE), unit(start, to, LINE), start, LINE, next);
        at = to;
        continue;
      }
      if (!page.grains) page.grains = grains_of(page.lines);
      if (at % GRAIN == 0 && stop - at >= GRAIN) {
        const uint64_t to = stop / GRAIN * GRAIN;
        grains(*page.grains, start, at, to, next);
        at = to;
      } else {
        const uint64_t to = std::min(stop, (at / GRAIN + 1) * GRAIN);
        part(*page.grains, start, at, to, next);
        at = to;
      }
    }
  }

  template <uint64_t N>
  using Level = std::array<Past, N>;
  using Lines = Level<PAGE / LINE>;
  using Grains = Level<PAGE / GRAIN>;
  using Words = Level<GRAIN / WORD>;
  struct alignas(64) Page {
    Lines lines{};
    std::unique_ptr<Grains> grains;  // nullptr: the lines say all
  };

  static uint32_t unit(uint64_t start, uint64_t at, uint64_t size) { return static_cast<uint32_t>((at - start) / size); }
  // The first unit after `i` whose past is another.
  template <uint64_t N>
  static uint32_t alike(const Level<N>& level, uint32_t i, uint32_t last) {
    const Past past = level[i];
    for (; i + BLOCK <= last; i += BLOCK) {
      bool differs = false;
      for (uint32_t k = i; k < i + BLOCK; ++k) differs |= level[k] != past;
      if (differs) break;
    }
    while (i < last && level[i] == past) ++i;
    return i;
  }
  // Units [i, to) of one past, of `size` bytes each; unit 0 is at `start`. Returns `to`.
  template <uint64_t N, class Next>
  static uint32_t replace_run(Level<N>& level, uint32_t i, uint32_t to, uint64_t start, uint64_t size, Next& next) {
    std::fill(&level[i], &level[i] + (to - i), next(level[i], start + i * size, (to - i) * size, WHOLE));
    return to;
  }
  template <uint64_t N, class Next>
  static void replace(Level<N>& level, uint32_t i, uint32_t last, uint64_t start, uint64_t size, Next& next) {
    while (i < last) i = replace_run(level, i, alike(level, i, last), start, size, next);
  }

  // The common cases, done at once: one line, one grain, or one word of a grain that is split. False: something else.
  template <class Next>
  bool one(uint64_t offset, uint64_t bytes, Next& next) {
    Page* page = pages_[offset / PAGE];
    if (!page) return false;
    const auto replace_one = [&](Past& past) { past = next(past, offset, bytes, WHOLE); };
    if (!page->grains) {
      if (bytes != LINE || offset % LINE) return false;
      replace_one(page->lines[offset % PAGE / LINE]);
      return true;
    }
    Past& grain = (*page->grains)[offset % PAGE / GRAIN];
    if (grain.read() != SPLIT) {
      if (bytes != GRAIN || offset % GRAIN) return false;
      replace_one(grain);
      return true;
    }
    if (bytes != WORD || offset % WORD) return false;
    replace_one(words_[grain.write()][offset % GRAIN / WORD]);
    return true;
  }

  template <class Next>
  void grains(Grains& level, uint64_t start, uint64_t at, uint64_t to, Next& next) {
    const uint32_t last = unit(start, to, GRAIN);
    for (uint32_t i = unit(start, at, GRAIN); i < last;) {
      if (level[i].read() == SPLIT) {
        const uint32_t place = level[i].write();
        replace(words_[place], 0, GRAIN / WORD, start + i * GRAIN, WORD, next);
        join(level, i++, place);
      } else {
        i = replace_run(level, i, alike(level, i, last), start, GRAIN, next);
      }
    }
  }

  // Less than one grain.
  template <class Next>
  void part(Grains& level, uint64_t start, uint64_t at, uint64_t to, Next& next) {
    const uint32_t i = unit(start, at, GRAIN);
    if (level[i].read() != SPLIT) split(level, i);
    Words& words = words_[level[i].write()];
    while (at < to) {
      const auto k = static_cast<uint32_t>(at % GRAIN / WORD);
      const uint64_t stop = std::min(to, (at / WORD + 1) * WORD);
      const auto mask = static_cast<uint8_t>(((1u << (stop - at)) - 1) << at % WORD);
      words[k] = next(words[k], at, stop - at, mask);
      at = stop;
    }
  }

  static std::unique_ptr<Grains> grains_of(const Lines& lines) {
    auto grains = std::make_unique<Grains>();
    Past* grain = grains->data();
    for (const Past& line : lines) grain = std::fill_n(grain, LINE / GRAIN, line);
    return grains;
  }
  void split(Grains& level, uint32_t i) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(words_.size()));
      words_.emplace_back();
    }
    const uint32_t place = free_.back();
    free_.pop_back();
    words_[place].fill(level[i]);
    level[i] = {place, SPLIT};
  }
  // Makes one of a grain's words again where they have one past.
  void join(Grains& level, uint32_t i, uint32_t place) {
    const Words& words = words_[place];
    for (uint32_t k = 1; k < GRAIN / WORD; ++k)
      if (!(words[k] == words[0])) return;
    level[i] = words[0];
    free_.push_back(place);
  }

  Page& fresh_page() {
    if (used_ % CHUNK == 0) chunks_.push_back(std::make_unique<Page[]>(CHUNK));
    return chunks_.back()[used_++ % CHUNK];
  }

  std::vector<Page*> pages_;  // nullptr: untouched
  std::vector<std::unique_ptr<Page[]>> chunks_;
  uint32_t used_ = 0;  // pages of the chunks
  std::vector<Words> words_;
  std::vector<uint32_t> free_;  // of words_
};
