// Driver calls by name.
#pragma once

namespace recorder {

// Return this program's implementation of a driver call, its newest version, or nullptr. A call that is refused has
// one too: it says so when it is called.
void* entry_point(const char* name);

}  // namespace recorder
