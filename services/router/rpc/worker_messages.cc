#include "services/router/rpc/worker_messages.h"

#include <utility>

#include "protocol/wire/request_deadline.h"

namespace cairn::router {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

Status RefuseWorkersFields(const v1::GenerateRequest& in) {
  const auto refuse = [](const char* field) {
    return InvalidArgument("field '{}': set, expected nothing: only a worker itself has it", field);
  };
  if (in.no_cache()) return refuse("no_cache");
  if (in.want_logits_digest()) return refuse("want_logits_digest");
  if (in.keep_turn()) return refuse("keep_turn");
  if (in.want_timeline()) return refuse("want_timeline");
  if (in.prefix_end() != 0) return refuse("prefix_end");
  if (in.prefill_only()) return refuse("prefill_only");
  if (in.await_prefill_ms() != 0) return refuse("await_prefill_ms");
  return OkStatus();
}

}  // namespace

void ToProto(const WorkerRequest& request, TimePoint now,
             std::chrono::system_clock::time_point wall, v1::GenerateRequest* out) {
  out->mutable_tokens()->mutable_ids()->Add(request.tokens->begin(), request.tokens->end());
  if (request.max_tokens) out->set_max_tokens(*request.max_tokens);
  out->set_temperature(request.temperature);
  out->set_top_k(request.top_k);
  out->set_top_p(request.top_p);
  out->set_seed(request.seed);
  for (const std::string& stop : request.stop) out->add_stop(stop);
  out->set_ignore_eos(request.ignore_eos);
  out->set_priority(request.priority);
  out->set_tenant(request.tenant);
  if (request.deadline) wire::SetDeadline(*request.deadline, now, wall, out);
  out->set_next(static_cast<v1::NextUse>(request.next));
  out->set_prefill_only(request.prefill_only);
  out->set_await_prefill_ms(
      static_cast<uint32_t>(duration_cast<milliseconds>(request.await_prefill).count()));
}

WorkerInfo FromProto(const v1::WorkerInfo& in) {
  WorkerInfo out;
  out.version = in.version();
  out.model = in.model();
  out.weights_digest = in.weights_digest();
  out.context_tokens = in.context_tokens();
  out.block_tokens = in.block_tokens();
  out.cache_address = in.cache_address();
  if (const auto digest = Digest::FromBytes(in.fingerprint(), "fingerprint"); digest.ok()) {
    out.fingerprint = *digest;
  }
  // A role of a later version counts as `both`.
  if (in.role() == v1::WORKER_ROLE_PREFILL) out.role = WorkerRole::kPrefill;
  if (in.role() == v1::WORKER_ROLE_DECODE) out.role = WorkerRole::kDecode;
  return out;
}

WorkerReport FromProto(const v1::LoadReport& in) {
  WorkerReport out;
  out.draining = in.draining();
  out.cache_node_id = in.cache_node_id();
  WorkerLoad& load = out.load;
  load.prefill_seconds = in.prefill_seconds();
  load.running_prompts = in.running_prompts();
  load.running_decodes = in.running_decodes();
  load.parked = in.parked();
  load.kv_pages_free = in.kv_pages_free();
  load.kv_pages_total = in.kv_pages_total();
  load.prefill_tokens_per_second = in.prefill_tokens_per_second();
  load.drain_tokens_per_second = in.drain_tokens_per_second();
  load.pair_seconds = in.pair_seconds();
  load.step_seconds = in.step_seconds();
  load.decode_seconds = in.decode_seconds();
  for (const v1::QueuedRequests& queued : in.queued()) {
    load.queued.push_back({queued.priority(), queued.requests(), queued.prefill_tokens()});
  }
  return out;
}

WorkerAnswer FromProto(const v1::GenerateSummary& in) {
  WorkerAnswer out;
  out.prompt_tokens = in.prompt_tokens();
  out.fetched_tokens = in.fetched_tokens();
  out.shared_tokens = in.shared_tokens();
  out.fetch_seconds = in.fetch_seconds();
  out.completion_tokens = static_cast<uint32_t>(in.tokens_size());
  out.finish_reason = in.finish_reason();
  out.text = in.text();
  return out;
}

