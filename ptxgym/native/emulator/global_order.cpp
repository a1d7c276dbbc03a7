#include "global_order.hpp"

#include <algorithm>

#include "shadow_clock.hpp"

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
    "acquire (.acquire, or a relaxed load and then __threadfence()), each by the very thread that writes or reads the flag: "
    "one of the two is missing.";
constexpr const char* COPY =
    "Wait for the copy in the thread that issued it, before the flag is released: cp.async.bulk.wait_group without .read, "
    "which waits for the source alone. Then release the flag (scope .gpu), and acquire it before this.";
constexpr const char* SCOPE =
    "A scope must include the other thread: .cta reaches no other CTA, .cluster only those of the cluster; use .gpu.";
constexpr const char* PLAIN =
    "Plain accesses to what others change at the same time are races, whatever the compiler makes of them: use "
    "ld.relaxed or ld.acquire (volatile, cuda::atomic_ref), st.release or an atomic.";

void fill_in(GlobalTouch& touch, const Cta& cta, const Warp& warp, const Inst& inst, Access access, bool async) {
  touch.unit = static_cast<uint32_t>(cta.unit);
  touch.cta = static_cast<uint32_t>(cta.linear);
  touch.time = touch.component = 0;
  touch.inst = cta.index_of(inst);
  touch.warp = static_cast<uint16_t>(warp.id);
  touch.write = access == Access::Write;
  touch.async = async;
  const uint8_t order = async ? static_cast<uint8_t>(O_WEAK) : mods_order(inst.mods);
  touch.kind = access == Access::Atomic ? GlobalKind::Atomic : order == O_WEAK ? GlobalKind::Weak : GlobalKind::Strong;
  const bool named = !async && order != O_VOLATILE && mods_scope(inst.mods);
  const uint8_t scope = named ? mods_scope(inst.mods) : static_cast<uint8_t>(SC_SYS);
  touch.scope = touch.kind == GlobalKind::Weak ? uint8_t{0} : scope;
  touch.mask = GlobalPages::WHOLE;
}

}  // namespace

// What one access makes of the past of the words that it touches, and of whom it meets there.
class GlobalOrder::Update {
 public:
  Update(GlobalOrder& order, Cta& cta, const Knowledge* know, Buffer& buffer)
      : order_(order), cta_(cta), know_(know), buffer_(buffer), touch_(order.next()), whole_(order.number_of_next()) {
    then_ = changes(touch_) ? Past{whole_, 0} : Past{0, whole_};
    if (changes(touch_) && !buffer.ordered) buffer.ordered = true;  // no host thread writes where another may read
  }

  Past operator()(Past past, uint64_t offset, uint64_t bytes, uint8_t mask) {
    return past == known_ && mask == GlobalPages::WHOLE ? then_ : looked_at(past, offset, bytes, mask);
  }

 private:
  __attribute__((noinline)) Past looked_at(Past past, uint64_t offset, uint64_t bytes, uint8_t mask) {
    const bool whole = mask == GlobalPages::WHOLE;
    const GlobalTouch& now = whole ? touch_ : with_mask(mask);
    const uint32_t number = whole ? whole_ : order_.number_of_next();
    bool alone = true;
    const auto look = [&](uint32_t earlier) {
      if (earlier & number & WIDE_ATOMIC) return;
      if (order_.touches_.cta_of(earlier & NUMBER) == now.cta) return;
      alone = false;
      order_.check(cta_, order_.touch_of(earlier), now, know_, buffer_, offset, bytes);
    };
    const auto look_at_all = [&](uint32_t some) {
      if (some & SET)
        for (const uint32_t one : order_.sets_[some & ~SET]) look(one);
      else if (some)
        look(some);
    };
    look_at_all(past.write());
    Past then;
    if (changes(now)) {
      look_at_all(past.read());
      then = {whole || !past.write() ? number : order_.with_writer(past.write(), number), 0};
    } else {
      then = {past.write(), order_.with_reader(past.read(), number, know_)};
    }
    if (alone && whole) known_ = past, then_ = then;
    return then;
  }

  const GlobalTouch& with_mask(uint8_t mask) {
    GlobalTouch& next = order_.next();
    next = touch_;
    next.mask = mask;
    return next;
  }

  GlobalOrder& order_;
  Cta& cta_;
  const Knowledge* const know_;
  Buffer& buffer_;
  const GlobalTouch& touch_;  // but for its mask
  const uint32_t whole_;      // number of the touch of whole words
  Past known_, then_;         // a past that meets nobody, and what it becomes: most words of an access have the same
};

GlobalOrder::GlobalOrder(Grid& grid, bool clocks, bool units_apart)
    : clocks(clocks), grid_(grid), units_apart_(units_apart), touches_(NUMBER, clocks ? 1 : grid.warps_per_cta) {
  for (Buffer& buffer : grid.buffers) {
    buffer.ordered = !buffer.is_input && !buffer.read_only;
    pages_.emplace_back(buffer.size);
  }
}

inline uint32_t GlobalOrder::number_of_next() {
  const bool wide = next().kind == GlobalKind::Atomic && next().scope >= SC_GPU;
  return touches_.number_of_next() | (wide ? WIDE_ATOMIC : 0);
}

