#include "launch.h"

#include <cstdlib>

#include "../emulator/device/launch.h"

namespace {

// Without a driver nothing says what is the device's: all is, and the emulator checks alignment and races alone.
bool anything(const void *, size_t) {
    return true;
}

}  // namespace

bool test::launch_kernel(const char *name, int grid, int threads, size_t shared_bytes, void **arguments) {
    if (const char *seed = std::getenv("PK_ORDER")) {
        emu::order.seed = std::strtoull(seed, nullptr, 10);
    }
    emu::is_global = anything;
    emu::Launch launch = {};
    launch.kernel = emu::find_kernel(name);
    launch.grid.x = (unsigned)grid;
    launch.block.x = (unsigned)threads;
    launch.shared_bytes = shared_bytes;
    launch.arguments = arguments;
    return launch.kernel != nullptr && emu::run(launch) == emu::Outcome::Ok;
}
