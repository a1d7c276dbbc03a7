// The timed part of a call: operations on their streams, between two events.
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "prepared.hpp"
#include "session.hpp"

namespace executor {
namespace {

// The driver takes about a thousand commands before it waits for the GPU; so far ahead, the host leaves no gap.
constexpr std::size_t most_steps_held = 128;
constexpr std::size_t most_commands_held = 512;  // waits and records of events are commands, too

}  // namespace

void fill_range(CUdeviceptr start, std::uint64_t count, std::uint32_t value, std::uint32_t width, CUstream stream) {
    if (count == 0) return;
    switch (width) {
        case 1:
            check(driver().cuMemsetD8Async(start, static_cast<unsigned char>(value), count, stream),
                  "cuMemsetD8Async");
            return;
        case 2:
            check(driver().cuMemsetD16Async(start, static_cast<unsigned short>(value), count, stream),
                  "cuMemsetD16Async");
            return;
        case 4: check(driver().cuMemsetD32Async(start, value, count, stream), "cuMemsetD32Async"); return;
        default: throw Malformed("a fill of " + std::to_string(width) + " bytes");
    }
}

void Session::build_steps(const Plan& plan, Prepared& prepared) {
    std::map<std::uint32_t, std::size_t> step_of;  // by operation
    std::size_t events = 0;
    for (std::uint32_t index = 0; index < plan.operations.size(); ++index) {
        const Operation& operation = plan.operations[index];
        if (operation.setup) continue;
        Step step{};
        step.operation = &operation;
        step.index = static_cast<int>(index);
        step.stream = stream(operation.stream);
        step.programmatic = operation.programmatic;
        for (const std::uint32_t earlier : operation.after) {
            const auto found = step_of.find(earlier);
            if (found == step_of.end()) continue;  // over before the call begins
            CUevent& done = prepared.steps[found->second].done;
            if (done == nullptr) done = event(events++);
            step.waits.push_back(done);
        }
        if (operation.kind == Operation::Kind::launch) {
            for (const Blob& blob : operation.params) step.params.push_back(patched(blob, plan, prepared));
            for (Bytes& bytes : step.params) step.param_pointers.push_back(bytes.data());
        } else {
            step.target = address(plan, prepared, operation.target);
            if (operation.kind == Operation::Kind::copy) step.source = address(plan, prepared, operation.source);
            if (operation.kind == Operation::Kind::upload) step.source = prepared.staged[index];
        }
        step_of.emplace(index, prepared.steps.size());
        prepared.steps.push_back(std::move(step));
    }
    std::set<CUstream> side;
    for (const Step& step : prepared.steps)
        if (step.stream != main_ && side.insert(step.stream).second) prepared.side_streams.push_back(step.stream);
    if (side.empty()) return;
    prepared.forked = event(events++);
    for (std::size_t index = 0; index < prepared.side_streams.size(); ++index)
        prepared.joined.push_back(event(events++));
}

Called Session::run(const Call& call, Prepared& prepared) {
    if (call.profile) check(driver().profiler_start(), "cuProfilerStart");
    auto clock_start = std::chrono::steady_clock::now();
    {
        const Stage stage("launch");
        std::optional<Gate::Closed> gate;
        const auto open_gate = [&] {
            if (!gate) return;
            if (gate->holds()) clock_start = std::chrono::steady_clock::now();
            gate->open();
            gate.reset();
        };
        if (call.flush) {
            gate.emplace(*gate_, main_);
            fill_range(flush_->address(), flush_->size() / 4, 0, 4, main_);
        }
        check(driver().cuEventRecord(started_, main_), "cuEventRecord");
        enqueue(prepared, open_gate);
        check(driver().cuEventRecord(ended_, main_), "cuEventRecord");
        open_gate();
    }
    const Stage stage("run");
    check(driver().cuCtxSynchronize(), "cuCtxSynchronize");
    const std::chrono::duration<double, std::micro> wall = std::chrono::steady_clock::now() - clock_start;
    if (call.profile) check(driver().profiler_stop(), "cuProfilerStop");
    float milliseconds = 0;
    check(driver().event_elapsed_time(&milliseconds, started_, ended_), "cuEventElapsedTime");
    return {milliseconds * 1000.0, wall.count()};
}

void Session::enqueue(Prepared& prepared, const std::function<void()>& open_gate) {
    std::size_t held = 1 + prepared.side_streams.size();
    if (prepared.forked != nullptr) {
        check(driver().cuEventRecord(prepared.forked, main_), "cuEventRecord");
        for (const CUstream side : prepared.side_streams)
            check(driver().cuStreamWaitEvent(side, prepared.forked, CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent");
    }
    for (Step& step : prepared.steps) {
        held += step.waits.size() + 1 + (step.done != nullptr);
        if (&step == prepared.steps.data() + most_steps_held || held > most_commands_held) open_gate();
        const Stage stage("launch", step.index);
        const Operation& operation = *step.operation;
        for (const CUevent wait : step.waits)
            check(driver().cuStreamWaitEvent(step.stream, wait, CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent");
        switch (operation.kind) {
            case Operation::Kind::launch: launch(operation, step); break;
            case Operation::Kind::memset:
                fill_range(step.target, operation.size, operation.value, operation.width_bytes, step.stream);
                break;
            case Operation::Kind::copy:
            case Operation::Kind::upload: {
                const std::uint64_t size =
                    operation.kind == Operation::Kind::copy ? operation.size : operation.data.data.size();
                if (size > 0)
                    check(driver().cuMemcpyDtoDAsync(step.target, step.source, size, step.stream),
                          "cuMemcpyDtoDAsync");
                break;
            }
        }
        if (step.done != nullptr) check(driver().cuEventRecord(step.done, step.stream), "cuEventRecord");
    }
    for (std::size_t index = 0; index < prepared.side_streams.size(); ++index) {
        check(driver().cuEventRecord(prepared.joined[index], prepared.side_streams[index]), "cuEventRecord");
        check(driver().cuStreamWaitEvent(main_, prepared.joined[index], CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent");
    }
}

void Session::launch(const Operation& operation, Step& step) {
    CUlaunchAttribute attributes[3] = {};
    CUlaunchConfig config{};
    config.gridDimX = operation.grid[0];
    config.gridDimY = operation.grid[1];
    config.gridDimZ = operation.grid[2];
    config.blockDimX = operation.block[0];
    config.blockDimY = operation.block[1];
    config.blockDimZ = operation.block[2];
    config.sharedMemBytes = operation.dynamic_smem_bytes;
    config.hStream = step.stream;
    config.attrs = attributes;
    if (operation.cluster[0] != 0) {
        CUlaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim = {operation.cluster[0], operation.cluster[1], operation.cluster[2]};
    }
    if (operation.cooperative) {
        CUlaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        attribute.value.cooperative = 1;
    }
    if (step.programmatic) {
        CUlaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attribute.value.programmaticStreamSerializationAllowed = 1;
    }
    check(driver().cuLaunchKernelEx(&config, module_->function(operation.kernel), step.param_pointers.data(), nullptr),
          "cuLaunchKernelEx");
}

}  // namespace executor
