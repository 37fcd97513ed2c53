#include "engine/step_header.hpp"

#include "engine/bytes.hpp"

namespace longhaul::engine {
namespace {

void put_admission(ByteWriter& writer, const Admission& a) {
    writer.put(a.item.index);
    writer.put(a.item.id);
    writer.put(a.item.sample);
    writer.put(a.item.checkpoint_key);
    writer.put(a.item.prompt);
    writer.put(a.item.max_tokens);
    writer.put(a.item.known_tokens);
    writer.put(a.put_back);
    writer.put(a.restored);
    writer.put(a.output);
    writer.put(a.kv_tokens);
    writer.put(a.last_commit);
    writer.put(a.statistics);
    writer.put(static_cast<std::uint64_t>(a.drafter.size()));
    for (const DrafterState& state : a.drafter) {
        writer.put(state.kind);
        writer.put(state.row_width);
        writer.put(state.rows);
    }
}

Admission get_admission(ByteReader& reader) {
    Admission a;
    a.item.index = reader.get<std::int64_t>();
    a.item.id = reader.get_string();
    a.item.sample = reader.get<std::int64_t>();
    a.item.checkpoint_key = reader.get_string();
    a.item.prompt = reader.get_vector<std::int32_t>();
    a.item.max_tokens = reader.get<std::int64_t>();
    a.item.known_tokens = reader.get<std::int64_t>();
    a.put_back = reader.get<bool>();
    a.restored = reader.get<bool>();
    a.output = reader.get_vector<std::int32_t>();
    a.kv_tokens = reader.get<std::int64_t>();
    a.last_commit = reader.get_string();
    a.statistics = reader.get_string();
    const auto num_states = reader.get<std::uint64_t>();
    for (std::uint64_t i = 0; i < num_states; ++i) {
        DrafterState state;
        state.kind = reader.get_string();
        state.row_width = reader.get<std::int64_t>();
        state.rows = reader.get_vector<std::int32_t>();
        a.drafter.push_back(std::move(state));
    }
    return a;
}

}  // namespace

void share_header(Group& group, StepHeader& header) {
    if (group.size() == 1) return;
    ByteWriter writer;
    if (group.is_first()) {
        writer.put(header.kind);
        writer.put(header.min_probability);
        writer.put(header.begin_round);
        writer.put(header.store_kv);
        writer.put(header.poll_round);
        writer.put(header.wait);
        writer.put(header.put_back);
        writer.put(header.give_up);
        writer.put(static_cast<std::uint64_t>(header.admissions.size()));
        for (const Admission& admission : header.admissions) put_admission(writer, admission);
    }
    group.broadcast(writer.bytes());
    if (group.is_first()) return;
    ByteReader reader(writer.bytes());
    header.kind = reader.get<StepHeader::Kind>();
    header.min_probability = reader.get<double>();
    header.begin_round = reader.get<bool>();
    header.store_kv = reader.get<bool>();
    header.poll_round = reader.get<bool>();
    header.wait = reader.get<bool>();
    header.put_back = reader.get_vector<std::int64_t>();
    header.give_up = reader.get_vector<std::int64_t>();
    const auto num_admissions = reader.get<std::uint64_t>();
    for (std::uint64_t i = 0; i < num_admissions; ++i) header.admissions.push_back(get_admission(reader));
}

}  // namespace longhaul::engine
