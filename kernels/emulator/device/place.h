// Where in a kernel's source an instruction comes from.
#pragma once

#include <string>

namespace emu {

// "file:line" of an instruction of this library, with the places it was inlined into behind; found by the program
// addr2line. Without that, or without debug information, the offset in the library.
std::string place_of(const void *instruction);

}  // namespace emu
