#include "engine/model/split.hpp"

#include "engine/error.hpp"

namespace longhaul::engine {

std::string Split::obstacle(const ModelConfig& config, std::int64_t size) {
    if (config.num_heads % size != 0) return std::to_string(config.num_heads) + " query heads do not divide by it";
    for (const LayerConfig& layer : config.layers) {
        const HeadShape heads = config.heads(layer);
        if (heads.num_kv_heads % size != 0 && size % heads.num_kv_heads != 0)
            return std::to_string(heads.num_kv_heads) + " KV heads neither divide by it nor divide it";
        const std::int64_t width = config.num_heads * heads.value_dim;
        if (size > 1 && width % 16 != 0)
            return "the heads' total width " + std::to_string(width) + " is not a multiple of 16";
    }
    if (config.linear.num_key_heads % size != 0)
        return std::to_string(config.linear.num_key_heads) + " key heads of linear attention do not divide by it";
    return "";
}

Split::Split(const ModelConfig& config, int group_rank, int group_size) : rank(group_rank), size(group_size) {
    if (const std::string why = obstacle(config, size); !why.empty())
        throw UsageError("tensor-parallel: expected a degree that splits the model, got " + std::to_string(size) +
                         ": " + why);
    num_heads = config.num_heads / size;
    first_head = rank * num_heads;
    num_kv_heads = std::max<std::int64_t>(config.num_kv_heads / size, 1);
    first_kv_head = rank * config.num_kv_heads / size;
    writes_kv = rank == 0 || (rank - 1) * config.num_kv_heads / size != first_kv_head;
    delta = config.linear.shape(size);
    padded_hidden = kernels::padded_inputs(config.hidden_size);
    intermediate = kernels::padded_inputs(config.intermediate_size) / size;
    expert_intermediate = kernels::padded_inputs(config.expert_intermediate_size) / size;
    shared_intermediate = kernels::padded_inputs(config.shared_intermediate_size) / size;
    vocab = (config.vocab_size + size - 1) / size;
}

}  // namespace longhaul::engine
