#include "wire.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace executor {
namespace {

struct Prefix {
    std::uint64_t body_bytes;
    std::uint32_t type;
    std::uint32_t descriptors;
};
constexpr std::uint64_t max_body_bytes = std::uint64_t{1} << 30;

constexpr std::chrono::seconds grace{10};
constexpr std::chrono::milliseconds glance{10};

// Whether the candidate's kernels may be running: `launching` was sent, and no answer since.
std::atomic<bool> kernels_run{false};

// When the other side goes, this process goes too: at once while kernels run, which may never end, and which the device
// lock that went with the other side no longer keeps apart from others' timed calls. Else it has some time for an end in
// good order, which a profiler around this process needs.
void leave_on_hangup(int socket) {
    pollfd watched{socket, POLLRDHUP, 0};
    while (poll(&watched, 1, -1) < 0 && errno == EINTR) {}
    const auto deadline = std::chrono::steady_clock::now() + grace;
    while (!kernels_run && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(glance);
    _exit(0);
}

}  // namespace

Connection::Connection(const std::string& path) : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) throw Malformed("the path of the socket is too long");
    std::memcpy(address.sun_path, path.data(), path.size());
    if (socket_ < 0 || connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0)
        throw Malformed("cannot connect to " + path + ": " + std::strerror(errno));
    std::thread(leave_on_hangup, socket_).detach();
}

bool Connection::receive(Frame& frame) {
    Prefix prefix;
    frame.descriptor = -1;
    if (!read_all(reinterpret_cast<unsigned char*>(&prefix), sizeof prefix, &frame.descriptor)) return false;
    if (prefix.body_bytes > max_body_bytes || prefix.descriptors > 1 ||
        (prefix.descriptors == 1) != (frame.descriptor >= 0))
        throw Malformed("a frame announces something else than it brings");
    std::vector<unsigned char> body(prefix.body_bytes);
    if (!read_all(body.data(), body.size(), nullptr)) return false;
    frame.request = static_cast<Request>(prefix.type);
    frame.body = Reader(std::move(body));
    return true;
}

bool Connection::read_all(unsigned char* target, std::size_t size, int* descriptor) {
    while (size > 0) {
        iovec part{target, size};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        const ssize_t got = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        for (cmsghdr* part_of = CMSG_FIRSTHDR(&message); part_of != nullptr; part_of = CMSG_NXTHDR(&message, part_of)) {
            if (part_of->cmsg_level != SOL_SOCKET || part_of->cmsg_type != SCM_RIGHTS) continue;
            int received;
            std::memcpy(&received, CMSG_DATA(part_of), sizeof received);
            if (descriptor != nullptr && *descriptor < 0) *descriptor = received;
            else close(received);
        }
        target += got;
        size -= static_cast<std::size_t>(got);
    }
    return true;
}

void Connection::send(Answer answer, const Writer& body) {
    kernels_run = answer == Answer::launching;
    const Prefix prefix{body.bytes().size(), static_cast<std::uint32_t>(answer), 0};
    const auto* start = reinterpret_cast<const unsigned char*>(&prefix);
    std::vector<unsigned char> all(start, start + sizeof prefix);
    all.insert(all.end(), body.bytes().begin(), body.bytes().end());
    for (std::size_t sent = 0; sent < all.size();) {
        const ssize_t done = ::send(socket_, all.data() + sent, all.size() - sent, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) _exit(0);
        sent += static_cast<std::size_t>(done);
    }
}

}  // namespace executor
