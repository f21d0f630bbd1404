#include "services/worker/rpc/worker_service.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <utility>

#include "common/config/config.h"
#include "common/rpc/unary_call.h"
#include "protocol/wire/convert.h"
#include "protocol/wire/request_deadline.h"

namespace cairn::worker {
namespace {

constexpr uint32_t kDefaultMaxTokens = 256;
constexpr uint32_t kMaxTopK = 1u << 30;
constexpr uint32_t kMaxWaitMs = 600'000;
// Bytes of the logits in one message: well below gRPC's default limit of 4 MiB.
constexpr size_t kScoreMessageBytes = 2u << 20;
// A wait is cut into pieces of this length to see whether the client is still there.
constexpr std::chrono::milliseconds kWaitPiece{100};

Result<SamplingOptions> SamplingFromProto(const v1::GenerateRequest& proto) {
  if (!(proto.temperature() >= 0 && proto.temperature() <= model::kMaxTemperature)) {
    return InvalidArgument("field 'temperature': got {}, expected 0 to {}", proto.temperature(),
                           model::kMaxTemperature);
  }
  if (!(proto.top_p() >= 0 && proto.top_p() <= 1)) {
    return InvalidArgument(
        "field 'top_p': got {}, expected more than 0 and at most 1, or 0 for off", proto.top_p());
  }
  if (proto.top_k() > kMaxTopK) {
    return InvalidArgument("field 'top_k': got {}, expected 0 to {}", proto.top_k(), kMaxTopK);
  }
  SamplingOptions sampling;
  sampling.temperature = static_cast<float>(proto.temperature());
  sampling.top_k = static_cast<int32_t>(proto.top_k());
  // Off on the wire is 0; a value too small for a float must not become "off" or illegal.
  sampling.top_p = proto.top_p() == 0 ? 1.0f : std::max(static_cast<float>(proto.top_p()), 1e-30f);
  sampling.seed = proto.seed();
  return sampling;
}

}  // namespace

Result<GenerateRequest> FromProto(const v1::GenerateRequest& proto, TimePoint now,
                                  std::chrono::system_clock::time_point wall) {
  GenerateRequest request;
  switch (proto.prompt_case()) {
    case v1::GenerateRequest::kChat: {
      ChatPrompt chat;
      for (const v1::ChatMessage& message : proto.chat().messages()) {
        chat.messages.push_back({message.role(), message.content()});
      }
      request.prompt = std::move(chat);
      break;
    }
    case v1::GenerateRequest::kRawText:
      request.prompt = RawPrompt{proto.raw_text()};
      break;
    case v1::GenerateRequest::kTokens:
      request.prompt = TokenPrompt{{proto.tokens().ids().begin(), proto.tokens().ids().end()}};
      break;
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return InvalidArgument("field 'prompt': not set, expected one of chat, raw_text, tokens");
  }
  CAIRN_ASSIGN_OR_RETURN(request.sampling, SamplingFromProto(proto));
  request.max_tokens = proto.max_tokens() == 0 ? kDefaultMaxTokens : proto.max_tokens();
  request.no_cache = proto.no_cache();
  request.ignore_eos = proto.ignore_eos();
  request.want_logits_digest = proto.want_logits_digest();
  request.keep_turn = proto.keep_turn();
  request.want_timeline = proto.want_timeline();
  request.prefix_end = proto.prefix_end();
  request.prefill_only = proto.prefill_only();
  request.drop_oldest = proto.drop_oldest();
  request.await_prefill = std::chrono::milliseconds(proto.await_prefill_ms());
  request.stop.assign(proto.stop().begin(), proto.stop().end());
  request.priority = proto.priority();
  request.tenant = proto.tenant();
  CAIRN_ASSIGN_OR_RETURN(request.deadline, wire::DeadlineOf(proto, now, wall));
  CAIRN_ASSIGN_OR_RETURN(request.next, wire::ToNextUse(proto.next(), "next"));
  return request;
}

void ToProto(const GenerateSummary& summary, v1::GenerateSummary* out) {
  out->set_prompt_tokens(summary.prompt_tokens);
  out->set_fetched_tokens(summary.fetched_tokens);
  out->set_computed_tokens(summary.computed_tokens);
  out->set_shared_tokens(summary.shared_tokens);
  out->mutable_tokens()->Add(summary.tokens.begin(), summary.tokens.end());
  out->set_text(summary.text);
  out->set_ttft_seconds(summary.ttft_seconds);
  out->set_total_seconds(summary.total_seconds);
  out->set_finish_reason(summary.finish_reason);
  if (summary.prompt_logits_sha256) {
    out->set_prompt_logits_sha256(std::string(summary.prompt_logits_sha256->View()));
  }
  out->set_miss_reason(static_cast<v1::MissReason>(summary.miss_reason));
  out->set_fetched_bytes(summary.fetched.total());
  out->set_queue_seconds(summary.queue_seconds);
  out->set_fetch_seconds(summary.fetch_seconds);
  const auto add_tier = [&](v1::TierKind tier, uint64_t bytes) {
    if (bytes == 0) return;
    v1::TierBytes* entry = out->add_fetched_by_tier();
    entry->set_tier(tier);
    entry->set_bytes(bytes);
  };
  add_tier(v1::TIER_KIND_HOST, summary.fetched.host);
  add_tier(v1::TIER_KIND_DISK, summary.fetched.disk);
  add_tier(v1::TIER_KIND_DEVICE, summary.fetched.device);
  out->set_lent_bytes(summary.fetched.lent);
  if (summary.fetched.total() > 0) out->set_fetch_path(std::string(Name(summary.fetch_path)));
  out->set_chosen_tokens(summary.chosen_tokens);
  out->set_selected_tokens(summary.selected_tokens);
  out->set_dropped_tokens(summary.dropped_tokens);
  out->set_turned_tokens(summary.turned_tokens);
  out->set_kept_share(summary.kept_share);
  if (!summary.reading.policy.empty()) {
    const ReadCounters& counters = summary.reading.counters;
    v1::ContextReading* const reading = out->mutable_reading();
    reading->set_policy(summary.reading.policy);
    reading->set_far_tokens(summary.reading.far_tokens);
    reading->set_near_bytes(summary.reading.near_bytes);
    reading->set_steps(counters.steps);
    reading->set_chosen_rows(counters.chosen_rows);
    reading->set_hit_rows(counters.hit_rows);
    reading->set_late_rows(counters.late_rows);
    reading->set_useless_rows(counters.useless_rows);
    reading->set_lost_rows(counters.lost_rows);
    reading->set_read_bytes(counters.read_bytes);
    reading->set_index_fetched(counters.fetched_indexes > 0);
  }
  if (!summary.reading.off.empty()) out->mutable_reading()->set_off(summary.reading.off);
  for (const TimelineSpan& span : summary.timeline) {
    v1::TimelineSpan* entry = out->add_timeline();
    entry->set_kind(static_cast<v1::TimelineSpan::Kind>(span.kind));
    entry->set_layer(span.layer);
    entry->set_block_begin(span.block_begin);
    entry->set_block_end(span.block_end);
    entry->set_begin_seconds(span.begin);
    entry->set_end_seconds(span.end);
  }
}

namespace {

// Spans of what the request went through, from what its summary says.
void AddPhases(const rpc::Call& call, TimePoint begin, const GenerateSummary& summary) {
  const auto after = [](TimePoint time, double seconds) {
    return time + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  };
  const TimePoint running = after(begin, summary.queue_seconds);
  const TimePoint matched = after(running, summary.match_seconds);
  const TimePoint first = after(running, summary.ttft_seconds);
  call.AddSpan("queue", begin, running);
  if (summary.match_seconds > 0) call.AddSpan("match", running, matched);
  if (summary.fetch_seconds > 0) {
    call.AddSpan("fetch", matched, after(matched, summary.fetch_seconds),
                 {{"tokens", summary.fetched_tokens}});
  }
  if (summary.ttft_seconds <= 0) return;
  call.AddSpan(
      "prefill", running, first,
      {{"prompt_tokens", summary.prompt_tokens}, {"computed_tokens", summary.computed_tokens}});
  call.AddSpan("decode", first, after(running, summary.total_seconds),
               {{"tokens", static_cast<int64_t>(summary.tokens.size())}});
}

}  // namespace

void WorkerService::AddTo(rpc::CallServer* server, const rpc::Context* context,
                          const Executors& executors) {
  rpc::AddStreamed<v1::GenerateRequest, v1::GenerateResponse>(
      server, context, kWorkerService, "Generate", executors.requests,
      [this](auto& call, const auto& request, const auto& write) {
        return Generate(call, request, write);
      });
  rpc::AddStreamed<v1::ScoreRequest, v1::ScoreResponse>(
      server, context, kWorkerService, "Score", executors.requests,
      [this](auto& call, const auto& request, const auto& write) {
        return Score(call, request, write);
      });
  rpc::AddUnary<v1::TokenizeRequest, v1::TokenizeResponse>(
      server, context, kWorkerService, "Tokenize", executors.tokenize,
      [this](auto&, const auto& request, auto* response) { return Tokenize(request, response); });
  rpc::AddUnary<v1::WorkerInfoRequest, v1::WorkerInfo>(
      server, context, kWorkerService, "GetInfo", executors.requests,
      [this](auto&, const auto&, auto* response) { return GetInfo(response); });
  rpc::AddUnary<v1::WaitIdleRequest, v1::WaitIdleResponse>(
      server, context, kWorkerService, "WaitIdle", executors.waits,
      [this](auto& call, const auto& request, auto* response) {
        return WaitIdle(call, request, response);
      });
}

Status WorkerService::Generate(rpc::Call& call, const v1::GenerateRequest& request,
                               const WriteGenerate& write) {
  CAIRN_ASSIGN_OR_RETURN(GenerateRequest wanted, FromProto(request, SteadyClock::Get().Now(),
                                                           std::chrono::system_clock::now()));
  // Its KV is read, and stored, whoever the request is charged to.
  CAIRN_RETURN_IF_ERROR(call.CheckAllowed(auth::Role::kReader, tenant_));
  // A router says for whom it calls.
  CAIRN_RETURN_IF_ERROR(
      call.CheckAllowed(auth::Role::kWriter, wanted.tenant.empty() ? tenant_ : wanted.tenant));
  wanted.trace = call.trace();

  GenerateCallbacks callbacks;
  callbacks.on_token = [&](model::TokenId id, std::string_view text) {
    v1::GenerateResponse response;
    response.mutable_token()->set_id(id);
    response.mutable_token()->set_text(std::string(text));
    return write(response);  // False when the client is gone.
  };
  callbacks.on_announced = [&] {
    v1::GenerateResponse response;
    response.mutable_announced();
    return write(response);
  };
  callbacks.cancelled = [&] { return call.cancelled(); };
  const TimePoint begin = SteadyClock::Get().Now();
  CAIRN_ASSIGN_OR_RETURN(const GenerateSummary summary, engine_.Generate(wanted, callbacks));
  metrics_.Observe(summary);
  AddPhases(call, begin, summary);
  v1::GenerateResponse last;
  ToProto(summary, last.mutable_done());
  return write(last) ? OkStatus() : rpc::Gone();
}

Status WorkerService::Score(rpc::Call& call, const v1::ScoreRequest& request,
                            const WriteScore& write) {
  CAIRN_RETURN_IF_ERROR(call.CheckAllowed(auth::Role::kWriter, tenant_));
  GenerateRequest wanted;
  wanted.prompt = TokenPrompt{{request.context().ids().begin(), request.context().ids().end()}};
  wanted.score_tokens = {request.continuation().ids().begin(), request.continuation().ids().end()};
  if (wanted.score_tokens.empty()) {
    return InvalidArgument("field 'continuation': got 0 tokens, expected 1 to {}", kMaxScoreTokens);
  }
  wanted.no_cache = request.no_cache();
  wanted.prefix_end = request.prefix_end();
  wanted.trace = call.trace();

  GenerateCallbacks callbacks;
  callbacks.on_scores = [&](size_t first, size_t rows, std::span<const float> logits) {
    const size_t vocab = logits.size() / rows;
    const size_t rows_per_message =
        std::max<size_t>(1, kScoreMessageBytes / (vocab * sizeof(float)));
    for (size_t at = 0; at < rows; at += rows_per_message) {
      const size_t count = std::min(rows_per_message, rows - at);
      v1::ScoreResponse response;
      response.mutable_rows()->set_first(static_cast<uint32_t>(first + at));
      response.mutable_rows()->set_rows(static_cast<uint32_t>(count));
      response.mutable_rows()->set_logits(logits.data() + at * vocab,
                                          count * vocab * sizeof(float));
      if (!write(response)) return false;  // The client is gone.
    }
    return true;
  };
  callbacks.cancelled = [&] { return call.cancelled(); };
  CAIRN_ASSIGN_OR_RETURN(const GenerateSummary summary, engine_.Generate(wanted, callbacks));
  v1::ScoreResponse last;
  ToProto(summary, last.mutable_done());
  return write(last) ? OkStatus() : rpc::Gone();
}

Status WorkerService::Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse* response) {
  const auto ids = engine_.model().tokenizer().Encode(request.text(), request.parse_special());
  if (!ids.ok()) return Annotate(ids.status(), "field 'text'");
  response->mutable_ids()->Add(ids->begin(), ids->end());
  return OkStatus();
}

