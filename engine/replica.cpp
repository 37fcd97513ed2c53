#include "engine/replica.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <thread>

#include "engine/bytes.hpp"
#include "engine/checkpoint/rounds.hpp"
#include "engine/draft/drafter.hpp"
#include "engine/error.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/model.hpp"
#include "engine/sampling/pipeline.hpp"
#include "engine/sequence.hpp"
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Output tokens for which pages are reserved at admission, so that a sequence does not run out at once.
constexpr std::int64_t reserved_output = 256;

/// An item as every rank admits it: the runner's, and what checkpoints hold of it.
struct Admission {
    WorkItem item;
    bool put_back = false;  // waits in this replica already
    bool restored = false;
    std::vector<std::int32_t> output;
    std::int64_t kv_tokens = 0;
    std::string last_commit, statistics;
    std::vector<DrafterState> drafter;
};

/// What the first rank decides for a step.
struct StepHeader {
    enum class Kind : std::uint8_t { step, stop, finish };
    Kind kind = Kind::step;
    bool begin_round = false, store_kv = false, poll_round = false;
    bool wait = false;                   // no forward pass: memory that a checkpoint still reads has to come back first
    std::vector<std::int64_t> put_back;  // sequence numbers, youngest first
    std::vector<std::int64_t> give_up;   // sequence numbers that cannot fit even alone
    std::vector<Admission> admissions;
};

