// Control flow, clocks, printf and assert (PTX ISA 9.7.12, 9.7.19 and 10).
#include <algorithm>
#include <cctype>

#include "lanes.hpp"

namespace {

constexpr size_t PRINT_LIMIT = 64 * 1024;  // bytes of one CTA
constexpr size_t STRING_LIMIT = 4096;
constexpr const char* PRINT_CUT = "\n[printf output cut here]\n";
constexpr uint64_t CLOCK_READ_CYCLES = 16;
constexpr uint64_t GLOBALTIMER_START_NS = 1'700'000'000'000'000'000ull;

Step branch(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  if (mask == w.group) {
    w.next_pc = inst.target;
    return Step::Jump;
  }
  for_lanes(w.group, [&](int l) { w.pc[l] = (mask >> l & 1) ? inst.target : w.cur + 1; });
  return Step::Split;
}
Step branch_indexed(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* index = w.reg<uint32_t>(inst.a);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int l = first_lane(rest);
    if (index[l] >= static_cast<uint32_t>(inst.nvec))
      return cta.fault(w, inst, l, "control.bad_index", "brx.idx with index %u of a table of %d targets", index[l],
                       inst.nvec);
  }
  for_lanes(w.group, [&](int l) { w.pc[l] = (mask >> l & 1) ? cta.pool(inst.vec)[index[l]] : w.cur + 1; });
  return Step::Split;
}
Step leave(Cta&, Warp&, const Inst&, uint32_t) { return Step::Exit; }
Step trap(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  // What cooperative groups execute where there is no memory for the barrier.
  const bool alone = cta.program.grid_barrier && !cta.grid.workspace;
  return cta.fault(w, inst, first_lane(mask), "kernel.trap", "the kernel executed `trap`%s",
                   alone ? ": its grid-wide barrier needs a cooperative launch (cudaLaunchCooperativeKernel)" : "");
}
Step breakpoint(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  return cta.fault(w, inst, first_lane(mask), "kernel.breakpoint", "the kernel executed `brkpt`");
}
Step nothing(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  if (inst.d < 0) return Step::Next;
  if (inst.type == T_U64 || inst.type == T_S64)
    write_lanes(w.reg<uint64_t>(inst.d), mask, [](int) { return uint64_t{0}; });
  else
    write_lanes(w.reg<uint32_t>(inst.d), mask, [](int) { return 0u; });
  return Step::Next;
}

// ---- time: one virtual clock per CTA, in cycles and nanoseconds alike. It advances with instructions, reads and
// sleeps.

uint64_t cycles(const Cta& cta) { return cta.clock + cta.warp_instructions; }

Step sleep(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<uint32_t>(inst.a);
  uint32_t longest = 0;
  for_lanes(mask, [&](int l) { longest = std::max(longest, a[l]); });
  cta.clock += longest;
  ++w.polls;
  return Step::Next;
}
Step read_clock(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  cta.clock += CLOCK_READ_CYCLES;
  ++w.polls;
  uint64_t value = cycles(cta);
  switch (inst.imm) {
    case SR_CLOCK_HI: value >>= 32; break;
    case SR_GLOBALTIMER:
    case SR_GLOBALTIMER_LO: value += GLOBALTIMER_START_NS; break;
    case SR_GLOBALTIMER_HI: value = (value + GLOBALTIMER_START_NS) >> 32; break;
    default: break;
  }
  if (inst.type == T_U64 || inst.type == T_S64)
    write_lanes(w.reg<uint64_t>(inst.d), mask, [=](int) { return value; });
  else
    write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int) { return static_cast<uint32_t>(value); });
  return Step::Next;
}

// ---- printf and assert

// Bytes at a generic address as one lane sees them; nullptr where they are not inside one object.
const uint8_t* generic_bytes(Cta& cta, Warp& w, int lane, uint64_t address, uint64_t bytes) {
  if (address >= SHARED_WINDOW && address < LOCAL_WINDOW)
    return cta.shared_ok(cta.own(address), bytes) ? cta.shared(static_cast<uint32_t>(cta.own(address))) : nullptr;
  if (address >= LOCAL_WINDOW && address < PARAM_WINDOW) {
    const uint64_t size = static_cast<uint64_t>(cta.program.kernel.local_bytes), at = address - LOCAL_WINDOW;
    if (bytes > size || at > size - bytes) return nullptr;
    return cta.local.data() + (static_cast<uint64_t>(w.id) * LANES + static_cast<uint64_t>(lane)) * size + at;
  }
  return cta.global(address, bytes, Access::Read);
}
// A zero-terminated string; false where it does not end inside readable memory.
bool read_string(Cta& cta, Warp& w, int lane, uint64_t address, std::string& out) {
  out.clear();
  for (uint64_t i = 0; i < STRING_LIMIT; ++i) {
    const uint8_t* byte = generic_bytes(cta, w, lane, address + i, 1);
    if (!byte) return false;
    if (!*byte) return true;
    out.push_back(static_cast<char>(*byte));
  }
  return true;
}

struct Arguments {  // of one lane's vprintf: values at their natural alignment
  Cta& cta;
  Warp& w;
  int lane;
  uint64_t address, used = 0;
  bool ok = true;
  uint64_t next(uint64_t bytes) {
    used = (used + bytes - 1) / bytes * bytes;
    const uint8_t* at = generic_bytes(cta, w, lane, address + used, bytes);
    used += bytes;
    uint64_t value = 0;
    if (at)
      std::memcpy(&value, at, bytes);
    else
      ok = false;
    return value;
  }
};

