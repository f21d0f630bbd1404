#include "tools/cairn/generator/summary_proto.h"

namespace cairn::cli {

worker::GenerateSummary SummaryFromProto(const v1::GenerateSummary& proto) {
  worker::GenerateSummary summary;
  summary.prompt_tokens = proto.prompt_tokens();
  summary.fetched_tokens = proto.fetched_tokens();
  summary.computed_tokens = proto.computed_tokens();
  summary.shared_tokens = proto.shared_tokens();
  summary.tokens.assign(proto.tokens().begin(), proto.tokens().end());
  summary.text = proto.text();
  summary.ttft_seconds = proto.ttft_seconds();
  summary.total_seconds = proto.total_seconds();
  summary.queue_seconds = proto.queue_seconds();
  summary.fetch_seconds = proto.fetch_seconds();
  summary.finish_reason = proto.finish_reason();
  if (const auto digest = Digest::FromBytes(proto.prompt_logits_sha256(), "prompt_logits_sha256");
      digest.ok()) {
    summary.prompt_logits_sha256 = *digest;
  }
  // A reason that a newer worker knows and we do not.
  const int reason = proto.miss_reason();
  summary.miss_reason = reason >= 0 && reason < static_cast<int>(kMissReasonCount)
                            ? static_cast<MissReason>(reason)
                            : MissReason::kNone;
  for (const v1::TierBytes& tier : proto.fetched_by_tier()) {
    if (const auto kind = TierFromCode(tier.tier())) summary.fetched.Of(*kind) += tier.bytes();
  }
  summary.fetched.lent = proto.lent_bytes();
  summary.fetch_path = proto.fetch_path() == "local" ? client::Path::kLocal : client::Path::kGrpc;
  summary.chosen_tokens = proto.chosen_tokens();
  summary.selected_tokens = proto.selected_tokens();
  summary.dropped_tokens = proto.dropped_tokens();
  summary.turned_tokens = proto.turned_tokens();
  summary.kept_share = proto.kept_share();
  summary.reading = {.policy = proto.reading().policy(),
                     .off = proto.reading().off(),
                     .far_tokens = proto.reading().far_tokens(),
                     .near_bytes = proto.reading().near_bytes(),
                     .counters = {.steps = proto.reading().steps(),
                                  .chosen_rows = proto.reading().chosen_rows(),
                                  .hit_rows = proto.reading().hit_rows(),
                                  .late_rows = proto.reading().late_rows(),
                                  .useless_rows = proto.reading().useless_rows(),
                                  .lost_rows = proto.reading().lost_rows(),
                                  .read_bytes = proto.reading().read_bytes(),
                                  .fetched_indexes = proto.reading().index_fetched() ? 1u : 0u}};
  for (const v1::TimelineSpan& span : proto.timeline()) {
    if (span.kind() < v1::TimelineSpan::KIND_MATCH ||
        span.kind() > v1::TimelineSpan::KIND_COMPUTE) {
      continue;  // The kind is of a later version.
    }
    summary.timeline.push_back({static_cast<worker::TimelineSpan::Kind>(span.kind()), span.layer(),
                                span.block_begin(), span.block_end(), span.begin_seconds(),
                                span.end_seconds()});
  }
  return summary;
}

}  // namespace cairn::cli
