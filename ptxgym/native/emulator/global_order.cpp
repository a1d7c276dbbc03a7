#include "global_order.hpp"

#include <algorithm>

namespace {

bool changes(const GlobalTouch& t) { return t.write || t.kind == GlobalKind::Atomic; }
bool strong(const GlobalTouch& t) { return t.kind != GlobalKind::Weak; }

// Whether two strong accesses include each other's thread in their scope (PTX ISA 8.2, morally strong).
bool in_scope(const GlobalTouch& a, const GlobalTouch& b) {
  return std::min(a.scope, b.scope) >= (a.unit == b.unit ? SC_CLUSTER : SC_GPU);
}

std::string who(const GlobalTouch& t) {
  return std::string(t.async ? "bulk or tensor copy of " : "") + "warp " + std::to_string(t.warp) + " of CTA " +
         std::to_string(t.cta);
}
const char* verb(const GlobalTouch& t) {
  return t.kind == GlobalKind::Atomic ? "updates" : t.write ? "writes" : "reads";
}

constexpr const char* NO_ORDER =
    "CTAs run in any order. Let the writer release a flag (__syncthreads(), __threadfence(), then an atomic; or "
    "red.release.gpu), and the other acquire it first (ld.acquire.gpu in a loop, then __syncthreads()).";
constexpr const char* PRACTICE =
    "A flag orders other memory by a release (__syncthreads(), then __threadfence() or .release of scope .gpu) and an "
    "acquire (.acquire, or a relaxed load and then __threadfence()): one of the two is missing.";
constexpr const char* SCOPE =
    "A scope must include the other thread: .cta reaches no other CTA, .cluster only those of the cluster; use .gpu.";
constexpr const char* PLAIN =
    "Plain accesses to what others change at the same time are races, whatever the compiler makes of them: use "
    "ld.relaxed or ld.acquire (volatile, cuda::atomic_ref), st.release or an atomic.";

}  // namespace

GlobalOrder::GlobalOrder(Grid& grid, bool talks) : communicating(talks), grid_(grid), pages_(grid.buffers.size()), touches_(1) {
  for (size_t i = 0; i < grid.buffers.size(); ++i) {
    Buffer& buffer = grid.buffers[i];
    buffer.ordered = !buffer.is_input && !buffer.read_only;
    pages_[i].resize(buffer.size / (4 * PAGE_WORDS) + 1);
  }
}

GlobalFlag* GlobalOrder::flag(uint64_t address) {
  const auto found = flags_.find(address);
  return found == flags_.end() ? nullptr : &found->second;
}

uint32_t GlobalOrder::intern(const GlobalTouch& touch) {
  for (size_t i = touches_.size(), last = i > 4 ? i - 4 : 1; i-- > last;)
    if (touches_[i] == touch) return static_cast<uint32_t>(i);
  touches_.push_back(touch);
  return static_cast<uint32_t>(touches_.size() - 1);
}

void GlobalOrder::access(Cta& cta, const GlobalTouch& now, const Knowledge* know, Buffer& buffer, uint64_t offset,
                         uint64_t bytes) {
  if (!pending_.empty()) settle();
  buffer.ordered |= changes(now);
  const Access all{cta, now, know, buffer, pages_[static_cast<size_t>(&buffer - grid_.buffers.data())]};
  uint64_t at = offset;
  const uint64_t end = offset + bytes;
  const auto part_of_word = [&](uint64_t to) {
    GlobalTouch part = now;
    part.mask = static_cast<uint8_t>(((1u << (to - at)) - 1) << at % 4);
    words(Access{cta, part, know, buffer, all.pages}, at / 4, at / 4 + 1);
    at = to;
  };
  if (at % 4) part_of_word(std::min(end, at / 4 * 4 + 4));
  if (end - at >= 4) {
    words(all, at / 4, end / 4);
    at = end / 4 * 4;
  }
  if (at < end) part_of_word(end);
}

// Neighbouring words mostly have one past: it is looked at once.
void GlobalOrder::words(const Access& access, uint64_t first, uint64_t end) {
  const GlobalTouch& now = access.now;
  const bool changing = changes(now);
  const uint32_t touch = intern(now);
  const auto look = [&](uint32_t past, uint64_t word) {
    if (past) check(access.cta, touches_[past], now, access.know, access.buffer, word * 4);
  };
  while (first < end) {
    std::unique_ptr<Page>& page = access.pages[first / PAGE_WORDS];
    if (!page) page = std::make_unique<Page>();
    uint32_t i = static_cast<uint32_t>(first % PAGE_WORDS);
    const uint64_t begin = first - i;
    const uint32_t last = static_cast<uint32_t>(std::min<uint64_t>(PAGE_WORDS, end - begin));
    while (i < last) {
      uint32_t *const write = page->write, *const read = page->read;
      const uint32_t written = write[i], readers = read[i];
      look(written, begin + i);
      if (changing && (readers & READ_SET))
        for (const uint32_t reader : sets_[readers & ~READ_SET]) look(reader, begin + i);
      else if (changing)
        look(readers, begin + i);
      const uint32_t next = changing ? 0 : with_reader(readers, touch, access.know);
      do {
        if (changing) write[i] = touch;
        read[i++] = next;
      } while (i < last && write[i] == written && read[i] == readers);
    }
    first = begin + last;
  }
}

bool GlobalOrder::ordered(const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge* know) const {
  if (earlier.cta == now.cta) return true;
  if (!know) return false;
  if (earlier.unit == now.unit) return know->seen.covers(earlier.component, earlier.time);
  return know->foreign && know->foreign->covers(earlier.unit, earlier.component, earlier.time);
}

