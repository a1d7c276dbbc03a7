// Streams and events, for the runtime and the driver alike. Operations are recorded in the order of their calls, which
// satisfies every order that events could ask for; so events need no record of their own.
#pragma once

#include "state.hpp"

namespace recorder {

Stream* create_stream(unsigned flags, int priority);
bool destroy_stream(const void* stream);
Event* create_event(unsigned flags);
bool destroy_event(const void* event);
// Return the event behind a handle, or nullptr.
Event* find_event(const void* event);

}  // namespace recorder