void put_admission(ByteWriter& writer, const Admission& a) {
    writer.put(a.item.index);
    writer.put(a.item.id);
    writer.put(a.item.sample);
    writer.put(a.item.checkpoint_key);
    writer.put(a.item.prompt);
    writer.put(a.item.max_tokens);
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

void share_header(Group& group, StepHeader& header) {
    if (group.size() == 1) return;
    ByteWriter writer;
    if (group.is_first()) {
        writer.put(header.kind);
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
    header.begin_round = reader.get<bool>();
    header.store_kv = reader.get<bool>();
    header.poll_round = reader.get<bool>();
    header.wait = reader.get<bool>();
    header.put_back = reader.get_vector<std::int64_t>();
    header.give_up = reader.get_vector<std::int64_t>();
    const auto num_admissions = reader.get<std::uint64_t>();
    for (std::uint64_t i = 0; i < num_admissions; ++i) header.admissions.push_back(get_admission(reader));
}

/// Rows of one decoding sequence within a step's forward pass.
struct DecodeSlice {
    Sequence* sequence = nullptr;
    TokenTree tree;
    std::int64_t first_logits = 0;       // row of the root's logits; node i follows at + i
    std::optional<FinishReason> reason;  // set when this step ended the item
};

}  // namespace

struct Replica::State {
    State(Model& on_model, Group& of_group, const Tokenizer& with_tokenizer, ReplicaOptions with_options,
          ReplicaHooks with_hooks)
        : model(on_model),
          group(of_group),
          tokenizer(with_tokenizer),
          options(std::move(with_options)),
          hooks(std::move(with_hooks)),
          drafter(make_drafter(options.draft, options.sampling)),
          pipeline(options.sampling, model.config().vocab_size),
          // The first rank decides about memory for all; the others follow it and may be a page behind with giving
          // back.
          pool(model.device(), model.kv_layout(),
               group.is_first() ? options.kv_memory_bytes : std::numeric_limits<std::int64_t>::max()),
          rounds(options.checkpoint, model, group) {}

    Model& model;
    Group& group;
    const Tokenizer& tokenizer;
    ReplicaOptions options;
    ReplicaHooks hooks;
    std::unique_ptr<Drafter> drafter;
    CoupledVerifier verifier;
    LogitsPipeline pipeline;
    PagePool pool;
    CheckpointRounds rounds;

    std::vector<std::unique_ptr<Sequence>> in_flight;  // in order of admission
    std::deque<std::unique_ptr<Sequence>> waiting;     // put back for want of memory; the same on every rank
    std::optional<Admission> next;                     // first rank: taken from the counter, not admitted yet
    bool work_left = true;                             // first rank
    std::int64_t admitted = 0;
    ReplicaProgress progress;
    ReplicaOutcome outcome;

    std::vector<ForwardRow> rows;
    std::vector<KvSequence*> kv_sequences;
    std::vector<DecodeSlice> slices;

    // --- the first rank's decisions
    // -----------------------------------------------------------------------------------
    StepHeader plan();
    void plan_memory(StepHeader& header);
    void plan_admissions(StepHeader& header);
    [[nodiscard]] std::int64_t pages_wanted(const Sequence& sequence) const;
    [[nodiscard]] static std::int64_t pages_held(const Sequence& sequence);
    [[nodiscard]] std::int64_t free_pages() const;
    void refuse_next(const std::string& error);
    [[nodiscard]] std::string memory_error(std::int64_t num_tokens) const;
    bool take_next();

    // --- what every rank does
    // -----------------------------------------------------------------------------------------
    void apply(StepHeader& header);
    void admit(Admission& admission);
    void restore_kv(Sequence& sequence, std::int64_t kv_tokens);
    void put_back(std::int64_t number);
    void step();
    void add_decode_rows(Sequence& sequence);
    std::int64_t add_prefill_rows();
    void accept(DecodeSlice& slice, std::span<const float> logits);
    bool append(Sequence& sequence, std::int32_t token, std::optional<FinishReason>& reason);
    void finish(Sequence& sequence, FinishReason reason, const std::string& error = {});
    void begin_round(bool store_kv);
    void report(const char* phase);
    [[nodiscard]] std::int64_t prefill_rows() const;
    [[nodiscard]] std::int64_t depth_limit(const Sequence& sequence) const;
};

// ---------------------------------------------------------------------------------------------------------------------
// Decisions of the first rank

std::int64_t Replica::State::depth_limit(const Sequence& sequence) const {
    const std::int64_t tokens_left = sequence.item.max_tokens - sequence.num_output();
    return std::max<std::int64_t>(std::min(drafter->max_depth(), tokens_left - 1), 0);
}

/// Pages a sequence must have for its next step, scratch included.
std::int64_t Replica::State::pages_wanted(const Sequence& sequence) const {
    return PagePool::pages_for(sequence.num_tokens() + depth_limit(sequence) + 1) +
           PagePool::pages_for(drafter->max_nodes());
}

std::int64_t Replica::State::pages_held(const Sequence& sequence) {
    return static_cast<std::int64_t>(sequence.kv->pages().size() + sequence.kv->scratch_pages().size());
}

bool Replica::State::take_next() {
    if (next) return true;
    if (!work_left) return false;
    std::optional<WorkItem> item = hooks.next_work();
    if (!item) {
        work_left = false;
        return false;
    }
    next.emplace();
    next->item = std::move(*item);
    if (hooks.store == nullptr) return true;
    std::optional<RestoredItem> restored = hooks.store->restore(next->item.checkpoint_key);
    if (!restored || restored->prompt_tokens != static_cast<std::int64_t>(next->item.prompt.size())) return true;
    if (static_cast<std::int64_t>(restored->tokens.size()) >= next->item.max_tokens) {  // of a run with a greater limit
        restored->tokens.resize(static_cast<std::size_t>(next->item.max_tokens - 1));
        restored->drafter.clear();
    }
    next->restored = true;
    next->output = std::move(restored->tokens);
    next->kv_tokens = restored->kv_tokens;
    next->last_commit = restored->last_commit;
    next->statistics = restored->statistics;
    next->drafter = std::move(restored->drafter);
    return true;
}

/// Pages not in use once every sequence in flight has what its next step needs; negative when they do not suffice.
std::int64_t Replica::State::free_pages() const {
    std::int64_t free = pool.max_pages() - pool.pages_in_use();
    for (const auto& sequence : in_flight)
        free -= std::max<std::int64_t>(pages_wanted(*sequence) - pages_held(*sequence), 0);
    return free;
}

// Every sequence must be able to take its next step. A round that is being written may hold pages of finished items:
// wait for it first; then the youngest sequences give way, and one that cannot fit even alone is given up.
void Replica::State::plan_memory(StepHeader& header) {
    if (in_flight.empty()) return;
    if (pages_wanted(*in_flight[0]) > pool.max_pages()) {
        header.give_up.push_back(in_flight[0]->number);
        header.wait = true;
        return;
    }
    std::int64_t free = free_pages();
    if (free >= 0) return;
    header.wait = true;
    for (std::size_t i = in_flight.size(); !rounds.active() && free < 0 && i-- > 1;) {
        free += std::max(pages_wanted(*in_flight[i]), pages_held(*in_flight[i]));
        header.put_back.push_back(in_flight[i]->number);
    }
}

void Replica::State::refuse_next(const std::string& error) {
    FinishedItem refused;
    refused.index = next->item.index;
    refused.reason = FinishReason::error;
    refused.error = error;
    refused.prompt_tokens = static_cast<std::int64_t>(next->item.prompt.size());
    next.reset();
    hooks.finished(std::move(refused));
}

std::string Replica::State::memory_error(std::int64_t num_tokens) const {
    return "memory: expected room for keys and values of " + std::to_string(num_tokens) + " tokens, got " +
           std::to_string(options.kv_memory_bytes) + " bytes a rank; raise memory or tensor-parallel";
}

void Replica::State::plan_admissions(StepHeader& header) {
    if (header.wait) return;
    std::int64_t free = free_pages();
    auto in_batch = static_cast<std::int64_t>(in_flight.size());
    std::size_t from_waiting = 0;
    while (in_batch < options.batch) {
        const bool is_waiting = from_waiting < waiting.size();
        if (!is_waiting && !take_next()) return;
        const std::int64_t num_tokens = is_waiting
                                            ? waiting[from_waiting]->num_tokens()
                                            : static_cast<std::int64_t>(next->item.prompt.size() + next->output.size());
        const std::int64_t least =
            PagePool::pages_for(num_tokens + drafter->max_depth() + 1) + PagePool::pages_for(drafter->max_nodes());
        if (!is_waiting && least > pool.max_pages()) {
            refuse_next(memory_error(num_tokens));
            continue;
        }
        // Beside others an item needs a stretch of output as well; alone it starts with what there is.
        const std::int64_t wanted = in_batch == 0 ? least : least + PagePool::pages_for(reserved_output);
        if (wanted > free) return;
        free -= wanted;
        ++in_batch;
        if (is_waiting) {
            ++from_waiting;
            header.admissions.emplace_back().put_back = true;
        } else {
            header.admissions.push_back(std::move(*next));
            next.reset();
        }
    }
}

StepHeader Replica::State::plan() {
    StepHeader header;
    if (hooks.stop_requested && hooks.stop_requested()) {
        header.kind = StepHeader::Kind::stop;
        return header;
    }
    if (!rounds.error().empty()) {
        header.kind = StepHeader::Kind::finish;
        return header;
    }
    header.poll_round = rounds.active();
    plan_memory(header);
    plan_admissions(header);
    if (in_flight.empty() && header.admissions.empty()) {
        header.wait = true;
        if (waiting.empty() && !next && !work_left) header.kind = StepHeader::Kind::finish;
    }
    header.begin_round = rounds.due();
    header.store_kv = rounds.may_store_kv();
    return header;
}

// ---------------------------------------------------------------------------------------------------------------------
// What every rank does with them

void Replica::State::restore_kv(Sequence& sequence, std::int64_t kv_tokens) {
    // A rank may see less than the first one did (a damaged file, a slow file system): all go on from what all have.
    std::int64_t usable = std::min(kv_tokens, sequence.num_tokens() - 1);
    std::string trouble;
    try {
        if (usable > 0 && !group.is_first()) {
            const auto mine = hooks.store->restore(sequence.item.checkpoint_key);
            usable = mine ? std::min(usable, mine->kv_tokens) : 0;
        }
        const kernels::KvLayout& layout = model.kv_layout();
        constexpr std::int64_t piece = 4096;  // tokens: bounds the buffer
        std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(usable, piece) * layout.head_dim) *
                                      kernels::bytes_of(layout.dtype));
        for (std::int64_t layer = 0; layer < layout.num_layers; ++layer) {
            for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
                for (std::int64_t first = 0; first < usable; first += piece) {
                    const std::int64_t count = std::min(piece, usable - first);
                    for (const bool values : {false, true}) {
                        hooks.store->read_kv(sequence.item.checkpoint_key, layer, model.first_kv_head() + head, values,
                                             first, count, buffer.data());
                        sequence.kv->import_range(layer, head, values, first, count, buffer.data());
                    }
                }
            }
            if (hooks.poke) hooks.poke();
        }
    } catch (const Error&) {
        usable = 0;  // it was intact a moment ago; computing it again is always right
    }
    ByteWriter mine;
    mine.put(usable);
    for (const std::vector<std::byte>& part : group.gather(mine.bytes()))
        usable = std::min(usable, ByteReader(part).get<std::int64_t>());
    ByteWriter agreed;
    agreed.put(usable);
    group.broadcast(agreed.bytes());
    usable = ByteReader(agreed.bytes()).get<std::int64_t>();
    sequence.kv->set_committed(usable);
    sequence.saved_kv = usable;
}

