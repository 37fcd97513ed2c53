// What a stream is asked to launch: collected into lists, and a list that comes again and again is launched as one
// graph. A pass of a model is hundreds of kernels of some microseconds; launched one by one, the host's time for each
// and the gap behind it are what lies between a small model and the memory's bandwidth.
//
// The engine knows nothing of it. A stream hands its list over before anything that is not a kernel, and when the list
// is long enough, so that the GPU begins while the host goes on. Two lists of the same kernels are taken for the same
// step of two passes where most of their arguments are equal: then only the calls that differ are set anew. All of that
// is decided here, once for GPUs and their emulation; what they do themselves stands behind Launcher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace longhaul::kernels::cuda {

struct Extent {
    unsigned x = 1, y = 1, z = 1;
    friend bool operator==(const Extent&, const Extent&) = default;
};

/// What kernels of the same parameters have in common.
struct KernelType {
    std::span<const std::size_t> offsets;  ///< of the parameters, among the bytes of a call
    std::size_t num_bytes = 0;
    void (*call)(const void* kernel, const std::byte* parameters) = nullptr;  ///< of the emulation: one thread of it
};

struct KernelCall {
    const void* kernel = nullptr;
    const KernelType* type = nullptr;
    Extent grid{}, block{};
    std::size_t shared_bytes = 0;
    bool beside = false;  ///< runs beside the call behind it: neither waits for the other, and what follows for both

    friend bool operator==(const KernelCall&, const KernelCall&) = default;
};

/// Throws std::logic_error where the smallest GPU that the kernels are for refuses the call.
void check_call(const KernelCall& call);

/// Calls in the order in which they were made, with their parameters.
class LaunchList {
  public:
    /// `parameters`: bytes as `call.type` lays them out, those between the parameters zeros.
    void add(const KernelCall& call, const std::byte* parameters);
    /// The last call stands alone: whatever comes next waits for it.
    void end_pair();
    /// Call i as in `list`, which calls the same kernel there.
    void set(std::size_t i, const LaunchList& list);
    void clear();

    [[nodiscard]] std::size_t size() const { return calls_.size(); }
    [[nodiscard]] bool empty() const { return calls_.empty(); }
    [[nodiscard]] const KernelCall& operator[](std::size_t i) const { return calls_[i]; }
    [[nodiscard]] const std::byte* parameters(std::size_t i) const { return bytes_.data() + first_bytes_[i]; }

    /// The calls that call i waits for, those before which are done with them: none, one or a pair.
    [[nodiscard]] std::vector<std::size_t> before(std::size_t i) const;
    /// Whether `other` calls the same kernels, at most `most` of them otherwise; `changed`: which.
    [[nodiscard]] bool turns_into(const LaunchList& other, std::size_t most, std::vector<std::size_t>& changed) const;

  private:
    std::vector<KernelCall> calls_;
    std::vector<std::size_t> first_bytes_;
    std::vector<std::byte> bytes_;
};

/// A list that the GPU keeps. Changes are for the launches to come.
class Graph {
  public:
    virtual ~Graph() = default;
    /// Call i is as in `list`: of the same kernel.
    virtual void set(std::size_t i, const LaunchList& list) = 0;
    virtual void launch() = 0;
};

/// Where the lists of one stream go.
class Launcher {
  public:
    virtual ~Launcher() = default;
    virtual void launch(const LaunchList& list) = 0;  ///< call by call
    /// Throws std::bad_alloc where the GPU has no memory for it.
    virtual std::unique_ptr<Graph> instantiate(const LaunchList& list) = 0;
};

/// When lists become graphs.
struct GraphPolicy {
    std::size_t min_calls = 8;    ///< shorter lists are launched call by call
    std::size_t max_calls = 64;   ///< of a list: the GPU begins while the host collects the next
    std::size_t change_part = 2;  ///< one in so many calls may differ from the graph's
    std::size_t max_lists = 128;  ///< that are remembered

    /// Every call at once and by itself.
    static constexpr GraphPolicy none() { return {.min_calls = SIZE_MAX, .max_calls = 1}; }
};

/// The lists that came last. One that comes for the second time becomes a graph: what comes once costs nothing.
class GraphCache {
  public:
    GraphCache(std::unique_ptr<Launcher> launcher, const GraphPolicy& policy)
        : launcher_(std::move(launcher)), policy_(policy) {}

    /// Launches the list, and takes it or leaves another in its place.
    void launch(LaunchList& list);

  private:
    struct Entry {
        LaunchList list;
        std::unique_ptr<Graph> graph;  ///< of `list`; nullptr: it came once
    };
    void launch_again(Entry& entry, LaunchList& list);

    std::unique_ptr<Launcher> launcher_;
    GraphPolicy policy_;
    std::list<Entry> entries_;  ///< the last one used is the first
    std::vector<std::size_t> changed_;
    bool full_ = false;  ///< the GPU had no memory for a graph: no more of them
};

/// The calls of one stream, from any thread.
class Launches {
  public:
    Launches(std::unique_ptr<Launcher> launcher, const GraphPolicy& policy)
        : cache_(std::move(launcher), policy), max_calls_(policy.max_calls) {}

    /// Behind all calls before, when the list is handed over; nothing for an empty grid. Throws as check_call.
    void add(const KernelCall& call, const std::byte* parameters);
    /// Hands over what was added so far. Throws what launching throws, and so does every call after it: what the list
    /// held is lost, and the thread that gave it may be another one.
    void flush();

  private:
    void hand_over();

    std::mutex mutex_;
    GraphCache cache_;
    std::size_t max_calls_;
    LaunchList list_;
    std::exception_ptr failure_;
};

}  // namespace longhaul::kernels::cuda
