// Reads mapped files ahead of those who will touch them, in the order they will, so that a disk is asked for large
// pieces while processors work on what came before.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace longhaul::engine {

class ReadAhead {
  public:
    /// `ranges` of mapped files, in the order of their use.
    explicit ReadAhead(std::vector<std::span<const std::byte>> ranges);
    ReadAhead(const ReadAhead&) = delete;
    ReadAhead& operator=(const ReadAhead&) = delete;
    ~ReadAhead();

    /// So many bytes of the ranges are behind us. From any thread.
    void used(std::size_t num_bytes);

  private:
    void run();
    /// False: it is over.
    bool wait_for_room(std::size_t asked);

    std::vector<std::span<const std::byte>> ranges_;
    std::mutex mutex_;
    std::condition_variable moved_;
    std::size_t used_ = 0;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace longhaul::engine