void Replica::State::admit(Admission& admission) {
    if (admission.put_back) {
        std::unique_ptr<Sequence> sequence = std::move(waiting.front());
        waiting.pop_front();
        sequence->number = admitted++;
        sequence->kv->reserve(sequence->num_tokens());
        in_flight.push_back(std::move(sequence));
        return;
    }
    auto sequence = std::make_unique<Sequence>();
    sequence->item = std::move(admission.item);
    sequence->number = admitted++;
    sequence->tokens = sequence->item.prompt;
    sequence->tokens.insert(sequence->tokens.end(), admission.output.begin(), admission.output.end());
    sequence->noise_key = noise_key(options.seed, sequence->item.id, sequence->item.sample);
    sequence->kv = std::make_shared<KvSequence>(pool);
    sequence->drafter = drafter->make_sequence();
    if (!options.stop.empty()) {
        sequence->detokenizer = std::make_unique<Detokenizer>(tokenizer);
        for (const std::int32_t token : admission.output) sequence->text += sequence->detokenizer->push(token);
    }
    sequence->kv->reserve(sequence->num_tokens());
    if (admission.restored) {
        sequence->statistics = statistics_from_json(admission.statistics);
        ++sequence->statistics.resumes;
        sequence->last_commit = admission.last_commit;
        sequence->saved_tokens = sequence->num_output();
        sequence->saved_once = true;
        if (admission.kv_tokens > 0) restore_kv(*sequence, admission.kv_tokens);
        if (sequence->num_output() > 0) {
            sequence->statistics.recomputed_rows += sequence->num_tokens() - 1 - sequence->kv->committed();
        }
    }
    if (!sequence->drafter->restore(admission.drafter, sequence->tokens)) {
        sequence->drafter = drafter->make_sequence();
        sequence->drafter->accepted(sequence->tokens, sequence->num_tokens());
    }
    in_flight.push_back(std::move(sequence));
}

