// Error types of the whole program, with messages written for users. There are two families: faults of users and of the
// environment (the types below, each with an exit code of the program), and programming errors (std::logic_error,
// assert). No input may cause the second kind.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace longhaul {

/// Exit codes of the program. Batch scripts act on them, so a code keeps its meaning; runner/README.md lists them.
enum class ExitCode : int { done = 0, error = 1, usage = 2, items_failed = 3, storage = 74, stopped = 75 };

/// What a std::bad_alloc means to a user.
inline constexpr const char* out_of_memory =
    "memory: expected enough for this job, got no more; lower batch or memory, or take a smaller model";

/// Base of every expected error: `what()` is the whole line after "error: ".
class Error : public std::runtime_error {
  public:
    explicit Error(const std::string& line, ExitCode code = ExitCode::error) : std::runtime_error(line), code_(code) {}
    [[nodiscard]] ExitCode exit_code() const noexcept { return code_; }

  private:
    ExitCode code_;
};

/// A file has invalid content: "FILE: FIELD: expected X, got Y", plus "; HINT" if there is one.
class InputError : public Error {
  public:
    InputError(std::string_view file, std::string_view field, std::string_view expected, std::string_view got,
               std::string_view fix = {})
        : Error(format(file, field, expected, got, fix)) {}

    static std::string format(std::string_view file, std::string_view field, std::string_view expected,
                              std::string_view got, std::string_view fix) {
        std::string line(file);
        if (!field.empty()) line.append(": ").append(field);
        line.append(": expected ").append(expected).append(", got ").append(got);
        if (!fix.empty()) line.append("; ").append(fix);
        return line;
    }
};

/// Invalid command line or job file, or a refused resume. Exit code 2.
class UsageError : public Error {
  public:
    explicit UsageError(const std::string& line) : Error(line, ExitCode::usage) {}
};

/// Storage is full or failing. Nothing durable was lost; the user can run again. Exit code 74.
class StorageError : public Error {
  public:
    explicit StorageError(const std::string& line) : Error(line, ExitCode::storage) {}
};

}  // namespace longhaul