template <class... Values>
void append(std::string& out, const std::string& spec, Values... values) {
  char text[STRING_LIMIT + 512];
  std::snprintf(text, sizeof text, spec.c_str(), values...);
  out += text;
}

// Formats like the device's printf: flags, width (also *), precision, lengths h, l, ll and the conversions of C.
std::string formatted(const std::string& format, Arguments& arguments, int& count) {
  std::string out;
  count = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out.push_back(format[i]);
      continue;
    }
    if (i + 1 < format.size() && format[i + 1] == '%') {
      out.push_back('%');
      ++i;
      continue;
    }
    std::string spec = "%";
    size_t at = i + 1;
    int longs = 0;
    const auto number = [&] {
      int value = 0;
      if (at < format.size() && format[at] == '*') {
        value = static_cast<int32_t>(arguments.next(4));
        ++count;
        ++at;
        if (value < 0) spec.push_back('-'), value = -value;
      } else {
        while (at < format.size() && std::isdigit(static_cast<unsigned char>(format[at])))
          value = std::min(value * 10 + (format[at++] - '0'), 100000);
      }
      spec += std::to_string(std::min(value, 512));
    };
    while (at < format.size() && std::strchr("-+ #0", format[at])) spec.push_back(format[at++]);
    if (at < format.size() && (format[at] == '*' || std::isdigit(static_cast<unsigned char>(format[at])))) number();
    if (at < format.size() && format[at] == '.') {
      spec.push_back(format[at++]);
      number();
    }
    while (at < format.size() && std::strchr("hlLqjzt", format[at])) {
      if (format[at] == 'l') ++longs;
      if (format[at] == 'z' || format[at] == 'j' || format[at] == 't' || format[at] == 'q') longs = 2;
      ++at;
    }
    const char conversion = at < format.size() ? format[at] : '\0';
    const uint64_t bytes = longs ? 8 : 4;  // long is 64 bits wide on the device too
    switch (conversion) {
      case 'd':
      case 'i':
        append(out, spec + "lld",
               bytes == 8 ? static_cast<long long>(arguments.next(8))
                          : static_cast<long long>(static_cast<int32_t>(arguments.next(4))));
        break;
      case 'u':
      case 'o':
      case 'x':
      case 'X': append(out, spec + "ll" + conversion, static_cast<unsigned long long>(arguments.next(bytes))); break;
      case 'c': append(out, spec + "c", static_cast<int>(arguments.next(4))); break;
      case 'p': append(out, spec + "p", reinterpret_cast<void*>(arguments.next(8))); break;
      case 's': {
        std::string text;
        if (!read_string(arguments.cta, arguments.w, arguments.lane, arguments.next(8), text)) arguments.ok = false;
        append(out, spec + "s", text.c_str());
        break;
      }
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
      case 'a':
      case 'A': append(out, spec + conversion, bits_as<double>(arguments.next(8))); break;
      default:  // not a conversion: printed as it stands
        out += format.substr(i, at - i + 1);
        i = at;
        continue;
    }
    ++count;
    i = at;
  }
  return out;
}

Step print(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int l = first_lane(rest);
    std::string format;
    if (!read_string(cta, w, l, w.reg<uint64_t>(inst.a)[l], format))
      return cta.fault(w, inst, l, "printf.bad_format", "printf with a format string outside every object");
    Arguments arguments{cta, w, l, inst.b >= 0 ? w.reg<uint64_t>(inst.b)[l] : 0};
    int count = 0;
    const std::string text = formatted(format, arguments, count);
    if (!arguments.ok)
      return cta.fault(w, inst, l, "printf.bad_argument", "printf of \"%s\" with an argument outside every object",
                       format.c_str());
    if (inst.d >= 0) w.reg<uint32_t>(inst.d)[l] = static_cast<uint32_t>(count);
    if (cta.printed.size() < PRINT_LIMIT) {
      cta.printed += text;
      if (cta.printed.size() >= PRINT_LIMIT) {
        cta.printed.resize(PRINT_LIMIT - std::strlen(PRINT_CUT));
        cta.printed += PRINT_CUT;
      }
    }
  }
  return Step::Next;
}

Step assert_failed(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int l = first_lane(mask);
  const int32_t* arguments = cta.pool(inst.vec);
  std::string message, file, function;
  read_string(cta, w, l, w.reg<uint64_t>(arguments[0])[l], message);
  read_string(cta, w, l, w.reg<uint64_t>(arguments[1])[l], file);
  read_string(cta, w, l, w.reg<uint64_t>(arguments[3])[l], function);
  const size_t slash = file.rfind('/');
  if (slash != std::string::npos) file.erase(0, slash + 1);
  return cta.fault(w, inst, l, "kernel.assert", "assertion `%.160s` failed at %.60s:%u in %.60s", message.c_str(),
                   file.c_str(), w.reg<uint32_t>(arguments[2])[l], function.c_str());
}

}  // namespace

Handler bind_control(const Inst& inst) {
  switch (inst.op) {
    case OP_BRA: return branch;
    case OP_BRX: return branch_indexed;
    case OP_EXIT: return leave;
    case OP_TRAP: return trap;
    case OP_BRKPT: return breakpoint;
    case OP_NOP: return nothing;
    case OP_NANOSLEEP: return sleep;
    case OP_MOV_SREG: return read_clock;
    case OP_PRINTF: return print;
    case OP_ASSERTFAIL: return assert_failed;
    default: return nullptr;
  }
}