void Replica::State::put_back(std::int64_t number) {
    const auto at =
        std::find_if(in_flight.begin(), in_flight.end(), [&](const auto& s) { return s->number == number; });
    (*at)->kv = std::make_shared<KvSequence>(pool);  // computed again from the tokens
    waiting.push_front(std::move(*at));
    in_flight.erase(at);
}

void Replica::State::apply(StepHeader& header) {
    if (header.poll_round || (group.size() == 1 && rounds.enabled())) {
        const auto start = Clock::now();
        rounds.progress();
        outcome.checkpoint_stall_seconds += seconds_since(start);
    }
    for (const std::int64_t number : header.give_up) {
        const auto at =
            std::find_if(in_flight.begin(), in_flight.end(), [&](const auto& s) { return s->number == number; });
        finish(**at, FinishReason::error, memory_error((*at)->num_tokens()));
        in_flight.erase(at);
    }
    for (const std::int64_t number : header.put_back) put_back(number);
    for (Admission& admission : header.admissions) admit(admission);
    if (header.begin_round) begin_round(header.store_kv);
}

void Replica::State::begin_round(bool store_kv) {
    if (!rounds.enabled()) return;
    const auto start = Clock::now();
    std::vector<Sequence*> all;
    for (const auto& sequence : in_flight) all.push_back(sequence.get());
    for (const auto& sequence : waiting) all.push_back(sequence.get());
    rounds.begin(all, store_kv);
    const double stall = seconds_since(start);
    outcome.checkpoint_stall_seconds += stall;
    for (Sequence* sequence : all) sequence->statistics.checkpoint_stall_seconds += stall;
}

