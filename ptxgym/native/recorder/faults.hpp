// Signals that host code can bring about, reported as what they mean.
#pragma once

namespace recorder {

void install_fault_handlers();

}  // namespace recorder
