// Streams and events, for the runtime and the driver alike. What orders operations is recorded beside them, in the order
// of the calls; which operation has to wait for which one is worked out from that by plan/order.py.
#pragma once

#include "state.hpp"

namespace recorder {

Stream* create_stream(unsigned flags, int priority);
// Work that was given to the stream goes on; the handle is none from here on.
bool destroy_stream(const void* stream);
Event* create_event(unsigned flags);
// Streams that were told to wait for the event still do.
bool destroy_event(const void* event);
// Return the event behind a handle, or nullptr.
Event* find_event(const void* event);

// The event stands for everything in `stream` up to here, whatever it stood for before.
void record_event(Event& event, int stream);
// What `stream` gets from here on waits for what `event` stands for; nothing where it was never recorded.
void wait_for_event(int stream, const Event& event);

// What host code does from here on comes after everything up to here in a stream, behind an event, or on the device.
// A query counts as waiting: it is answered with "done", so the plan must keep that true.
void host_waits_for_stream(int stream);
void host_waits_for_event(const Event& event);
void host_waits_for_device();

}  // namespace recorder