// ---------------------------------------------------------------------------------------------------------------------
// One step: a tree for every decoding sequence and a chunk of one prefilling one, in one forward pass

/// A pass should end within seconds: between passes the replica hears stop requests. Rows do not change results.
std::int64_t Replica::State::prefill_rows() const {
    const auto flops_a_row = 2.0 * static_cast<double>(num_parameters(model.config())) / group.size();
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(1.5e11 / flops_a_row), 16, options.prefill_chunk);
}

void Replica::State::add_decode_rows(Sequence& sequence) {
    DecodeSlice& slice = slices.emplace_back();
    slice.sequence = &sequence;
    TokenTree& tree = slice.tree;
    tree.reset(sequence.tokens.back());
    const std::int64_t depth = depth_limit(sequence);
    if (depth > 0) {
        sequence.drafter->propose(sequence.tokens, sequence.noise_key, drafter->max_nodes(), depth, tree);
        const bool known = std::all_of(tree.token.begin(), tree.token.end(),
                                       [&](std::int32_t t) { return t >= 0 && t < model.config().vocab_size; });
        if (!known) tree.reset(sequence.tokens.back());  // a damaged n-gram table; drafts are only guesses
    }
    if (!sequence.kv->reserve(sequence.num_tokens() + depth + 1) ||
        !sequence.kv->reserve_scratch(tree.num_nodes() - 1)) {
        throw std::logic_error("pages were planned for every sequence and are not there");
    }
    const auto index = static_cast<std::int32_t>(kv_sequences.size());
    kv_sequences.push_back(sequence.kv.get());
    const std::int64_t root_position = sequence.kv->committed();
    for (std::int32_t node = 0; node < tree.num_nodes(); ++node) {
        ForwardRow& row = rows.emplace_back();
        row.token_id = tree.token[static_cast<std::size_t>(node)];
        row.position = root_position + tree.depth[static_cast<std::size_t>(node)];
        row.sequence = index;
        row.in_pages = root_position + 1;  // the root is certain: its keys and values go straight to the pages
        row.path = tree.path_to(node);
        for (std::int32_t& slot : row.path) --slot;  // node i lives in scratch slot i - 1
        row.wants_logits = true;
    }
    sequence.statistics.steps += 1;
    sequence.statistics.target_calls += 1;
    sequence.statistics.draft_calls += tree.num_nodes() > 1 ? 1 : 0;
    sequence.statistics.drafted += tree.num_nodes() - 1;
    sequence.statistics.branched_trees += tree.branches() ? 1 : 0;
}

std::int64_t Replica::State::add_prefill_rows() {
    const auto oldest = std::find_if(in_flight.begin(), in_flight.end(), [](const auto& s) { return s->prefilling(); });
    if (oldest == in_flight.end()) return 0;
    Sequence& sequence = **oldest;
    const auto index = static_cast<std::int32_t>(kv_sequences.size());
    kv_sequences.push_back(sequence.kv.get());
    const std::int64_t first = sequence.kv->committed();
    const std::int64_t last = std::min(first + prefill_rows(), sequence.num_tokens() - 1);
    for (std::int64_t position = first; position < last; ++position) {
        ForwardRow& row = rows.emplace_back();
        row.token_id = sequence.tokens[static_cast<std::size_t>(position)];
        row.position = position;
        row.sequence = index;
        row.in_pages = position + 1;
    }
    return last - first;
}

