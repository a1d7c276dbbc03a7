// Findings of a CTA: one record per place and kind.
#include <cstdio>

#include "core.hpp"

namespace {
void print(char* to, size_t size, const char* format, va_list args) { std::vsnprintf(to, size, format, args); }
}  // namespace

void FindingRecord::say(const char* format, ...) {
  va_list args;
  va_start(args, format);
  print(message, sizeof message, format, args);
  va_end(args);
}

void FindingRecord::party(int index, const char* who_text, const char* format, ...) {
  std::snprintf(who[index], sizeof who[index], "%s", who_text);
  va_list args;
  va_start(args, format);
  print(did[index], sizeof did[index], format, args);
  va_end(args);
}

void FindingRecord::mend(const char* format, ...) {
  va_list args;
  va_start(args, format);
  print(remedy, sizeof remedy, format, args);
  va_end(args);
}

FindingRecord* FindingSink::add(const char* code, Severity severity, int inst, int other_inst) {
  const auto weight = static_cast<uint32_t>(severity);
  uint64_t before = 0;
  for (auto known = records.begin(); known != records.end(); ++known) {
    if (known->inst != inst || known->other_inst != other_inst || std::strcmp(known->code, code) != 0) continue;
    if (known->fatal || known->severity >= weight) {
      ++known->count;
      return nullptr;
    }
    before = known->count;
    records.erase(known);
    break;
  }
  if (records.size() >= limit && !displace(records, weight)) return nullptr;
  records.emplace_back();
  FindingRecord& record = records.back();
  std::memset(&record, 0, sizeof record);
  std::snprintf(record.code, sizeof record.code, "%s", code);
  record.severity = weight;
  record.inst = inst;
  record.other_inst = other_inst;
  record.warp = record.lane = -1;
  record.count = before + 1;
  return &record;
}

FindingRecord* FindingSink::add(Cta& cta, const Warp* warp, int lane, const char* code, Severity severity, int inst,
                                int other_inst) {
  FindingRecord* record = add(code, severity, inst, other_inst);
  if (record) {
    record->cta = cta.linear;
    record->warp = warp ? warp->id : -1;
    record->lane = lane;
  }
  return record;
}
