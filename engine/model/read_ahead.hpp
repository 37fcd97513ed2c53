// Prefetches mapped files in a background thread, in the order in which they will be read, so that the disk gets large
// requests while processors pack earlier weights. Used by FolderSource (tensor_source.hpp).
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
    /// Starts prefetching `ranges` of mapped files, in the order of their use.
    explicit ReadAhead(std::vector<std::span<const std::byte>> ranges);
    ReadAhead(const ReadAhead&) = delete;
    ReadAhead& operator=(const ReadAhead&) = delete;
    ~ReadAhead();

    /// Reports that `num_bytes` more bytes of the ranges have been used; moves the prefetch window. Thread-safe.
    void used(std::size_t num_bytes);

  private:
    void run();
    /// Waits until less than a window of data is prefetched but unused. Returns false if the object is being destroyed.
    bool wait_for_room(std::size_t asked);

    std::vector<std::span<const std::byte>> ranges_;
    std::mutex mutex_;
    std::condition_variable moved_;
    std::size_t used_ = 0;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace longhaul::engine
