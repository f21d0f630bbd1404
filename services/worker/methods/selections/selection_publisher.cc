#include "services/worker/methods/selections/selection_publisher.h"

#include <algorithm>
#include <utility>

#include "common/keys/segment_keys.h"
#include "services/worker/methods/selections/segment_session.h"
#include "services/worker/methods/selections/selection_stage.h"

namespace cairn::worker {

int64_t SharedSegmentEnd(const selections::Selection& selection, int64_t prefix_end, int64_t whole,
                         int64_t block_tokens) {
  if (prefix_end > 0) return std::min(prefix_end / block_tokens * block_tokens, whole);
  const bool looks_at_no_query = whole > 0 && selection.FirstObserved(whole) >= whole;
  return looks_at_no_query ? whole : 0;
}

SelectionPublisher::SelectionPublisher(Transformer& transformer, const model::Model& model,
                                       PushQueue& push,
                                       std::span<const PublishedNamespace> published)
    : transformer_(transformer), model_(model), push_(push) {
  for (const PublishedNamespace& target : published) {
    if (target.stage == nullptr) continue;
    targets_.push_back({target, static_cast<const SelectionStage&>(*target.stage).selection()});
  }
}

class SelectionPublisher::Watch final : public StageWatch {
 public:
  Watch(SelectionPublisher& publisher, std::vector<Segment> segments)
      : publisher_(publisher), segments_(std::move(segments)) {
    publisher_.watching_ = true;
  }
  ~Watch() override { publisher_.watching_ = false; }

  void Observe(const ChunkQueries& queries) override;
  void Push(std::span<const model::TokenId> tokens, std::shared_ptr<const KvSequence> sequence,
            std::span<const double> compute_seconds, const std::string& trace) override;

 private:
  SelectionPublisher& publisher_;
  const std::vector<Segment> segments_;
};

std::unique_ptr<StageWatch> SelectionPublisher::Begin(std::span<const model::TokenId> tokens,
                                                      int64_t prefix_end, int64_t whole,
                                                      const KvSequence& sequence) {
  if (watching_) return nullptr;
  std::vector<Segment> segments;
  for (const Target& target : targets_) {
    const int64_t end = SharedSegmentEnd(target.selection, prefix_end, whole,
                                         transformer_.kv_layout().block_tokens);
    if (end == 0) continue;
    segments.push_back({&target, end,
                        std::make_unique<SegmentSelection>(target.selection, model_, sequence,
                                                           tokens.first(static_cast<size_t>(end)),
                                                           0, transformer_.thread_pool())});
  }
  return std::make_unique<Watch>(*this, std::move(segments));
}

void SelectionPublisher::Watch::Observe(const ChunkQueries& queries) {
  for (const Segment& segment : segments_) segment.selection->Observe(queries);
}

void SelectionPublisher::Watch::Push(std::span<const model::TokenId> tokens,
                                     std::shared_ptr<const KvSequence> sequence,
                                     std::span<const double> compute_seconds,
                                     const std::string& trace) {
  const KvLayout& kv = publisher_.transformer_.kv_layout();
  for (const Segment& segment : segments_) {
    const Digest& fingerprint = segment.target->published.ns.fingerprint;
    const std::vector<BlockKey> chain = BlockKeyChain(fingerprint)
                                            .Keys(tokens.first(static_cast<size_t>(segment.end)),
                                                  static_cast<uint32_t>(kv.block_tokens));
    const std::vector<BlockKey> keys =
        SegmentKeys(fingerprint)
            .Keys(std::nullopt, chain.back(), static_cast<uint32_t>(chain.size()));
    const selections::KeptRows kept = segment.selection->Select(trace);
    std::vector<ComputedBlock> blocks;
    for (size_t b = 0; b < keys.size(); ++b) {
      ComputedBlock block;
      block.key = keys[b];
      if (b > 0) block.parent = keys[b - 1];
      block.first_position = b * static_cast<uint64_t>(kv.block_tokens);
      block.compute_seconds = b < compute_seconds.size() ? compute_seconds[b] : 0;
      block.page = {sequence->LayerSlice(static_cast<int64_t>(b), 0).data(), kv.page_bytes()};
      block.hold = sequence;
      block.selected =
          std::make_shared<const SelectedSlices>(RowsOfBlock(kv, kept, static_cast<uint32_t>(b)));
      block.trace = trace;
      blocks.push_back(std::move(block));
    }
    publisher_.push_.Enqueue(fingerprint, *segment.target->published.codec, std::move(blocks));
  }
}

}  // namespace cairn::worker
