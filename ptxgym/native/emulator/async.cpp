// Asynchronous operations: posted now, effective when the policy or a wait says so.
#include <algorithm>

#include "core.hpp"

namespace {
constexpr uint64_t NEVER = ~0ull;
constexpr uint64_t RANDOM_DELAY = 12;  // scheduler ticks, at most
}  // namespace

uint64_t AsyncEngine::post(Cta& cta, std::unique_ptr<AsyncOp> op, int queue) {
  const uint64_t ticket = next_ticket++;
  op->ticket = ticket;
  switch (cta.grid.policy) {
    case Policy::Eager:
      op->run(cta);
      cta.wake();
      return ticket;
    case Policy::Lazy: op->due = NEVER; break;
    case Policy::Random: op->due = cta.now + cta.random() % RANDOM_DELAY; break;
  }
  if (queue != UNORDERED)
    for (const Entry& entry : ops)
      if (entry.queue == queue) op->due = std::max(op->due, entry.op->due);
  ops.push_back({std::move(op), queue});
  return ticket;
}

bool AsyncEngine::pending(uint64_t ticket) const {
  return std::any_of(ops.begin(), ops.end(), [=](const Entry& entry) { return entry.op->ticket == ticket; });
}

void AsyncEngine::take(Cta& cta, size_t index) {
  std::unique_ptr<AsyncOp> op = std::move(ops[index].op);
  ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(index));
  op->run(cta);
  cta.wake();
}

void AsyncEngine::complete(Cta& cta, uint64_t ticket) {
  size_t at = 0;
  while (at < ops.size() && ops[at].op->ticket != ticket) ++at;
  if (at == ops.size()) return;
  const int queue = ops[at].queue;
  if (queue == UNORDERED) return take(cta, at);
  for (size_t i = 0; i < ops.size() && ops[i].op->ticket <= ticket;) {
    if (ops[i].queue == queue)
      take(cta, i);
    else
      ++i;
  }
}

bool AsyncEngine::pump(Cta& cta, uint64_t now) {
  bool ran = false;
  for (size_t i = 0; i < ops.size();) {
    if (ops[i].op->due <= now) {
      take(cta, i);
      ran = true;
    } else {
      ++i;
    }
  }
  return ran;
}

bool AsyncEngine::force(Cta& cta) {
  if (ops.empty()) return false;
  size_t best = 0;
  for (size_t i = 1; i < ops.size(); ++i)
    if (ops[i].op->due < ops[best].op->due) best = i;
  take(cta, best);
  return true;
}
