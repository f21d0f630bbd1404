#pragma once
// Gets the KV of a prompt where the recipe selects tokens (docs/methods/selections.md).
//
//   find whole segments at the node, fetch them -> compute the rest densely over them
//   -> select its rows, drop the others -> queue it for the push -> compute the rest of the prompt
//
// Where the segment ends: at `prefix_end` in whole blocks, if the request says one; else at the
// prompt's last whole block, if the selection looks at no query; else the whole prompt is selected,
// question included, for this request alone.
//
// Exactness. Rows are a function of the tokens up to the segment's end and of where the segments
// before it end; what follows is computed over the rows that are kept, cold and warm alike. With
// the codec raw both give the same bytes.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/selections/selection.h"
#include "model/model.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/prefill.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/methods/selections/segment_selection.h"
#include "services/worker/methods/selections/segment_session.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// The state that all such prompts share. Not thread-safe.
class SelectedPrompts final : public PromptWays {
 public:
  // All must outlive it. `session` and `push` are both null or both not. `make_room`: of the ways.
  SelectedPrompts(Transformer& transformer, const model::Model& model, KvPool& pool,
                  const Clock& clock, const selections::Selection& selection,
                  PrefixSession* session, PushQueue* push,
                  std::function<void()> make_room = nullptr);

  std::unique_ptr<PromptWay> New(PromptTask task) override;

  struct Request {
    // `sequence` is empty; it need not have capacity. `background` has no effect.
    PromptRequest prompt;
    int64_t capacity = 0;  // Tokens that the sequence needs room for when the prompt is computed.
    std::function<void()> make_room;  // Called when the pool is short, before it is tried again.
  };
  struct Report {
    PromptReport prompt;
    bool shared = false;  // Others may find the segment.
  };
  Report Compute(const Request& request);

 private:
  struct Run;
  // Where the segment ends, in tokens.
  void Plan(Run& run) const;
  void FindAndFetch(Run& run);
  // Computes from the sequence's length to the segment's end and selects.
  Status MakeSegment(Run& run);
  Status Prefill(Run& run, int64_t end, const std::function<void(const ChunkQueries&)>& observe);
  Status Reserve(const Run& run, int64_t tokens);
  void Push(const Run& run);

  Transformer& transformer_;
  KvPool& pool_;
  const Clock& clock_;
  const selections::Selection& selection_;
  PrefixSession* const session_;
  PushQueue* const push_;
  std::optional<SegmentSession> segments_;  // With a session.
  const SelectionModel model_;
  Prefiller prefiller_;
  const int64_t block_tokens_;
  const std::function<void()> make_room_;
};

// One of them, computed in one step. It stays: a sequence with selected rows cannot be parked.
class SelectedPrompt final : public PromptWay {
 public:
  // `prompts` must outlive it.
  SelectedPrompt(SelectedPrompts& prompts, SelectedPrompts::Request request)
      : prompts_(prompts), request_(std::move(request)) {}

  Step Next(int64_t max_rows, bool alone) override;
  void Computed(const Status& /*status*/, const Pass& /*pass*/) override {}
  bool finished() const override { return !request_.has_value(); }
  PromptReport TakeReport() override { return std::move(report_); }
  bool begun() const override { return finished(); }
  bool stays() const override { return true; }

 private:
  SelectedPrompts& prompts_;
  std::optional<SelectedPrompts::Request> request_;  // nullopt: it is computed.
  PromptReport report_;
};

}  // namespace cairn::worker
