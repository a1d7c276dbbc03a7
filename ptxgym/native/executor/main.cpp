// The executor: replays the launch plans of one submission on one GPU, as `ptxgym.device.cuda.executor` asks it to.
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "printed.hpp"
#include "session.hpp"
#include "wire.hpp"
#include "wrapped.hpp"

namespace executor {
namespace {

void send_failure(Connection& connection, const DriverError& error, const std::string& printed) {
    Writer body;
    body.text(error.stage).number(static_cast<std::int32_t>(error.result)).text(error.name).text(error.call);
    connection.send(Answer::failed, body.number(static_cast<std::int32_t>(error.index)).text(printed));
}

void send_overrun(Connection& connection, const Overrun& overrun, const std::string& printed) {
    Writer body;
    body.number(overrun.buffer).number(static_cast<std::uint8_t>(overrun.place.before));
    connection.send(Answer::overrun, body.number(overrun.place.distance_bytes).text(printed));
}

void answer(Connection& connection, Session& session, Printed& printed, Frame& frame) {
    switch (frame.request) {
        case Request::begin: break;  // not within a submission
        case Request::load:
            session.load(read_job(frame.body));
            connection.send(Answer::done, Writer().number(static_cast<std::uint8_t>(session.reloads())));
            return;
        case Request::region: {
            const auto id = frame.body.number<std::uint32_t>();
            const auto kind = static_cast<Region::Kind>(frame.body.number<std::uint8_t>());
            const auto size = frame.body.number<std::uint64_t>();
            frame.body.end();
            if (frame.descriptor < 0) throw Malformed("a region without a descriptor");
            session.add_region(id, kind, size, frame.descriptor);
            connection.send(Answer::done, Writer().number(std::uint8_t{0}));
            return;
        }
        case Request::forget:
            session.forget_region(frame.body.number<std::uint32_t>());
            frame.body.end();
            connection.send(Answer::done, Writer().number(std::uint8_t{0}));
            return;
        case Request::call: {
            const Called called =
                session.call(read_call(frame.body), [&] { connection.send(Answer::launching, Writer()); });
            Writer body;
            body.number(called.time_us).number(called.wall_us).text(printed.text());
            connection.send(Answer::called, body);
            return;
        }
    }
    throw Malformed("a request of no known type");
}

// Serves one submission, in a context of its own; whether another one begins.
bool serve_one(Connection& connection, Printed& printed, Frame& frame) {
    if (frame.request != Request::begin) throw Malformed("a request before the one to begin");
    frame.body.end();
    Session session(printed);
    warm_profiler_if_asked();
    Writer body;
    body.number(static_cast<std::int32_t>(session.driver_version()))
        .number(static_cast<std::uint64_t>(session.l2_bytes()))
        .number(static_cast<std::uint8_t>(session.pageable_access()));
    connection.send(Answer::ready, body);
    while (connection.receive(frame)) {
        if (frame.request == Request::begin) return true;
        try {
            answer(connection, session, printed, frame);
        } catch (const DriverError& error) {
            send_failure(connection, error, printed.text());
        } catch (const Overrun& overrun) {
            send_overrun(connection, overrun, printed.text());
        }
    }
    return false;
}

void serve(Connection& connection, Printed& printed) {
    Frame frame{Request::load, Reader({}), -1};
    try {
        for (bool more = connection.receive(frame); more;) {
            more = serve_one(connection, printed, frame);
            if (more) Context::require_none();  // the next submission must not get the last one's
        }
    } catch (const DriverError& error) {
        send_failure(connection, error, "");
    }
}

int main(int count, char** arguments) {
    if (count != 3 || std::string(arguments[1]) != "--connect") {
        std::fprintf(stderr, "usage: executor --connect PATH\n");
        return 2;
    }
    Printed printed;
    try {
        Connection connection(arguments[2]);
        serve(connection, printed);
    } catch (const std::exception& error) {
        dprintf(printed.complaints(), "executor: %s\n", error.what());
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace executor

int main(int count, char** arguments) {
    return executor::main(count, arguments);
}
