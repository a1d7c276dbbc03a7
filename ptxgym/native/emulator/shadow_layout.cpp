// Matrix descriptors that cannot mean what they say (PTX ISA 9.7.15.5.1.2), whatever the bytes hold.
#include "descriptor.hpp"
#include "shadow_state.hpp"

namespace {

// Whether two chunks of the operand are the same bytes.
bool overlaps(const Operand& operand) {
  std::vector<uint32_t> chunks(operand.chunks());
  for (uint32_t i = 0; i < operand.chunks(); ++i) chunks[i] = operand.chunk_address(i);
  std::sort(chunks.begin(), chunks.end());
  return std::adjacent_find(chunks.begin(), chunks.end()) != chunks.end();
}

}  // namespace

void ShadowState::check_layout(Warp& warp, int inst, const Operand& operand, const char* name, const Touch& reads) {
  const Descriptor& d = operand.descriptor;
  const bool mn_major = operand.mn_major;
  const uint64_t fields = uint64_t{d.leading_bytes >> 4} | uint64_t{d.stride_bytes >> 4} << 14 |
                          uint64_t{d.base_offset} << 28 | static_cast<uint64_t>(d.swizzle) << 31 |
                          uint64_t{operand.extent} << 34 | static_cast<uint64_t>(mn_major) << 43 |
                          uint64_t{operand.chunk_shift} << 44 |
                          uint64_t{d.start >> 4 & 63} << 47;  // phase of the pattern
  const bool new_fields = layouts_.insert(fields).second;
  if (new_fields && overlaps(operand)) {
    if (FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "descriptor.overlap", Severity::Warning, inst)) {
      f->say(
          "the descriptor of %s (leading offset %u, stride offset %u, %s, %s-major) makes different rows of the "
          "operand the same bytes",
          name, d.leading_bytes, d.stride_bytes, swizzle_name(d.swizzle), mn_major ? "MN" : "K");
      f->mend(
          "K-major: the stride offset is the distance of groups of 8 rows (1024 bytes in 128B swizzle), the leading "
          "offset that of the two "
          "8-column halves where nothing is swizzled.");
      describe_pair(*f, reads, std::string("reads ") + name + " through it", nobody(), "");
    }
    layouts_.erase(fields);
  }
  if (d.swizzle == Swizzle::None || !cta_.shared_ok(d.start, 1)) return;
  const Touch& writer = histories_.at(histories_.history_of_byte(d.start)).write;
  const uint32_t phase = ((d.start >> 7) - d.base_offset) & (swizzle_period_bytes(d.swizzle) / 128 - 1);
  if (phase && (writer.kind == Kind::Generic || writer.kind == Kind::CpAsync || writer.kind == Kind::TmaLoad)) {
    if (FindingRecord* f =
            cta_.findings.add(cta_, &warp, -1, "descriptor.swizzle_base", Severity::Note, inst, writer.inst)) {
      f->say(
          "%s starts at shared 0x%x, which is no multiple of %u bytes: the %s follows the bits of the address, so the "
          "tile begins with line %u of the pattern",
          name, d.start & ~127u, swizzle_period_bytes(d.swizzle), swizzle_name(d.swizzle), phase);
      f->mend("Align the tile to %u bytes, or swizzle by the address when it is written, not by the row of the tile.",
              swizzle_period_bytes(d.swizzle));
      describe_pair(*f, reads, std::string("reads ") + name, writer, "wrote the bytes");
    }
  }
  if (d.base_offset == 0 || writer.kind != Kind::TmaLoad) return;
  FindingRecord* f = cta_.findings.add(cta_, &warp, -1, "descriptor.base_offset", Severity::Warning, inst, writer.inst);
  if (!f) return;
  f->say(
      "the descriptor of %s has base offset %u, but the tensor copy that wrote shared 0x%x swizzles by address alone",
      name, d.base_offset, d.start);
  f->mend("Leave bits 49-51 of the descriptor 0 for tiles that tensor copies write.");
  describe_pair(*f, reads, std::string("reads ") + name, writer, "wrote the bytes");
}
