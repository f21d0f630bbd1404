#include "tests/fault/load/actions.h"

#include <cstring>
#include <memory>
#include <thread>

#include "cairn/client/rect_assembler.h"

namespace cairn::fault {
namespace {

class VerifyingSink final : public client::FetchSink {
 public:
  VerifyingSink(const FaultModel& model, std::span<const BlockKey> keys, const ReadOptions& options,
                const format::PartRect& want, ReadOutcome* outcome)
      : model_(model),
        keys_(keys),
        options_(options),
        want_(want),
        outcome_(*outcome),
        failed_(keys.size(), false) {
    for (size_t i = 0; i < keys.size(); ++i) {
      buffers_.emplace_back(client::RectAssembler::Bytes(model.layout(), want));
      auto assembler = client::RectAssembler::Create(model.layout(), want, buffers_.back());
      CAIRN_CHECK(assembler.ok());
      assemblers_.push_back(*std::move(assembler));
    }
  }

  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    if (options_.slice_pause.count() > 0) std::this_thread::sleep_for(options_.slice_pause);
    ++outcome_.slices;
    if (slice.block >= keys_.size()) {
      outcome_.wrong.push_back(
          fmt::format("slice of block {}, which was not asked for", slice.block));
      return OkStatus();
    }
    if (!model_.SliceIsRight(keys_[slice.block], slice.part, slice.layer, data)) {
      outcome_.wrong.push_back(fmt::format(
          "wrong bytes: block {} key {} layers [{}, {}) heads [{}, {}) layer {} tier {}",
          slice.block, keys_[slice.block].Hex(), slice.part.layer_begin, slice.part.layer_end,
          slice.part.head_begin, slice.part.head_end, slice.layer,
          slice.tier ? Name(*slice.tier) : "none"));
      return OkStatus();
    }
    outcome_.verified_bytes += data.size();
    return assemblers_[slice.block].Add(slice.part, slice.layer, data);
  }

  void OnBlockFailed(uint32_t block, client::MissReason reason) override {
    if (block >= keys_.size()) {
      outcome_.wrong.push_back(fmt::format("failure of block {}, which was not asked for", block));
      return;
    }
    failed_[block] = true;
    ++outcome_.failed_blocks;
    ++outcome_.misses[static_cast<size_t>(reason)];
  }

  void Finish(bool whole) {
    for (size_t block = 0; block < keys_.size(); ++block) {
      if (!assemblers_[block].Complete()) {
        if (whole && !failed_[block]) {
          outcome_.wrong.push_back(fmt::format("block {} of {} did not come, and nothing says why",
                                               block, keys_.size()));
        }
        continue;
      }
      if (buffers_[block] != model_.RectBytes(keys_[block], want_)) {
        outcome_.wrong.push_back(fmt::format("block {} was put together wrongly", block));
        continue;
      }
      if (outcome_.complete_prefix == block) ++outcome_.complete_prefix;
      ++outcome_.complete_blocks;
    }
  }

 private:
  const FaultModel& model_;
  const std::span<const BlockKey> keys_;
  const ReadOptions& options_;
  const format::PartRect want_;
  ReadOutcome& outcome_;
  // Inner buffers do not move when the outer one grows.
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<client::RectAssembler> assemblers_;
  std::vector<bool> failed_;
};

}  // namespace

ReadOutcome Read(client::CacheClient& client, const FaultModel& model,
                 std::span<const BlockKey> keys, const ReadOptions& options) {
  ReadOutcome outcome;
  Result<client::MatchOutcome> match =
      client.Match(model.fingerprint(), keys, {.deadline = options.match_deadline});
  outcome.status = match.status();
  if (!match.ok()) return outcome;
  outcome.matched_blocks = match->matched_blocks;
  if (match->matched_blocks > keys.size()) {
    outcome.wrong.push_back(
        fmt::format("{} of {} blocks matched", match->matched_blocks, keys.size()));
    return outcome;
  }
  if (match->matched_blocks < keys.size())
    ++outcome.misses[static_cast<size_t>(match->miss_reason)];
  if (match->matched_blocks == 0) return outcome;

  const format::PartRect want = options.want.Cells() == 0 ? model.whole() : options.want;
  VerifyingSink sink(model, keys.first(match->matched_blocks), options, want, &outcome);
  outcome.status = client.Fetch(
      match->lease, {.layer_begin = want.layer_begin, .layer_end = want.layer_end}, sink,
      {.progress = options.progress, .deadline = options.fetch_deadline, .cancel = options.cancel});
  sink.Finish(outcome.status.ok());
  return outcome;
}

WriteOutcome Write(client::CacheClient& client, const FaultModel& model,
                   std::span<const BlockKey> keys, size_t first, const format::PartRect& rect,
                   Duration deadline) {
  WriteOutcome outcome;
  std::vector<client::PartToPush> parts;
  for (size_t i = first; i < keys.size(); ++i) {
    auto bytes = std::make_shared<std::vector<std::byte>>(model.MakePart(keys[i], rect));
    client::PartToPush part;
    part.key = keys[i];
    if (i > 0) part.parent = keys[i - 1];
    part.first_position = i * model.layout().block_tokens;
    part.rect = rect;
    part.bytes = *bytes;
    part.hold = bytes;
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return outcome;
  const Result<std::vector<Status>> results =
      client.Push(model.fingerprint(), parts, {.deadline = deadline});
  outcome.status = results.status();
  if (!results.ok()) return outcome;
  for (size_t i = 0; i < results->size(); ++i) {
    if ((*results)[i].ok()) {
      if (outcome.stored_blocks == i) ++outcome.stored_blocks;
      outcome.stored_bytes += parts[i].bytes.size();
    } else if (outcome.refused_parts++ == 0) {
      outcome.refused = (*results)[i];
    }
  }
  return outcome;
}

}  // namespace cairn::fault
