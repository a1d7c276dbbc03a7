// One submission in one context: what it was given, and its calls.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "gate.hpp"
#include "memory.hpp"
#include "module.hpp"
#include "plan.hpp"
#include "printed.hpp"
#include "residue.hpp"
#include "translations.hpp"

namespace executor {

struct Prepared;
struct Step;

struct Called {
    double time_us;  // between the events around the operations
    double wall_us;  // by this host's clock, from before the first command can begin to the end of the last
};

// Bytes beside a buffer that the candidate wrote.
struct Overrun {
    std::uint32_t buffer;
    PrivateBuffer::Overrun place;
};

// The device's primary context; with it goes whatever was made in it and not freed.
class Context {
public:
    Context();
    ~Context();
    // Throws where one is left.
    static void require_none();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    CUdevice device() const { return device_; }

private:
    CUdevice device_ = 0;
};

class Session {
public:
    explicit Session(Printed& printed);

    void load(Job job);
    void add_region(std::uint32_t id, Region::Kind kind, std::uint64_t size, int descriptor);
    void forget_region(std::uint32_t id) { regions_.erase(id); }
    // Runs a cold call, and says with `launching` when the first operation comes next; throws Overrun.
    Called call(const Call& call, const std::function<void()>& launching);

    bool reloads() const { return module_ && module_->reloads(); }
    int driver_version() const { return driver_version_; }
    int l2_bytes() const { return l2_bytes_; }
    bool pageable_access() const { return pageable_access_; }

private:
    void prepare(const Plan& plan, const Call& call, Prepared& prepared);
    void allocate(const Plan& plan, const Call& call, Prepared& prepared);
    void fill(const Plan& plan, const Call& call, Prepared& prepared);
    void upload(const Plan& plan, Prepared& prepared);
    void build_steps(const Plan& plan, Prepared& prepared);
    Called run(const Call& call, Prepared& prepared);
    void enqueue(Prepared& prepared, const std::function<void()>& open_gate);
    void launch(const Operation& operation, Step& step);
    void check_canaries(const Plan& plan, const Prepared& prepared);
    void collect(const Plan& plan, const Call& call, const Prepared& prepared);

    CUdeviceptr address(const Plan& plan, const Prepared& prepared, BufferRef ref) const;
    Bytes patched(const Blob& blob, const Plan& plan, const Prepared& prepared) const;
    const Region& region(std::uint32_t id) const;
    CUstream stream(std::uint32_t number);
    CUevent event(std::size_t number);

    Printed& printed_;
    Context context_;  // in front of all that lies in it
    CUdevice device_;
    int driver_version_ = 0;
    int l2_bytes_ = 0;
    bool pageable_access_ = false;
    std::unique_ptr<AddressSpace> space_;
    std::unique_ptr<SlotPool> pool_;
    std::unique_ptr<PrivateBuffer> flush_;  // stays: the flush before a timed call overwrites all of it
    std::unique_ptr<Gate> gate_;
    CUstream main_ = nullptr;
    CUevent started_ = nullptr, ended_ = nullptr;
    std::map<std::uint32_t, CUstream> streams_;
    std::vector<CUevent> events_;
    std::unique_ptr<Module> module_;
    std::unique_ptr<Residue> residue_;
    std::unique_ptr<Translations> translations_;
    std::vector<Plan> plans_;
    std::optional<std::uint32_t> last_plan_;
    std::map<std::uint32_t, std::unique_ptr<Region>> regions_;
};

}  // namespace executor
