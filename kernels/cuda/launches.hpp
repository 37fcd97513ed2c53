// Collects the kernel launches of a stream into lists, and launches a list that recurs as one CUDA graph. A forward
// pass is hundreds of kernels of a few microseconds. Launched one by one, the host time per launch and the gap after
// each kernel keep a small model from reaching the memory bandwidth.
//
// The engine does not see this. A stream submits its list before any operation that is not a kernel, and when the list
// is long enough, so that the GPU starts while the host continues. Two lists of the same kernels are treated as the
// same step of two passes if most of their arguments are equal; then only the calls that differ are updated in the
// graph. These decisions are made here, in the same way for GPUs and their emulation; Launcher hides how each of them
// launches.
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

/// Common to all kernels with the same parameter types.
struct KernelType {
    std::span<const std::size_t> offsets;  ///< of the parameters, in the bytes of a call
    std::size_t num_bytes = 0;
    void (*call)(const void* kernel, const std::byte* parameters) = nullptr;  ///< emulation only: runs one thread
};

struct KernelCall {
    const void* kernel = nullptr;
    const KernelType* type = nullptr;
    Extent grid{}, block{};
    std::size_t shared_bytes = 0;
    bool beside = false;  ///< concurrent with the next call: neither waits for the other, and later calls wait for both
    Extent cluster{};     ///< blocks of a cluster, which run at the same time; more than one: sm_90 only
    bool early = false;   ///< may start before the previous call has ended, for whose end it then waits itself

    friend bool operator==(const KernelCall&, const KernelCall&) = default;
};

/// Max shared memory per block for calls of this kernel.
std::size_t max_shared_bytes(const KernelCall& call);
/// Throws std::logic_error if the smallest GPU for which the kernel is meant would refuse the call.
void check_call(const KernelCall& call);

/// Calls in the order in which they were added, with their parameters.
class LaunchList {
  public:
    /// `parameters`: bytes laid out as in `call.type`, with zeros between the parameters.
    void add(const KernelCall& call, const std::byte* parameters);
    /// Removes `beside` from the last call: the next call waits for it.
    void end_pair();
    /// Replaces call i by that of `list`, which has the same kernel.
    void set(std::size_t i, const LaunchList& list);
    void clear();

    [[nodiscard]] std::size_t size() const { return calls_.size(); }
    [[nodiscard]] bool empty() const { return calls_.empty(); }
    [[nodiscard]] const KernelCall& operator[](std::size_t i) const { return calls_[i]; }
    [[nodiscard]] const std::byte* parameters(std::size_t i) const { return bytes_.data() + first_bytes_[i]; }

    /// The calls that call i must wait for directly: none, one or a pair.
    [[nodiscard]] std::vector<std::size_t> before(std::size_t i) const;
    /// Whether call i may start before the call in front of it ends: not after a pair, and not as the first of a list,
    /// before which other operations may have written weights.
    [[nodiscard]] bool starts_early(std::size_t i) const { return calls_[i].early && before(i).size() == 1; }
    /// Whether `other` has the same kernels in the same order, and at most `most` of its calls differ (in grid, block
    /// or parameters); `changed`: the indices of those.
    [[nodiscard]] bool turns_into(const LaunchList& other, std::size_t most, std::vector<std::size_t>& changed) const;

  private:
    std::vector<KernelCall> calls_;
    std::vector<std::size_t> first_bytes_;
    std::vector<std::byte> bytes_;
};

/// An instantiated list. Changes affect later launches.
class Graph {
  public:
    virtual ~Graph() = default;
    /// Updates call i to that of `list`, which has the same kernel.
    virtual void set(std::size_t i, const LaunchList& list) = 0;
    virtual void launch() = 0;
};

/// Executes the lists of one stream.
class Launcher {
  public:
    virtual ~Launcher() = default;
    virtual void launch(const LaunchList& list) = 0;  ///< call by call
    /// Throws std::bad_alloc if the GPU has no memory for the graph.
    virtual std::unique_ptr<Graph> instantiate(const LaunchList& list) = 0;
};

/// When lists become graphs.
struct GraphPolicy {
    std::size_t min_calls = 3;   ///< shorter lists are launched call by call; between two all-reduces there are 4 calls
    std::size_t max_calls = 64;  ///< per list: the GPU starts while the host collects the next list
    std::size_t change_part = 2;         ///< at most 1 / change_part of the calls may differ from the graph
    std::size_t max_lists = 256;         ///< lists remembered, with a graph or without one
    std::size_t max_graph_calls = 8192;  ///< in all graphs, which are in the memory of the GPU

    /// Launches every call immediately and individually.
    static constexpr GraphPolicy none() { return {.min_calls = SIZE_MAX, .max_calls = 1}; }
};

/// Recently launched lists. A list becomes a graph when it is launched for the second time, so that no graph is made
/// for a list that does not recur. If there are too many graphs, it must have been launched more often than the one it
/// replaces: token trees that change their shape at every step then keep the graphs of the most frequent shapes,
/// instead of making graphs that are dropped before they are used again.
class GraphCache {
  public:
    GraphCache(std::unique_ptr<Launcher> launcher, const GraphPolicy& policy)
        : launcher_(std::move(launcher)), policy_(policy) {}

    /// Launches the list; leaves its contents unspecified.
    void launch(LaunchList& list);

  private:
    struct Entry;
    using Place = std::list<Entry>::iterator;
    struct Entry {
        LaunchList list;
        std::unique_ptr<Graph> graph;  ///< of `list`; nullptr: launched call by call so far
        std::size_t launches = 1;      ///< halved from time to time, so that old ones count less
        Place next;                    ///< what was launched after it the last time; end(): unknown
    };
    /// The entry that turns into the list, and in `changed_` how; end(): none.
    Place find(const LaunchList& list);
    void remember(LaunchList& list);
    void count_launch(Entry& entry);
    /// Drops the graphs of lists launched less often than this one, until there is room for its graph.
    bool make_room(const Entry& entry);
    void drop_graph(Entry& entry);
    void launch_graph(Entry& entry, LaunchList& list);

    std::unique_ptr<Launcher> launcher_;
    GraphPolicy policy_;
    std::list<Entry> entries_;      ///< most recently used first
    Place last_ = entries_.end();   ///< the list launched last, if it is remembered
    std::size_t graph_calls_ = 0;   ///< in all graphs
    std::size_t num_launches_ = 0;  ///< since the counts were halved
    std::vector<std::size_t> changed_;
    bool full_ = false;  ///< the GPU had no memory for a graph: no more graphs are made
};

/// The calls of one stream. Thread-safe.
class Launches {
  public:
    Launches(std::unique_ptr<Launcher> launcher, const GraphPolicy& policy)
        : cache_(std::move(launcher), policy), max_calls_(policy.max_calls) {}

    /// Appends a call; does nothing for an empty grid. Throws like check_call.
    void add(const KernelCall& call, const std::byte* parameters);
    /// Submits the calls added so far. If launching throws, this call and all later ones throw the same exception: the
    /// calls of the list are lost, and another thread may have added them.
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
