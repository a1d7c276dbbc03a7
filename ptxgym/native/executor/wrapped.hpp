// What the program does otherwise under a profiler or a sanitizer; asked for by variables of the environment.
#pragma once

namespace executor {

// PTXGYM_EXECUTOR_WARM_PROFILER: runs an empty kernel between cuProfilerStart and cuProfilerStop, since the first
// kernel that a profiler sees costs it a second. Its name, `ptxgym_warm_profiler`, stands in executor.py too.
void warm_profiler_if_asked();

// PTXGYM_EXECUTOR_UNFILLED: outputs and workspaces are left as they were allocated, so that a sanitizer can tell what
// nobody wrote.
bool leaves_unfilled();

// PTXGYM_EXECUTOR_EXACT: every buffer is an allocation of its own, of exactly its size, whose bounds a sanitizer knows.
bool allocates_exactly();

}  // namespace executor