void GlobalOrder::access(Cta& cta, const Knowledge* know, Buffer& buffer, const Ranges& ranges) {
  if (!pending_.empty()) settle();
  Update update(*this, cta, know, buffer);
  pages_[static_cast<size_t>(&buffer - grid_.buffers.data())].apply(ranges, buffer.base, update);
}

namespace {

constexpr int NO_COPY = -1;

void order_lanes(Cta& cta, Warp& warp, const Inst& inst, Buffer& buffer, const Ranges& ranges, uint64_t each,
                 Access access, int copying_lane) {
  GlobalOrder& order = *cta.order;
  GlobalTouch& touch = order.next();
  fill_in(touch, cta, warp, inst, access, copying_lane != NO_COPY);
  if (order.clocks && cta.shadow)
    cta.shadow->global(warp, order, touch, buffer, ranges, each, copying_lane);
  else if (buffer.ordered || access != Access::Read)
    order.access(cta, nullptr, buffer, ranges);
}

}  // namespace

void order_global(Cta& cta, Warp& warp, const Inst& inst, Buffer& buffer, const Ranges& ranges, uint64_t each,
                  Access access) {
  order_lanes(cta, warp, inst, buffer, ranges, each, access, NO_COPY);
}

void order_copy(Cta& cta, Warp& warp, const Inst& inst, int lane, uint64_t address, uint64_t bytes, Access access) {
  Buffer* buffer = cta.find_buffer(address, bytes);
  if (buffer && !buffer->read_only && (buffer->ordered || access != Access::Read))
    order_lanes(cta, warp, inst, *buffer, Ranges(address, bytes), bytes, access, lane);
}

bool GlobalOrder::ordered(const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge* know) const {
  if (earlier.cta == now.cta) return true;
  if (!know) return false;
  if (earlier.unit == now.unit) return know->seen.covers(earlier.component, earlier.time);
  return know->foreign && know->foreign->covers(earlier.unit, earlier.component, earlier.time);
}

// Of one thread the last read says all; so does a read that comes after all others.
uint32_t GlobalOrder::with_reader(uint32_t readers, uint32_t touch, const Knowledge* know) {
  const GlobalTouch now = touch_of(touch);
  const auto replaces = [&](uint32_t other) {
    const GlobalTouch t = touch_of(other);
    return (units_apart_ && t.unit != now.unit) || (t.cta == now.cta && t.component == now.component) ||
           (t.cta != now.cta && ordered(t, now, know));
  };
  if (!readers || readers == touch) return touch;
  std::vector<uint32_t> next;
  if (readers & SET) {
    const uint64_t key = uint64_t{readers} << 32 | touch;
    const auto known = grown_.find(key);
    if (known != grown_.end()) return known->second;
    for (const uint32_t one : sets_[readers & ~SET])
      if (!replaces(one)) next.push_back(one);
    if (next.size() >= MOST_READERS) return readers;
    next.push_back(touch);
    sets_.push_back(std::move(next));
    return grown_[key] = static_cast<uint32_t>(sets_.size() - 1) | SET;
  }
  if (replaces(readers)) return touch;
  const uint64_t key = uint64_t{readers} << 32 | touch;
  const auto known = grown_.find(key);
  if (known != grown_.end()) return known->second;
  sets_.push_back({readers, touch});
  return grown_[key] = static_cast<uint32_t>(sets_.size() - 1) | SET;
}

// Who wrote the bytes of a word that this touch leaves alone stays known.
uint32_t GlobalOrder::with_writer(uint32_t writers, uint32_t touch) {
  const uint64_t key = uint64_t{writers} << 32 | touch;
  const auto known = left_.find(key);
  if (known != left_.end()) return known->second;
  std::vector<uint32_t> next;
  const auto keep = [&](uint32_t other) {
    if (touch_of(other).mask & ~touch_of(touch).mask) next.push_back(other);
  };
  if (writers & SET)
    for (const uint32_t one : sets_[writers & ~SET]) keep(one);
  else
    keep(writers);
  if (next.empty()) return left_[key] = touch;
  next.push_back(touch);
  sets_.push_back(std::move(next));
  return left_[key] = static_cast<uint32_t>(sets_.size() - 1) | SET;
}

