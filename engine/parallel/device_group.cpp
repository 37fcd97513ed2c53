#include "engine/parallel/device_group.hpp"

#include <exception>
#include <set>
#include <utility>

#include "engine/bytes.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

class NoSum final : public DeviceGroup {
  public:
    void all_reduce(float* /*data*/, std::int64_t /*count*/) override {}
};

/// For devices that compute in host memory.
class InPlace final : public DeviceGroup {
  public:
    explicit InPlace(Group& group) : group_(group) {}
    void all_reduce(float* data, std::int64_t count) override { group_.all_reduce(data, count); }

  private:
    Group& group_;
};

class OverHost final : public DeviceGroup {
  public:
    OverHost(kernels::Device& device, Group& group) : device_(device), group_(group) {}
    void all_reduce(float* data, std::int64_t count) override {
        const std::size_t num_bytes = static_cast<std::size_t>(count) * sizeof(float);
        if (staging_.num_bytes() < num_bytes) staging_ = kernels::Staging(device_, num_bytes);
        auto* bytes = reinterpret_cast<std::byte*>(data);
        device_.download(staging_.data(), bytes, num_bytes);
        group_.all_reduce(staging_.floats(), count);
        device_.upload(bytes, staging_.data(), num_bytes);
    }

  private:
    kernels::Device& device_;
    Group& group_;
    kernels::Staging staging_;
};

class Linked final : public DeviceGroup {
  public:
    explicit Linked(std::unique_ptr<kernels::DeviceLink> link) : link_(std::move(link)) {}
    void all_reduce(float* data, std::int64_t count) override { link_->all_reduce(data, count); }
    bool all_gather(const float* data, float* received, std::int64_t count) override {
        link_->all_gather(data, received, count);
        return true;
    }
    void finish() override { link_->finish(); }

  private:
    std::unique_ptr<kernels::DeviceLink> link_;
};

/// The id that all ranks pass to DeviceLinks::join. Empty on all ranks if some rank's device has no links or two ranks
/// share a device. Throws on the first rank if the id cannot be created or a rank lacks what links need. Collective.
std::vector<std::byte> agreed_id(kernels::Device& device, Group& group) {
    kernels::DeviceLinks* links = device.links();
    std::string address, lacking;
    try {
        if (links != nullptr) address = links->address();
    } catch (const std::exception& error) {
        lacking = error.what();  // do not throw yet: the other ranks wait in gather
    }
    ByteWriter mine;
    mine.put(address);
    mine.put(lacking);
    std::set<std::string> addresses;
    for (const std::vector<std::byte>& part : group.gather(mine.bytes())) {
        ByteReader reader(part);
        addresses.insert(reader.get_string());
        if (const std::string fault = reader.get_string(); lacking.empty()) lacking = fault;
    }
    std::vector<std::byte> id;
    std::exception_ptr failure;
    const bool linked = static_cast<int>(addresses.size()) == group.size() && !addresses.contains("");
    if (group.is_first() && (linked || !lacking.empty())) {
        try {
            if (!lacking.empty()) throw Error(lacking);
            id = links->new_id();
        } catch (const std::exception&) {
            failure = std::current_exception();  // do not throw yet: the other ranks wait in broadcast
        }
    }
    group.broadcast(id);
    if (failure) std::rethrow_exception(failure);
    return id;
}

/// Returns nullptr on all ranks if there are no links or a rank could not join; in the latter case `reason` says why.
/// Collective.
std::unique_ptr<kernels::DeviceLink> join(kernels::Device& device, Group& group, std::string& reason) {
    std::unique_ptr<kernels::DeviceLink> link;
    try {
        agree(group, [&] {
            try {
                const std::vector<std::byte> id = agreed_id(device, group);
                if (!id.empty()) link = device.links()->join(id, group.rank(), group.size());
            } catch (const std::exception& error) {
                throw Error(error.what());  // a reason to go another way, no failure of the run
            }
        });
    } catch (const Error& error) {
        link.reset();
        reason = error.what();
    }
    return link;
}

}  // namespace

std::unique_ptr<DeviceGroup> make_device_group(kernels::Device& device, Group& group, std::string& notice) {
    if (group.size() == 1) return std::make_unique<NoSum>();
    std::string reason;
    std::unique_ptr<kernels::DeviceLink> link = join(device, group, reason);
    if (link) return std::make_unique<Linked>(std::move(link));
    if (device.links() != nullptr && device.links()->sum_order() == kernels::SumOrder::library) {
        if (reason.empty()) reason = "two ranks on one GPU, or a rank without one";
        throw InputError("job", "all-reduce", "a GPU for each rank, connected by NCCL", reason,
                         "use all-reduce = ordered");
    }
    if (!reason.empty())
        notice = "tensor-parallel: sums go through host memory, as the devices could not be connected: " + reason;
    if (device.own_memory()) return std::make_unique<OverHost>(device, group);
    return std::make_unique<InPlace>(group);
}

}  // namespace longhaul::engine
