#include "engine/replica/replica.hpp"

#include <thread>

#include "engine/checkpoint/store.hpp"
#include "engine/replica/state.hpp"

namespace longhaul::engine {

Replica::Replica(Model& model, Group& group, const Tokenizer& tokenizer, ReplicaOptions options, ReplicaHooks hooks)
    : state_(std::make_unique<State>(model, group, tokenizer, std::move(options), std::move(hooks))) {
    model.set_layer_hook(state_->hooks.poke);
    for (Model* draft : state_->options.draft.models) draft->set_layer_hook(state_->hooks.poke);
    group.set_while_waiting(state_->hooks.poke);
    if (state_->hooks.store != nullptr) state_->hooks.store->set_progress(state_->hooks.poke);
}

Replica::~Replica() {
    state_->model.set_layer_hook({});
    for (Model* draft : state_->options.draft.models) draft->set_layer_hook({});
    state_->group.set_while_waiting({});
    if (state_->hooks.store != nullptr) state_->hooks.store->set_progress({});
}

ReplicaOutcome Replica::run() {
    State& s = *state_;
    s.report(ReplicaPhase::idle);  // what it took to get here is no pass's time
    for (;;) {
        if (s.hooks.poke) s.hooks.poke();
        StepHeader header = s.group.is_first() ? s.plan() : StepHeader{};
        share_header(s.group, header);
        if (header.kind == StepHeader::Kind::stop) {
            if (s.rounds.drain(s.hooks.poke)) s.begin_round(header.round);
            s.rounds.drain(s.hooks.poke);
            s.outcome.stopped = true;
            break;
        }
        if (header.kind == StepHeader::Kind::finish) {
            s.rounds.drain(s.hooks.poke);
            break;
        }
        s.apply(header);
        if (header.wait) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        } else if (s.options.scoring) {
            s.score_step(header);
        } else {
            s.step(header);
        }
    }
    s.report(ReplicaPhase::idle);
    s.outcome.progress = s.progress;
    s.outcome.progress.checkpoint_rounds = s.rounds.committed_rounds();
    s.outcome.checkpoint_error = s.rounds.error();
    s.outcome.checkpoint_write_seconds = s.rounds.write_seconds();
    return s.outcome;
}

void Replica::results_durable(std::span<const std::int64_t> item_numbers) {
    state_->rounds.results_durable(item_numbers);
}

}  // namespace longhaul::engine
