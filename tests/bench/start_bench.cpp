// Question: how long is it from a model's files to the first token? Weights are packed from the files, or mapped from
// packed files; the files are on disk only (cold) or in the page cache (warm). Plain reading of them is the comparison.
// Build: cmake --build build --target start_bench
// Command: start_bench MODEL [THREADS, 2] [FOLDER for packed files, the system's temporary one]
// Answer: seconds to the loaded model and to its first token, GB/s of the files, peak resident memory; medians of
// three.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
#include "kernels/host_memory.hpp"

namespace longhaul {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_from(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<fs::path> files_in(const fs::path& folder, const char* extension) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
        if (entry.path().extension() == extension) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
}

/// Removes files from the page cache, unless another process has them mapped.
void forget(const std::vector<fs::path>& files) {
    for (const fs::path& file : files) {
        const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ::fsync(fd);
        ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        ::close(fd);
    }
}

/// Reads the files sequentially, like `cat`; returns the number of bytes.
std::int64_t read_all(const std::vector<fs::path>& files) {
    std::vector<char> buffer(std::size_t{1} << 20);
    std::int64_t bytes = 0;
    for (const fs::path& file : files) {
        const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) throw Error(file.string() + ": expected a readable file");
        for (ssize_t got = 0; (got = ::read(fd, buffer.data(), buffer.size())) > 0;) bytes += got;
        ::close(fd);
    }
    return bytes;
}

/// Maximum resident memory since the last call, in bytes; 0 if the system does not report it.
std::int64_t take_peak_resident_bytes() {
    std::int64_t kilobytes = 0;
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
        if (word == "VmHWM:" && status >> kilobytes) break;
    }
    std::ofstream("/proc/self/clear_refs") << "5\n";
    return kilobytes * 1024;
}

/// Makes the system provide this much free memory beforehand: a virtual machine returns free memory to its host, and
/// needs seconds to get gigabytes back.
void preallocate_memory(std::int64_t bytes) {
    const std::size_t num_bytes = bytes;
    std::byte* const memory = kernels::allocate_host(num_bytes);
    for (std::size_t i = 0; i < num_bytes; i += 4096) *static_cast<volatile std::byte*>(memory + i) = std::byte{1};
    kernels::release_host(memory, num_bytes);
}

/// A temporary folder, deleted with the object.
class TemporaryFolder {
  public:
    explicit TemporaryFolder(const fs::path& parent)
        : path_(parent / ("longhaul-bench-" + std::to_string(::getpid()))) {
        fs::create_directories(path_);
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    [[nodiscard]] const fs::path& path() const { return path_; }

  private:
    fs::path path_;
};

void first_token(engine::Model& model) {
    engine::KvPool pool(model.device(), model.kv_layouts(), std::int64_t{1} << 40);
    engine::KvSequence kv(pool);
    kv.reserve(1);
    engine::ForwardRow row = engine::text_row(0, 0);
    row.wants_logits = true;
    const engine::KvView view = kv.view();
    model.forward({.rows = std::span(&row, 1), .sequences = std::span(&view, 1)});
}

struct Start {
    double loaded = 0, token = 0;  ///< seconds
    std::int64_t peak_bytes = 0;
};

Start start(const fs::path& folder, kernels::Device& device, const fs::path& packed) {
    const auto group = engine::make_local_group();
    take_peak_resident_bytes();
    const Clock::time_point begin = Clock::now();
    const auto model = engine::Model::load(folder, engine::Precision::bf16, device, *group, {}, packed);
    Start result;
    result.loaded = seconds_from(begin);
    first_token(*model);
    result.token = seconds_from(begin);
    result.peak_bytes = take_peak_resident_bytes();
    return result;
}

/// Measures all cases; they are named as in the table.
class StartBench {
  public:
    StartBench(fs::path model, int threads, const fs::path& packed)
        : model_(std::move(model)),
          device_(kernels::make_cpu_device(kernels::available_cpu_variants().back(), threads)),
          packed_(packed),
          files_(files_in(model_, ".safetensors")) {}

    void run() {
        bytes_ = read_all(files_);  // warms the page cache, too
        time("pack, warm", {});
        starts_["pack, and write"].push_back(start(model_, *device_, packed_.path()));
        constexpr int rounds = 3;
        for (int i = 0; i < rounds; ++i) round();
        std::printf("%-16s %9s %9s %9s %9s\n", "start", "loaded s", "token s", "GB/s", "peak GB");
        for (const char* name : {"read, cold", "pack, cold", "mapped, cold", "read, warm", "pack, warm",
                                 "pack, and write", "mapped, warm"}) {
            print_line(name);
        }
    }

  private:
    void round() {
        forget(files_);
        read("read, cold");
        read("read, warm");
        time("pack, warm", {});
        forget(files_);
        time("pack, cold", {});
        forget(files_in(packed_.path(), ".packed"));
        time("mapped, cold", packed_.path());
        time("mapped, warm", packed_.path());
    }
    void read(const std::string& name) {
        const Clock::time_point begin = Clock::now();
        read_all(files_);
        const double seconds = seconds_from(begin);
        starts_[name].push_back({seconds, seconds, 0});
    }
    void time(const std::string& name, const fs::path& packed) {
        if (packed.empty()) preallocate_memory(bytes_);
        starts_[name].push_back(start(model_, *device_, packed));
    }

    /// Medians. GB/s is relative to the bytes of the model's files.
    void print_line(const std::string& name) const {
        const auto median = [&](auto Start::*field) {
            std::vector<double> values;
            for (const Start& one : starts_.at(name)) values.push_back(static_cast<double>(one.*field));
            std::sort(values.begin(), values.end());
            return values[values.size() / 2];
        };
        const double seconds = median(&Start::loaded);
        std::printf("%-16s %9.2f %9.2f %9.2f %9.2f\n", name.c_str(), seconds, median(&Start::token),
                    1e-9 * static_cast<double>(bytes_) / seconds, 1e-9 * median(&Start::peak_bytes));
    }

    fs::path model_;
    std::unique_ptr<kernels::Device> device_;
    TemporaryFolder packed_;
    std::vector<fs::path> files_;
    std::int64_t bytes_ = 0;
    std::map<std::string, std::vector<Start>> starts_;
};

}  // namespace

}  // namespace longhaul

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: start_bench MODEL [THREADS] [FOLDER]\n");
        return 2;
    }
    const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
    const std::filesystem::path packed = argc > 3 ? argv[3] : std::filesystem::temp_directory_path().string();
    longhaul::StartBench(argv[1], threads, packed).run();
}