/// Appends one emitted token; false when it ends the item.
bool Replica::State::append(Sequence& sequence, std::int32_t token, std::optional<FinishReason>& reason) {
    sequence.tokens.push_back(token);
    ++sequence.statistics.decode_tokens;
    ++progress.emitted_tokens;
    if (std::find(options.eos_ids.begin(), options.eos_ids.end(), token) != options.eos_ids.end())
        reason = FinishReason::stop;
    if (sequence.detokenizer && !reason) {
        const std::size_t before = sequence.text.size();
        sequence.text += sequence.detokenizer->push(token);
        for (const std::string& stop : options.stop) {
            const std::size_t at = sequence.text.find(stop, before < stop.size() ? 0 : before - stop.size() + 1);
            if (at == std::string::npos) continue;
            sequence.text.resize(at);
            reason = FinishReason::stop;
        }
    }
    if (!reason && sequence.num_output() >= sequence.item.max_tokens) reason = FinishReason::length;
    return !reason;
}

void Replica::State::accept(DecodeSlice& slice, std::span<const float> logits) {
    Sequence& sequence = *slice.sequence;
    const TokenTree& tree = slice.tree;
    const std::int64_t vocab = model.config().vocab_size;
    std::vector<std::int32_t> path_tokens;
    const auto target = [&](std::int32_t node) -> const Distribution& {
        path_tokens.clear();
        for (const std::int32_t above : tree.path_to(node))
            path_tokens.push_back(tree.token[static_cast<std::size_t>(above)]);
        const std::int64_t row = slice.first_logits + node;
        return pipeline.apply(logits.subspan(static_cast<std::size_t>(row * vocab), static_cast<std::size_t>(vocab)),
                              {sequence.tokens, path_tokens});
    };
    const Verdict verdict = verifier.verify(tree, target, sequence.noise_key, sequence.num_tokens());

    sequence.kv->set_committed(sequence.kv->committed() + 1);
    const std::int64_t before = sequence.num_tokens();
    std::optional<FinishReason> reason;
    std::vector<std::int32_t> slots;
    bool goes_on = true;
    for (const std::int32_t node : verdict.nodes) {
        if (!goes_on) break;
        goes_on = append(sequence, tree.token[static_cast<std::size_t>(node)], reason);
        slots.push_back(node - 1);
        ++sequence.statistics.accepted;
        sequence.statistics.accepted_ngram += tree.origin[static_cast<std::size_t>(node)] == Origin::ngram ? 1 : 0;
    }
    if (goes_on) append(sequence, verdict.next_token, reason);
    sequence.kv->accept(slots);
    const std::int64_t num_new = sequence.num_tokens() - before;
    rounds.count_tokens(num_new);
    sequence.drafter->accepted(sequence.tokens, num_new);

    progress.drafted += tree.num_nodes() - 1;
    progress.accepted += static_cast<std::int64_t>(slots.size());
    progress.decode_tokens += num_new;
    ++progress.target_calls;
    if (hooks.emitted && group.is_first())
        hooks.emitted(sequence.item.index, std::span(sequence.tokens).last(static_cast<std::size_t>(num_new)));
    slice.reason = reason;
}

void Replica::State::finish(Sequence& sequence, FinishReason reason, const std::string& error) {
    if (!group.is_first()) return;
    FinishedItem done;
    done.index = sequence.item.index;
    done.tokens.assign(sequence.output().begin(), sequence.output().end());
    if (sequence.detokenizer) {
        if (reason != FinishReason::stop) sequence.text += sequence.detokenizer->finish();
        done.text = sequence.text;
    } else {
        std::span<const std::int32_t> shown = sequence.output();
        const bool ends_in_eos = reason == FinishReason::stop && !shown.empty();
        done.text = output_text(tokenizer, sequence.item.prompt, ends_in_eos ? shown.first(shown.size() - 1) : shown);
    }
    done.reason = reason;
    done.error = error;
    done.prompt_tokens = sequence.prompt_size();
    done.statistics = sequence.statistics;
    hooks.finished(std::move(done));
}