// Of one thread the last read says all; so does a read that comes after all others.
uint32_t GlobalOrder::with_reader(uint32_t readers, uint32_t touch, const Knowledge* know) {
  const GlobalTouch& now = touches_[touch];
  const auto replaces = [&](uint32_t other) {
    const GlobalTouch& t = touches_[other];
    return (t.cta == now.cta && t.component == now.component) || (t.cta != now.cta && ordered(t, now, know));
  };
  if (!readers) return touch;
  std::vector<uint32_t> next;
  if (readers & READ_SET) {
    const uint64_t key = uint64_t{readers} << 32 | touch;
    const auto known = grown_.find(key);
    if (known != grown_.end()) return known->second;
    for (const uint32_t one : sets_[readers & ~READ_SET])
      if (!replaces(one)) next.push_back(one);
    if (next.size() >= MOST_READERS) return readers;
    next.push_back(touch);
    sets_.push_back(std::move(next));
    return grown_[key] = static_cast<uint32_t>(sets_.size() - 1) | READ_SET;
  }
  if (readers == touch || replaces(readers)) return touch;
  const uint64_t key = uint64_t{readers} << 32 | touch;
  const auto known = grown_.find(key);
  if (known != grown_.end()) return known->second;
  sets_.push_back({readers, touch});
  return grown_[key] = static_cast<uint32_t>(sets_.size() - 1) | READ_SET;
}

void GlobalOrder::check(Cta& cta, const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge* know,
                        const Buffer& buffer, uint64_t offset) {
  if (earlier.inst < 0 || !(earlier.mask & now.mask) || !(changes(earlier) || changes(now))) return;
  if (ordered(earlier, now, know) || (earlier.unit == now.unit && !communicating)) return;
  const bool both_strong = strong(earlier) && strong(now);
  if (both_strong && in_scope(earlier, now)) return;
  const bool same_unit = earlier.unit == now.unit;
  const bool likely =
      know && (same_unit ? know->likely.covers(earlier.component, earlier.time)
                         : know->foreign_likely && know->foreign_likely->covers(earlier.unit, earlier.component, earlier.time));
  const auto flag = flags_.find(buffer.base + (offset & ~3ull));
  if (likely && flag != flags_.end() && flag->second.strong) return;  // of one address all see one order
  if (both_strong) return report(cta, earlier, now, buffer, offset, Severity::Warning, SCOPE);
  if (likely) return report(cta, earlier, now, buffer, offset, strong(now) ? Severity::Note : Severity::Warning, PRACTICE);
  if (changes(earlier) && changes(now) && (earlier.async || now.async))
    return report(cta, earlier, now, buffer, offset, Severity::Warning, NO_ORDER);  // their values come later
  if (changes(earlier) && changes(now) && !strong(earlier) && !strong(now)) {
    if (pending_.size() >= MOST_PENDING) return;
    Pending pending{earlier, now, &cta, &buffer, offset & ~3ull, {}};
    const uint64_t left = std::min<uint64_t>(4, buffer.size - pending.offset);
    std::memcpy(pending.before, buffer.data + pending.offset, left);
    pending_.push_back(pending);
    return;
  }
  const bool atomic_and_plain = earlier.kind == GlobalKind::Atomic || now.kind == GlobalKind::Atomic;
  if (strong(earlier) || strong(now)) {
    const bool stores = (earlier.write && !strong(earlier)) || (now.write && !strong(now));
    if (atomic_and_plain && stores) return report(cta, earlier, now, buffer, offset, Severity::Error, NO_ORDER);
    return report(cta, earlier, now, buffer, offset, atomic_and_plain ? Severity::Warning : Severity::Note, PLAIN);
  }
  report(cta, earlier, now, buffer, offset, Severity::Error, NO_ORDER);
}

void GlobalOrder::settle() {
  if (pending_.empty()) return;
  std::vector<Pending> due;
  due.swap(pending_);
  const auto differs = [](const Pending& p) {
    for (uint32_t i = 0; i < 4; ++i)
      if (p.earlier.mask & p.now.mask & (1u << i) && p.before[i] != p.buffer->data[p.offset + i]) return true;
    return false;
  };
  std::stable_partition(due.begin(), due.end(), differs);  // what is found first is told
  for (const Pending& p : due)
    report(*p.cta, p.earlier, p.now, *p.buffer, p.offset, differs(p) ? Severity::Error : Severity::Note, NO_ORDER);
}

void GlobalOrder::report(Cta& cta, const GlobalTouch& earlier, const GlobalTouch& now, const Buffer& buffer,
                         uint64_t offset, Severity severity, const char* why) {
  const Warp& warp = cta.warps[now.warp];
  FindingRecord* f = cta.findings.add(cta, &warp, -1, "global.race", severity, now.inst, earlier.inst);
  if (!f) return;
  const auto at = static_cast<unsigned long long>(offset);
  f->address = buffer.base + offset;
  f->say("%s %s byte %llu of %s, which %s %s at line {@%d}: nothing orders them%s", who(now).c_str(), verb(now), at,
         buffer.name, who(earlier).c_str(), verb(earlier), earlier.inst,
         why == PRACTICE ? " but a flag that is not released and acquired" : "");
  f->party(0, who(now).c_str(), "%s %s", verb(now), buffer.name);
  f->party(1, who(earlier).c_str(), "%s %s", verb(earlier), buffer.name);
  f->mend("%s", why);
}
