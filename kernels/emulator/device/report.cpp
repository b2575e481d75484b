#include "report.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>

namespace emu {

namespace {

constexpr size_t KEPT = 64;
constexpr char PREFIX[] = "emulator: ";
constexpr size_t PREFIX_BYTES = sizeof PREFIX - 1;

struct Log {
    std::mutex mutex;
    // Not on the stack, and not through stdio, which takes as much of it: a handler of signals may have 8 KiB.
    char line[2048];
    std::deque<std::string> lines;
    bool quiet = false;
};

// Never destroyed: a kernel may still run, and report, while the process ends.
Log &log() {
    static Log *log = new Log;
    return *log;
}

}  // namespace

void say(const char *format, ...) {
    std::lock_guard<std::mutex> lock(log().mutex);
    char *text = log().line + PREFIX_BYTES;
    size_t room = sizeof log().line - PREFIX_BYTES;
    va_list arguments;
    va_start(arguments, format);
    int wanted = vsnprintf(text, room, format, arguments);
    va_end(arguments);
    size_t length = wanted < 0 ? 0 : size_t(wanted) < room ? size_t(wanted) : room - 1;

    log().lines.emplace_back(text, length);
    if (log().lines.size() > KEPT) {
        log().lines.pop_front();
    }
    if (!log().quiet) {
        text[length] = '\n';
        memcpy(log().line, PREFIX, PREFIX_BYTES);
        ssize_t written = write(STDERR_FILENO, log().line, PREFIX_BYTES + length + 1);
        (void)written;
    }
}

std::string messages() {
    std::lock_guard<std::mutex> lock(log().mutex);
    std::string all;
    for (const std::string &line : log().lines) {
        all += line;
        all += '\n';
    }
    return all;
}

void forget_messages() {
    std::lock_guard<std::mutex> lock(log().mutex);
    log().lines.clear();
}

void set_quiet(bool quiet) {
    std::lock_guard<std::mutex> lock(log().mutex);
    log().quiet = quiet;
}

}  // namespace emu
