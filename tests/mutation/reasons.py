"""Why mutants survive, in words that stand in docs/mutation.md."""

from __future__ import annotations

TWO_FENCES = (
    "After mbarrier.init stand fence.mbarrier_init and fence.proxy.async; either makes the barriers visible to the "
    "async proxy, so one of them alone is enough."
)
LEADING = (
    "The leading offset of a K-major operand with a swizzle is not used: the two 8-column halves lie inside one "
    "swizzle span (PTX ISA 9.7.15.5.1.2, strides)."
)
LATE_EXPECT = (
    "The copy may be issued before expect_tx: the phase cannot complete before this arrival, which is its only one, "
    "and a tx-count may be negative in between (PTX ISA 9.7.13.15.5)."
)
SPARE = (
    "The kernel rounds its base up to 1024 bytes and reserves 1024 more for it; dynamic shared memory begins at a "
    "multiple of 1024 already, so the spare bytes are not used."
)
READER_FENCE = (
    "Every thread executes the fence after the barrier instead of before it, the one that issues the store too: a "
    "proxy fence may stand anywhere on the path from the write to the copy (PTX ISA 8.9.5)."
)
TURNS = (
    "The last turn is taken only so that no arrival is left at the named barrier when the CTA ends: no value depends "
    "on who multiplies first, and nothing comes after it."
)
REGISTER_FENCE = (
    "What stands between is arithmetic on registers, which a note names; the compiler may move it past the fence "
    "anyway, and ptxas puts the missing WARPGROUP.ARRIVE where it sees such a use (it warns: C7519)."
)
LATER_SLOT = (
    "Consumers release slots in the order of the ring, so that a slot is free where its next one is. The site fills "
    "even slots alone (an item takes an even number of them), never the last one, which has no next."
)
READ_BEFORE = (
    "tcgen05.wait has completed loads and stores, and the arrival or barrier after it releases what came before: the "
    "standard memory model applies to tcgen05, too (PTX ISA 9.7.16.6.3). The fence is for relaxed arrivals."
)
FENCED_AGAIN = (
    "A fence after another wait stands between this one and the thread's next asynchronous operation on tensor memory; "
    "tcgen05.dealloc is none (PTX ISA 9.7.16.6.1), so that barriers order it."
)
SHARED_ONLY = (
    "The wait is for operands in shared memory, which mbarriers order; what tensor memory needs, the fence at the "
    "beginning of the tile has ordered, and products of one thread follow each other."
)
ONE_CTA = (
    "Giving up the right to allocate is for CTAs that wait for columns on the same SM; this kernel takes all columns "
    "and almost all shared memory, so that there is none."
)
STATISTICS = (
    "Whoever multiplies waits for the same phase before the product whose commit is waited for next: what it has seen "
    "is handed on with the commit (causality order, PTX ISA 8.9.3)."
)
REGISTERS_ONLY = (
    "What stands between uses the registers, whose true dependency needs no wait (PTX ISA 9.7.16.6.4.5); another wait "
    "stands before the cells are written again, freed or handed on."
)
STORED_BACK = (
    "The cells are written again with what is made of the registers that the load fills: a true dependency, which puts "
    "the load first (PTX ISA 9.7.16.6.4.5)."
)
NEXT_WAIT = "The wait after the next load covers this one, too, and nothing uses the registers in between."
RELAXED = (
    "What is handed over here lies in tensor memory alone, with tcgen05.fence before the arrival and after the wait: "
    "the patterns of PTX ISA 9.7.16.6.4 have relaxed arrivals and waits themselves. What lies in shared memory, "
    "another barrier orders."
)
LAST_WAIT = "Nothing comes after it in this thread but the last barrier of the CTA."
WIDER = (
    "The product is wider than it need be: the columns beyond its own are written again before anything reads them, or "
    "never read. Products of one thread follow each other (a note says that sums are lost)."
)
LATER_COMMIT = (
    "The next barrier is that of the product issued after this one by the same thread, and a commit covers all that "
    "came before it (PTX ISA 9.7.16.11.2): a longer wait, which depends on nothing that comes after it."
)
VALUES_LATER = (
    "The next slot holds the values of the same step, which the multiplier releases after the keys: a longer wait, "
    "which depends on nothing that comes after it."
)
KEYS_LATER = (
    "The wait has moved behind the product with values, and still stands before those with the keys that it is for."
)
COMMIT_BEFORE = (
    "The same thread commits to the ring's barriers after this one, and those are still waited for. That its two "
    "arrivals come in this order, and the first not after the end of the CTA, no document says."
)
REMOTE_ARRIVAL = (
    "Tensor memory is ordered by its fences. But a relaxed arrival does not say that what the odd CTA signalled to the "
    "even one's shared memory has come before that CTA ends (PTX ISA 9.7.13.3); no document says what happens then."
)
LANES = (
    "A real fault wherever lanes of a warp drift apart: what other lanes did is not ordered before one lane's arrival. "
    "The emulator executes a warp in step, and orders warps, not lanes."
)
SECOND_SIDE = (
    "In the turn after the last only the second side has a product, since a causal first side ends a tile earlier: the "
    "wait has moved behind a product that is left out, and still stands before the one that is done."
)
LATER_ARRIVAL = (
    "The barrier after it is complete when the same warps are done with the other half of the same block: a longer "
    "wait for the same warps, which need nothing that comes after it."
)
NOTHING_READ = (
    "A warp that skips a block has read nothing of the slot since the arrival of the round before, which orders what "
    "it read then: this arrival has nothing to hand on."
)
ONE_COUNTER = "All CTAs count at the other address, which is zero as well: another counter, and as good as the first."
LAST_ARRIVAL = (
    "A real fault: the barrier lets CTAs go on that miss one arrival. It shows where the CTA that is not waited for is "
    "the one whose data are used, which is a matter of the schedule: of three none has it so."
)
CLUSTER_BARRIER = (
    "The cluster's barrier releases and acquires, which makes the initialisation visible to threads; the fence is for "
    "relaxed arrivals and for the async proxy, and nothing is copied here."
)
INIT_FENCE = (
    "fence.mbarrier_init.release.cluster stands before it: with a relaxed arrival it makes the initialisation visible "
    "to the cluster (PTX ISA 9.7.13.4), and nothing else is handed over."
)
