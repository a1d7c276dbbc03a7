#include "streams.hpp"

#include "wire.hpp"

namespace recorder {
namespace {

// A device runs at most 128 grids at a time (CUDA programming guide, technical specifications: resident grids).
constexpr std::size_t stream_limit = 128;
constexpr std::size_t always_there = 3;
constexpr std::size_t event_limit = 4096, order_limit = 20000;

void check_count(std::size_t count, std::size_t limit, const char* what) {
    if (count >= limit) fail("plan.operation_limit", format("more than %zu %s in one call", limit, what));
}

// Begin a line that says something about order.
Line order_line(const char* event) {
    check_count(state().used.orders++, order_limit, "records of, waits for and synchronisations with events and streams");
    return Line(event);
}

}  // namespace

Stream* create_stream(unsigned flags, int priority) {
    State& now = state();
    check_count(always_there + now.used.streams++, stream_limit, "streams");
    now.streams.push_back({static_cast<int>(now.streams.size()), priority, flags});
    const Stream& made = now.streams.back();
    Line("stream").field("index", made.index).field("blocking", (flags & cudaStreamNonBlocking) == 0).send();
    now.live_streams.insert(&made);
    return &now.streams.back();
}

bool destroy_stream(const void* stream) {
    return stream != &state().streams[0] && state().live_streams.erase(stream) > 0;
}

Event* create_event(unsigned flags) {
    State& now = state();
    check_count(now.used.events++, event_limit, "events");
    now.events.push_back({static_cast<int>(now.events.size()), false, flags});
    now.live_events.insert(&now.events.back());
    return &now.events.back();
}

bool destroy_event(const void* event) { return state().live_events.erase(event) > 0; }

Event* find_event(const void* event) {
    return state().live_events.count(event) ? static_cast<Event*>(const_cast<void*>(event)) : nullptr;
}

void record_event(Event& event, int stream) {
    event.recorded = true;
    order_line("event_record").field("recorded", event.index).field("stream", stream).send();
}

void wait_for_event(int stream, const Event& event) {
    if (event.recorded) order_line("stream_wait").field("stream", stream).field("awaited", event.index).send();
}

void host_waits_for_stream(int stream) {
    order_line("host_wait").field("what", "stream").field("index", stream).send();
}

void host_waits_for_event(const Event& event) {
    if (event.recorded) order_line("host_wait").field("what", "event").field("index", event.index).send();
}

void host_waits_for_device() { order_line("host_wait").field("what", "device").field("index", 0).send(); }

}  // namespace recorder
