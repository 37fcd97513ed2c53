// Launches lists of kernel calls on the GPU: call by call, with pairs on two streams, or as CUDA graphs.
//
// The contents of lists and graphs, and which call waits for which, are decided in launches.cpp, which the emulation
// also runs.
//
// An early call is a programmatic dependent launch, for which the kernel must have been compiled for sm_90 or later:
// others cannot wait for the kernel before, and start like any other.
#include <memory>
#include <set>
#include <vector>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/launches.hpp"

namespace longhaul::kernels::cuda {
namespace {

dim3 dimensions(const Extent& extent) {
    return {extent.x, extent.y, extent.z};
}

/// Pointers to the parameters of a call, in the form CUDA expects; `list` must outlive them.
std::vector<void*> arguments_of(const LaunchList& list, std::size_t i) {
    std::vector<void*> arguments;
    auto* const bytes = const_cast<std::byte*>(list.parameters(i));  // CUDA only reads them
    for (const std::size_t offset : list[i].type->offsets) arguments.push_back(bytes + offset);
    return arguments;
}

cudaKernelNodeParams node_of(const KernelCall& call, std::vector<void*>& arguments) {
    cudaKernelNodeParams node{};
    node.func = const_cast<void*>(call.kernel);
    node.gridDim = dimensions(call.grid);
    node.blockDim = dimensions(call.block);
    node.sharedMemBytes = static_cast<unsigned>(call.shared_bytes);
    node.kernelParams = arguments.data();
    return node;
}

struct Destroy {
    void operator()(cudaGraph_t graph) const { static_cast<void>(cudaGraphDestroy(graph)); }
    void operator()(cudaGraphExec_t graph) const { static_cast<void>(cudaGraphExecDestroy(graph)); }
    void operator()(cudaStream_t stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
    void operator()(cudaEvent_t event) const { static_cast<void>(cudaEventDestroy(event)); }
};

class CudaGraph final : public Graph {
  public:
    /// can_wait: kernels that may start early.
    CudaGraph(NativeStream stream, const LaunchList& list, const std::set<const void*>& can_wait) : stream_(stream) {
        cudaGraph_t graph{};
        check(cudaGraphCreate(&graph, 0));
        graph_.reset(graph);
        for (std::size_t i = 0; i < list.size(); ++i)
            add_node(list, i, list.starts_early(i) && can_wait.contains(list[i].kernel));
        cudaGraphExec_t executable{};
        check(cudaGraphInstantiate(&executable, graph, 0));
        executable_.reset(executable);
    }

    void set(std::size_t i, const LaunchList& list) override {
        std::vector<void*> arguments = arguments_of(list, i);
        const cudaKernelNodeParams node = node_of(list[i], arguments);
        check(cudaGraphExecKernelNodeSetParams(executable_.get(), nodes_[i], &node));
    }
    void launch() override { check(cudaGraphLaunch(executable_.get(), stream_)); }

  private:
    void add_node(const LaunchList& list, std::size_t i, bool is_early) {
        std::vector<cudaGraphNode_t> before;
        for (const std::size_t b : list.before(i)) before.push_back(nodes_[b]);
        std::vector<void*> arguments = arguments_of(list, i);
        const cudaKernelNodeParams node = node_of(list[i], arguments);
        cudaGraphNode_t added{};
        check(cudaGraphAddKernelNode(&added, graph_.get(), before.data(), is_early ? 0 : before.size(), &node));
        if (is_early) start_early(before.front(), added);
        nodes_.push_back(added);
    }
    void start_early(cudaGraphNode_t before, cudaGraphNode_t added) {
        cudaGraphEdgeData edge{};
        edge.from_port = cudaGraphKernelNodePortProgrammatic;
        edge.type = cudaGraphDependencyTypeProgrammatic;
#if CUDART_VERSION >= 13000
        check(cudaGraphAddDependencies(graph_.get(), &before, &added, &edge, 1));
#else
        check(cudaGraphAddDependencies_v2(graph_.get(), &before, &added, &edge, 1));
#endif
    }

