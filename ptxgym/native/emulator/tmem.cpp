// Allocation of tensor memory (PTX ISA 9.7.16.1.2, 9.7.16.7).
#include "tmem.hpp"
#include <algorithm>

TensorMemory::TensorMemory()
    : cells_(static_cast<size_t>(TMEM_LANES) * TMEM_COLUMNS, TMEM_POISON), written_(cells_.size(), 0) {}

int TensorMemory::allocate(int columns, int inst, int warp) {
  for (int first = 0; first + columns <= TMEM_COLUMNS; first += TMEM_UNIT) {
    const auto begin = owner_.begin() + first;
    if (std::any_of(begin, begin + columns, [](int owner) { return owner != 0; })) continue;
    allocations_.push_back({first, columns, inst, warp, true});
    std::fill(begin, begin + columns, static_cast<int>(allocations_.size()));
    for (int lane = 0; lane < TMEM_LANES; ++lane) {
      std::fill_n(&cells_[index(lane, first)], columns, TMEM_POISON);
      std::fill_n(&written_[index(lane, first)], columns, uint8_t{0});
    }
    return first;
  }
  return -1;
}

TensorMemory::Allocation* TensorMemory::allocation_at(int column) {
  const auto found = std::find_if(allocations_.begin(), allocations_.end(),
                                  [=](const Allocation& a) { return a.live && a.column == column; });
  return found == allocations_.end() ? nullptr : &*found;
}

void TensorMemory::release(Allocation& allocation) {
  allocation.live = false;
  std::fill_n(owner_.begin() + allocation.column, allocation.columns, 0);
}

int TensorMemory::unallocated(int column, int count) const {
  for (int at = column; at < column + count; ++at) {
    if (at >= TMEM_COLUMNS || !owner_[static_cast<size_t>(at)]) return at;
  }
  return -1;
}
