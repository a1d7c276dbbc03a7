// The past of the bytes of a buffer, in three sizes: lines of 128 bytes while instructions cover whole lines, grains of
// 16 bytes in pages where one did not, and words in grains that were touched in part. So a store of a full warp costs
// one comparison, and pages take little memory until somebody writes to them piece by piece.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

// Numbers that the user of GlobalPages gives; 0: nobody.
struct Past {
  uint32_t write = 0, read = 0;

  bool operator==(const Past& o) const { return write == o.write && read == o.read; }
};

class GlobalPages {
 public:
  static constexpr uint64_t WORD = 4, GRAIN = 16, LINE = 128, PAGE = 4096;
  static constexpr uint8_t WHOLE = 15;  // every byte of a word

  explicit GlobalPages(uint64_t bytes) : pages_(bytes / PAGE + 1) {}

  // Replaces the past of every word of [offset, offset + bytes) by next(past, offset, bytes, mask), which is called once
  // for neighbours that have one past. `mask` has a bit for each byte that is meant of a word; the past of a word is one
  // for all its bytes.
  template <class Next>
  void apply(uint64_t offset, uint64_t bytes, Next next) {
    if (bytes <= GRAIN && small(offset, bytes, next)) return;
    const uint64_t end = offset + bytes;
    for (uint64_t at = offset; at < end;) {
      std::unique_ptr<Page>& slot = pages_[at / PAGE];
      if (!slot) slot = std::make_unique<Page>();
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

 private:
  static constexpr uint32_t SPLIT = ~0u;  // as `read` of a grain: `write` is a place in words_
  static constexpr uint32_t BLOCK = 8;    // units that are compared at a time

  template <uint32_t N>
  struct Level {
    uint32_t write[N] = {}, read[N] = {};

    Past at(uint32_t i) const { return {write[i], read[i]}; }
    void set(uint32_t i, Past past) {
      write[i] = past.write;
      read[i] = past.read;
    }
  };
  using Lines = Level<PAGE / LINE>;
  using Grains = Level<PAGE / GRAIN>;
  using Words = Level<GRAIN / WORD>;
  struct Page {
    Lines lines;
    std::unique_ptr<Grains> grains;  // nullptr: the lines say all
  };

  static uint32_t unit(uint64_t start, uint64_t at, uint64_t size) { return static_cast<uint32_t>((at - start) / size); }
  // The first unit after `i` whose past is another.
  template <uint32_t N>
  static uint32_t alike(const Level<N>& level, uint32_t i, uint32_t last) {
    const Past past = level.at(i);
    for (; i + BLOCK <= last; i += BLOCK) {
      uint32_t differs = 0;
      for (uint32_t k = i; k < i + BLOCK; ++k) differs |= (level.write[k] ^ past.write) | (level.read[k] ^ past.read);
      if (differs) break;
    }
    while (i < last && level.at(i) == past) ++i;
    return i;
  }
  // Units [i, to) of one past, of `size` bytes each; unit 0 is at `start`. Returns `to`.
  template <uint32_t N, class Next>
  static uint32_t replace_run(Level<N>& level, uint32_t i, uint32_t to, uint64_t start, uint64_t size, Next& next) {
    const Past past = next(level.at(i), start + i * size, (to - i) * size, WHOLE);
    std::fill(level.write + i, level.write + to, past.write);
    std::fill(level.read + i, level.read + to, past.read);
    return to;
  }
  template <uint32_t N, class Next>
  static void replace(Level<N>& level, uint32_t i, uint32_t last, uint64_t start, uint64_t size, Next& next) {
    while (i < last) i = replace_run(level, i, alike(level, i, last), start, size, next);
  }

  // The common cases of lanes apart, done at once: a grain, or a word of a grain that is split. False: something else.
  template <class Next>
  bool small(uint64_t offset, uint64_t bytes, Next& next) {
    const Page* page = pages_[offset / PAGE].get();
    if (!page || !page->grains) return false;
    Grains& level = *page->grains;
    const auto i = static_cast<uint32_t>(offset % PAGE / GRAIN);
    if (level.read[i] != SPLIT) {
      if (bytes != GRAIN || offset % GRAIN) return false;
      level.set(i, next(level.at(i), offset, bytes, WHOLE));
      return true;
    }
    if (bytes != WORD || offset % WORD) return false;
    Words& words = words_[level.write[i]];
    const auto k = static_cast<uint32_t>(offset % GRAIN / WORD);
    words.set(k, next(words.at(k), offset, bytes, WHOLE));
    return true;
  }

  template <class Next>
  void grains(Grains& level, uint64_t start, uint64_t at, uint64_t to, Next& next) {
    const uint32_t last = unit(start, to, GRAIN);
    for (uint32_t i = unit(start, at, GRAIN); i < last;) {
      if (level.read[i] == SPLIT) {
        const uint32_t place = level.write[i];
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
    if (level.read[i] != SPLIT) split(level, i);
    Words& words = words_[level.write[i]];
    while (at < to) {
      const auto k = static_cast<uint32_t>(at % GRAIN / WORD);
      const uint64_t stop = std::min(to, (at / WORD + 1) * WORD);
      const auto mask = static_cast<uint8_t>(((1u << (stop - at)) - 1) << at % WORD);
      words.set(k, next(words.at(k), at, stop - at, mask));
      at = stop;
    }
  }

  static std::unique_ptr<Grains> grains_of(const Lines& lines) {
    auto grains = std::make_unique<Grains>();
    for (uint32_t i = 0; i < PAGE / GRAIN; ++i) grains->set(i, lines.at(i / static_cast<uint32_t>(LINE / GRAIN)));
    return grains;
  }
  void split(Grains& level, uint32_t i) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(words_.size()));
      words_.emplace_back();
    }
    const uint32_t place = free_.back();
    free_.pop_back();
    for (uint32_t k = 0; k < GRAIN / WORD; ++k) words_[place].set(k, level.at(i));
    level.set(i, {place, SPLIT});
  }
  // Makes one of a grain's words again where they have one past.
  void join(Grains& level, uint32_t i, uint32_t place) {
    const Words& words = words_[place];
    for (uint32_t k = 1; k < GRAIN / WORD; ++k)
      if (!(words.at(k) == words.at(0))) return;
    level.set(i, words.at(0));
    free_.push_back(place);
  }

  std::vector<std::unique_ptr<Page>> pages_;
  std::vector<Words> words_;
  std::vector<uint32_t> free_;  // of words_
};