    NativeStream stream_;
    std::unique_ptr<CUgraph_st, Destroy> graph_;  ///< its nodes identify those of the executable
    std::unique_ptr<CUgraphExec_st, Destroy> executable_;
    std::vector<cudaGraphNode_t> nodes_;
};

/// A second stream, which runs the first call of a pair.
class SideStream {
  public:
    SideStream() {
        cudaStream_t stream{};
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        stream_.reset(stream);
        forked_ = new_event();
        joined_ = new_event();
    }

    /// Returns the side stream; its next operations wait for all queued on `main` so far.
    cudaStream_t fork(cudaStream_t main) {
        check(cudaEventRecord(forked_.get(), main));
        check(cudaStreamWaitEvent(stream_.get(), forked_.get(), 0));
        return stream_.get();
    }
    /// The next operations on `main` wait for all queued on the side stream so far.
    void join(cudaStream_t main) {
        check(cudaEventRecord(joined_.get(), stream_.get()));
        check(cudaStreamWaitEvent(main, joined_.get(), 0));
    }

  private:
    using OwnEvent = std::unique_ptr<CUevent_st, Destroy>;
    static OwnEvent new_event() {
        cudaEvent_t event{};
        check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        return OwnEvent(event);
    }

    std::unique_ptr<CUstream_st, Destroy> stream_;
    OwnEvent forked_, joined_;
};

class CudaLauncher final : public Launcher {
  public:
    explicit CudaLauncher(NativeStream stream) : stream_(stream) {}

    void launch(const LaunchList& list) override {
        for (std::size_t i = 0; i < list.size(); ++i) {
            if (list[i].beside) {
                launch_call(list, i, side().fork(stream_));
            } else {
                launch_call(list, i, stream_);
            }
            const bool ends_pair = i > 0 && list[i - 1].beside;
            const bool has_no_partner = list[i].beside && i + 1 == list.size();
            if (ends_pair || has_no_partner) side().join(stream_);
        }
    }
    std::unique_ptr<Graph> instantiate(const LaunchList& list) override {
        return std::make_unique<CudaGraph>(stream_, list, can_wait_);  // launch() has already prepared its kernels
    }

  private:
    void launch_call(const LaunchList& list, std::size_t i, cudaStream_t stream) {
        const KernelCall& call = list[i];
        prepare(call);
        std::vector<void*> arguments = arguments_of(list, i);
        cudaLaunchAttribute early{};
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t config{};
        config.gridDim = dimensions(call.grid);
        config.blockDim = dimensions(call.block);
        config.dynamicSmemBytes = call.shared_bytes;
        config.stream = stream;
        config.attrs = &early;
        config.numAttrs = list.starts_early(i) && can_wait_.contains(call.kernel) ? 1 : 0;
        check(cudaLaunchKernelExC(&config, call.kernel, arguments.data()));
    }
    /// Allows the kernel more than 48 KB of shared memory. Done once, for the maximum that later launches can use.
    void prepare(const KernelCall& call) {
        const void* const kernel = call.kernel;
        if (prepared_.contains(kernel)) return;
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(max_shared_bytes(call))));
        prepared_.insert(kernel);
        cudaFuncAttributes attributes{};
        check(cudaFuncGetAttributes(&attributes, kernel));
        if (attributes.ptxVersion >= 90) can_wait_.insert(kernel);
    }
    SideStream& side() {
        if (side_ == nullptr) side_ = std::make_unique<SideStream>();
        return *side_;
    }

    NativeStream stream_;
    std::set<const void*> prepared_, can_wait_;  ///< can_wait_: kernels that may start early
    std::unique_ptr<SideStream> side_;
};

}  // namespace

std::unique_ptr<Launcher> make_launcher(NativeStream stream) {
    return std::make_unique<CudaLauncher>(stream);
}

}  // namespace longhaul::kernels::cuda
