// Every public call of the runtime and the driver that nothing else here defines: it ends the recording by its name,
// instead of an "undefined symbol" when the submission is loaded. This file sees no CUDA header, so that one plain
// signature serves all; weak, so that an implementation elsewhere takes its place.

#include <string>

#include "wire.hpp"

#define REFUSED(name)                                                                   \
    extern "C" __attribute__((weak)) int name() {                                       \
        recorder::fail("plan.refused_call", #name                                       \
                       ": the recorder does not support this call; a plan is made of "  \
                       "kernel launches, memsets, contiguous device copies and "        \
                       "constant uploads");                                              \
    }
#include "api_names.def"
#undef REFUSED
