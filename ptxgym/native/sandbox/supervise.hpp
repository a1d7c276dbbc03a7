// Runs the command as a child and answers for the whole tree of its descendants.
#pragma once

#include "options.hpp"

namespace sandbox {

// Runs the command; writes one line to the status descriptor: `exited N`, `signalled N`, `timeout`, `abandoned`, each
// followed by CPU milliseconds and peak resident KiB, or `error TEXT` if the command was never executed.
// When it returns, no descendant is left.
int supervise(Options& options);

}  // namespace sandbox
