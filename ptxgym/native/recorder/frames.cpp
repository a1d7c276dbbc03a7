#include "frames.hpp"

#include <algorithm>

#include <link.h>
#include <unwind.h>

namespace recorder {
namespace {

constexpr int depth_limit = 64;

std::uint64_t library_base = 0, code_begin = 0, code_end = 0;
Frames next_launch;

struct Walk {
    Frames found;
    int depth = 0;
};

_Unwind_Reason_Code visit(_Unwind_Context* context, void* raw) {
    Walk& walk = *static_cast<Walk*>(raw);
    int interrupted = 0;
    std::uint64_t address = _Unwind_GetIPInfo(context, &interrupted);
    if (!interrupted) --address;  // a return address is behind its call, which may end a line
    if (address >= code_begin && address < code_end)
        walk.found.offsets[walk.found.count++] = address - library_base;
    const bool enough = walk.found.count == Frames::limit || ++walk.depth == depth_limit;
    return enough ? _URC_END_OF_STACK : _URC_NO_REASON;
}

int find_code(dl_phdr_info* info, std::size_t, void* raw) {
    const auto* map = static_cast<const link_map*>(raw);
    if (info->dlpi_addr != map->l_addr) return 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const auto& header = info->dlpi_phdr[i];
        if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
        const std::uint64_t begin = map->l_addr + header.p_vaddr;
        code_begin = code_begin == 0 ? begin : std::min(code_begin, begin);
        code_end = std::max(code_end, begin + header.p_memsz);
    }
    library_base = map->l_addr;
    return 1;
}

}  // namespace

void watch_library(void* handle) { dl_iterate_phdr(find_code, handle); }  // a handle of glibc is a link_map

Frames here() {
    if (next_launch.count > 0) return next_launch;
    Walk walk;
    if (code_end > 0) _Unwind_Backtrace(visit, &walk);
    return walk.found;
}

void place_next_launch(const Frames& frames) { next_launch = frames; }
void launch_is_placed() { next_launch.count = 0; }

}  // namespace recorder
