// What the checks of global memory must be told of an access, before the data moves: what it reads there, and where
// Cta::order is there, all of it.
#pragma once
#include "core.hpp"

struct Range {
  uint64_t address, bytes;
};

// Where the lanes of one instruction access a buffer, neighbours joined.
class Ranges {
 public:
  Ranges() = default;
  Ranges(uint64_t address, uint64_t bytes) { add(address, bytes); }
  void add(uint64_t address, uint64_t bytes) {
    ranges_[count_++] = {address, bytes};
    bytes_ += bytes;
  }

  const Range* begin() const { return ranges_; }
  const Range* end() const { return ranges_ + count_; }
  int count() const { return count_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Range ranges_[LANES];
  int count_ = 0;
  uint64_t bytes_ = 0;
};

// Warns of `what`, such as "copy", that reads bytes which nothing has written; whether it does.
bool note_unwritten(Cta&, Warp&, const Inst&, int lane, uint64_t address, uint64_t bytes, const char* what);

// An access of lanes to a buffer; one lane accesses `each` bytes.
void order_global(Cta&, Warp&, const Inst&, Buffer&, const Ranges&, uint64_t each, Access);
// The same for a bulk, tensor or asynchronous copy that `lane` issues, before the shadow learns that it begins. It reads
// global memory when it is issued, and writes it until its group is waited for.
void order_copy(Cta&, Warp&, const Inst&, int lane, uint64_t address, uint64_t bytes, Access);