Status WorkerService::GetInfo(v1::WorkerInfo* response) {
  const WorkerEngine::Info info = engine_.GetInfo();
  response->set_version(std::string(config::Version()));
  response->set_model(info.model);
  response->set_weights_digest(info.weights_digest.Hex());
  response->set_numerics(info.numerics);
  response->set_context_tokens(info.context_tokens);
  response->set_block_tokens(info.block_tokens);
  response->set_cache_address(info.cache_address);
  response->set_cache_connected(info.cache_connected);
  response->set_role(static_cast<v1::WorkerRole>(info.role));
  if (info.fingerprint) response->set_fingerprint(std::string(info.fingerprint->View()));
  return OkStatus();
}

Status WorkerService::WaitIdle(rpc::Call& call, const v1::WaitIdleRequest& request,
                               v1::WaitIdleResponse* response) {
  if (request.timeout_ms() < 1 || request.timeout_ms() > kMaxWaitMs) {
    return InvalidArgument("field 'timeout_ms': got {}, expected 1 to {}", request.timeout_ms(),
                           kMaxWaitMs);
  }
  std::chrono::milliseconds left(request.timeout_ms());
  bool idle = false;
  while (!idle && left.count() > 0 && !call.cancelled()) {
    const std::chrono::milliseconds piece = std::min(left, kWaitPiece);
    idle = engine_.WaitIdle(piece);
    left -= piece;
  }
  const WorkerEngine::Stats stats = engine_.GetStats();
  response->set_idle(idle);
  response->set_pushed_blocks(stats.push.pushed_blocks);
  response->set_push_failures(stats.push.failed_blocks + stats.push.dropped_blocks);
  return OkStatus();
}

}  // namespace cairn::worker
