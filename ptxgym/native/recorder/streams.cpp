#include "streams.hpp"

#include "wire.hpp"

namespace recorder {
namespace {

constexpr std::size_t handle_limit = 4096;

void check_count(std::size_t count, const char* what) {
    if (count >= handle_limit) fail("plan.operation_limit", format("more than %zu %s", handle_limit, what));
}

}  // namespace

Stream* create_stream(unsigned flags, int priority) {
    State& now = state();
    check_count(now.streams.size(), "streams");
    now.streams.push_back({static_cast<int>(now.streams.size()), priority, flags});
    now.live_streams.insert(&now.streams.back());
    return &now.streams.back();
}

bool destroy_stream(const void* stream) {
    return stream != &state().streams[0] && state().live_streams.erase(stream) > 0;
}

Event* create_event(unsigned flags) {
    State& now = state();
    check_count(now.events.size(), "events");
    now.events.push_back({false, flags});
    now.live_events.insert(&now.events.back());
    return &now.events.back();
}

bool destroy_event(const void* event) { return state().live_events.erase(event) > 0; }

Event* find_event(const void* event) {
    return state().live_events.count(event) ? static_cast<Event*>(const_cast<void*>(event)) : nullptr;
}

}  // namespace recorder
