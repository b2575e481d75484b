// Kernels by name: PK_EXPORT registers one, the driver looks it up.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

namespace emu {

struct Kernel {
    const char *name;
    void (*call)(void **arguments);
    std::vector<size_t> parameter_bytes;
};

// Null if there is none of the name.
const Kernel *find_kernel(const char *name);

void register_kernel(Kernel kernel);

// Calls kernel F with arguments behind pointers, as cuLaunchKernel takes them.
template <auto F>
struct Caller;

template <class... P, void (*F)(P...)>
struct Caller<F> {
    // The arguments lie in the driver's memory, which the kernel's own accesses may not reach.
    template <size_t... I>
    __attribute__((no_sanitize("thread"))) static void spread(void **arguments, std::index_sequence<I...>) {
        F(*static_cast<std::remove_cv_t<std::remove_reference_t<P>> *>(arguments[I])...);
    }

    __attribute__((no_sanitize("thread"))) static void call(void **arguments) {
        spread(arguments, std::index_sequence_for<P...>{});
    }

    static Kernel kernel(const char *name) {
        return {name, call, {sizeof(P)...}};
    }
};

struct Registration {
    explicit Registration(Kernel kernel) {
        register_kernel(std::move(kernel));
    }
};

}  // namespace emu

#define PK_EXPORT(fn) static emu::Registration emu_registration_##fn(emu::Caller<&fn>::kernel(#fn));
