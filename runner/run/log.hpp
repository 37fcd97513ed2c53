// Log files of a launch: log/EPOCH.log (rank 0) and log/replica-R-EPOCH.log. Each line starts with the time. Best
// effort: a full disk must not end a run because of its log.
#pragma once

#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>

#include "runner/host/process.hpp"

namespace longhaul::runner {

class Log {
  public:
    explicit Log(std::filesystem::path path) : path_(std::move(path)) {}
    ~Log() {
        if (file_ != nullptr) std::fclose(file_);
    }
    Log(const Log&) = delete;
    Log& operator=(const Log&) = delete;

    /// From any thread. The file is created with its first line.
    void say(const std::string& line) {
        const std::lock_guard lock(mutex_);
        if (file_ == nullptr) file_ = std::fopen(path_.c_str(), "ae");
        if (file_ == nullptr) return;
        std::fprintf(file_, "%s %s\n", utc_now().c_str(), line.c_str());
        std::fflush(file_);
    }

    /// Says the line also on standard error, where the user reads it now.
    void tell(const std::string& line) {
        say(line);
        std::fprintf(stderr, "%s\n", line.c_str());
    }

  private:
    std::filesystem::path path_;
    std::mutex mutex_;
    std::FILE* file_ = nullptr;
};

}  // namespace longhaul::runner
