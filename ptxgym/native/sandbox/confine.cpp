// Limits, descriptors and capabilities.

#include "confine.hpp"

#include <cerrno>
#include <cstring>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace sandbox {

void fail(const std::string& what) { throw Failed{what + ": " + std::strerror(errno)}; }

void set_limits(const Options& options) {
    for (const auto& [resource, value] : options.limits) {
        rlimit now{};
        if (getrlimit(static_cast<__rlimit_resource_t>(resource), &now) != 0) fail("getrlimit");
        const rlim_t wanted = std::min<rlim_t>(value, now.rlim_max);
        rlimit limit{wanted, wanted};
        // SIGXCPU at the soft limit may be caught; the kernel kills at the hard one, a second later.
        if (resource == RLIMIT_CPU && wanted < now.rlim_max) limit.rlim_max = wanted + 1;
        if (setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) fail("setrlimit");
    }
}

void close_other_fds(const std::vector<int>& keep) {
    std::vector<int> kept(keep);
    std::sort(kept.begin(), kept.end());
    unsigned first = 3;
    const auto close_until = [](unsigned from, unsigned to) {  // closes [from, to)
        constexpr long sys_close_range = 436;
        if (from >= to || syscall(sys_close_range, from, to - 1, 0) == 0) return;
        const unsigned limit = static_cast<unsigned>(std::max(sysconf(_SC_OPEN_MAX), 1024L));
        for (unsigned fd = from; fd < std::min(to, std::min(limit, 65536U)); ++fd) close(static_cast<int>(fd));
    };
    for (int fd : kept) {
        if (fd < 3) continue;
        close_until(first, static_cast<unsigned>(fd));
        first = static_cast<unsigned>(fd) + 1;
    }
    close_until(first, ~0U);
}

void drop_capabilities() {
    for (int capability = 0; capability < 64; ++capability) {
        if (prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1) prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
    }
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    const __user_cap_data_struct none[2]{};
    if (syscall(SYS_capset, &header, none) != 0) fail("drop capabilities");
}

}  // namespace sandbox