void ToProto(const WorkerReport& report, v1::LoadReport* out) {
  const WorkerLoad& load = report.load;
  out->set_draining(report.draining);
  out->set_cache_node_id(report.cache_node_id);
  out->set_prefill_seconds(load.prefill_seconds);
  out->set_running_prompts(load.running_prompts);
  out->set_running_decodes(load.running_decodes);
  out->set_parked(load.parked);
  out->set_kv_pages_free(load.kv_pages_free);
  out->set_kv_pages_total(load.kv_pages_total);
  out->set_prefill_tokens_per_second(load.prefill_tokens_per_second);
  out->set_drain_tokens_per_second(load.drain_tokens_per_second);
  out->set_pair_seconds(load.pair_seconds);
  out->set_step_seconds(load.step_seconds);
  out->set_decode_seconds(load.decode_seconds);
  for (const WorkerLoad::Queued& queued : load.queued) {
    v1::QueuedRequests* const one = out->add_queued();
    one->set_priority(queued.priority);
    one->set_requests(queued.requests);
    one->set_prefill_tokens(queued.prefill_tokens);
  }
}

void ToProto(const Pick& pick, v1::PickResponse* out) {
  out->set_worker(pick.worker);
  out->set_policy(pick.policy);
  out->set_prompt_tokens(pick.prompt_tokens);
  out->set_prefill_worker(pick.prefill_worker);
  for (const Candidate& candidate : pick.candidates) {
    v1::PickCandidate* const one = out->add_candidates();
    one->set_worker(candidate.worker);
    one->set_usable(candidate.usable);
    one->set_reason(candidate.reason);
    one->set_held_tokens(candidate.held_tokens);
    one->set_queue_seconds(candidate.queue_seconds);
    one->set_fetch_seconds(candidate.fetch_seconds);
    one->set_work_seconds(candidate.work_seconds);
    one->set_delayed_requests(candidate.delayed_requests);
    one->set_cost(candidate.cost);
  }
}

Result<GenerateRequest> FromProto(const v1::GenerateRequest& in, TimePoint now,
                                  std::chrono::system_clock::time_point wall) {
  CAIRN_RETURN_IF_ERROR(RefuseWorkersFields(in));
  GenerateRequest out;
  switch (in.prompt_case()) {
    case v1::GenerateRequest::kChat: {
      std::vector<model::ChatMessage> messages;
      for (const v1::ChatMessage& message : in.chat().messages()) {
        messages.push_back({message.role(), message.content()});
      }
      out.prompt = std::move(messages);
      break;
    }
    case v1::GenerateRequest::kRawText:
      out.prompt = in.raw_text();
      break;
    case v1::GenerateRequest::kTokens:
      out.prompt = std::vector<model::TokenId>(in.tokens().ids().begin(), in.tokens().ids().end());
      break;
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return InvalidArgument("field 'prompt': not set, expected one of chat, raw_text, tokens");
  }
  if (in.max_tokens() != 0) out.max_tokens = in.max_tokens();
  out.temperature = in.temperature();
  out.top_k = in.top_k();
  out.top_p = in.top_p();
  out.seed = in.seed();
  out.stop.assign(in.stop().begin(), in.stop().end());
  out.ignore_eos = in.ignore_eos();
  out.priority = in.priority();
  out.tenant = in.tenant();
  if (!v1::NextUse_IsValid(in.next())) {
    return InvalidArgument("field 'next': got {}, expected 0 to {}", static_cast<int>(in.next()),
                           kNextUseCount - 1);
  }
  out.next = static_cast<NextUse>(in.next());
  CAIRN_ASSIGN_OR_RETURN(out.deadline, wire::DeadlineOf(in, now, wall));
  return out;
}

}  // namespace cairn::router