void GlobalOrder::check(Cta& cta, const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge* know,
                        const Buffer& buffer, uint64_t offset, uint64_t bytes) {
  if (!(earlier.mask & now.mask) || !(changes(earlier) || changes(now))) return;
  if (units_apart_ && earlier.unit != now.unit) return;
  if (ordered(earlier, now, know)) {
    if (now.write || !changes(earlier)) return;
    check_read_only(cta, earlier, now, buffer, offset);
    check_proxy(cta, earlier, now, know, buffer, offset);
    return;
  }
  const bool both_strong = strong(earlier) && strong(now);
  if (both_strong && in_scope(earlier, now)) return;
  const bool same_unit = earlier.unit == now.unit;
  const bool likely =
      know && (same_unit ? know->likely.covers(earlier.component, earlier.time)
                         : know->foreign_likely && know->foreign_likely->covers(earlier.unit, earlier.component, earlier.time));
  const auto flag = flags_.find(buffer.base + (offset & ~3ull));
  if (likely && flag != flags_.end() && flag->second.strong) return;  // of one address all see one order
  if (both_strong) return report(cta, earlier, now, buffer, offset, Severity::Warning, SCOPE);
  if (likely)
    return report(cta, earlier, now, buffer, offset, strong(now) ? Severity::Note : Severity::Warning,
                  earlier.async && changes(earlier) ? COPY : PRACTICE);
  if (changes(earlier) && changes(now) && (earlier.async || now.async))
    return report(cta, earlier, now, buffer, offset, Severity::Warning, NO_ORDER);  // their values come later
  if (changes(earlier) && changes(now) && !strong(earlier) && !strong(now)) {
    if (pending_.size() >= MOST_PENDING) return;
    const uint8_t* at = buffer.data + offset;
    pending_.push_back({earlier, now, &cta, &buffer, offset, std::vector<uint8_t>(at, at + bytes)});
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

// Bulk and tensor copies read through the async proxy (PTX ISA 8.5): cp.async does not.
void GlobalOrder::check_proxy(Cta& cta, const GlobalTouch& earlier, const GlobalTouch& now, const Knowledge* know,
                              const Buffer& buffer, uint64_t offset) {
  if (!know || !now.async || earlier.async || cta.program.kernel.inst[now.inst].op == OP_CP_ASYNC) return;
  const bool shown = earlier.unit == now.unit
                         ? know->shown.covers(earlier.component, earlier.time)
                         : know->foreign_shown && know->foreign_shown->covers(earlier.unit, earlier.component, earlier.time);
  if (shown) return;
  FindingRecord* f =
      cta.findings.add(cta, &cta.warps[now.warp], -1, "proxy.missing_fence", Severity::Warning, now.inst, earlier.inst);
  if (!f) return;
  f->address = buffer.base + offset;
  f->say("%s reads byte %llu of %s, which %s wrote at line {@%d} through the generic proxy, with no fence.proxy.async after the "
         "write",
         who(now).c_str(), static_cast<unsigned long long>(offset), buffer.name, who(earlier).c_str(), earlier.inst);
  f->party(0, who(now).c_str(), "reads %s", buffer.name);
  f->party(1, who(earlier).c_str(), "%s %s", verb(earlier), buffer.name);
  f->mend(
      "fence.proxy.async.global (or fence.proxy.async) in the writing threads before the flag is released, or in the thread that "
      "issues the copy after it was acquired.");
}

// ld.global.nc is for memory that is read-only for the whole launch (PTX ISA 9.7.9.9): its cache does not follow others'
// writes. Lines that are not allocated there are read from L2 in practice; DeepEP relies on it.
void GlobalOrder::check_read_only(Cta& cta, const GlobalTouch& earlier, const GlobalTouch& now, const Buffer& buffer,
                                  uint64_t offset) {
  const Inst& inst = cta.program.kernel.inst[now.inst];
  if (inst.op != OP_LD || !(inst.flags & F_NC)) return;
  const Severity severity = inst.flags & F_NO_ALLOCATE ? Severity::Note : Severity::Warning;
  FindingRecord* f = cta.findings.add(cta, &cta.warps[now.warp], -1, "global.not_read_only", severity, now.inst, earlier.inst);
  if (!f) return;
  f->address = buffer.base + offset;
  f->say("%s loads byte %llu of %s through the non-coherent cache (ld.global.nc), which %s %s in the same launch at line {@%d}",
         who(now).c_str(), static_cast<unsigned long long>(offset), buffer.name, who(earlier).c_str(), verb(earlier),
         earlier.inst);
  f->party(0, who(now).c_str(), "reads %s by ld.global.nc", buffer.name);
  f->party(1, who(earlier).c_str(), "%s %s", verb(earlier), buffer.name);
  f->mend(
      "Load what the launch writes with ld.global: no __ldg(), and no const __restrict__ pointer, of which the compiler makes "
      "ld.global.nc. That cache may hold what was there before, whatever the flag.");
}

void GlobalOrder::end_unit() {
  settle();
  if (!units_apart_) return;
  flags_.clear();  // another unit acquires nothing of this one
  flag_lines_.fill(0);
}

void GlobalOrder::settle() {
  if (pending_.empty()) return;
  std::vector<Pending> due;
  due.swap(pending_);
  const auto differs = [](const Pending& p) {
    const uint8_t* after = p.buffer->data + p.offset;
    for (size_t i = 0; i < p.before.size(); ++i)
      if (p.earlier.mask >> (p.offset + i) % 4 & 1 && p.before[i] != after[i]) return true;
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
         why == PRACTICE ? " but a flag that is not released and acquired"
         : why == COPY   ? " but a flag that may be released before the copy is over"
                         : "");
  f->party(0, who(now).c_str(), "%s %s", verb(now), buffer.name);
  f->party(1, who(earlier).c_str(), "%s %s", verb(earlier), buffer.name);
  f->mend("%s", why);
}