void Replica::State::step() {
    const auto start = Clock::now();
    rows.clear();
    kv_sequences.clear();
    slices.clear();
    for (const auto& sequence : in_flight) {
        if (!sequence->prefilling()) add_decode_rows(*sequence);
    }
    std::int64_t logits_row = 0;
    for (DecodeSlice& slice : slices) {
        slice.first_logits = logits_row;
        logits_row += slice.tree.num_nodes();
    }
    const std::int64_t num_prefill = add_prefill_rows();
    const std::span<const float> logits = model.forward(rows, kv_sequences);
    if (num_prefill > 0) {
        KvSequence& kv = *kv_sequences.back();
        kv.set_committed(kv.committed() + num_prefill);
        progress.prefilled_tokens += num_prefill;
        rounds.count_tokens(num_prefill);
    }
    for (DecodeSlice& slice : slices) accept(slice, logits);

    const double seconds = seconds_since(start);
    (slices.empty() ? outcome.prefill_seconds : outcome.decode_seconds) += seconds;
    for (const auto& sequence : in_flight) {
        sequence->statistics.seconds += seconds;
        if (slices.empty()) sequence->statistics.prefill_seconds += seconds;
    }
    for (const DecodeSlice& slice : slices) {
        if (!slice.reason) continue;
        finish(*slice.sequence, *slice.reason);
        std::erase_if(in_flight, [&](const auto& s) { return s.get() == slice.sequence; });
    }
    report(slices.empty() ? "prefill" : "decode");
}

void Replica::State::report(const char* phase) {
    if (!group.is_first() || !hooks.progress) return;
    progress.in_flight = static_cast<std::int64_t>(in_flight.size());
    progress.checkpoint_rounds = rounds.committed_rounds();
    progress.unfinished_tokens = 0;
    progress.oldest_share = 0;
    for (const auto& sequence : in_flight) {
        progress.unfinished_tokens += sequence->num_output();
        progress.oldest_share = std::max(progress.oldest_share, static_cast<double>(sequence->num_output()) /
                                                                    static_cast<double>(sequence->item.max_tokens));
    }
    progress.phase = phase;
    hooks.progress(progress);
}

// ---------------------------------------------------------------------------------------------------------------------

Replica::Replica(Model& model, Group& group, const Tokenizer& tokenizer, ReplicaOptions options, ReplicaHooks hooks)
    : state_(std::make_unique<State>(model, group, tokenizer, std::move(options), std::move(hooks))) {
    model.set_layer_hook(state_->hooks.poke);
}

Replica::~Replica() {
    state_->model.set_layer_hook({});
}

ReplicaOutcome Replica::run() {
    State& s = *state_;
    for (;;) {
        if (s.hooks.poke) s.hooks.poke();
        StepHeader header = s.group.is_first() ? s.plan() : StepHeader{};
        share_header(s.group, header);
        if (header.kind == StepHeader::Kind::stop) {
            s.rounds.drain();
            s.begin_round(s.options.checkpoint.store_kv);
            s.rounds.drain();
            s.outcome.stopped = true;
            break;
        }
        if (header.kind == StepHeader::Kind::finish) {
            s.rounds.drain();
            break;
        }
        s.apply(header);
        if (header.wait) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        } else {
            s.step();
        }
    }
    s.report("idle");
    s.outcome.progress = s.progress;
    s.outcome.progress.checkpoint_rounds = s.rounds.committed_rounds();
    s.outcome.checkpoint_error = s.rounds.error();
    s.outcome.checkpoint_write_seconds = s.rounds.write_seconds();
    return s.outcome;
}

void Replica::results_durable(std::span<const std::int64_t> item_indices) {
    state_->rounds.results_durable(item_indices);
}

}  // namespace longhaul::engine
