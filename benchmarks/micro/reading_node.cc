#include "benchmarks/micro/reading_node.h"

#include <utility>

#include "cairn/client/connect.h"
#include "services/worker/methods/reading/background_rows.h"
#include "services/worker/methods/reading/node_rows.h"
#include "services/worker/session/kv_codec.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {
namespace {

constexpr std::chrono::seconds kCall(60);

CheckedNamespace NamespaceOf(const ReadingModel& model) {
  NamespaceInputs inputs;
  inputs.model = model.model().name();
  inputs.weights = model.model().weights_digest();
  inputs.kv = model.kv();
  inputs.numerics = model.transformer().numerics_id();
  return Must(WorkerNamespace(inputs));
}

// Counts what is asked of a source.
class CountedRows final : public RowSource {
 public:
  CountedRows(std::unique_ptr<RowSource> inner, const KvLayout& kv,
              ContextAtNode::Counters* counters)
      : inner_(std::move(inner)),
        row_bytes_(kv.row_bytes()),
        block_bytes_(static_cast<size_t>(kv.block_tokens) * kv.row_bytes()),
        counters_(*counters) {}

  std::shared_ptr<RowGather> Gather(RowRequest request) override {
    constexpr size_t kUnit = 4096;
    for (const RowRequest::Head& head : request.heads) {
      // K and V of a head lie apart, and so do blocks.
      uint64_t units = 0;
      std::pair<size_t, size_t> last{SIZE_MAX, 0};  // Block, and unit in it.
      for (const int32_t row : head.rows) {
        const size_t at = static_cast<size_t>(row) * row_bytes_;
        const std::pair<size_t, size_t> unit{at / block_bytes_, at % block_bytes_ / kUnit};
        if (unit != last) ++units;
        last = unit;
      }
      counters_.rows += 2 * head.rows.size() * row_bytes_;
      counters_.rounded += 2 * units * kUnit;
    }
    return inner_->Gather(std::move(request));
  }

 private:
  const std::unique_ptr<RowSource> inner_;
  const size_t row_bytes_, block_bytes_;
  ContextAtNode::Counters& counters_;
};

}  // namespace

ContextAtNode::ContextAtNode(const std::string& address, const ReadingModel& model,
                             const KvSequence& sequence, std::span<const int32_t> tokens)
    : model_(model),
      // Over gRPC, since blocks that lie on disk are not in memory that the node lends.
      client_(Must(client::Connect({.address = address,
                                    .client_name = "reading_bench",
                                    .path = client::PathChoice::kGrpc}))),
      ns_(NamespaceOf(model)),
      keys_(BlockKeyChain(ns_.fingerprint)
                .Keys(tokens, static_cast<uint32_t>(model.kv().block_tokens))) {
  Must(client_->OpenNamespace(ns_.spec, {.deadline = kCall, .trace = ""}).status());
  const auto codec = Must(KvCodec::Create(ns_, model.kv(), SteadyClock::Get()));
  PushQueue push(*client_, ns_.spec.layout, SteadyClock::Get(), {});
  std::vector<ComputedBlock> blocks(keys_.size());
  for (size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].key = keys_[b];
    if (b > 0) blocks[b].parent = keys_[b - 1];
    blocks[b].first_position = b * static_cast<uint64_t>(model.kv().block_tokens);
    blocks[b].page = {sequence.LayerSlice(static_cast<int64_t>(b), 0).data(),
                      model.kv().page_bytes()};
  }
  push.Enqueue(ns_.fingerprint, *codec, std::move(blocks));
  while (push.RunOnce()) {
  }
  Must(push.last_failure());
  if (const uint64_t dropped = push.GetStats().dropped_blocks; dropped > 0) {
    Must(Errorf(StatusCode::kResourceExhausted,
                "{} of {} blocks had no room in the queue of pushes: take a shorter context",
                dropped, keys_.size()));
  }
  Must(client_->Flush({.deadline = kCall, .trace = ""}));
}

std::unique_ptr<RowSource> ContextAtNode::Rows(Executor& executor) const {
  auto rows = Must(NodeRows::Hold(*client_, SteadyClock::Get(), ns_.spec, model_.kv(),
                                  ns_.fingerprint, keys_, {}, ""));
  return std::make_unique<BackgroundRows>(
      std::make_unique<CountedRows>(std::move(rows), model_.kv(), asked_.get()), executor,
      SteadyClock::Get(), BackgroundRows::Options{.row_bytes = model_.kv().row_bytes()});
}

ContextAtNode::Sent ContextAtNode::GetSent() const {
  const client::NodeStats stats = Must(client_->Stat({.deadline = kCall, .trace = ""}));
  return {stats.fetched_bytes, stats.fetched_disk_bytes};
}

}  // namespace cairn::worker
