// Messages of the emulator: to standard error, and kept so that a test can read them.
#pragma once

#include <string>

namespace emu {

// Adds a message, printf-style. The last 64 are kept.
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

// The messages kept, one a line, oldest first.
std::string messages();

void forget_messages();

// With `quiet`, messages are only kept.
void set_quiet(bool quiet);

}  // namespace emu
