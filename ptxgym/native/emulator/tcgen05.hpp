// What the handlers of tcgen05 (PTX ISA 9.7.16) share.
//
// With .cta_group::2 an operation works on a pair: two CTAs whose %cluster_ctarank differs in the last bit (9.7.16.5.1).
// ptxas refuses kernels that mix both groups, so nothing here checks that.
#pragma once
#include "tcgen05_descriptor.hpp"
#include "tensor.hpp"
#include "tmem.hpp"
#include "wgmma_collective.hpp"

// Queues of AsyncEngine. mma, cp, shift and commit of a CTA take effect in the order of issue, st of one warp too.
constexpr int TCGEN05_QUEUE = 1 << 12;
inline int tmem_store_queue(const Warp& warp) { return 1 << 16 | warp.id; }

TensorMemory& tensor_memory(Cta&);

// .sync.aligned: all threads of the warp execute it (undefined where one has exited, 9.7.16.7.1, 9.7.16.8.3); false
// after a fault was recorded.
bool whole_warp(Cta&, Warp&, const Inst&, uint32_t mask, const char* name);
// The same 32-bit operand in all lanes; false after a fault was recorded.
bool uniform(Cta&, Warp&, const Inst&, int32_t reg, const char* name, uint32_t& value);

// The other CTA of the pair, or nullptr.
inline Cta* peer_of(const Cta& cta) {
  const bool there = cta.cluster && (cta.rank ^ 1) < cta.cluster->ctas.size();
  return there ? cta.cluster->ctas[cta.rank ^ 1] : nullptr;
}
bool has_peer(Cta&, Warp&, const Inst&, int lane, const char* name);  // false after a fault was recorded

// The CTAs whose tensor memory an mma, cp or shift touches: the own, or the even and the odd one of the pair.
struct CtaGroup {
  Cta* ctas[2];
  int count;  // 0 after a fault was recorded
};
// Also warns of a peer that may not have begun.
CtaGroup group_of(Cta&, Warp&, const Inst&, int lane, const char* name);

// An mma, cp or shift. Those that the threads of a CTA, or of a pair, hand over to each other by tcgen05.fence form one
// pipeline (9.7.16.6.3), so all run in the order of issue: what nothing orders, the shadow finds.
struct TensorOp : AsyncOp {
  CtaGroup group{};

  void run(Cta&) final;
  virtual void execute(Cta&) = 0;

 private:
  friend void issue(Cta&, std::unique_ptr<TensorOp>);
  Cta* peer = nullptr;
  uint64_t after = 0;  // ticket of what the peer issued last before
};
void issue(Cta&, std::unique_ptr<TensorOp>);
// As an operation of a pair executes: "the peer CTA should be active and should not have exited" (9.7.16.5, table 46).
void report_exited_peer(Cta&, const Warp& issuer, int inst, const char* name);

// Whether columns [column, column + columns) of the tensor memory of `owner` exist and are allocated; false after a
// fault was recorded.
bool columns_allocated(Cta& cta, Warp&, const Inst&, int lane, const char* what, Cta& owner, int column, int columns);

// Decodes a shared memory descriptor and checks what it says of itself; false after a fault was recorded.
// The 128B swizzle with atoms of 32 bytes is what MN-major operands of kind::tf32 need and other MN-major ones may not
// have (9.7.16.10.1). K-major ones may by table 54; as table 55 knows no such layout, they are not emulated.
enum class Atoms32 : uint8_t { Needed, Forbidden, NotEmulated };
bool sound_descriptor(Cta&, Warp&, const Inst&, int lane, uint64_t bits, const char* name, Atoms32,
                      TensorDescriptor&);
// Whether all bytes of an operand are shared memory of the CTA; false after a fault was recorded.
bool operand_inside(Cta&, Warp&, const Inst&, int lane, const OperandBytes&, const char* name);

// Reading cells of the tensor memory of `owner` that nothing has written.
void report_unwritten_cells(Cta& owner, const Warp& reader, int inst, int lane, int column, const char* name);

Handler bind_tcgen05_alloc(const Inst&);
Handler bind_tcgen05_mma(const Inst&);
Handler bind_tcgen05_copy(const Inst&);
Handler bind_tcgen05_commit(const Inst&);
