// Holds a stream back until all of a timed call is enqueued, so that no gap of the host lies between its events.
#pragma once

#include <cstdint>

#include "driver.hpp"

namespace executor {

class Gate {
public:
    explicit Gate(CUdevice device);

    // While it lives, what is enqueued on the stream behind it waits.
    class Closed {
    public:
        Closed(Gate& gate, CUstream stream);
        ~Closed() { open(); }
        Closed(const Closed&) = delete;
        Closed& operator=(const Closed&) = delete;

        // Lets the stream go on; does nothing the second time.
        void open();

        // Whether the stream waits at all; where it cannot, the GPU begins with what is enqueued first.
        bool holds() const { return gate_.works_; }

    private:
        Gate& gate_;
    };

private:
    bool works_;
    std::uint32_t* flag_ = nullptr;  // host memory that the GPU reads
    CUdeviceptr address_ = 0;
    std::uint32_t number_ = 0;  // of the last call
};

}  // namespace executor
