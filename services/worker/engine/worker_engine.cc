#include "services/worker/engine/worker_engine.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "cairn/client/cache_client.h"
#include "common/log/log.h"
#include "services/worker/engine/prefill.h"
#include "services/worker/engine/prompt.h"
#include "services/worker/engine/prompt_kv.h"
#include "services/worker/engine/request_queue.h"
#include "services/worker/engine/selected_prompt.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {
namespace {

constexpr uint64_t kMinKvPoolBytes = 256ull << 20;

// A turn that is over, to be prefilled in idle time.
struct IdleTurn {
  std::vector<TokenId> tokens;  // Whole blocks.
  // The finished request's KV, cut to the blocks that the prefill path computed; may be null.
  std::shared_ptr<KvSequence> sequence;
  std::string trace;
};

// One codec may store several namespaces, with other parameters.
void AddCodec(const KvCodec::Stats& codec, std::vector<KvCodec::Stats>* all) {
  const auto same = std::ranges::find(*all, codec.codec, &KvCodec::Stats::codec);
  if (same == all->end()) {
    all->push_back(codec);
    return;
  }
  same->encode += codec.encode;
  same->decode += codec.decode;
}

class EngineImpl final : public WorkerEngine {
 public:
  EngineImpl(Options options, std::unique_ptr<client::CacheClient> cache,
             std::unique_ptr<Model> model, std::unique_ptr<Transformer> transformer,
             std::unique_ptr<KvPool> pool, std::optional<NamespaceSpec> spec,
             std::unique_ptr<KvCodec> codec, std::vector<PublishedNamespace> published,
             std::unique_ptr<const selections::Selection> selection)
      : options_(std::move(options)),
        clock_(SteadyClock::Get()),
        model_(std::move(model)),
        transformer_(std::move(transformer)),
        pool_(std::move(pool)),
        cache_(std::move(cache)),
        codec_(std::move(codec)),
        published_(std::move(published)),
        queue_(options_.queue_capacity),
        logits_(static_cast<size_t>(transformer_->vocab())) {
    if (cache_) {
      push_.emplace(*cache_, spec->layout, options_.push);
      session_.emplace(*cache_, *std::move(spec), pool_->layout(), *codec_, options_.prefix);
      OpenPublished();
    }
    if (push_ && std::ranges::any_of(published_, [](const PublishedNamespace& target) {
          return target.selection != nullptr;
        })) {
      selection_publisher_.emplace(*transformer_, *model_, *push_, published_);
    }
    prompt_kv_.emplace(*transformer_, clock_, session_ ? &*session_ : nullptr,
                       push_ ? &*push_ : nullptr, published_,
                       selection_publisher_ ? &*selection_publisher_ : nullptr);
    if (selection != nullptr) {
      selected_prompt_.emplace(*transformer_, *model_, *pool_, clock_, std::move(selection),
                               session_ ? &*session_ : nullptr, push_ ? &*push_ : nullptr);
    }
    thread_ = std::thread([this] { Run(); });
  }

  ~EngineImpl() override { Shutdown(std::chrono::milliseconds(0)); }

  Result<GenerateSummary> Generate(const GenerateRequest& request,
                                   const GenerateCallbacks& callbacks) override;
  bool WaitIdle(std::chrono::milliseconds timeout) override;
  Info GetInfo() const override;
  Stats GetStats() const override;
  const Model& model() const override { return *model_; }
  void Shutdown(std::chrono::milliseconds drain) override;

 private:
  // A node that is away is not waited for again: the client opens them once it is there.
  void OpenPublished();
  void FinishJob(Job& job, Result<GenerateSummary> outcome);

  // Everything below runs on the engine's thread.
  void Run();
  void RunJob(const std::shared_ptr<Job>& job);
  Result<GenerateSummary> Answer(Job& job, const std::shared_ptr<KvSequence>& sequence);
  Status Decode(Job& job, KvSequence& sequence, TimePoint start, GenerateSummary* summary);
  // A pass after the prompt; done again when the node took lent memory back under it.
  Status Forward(const Job& job, const SequenceChunk& chunk);
  // Computes the request's score_tokens and hands out their logits.
  Status Score(Job& job, KvSequence& sequence);
  void Keep(const Job& job, const GenerateSummary& summary, std::shared_ptr<KvSequence> sequence);
  void RunIdleTurn();
  // Gets the prompt's KV into the sequence, with room for `tokens` in all.
  PromptKv::Report ComputePrompt(const PromptKv::Request& wanted, int64_t tokens,
                                 GenerateSummary* summary);
  // Room for `tokens`; gives up what idle turns and waiting pushes hold when the pool is short.
  Status ReserveKv(KvSequence& sequence, int64_t tokens);

  uint32_t context() const { return static_cast<uint32_t>(options_.max_context); }
  uint32_t BlockTokens() const { return static_cast<uint32_t>(pool_->layout().block_tokens); }

  // Constant after construction.
  const Options options_;  // max_context is filled in.
  const Clock& clock_;
  const std::unique_ptr<Model> model_;
  const std::unique_ptr<Transformer> transformer_;
  const std::unique_ptr<KvPool> pool_;
  const std::unique_ptr<client::CacheClient> cache_;
  const std::unique_ptr<const KvCodec> codec_;  // Null without a cache.
  const std::vector<PublishedNamespace> published_;

  // Destroyed before the pool: both refer to pages.
  std::optional<PrefixSession> session_;
  std::optional<PushQueue> push_;

  RequestQueue queue_;

  // Engine thread only.
  std::optional<SelectionPublisher> selection_publisher_;
  std::optional<PromptKv> prompt_kv_;
  std::optional<SelectedPrompt> selected_prompt_;  // Where the recipe selects, in its place.
  std::vector<float> logits_;

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<IdleTurn> idle_ ABSL_GUARDED_BY(mu_);
  bool idle_running_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t open_requests_ ABSL_GUARDED_BY(mu_) = 0;  // Accepted and not finished.
  Stats totals_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> cancel_all_{false};

  Mutex shutdown_mu_;  // Serialises Shutdown.
  std::thread thread_;
};

void EngineImpl::OpenPublished() {
  for (const PublishedNamespace& target : published_) {
    const bool away = !cache_->GetStats().connected;
    const Duration deadline =
        away ? Duration(std::chrono::milliseconds(1)) : Duration(options_.prefix.connect_deadline);
    const Status opened =
        cache_->OpenNamespace(target.spec, {.deadline = deadline, .trace = {}}).status();
    if (!opened.ok()) {
      log::Warn("cache_namespace_not_open",
                {{"recipe", target.spec.recipe}, {"error", ToString(opened)}});
    }
  }
}

Result<GenerateSummary> EngineImpl::Generate(const GenerateRequest& request,
                                             const GenerateCallbacks& callbacks) {
  CAIRN_ASSIGN_OR_RETURN(PreparedPrompt prompt,
                         PreparePrompt(*model_, context(), BlockTokens(), request));
  auto job = std::make_shared<Job>(request, std::move(prompt), clock_.Now());
  {
    MutexLock lock(mu_);
    ++open_requests_;
  }
  Status status = queue_.Put(job);
  if (status.code() == StatusCode::kResourceExhausted) {
    for (const auto& gone : queue_.TakeCancelled()) {
      FinishJob(*gone, CancelledSummary(*gone, clock_.Now()));
    }
    status = queue_.Put(job);
  }
  if (!status.ok()) {
    MutexLock lock(mu_);
    --open_requests_;
    ++totals_.requests_refused;
    changed_.NotifyAll();
    return status;
  }
  return job->Consume(callbacks);
}

void EngineImpl::Run() {
  while (true) {
    bool idle_work = false;
    {
      MutexLock lock(mu_);
      idle_work = !idle_.empty();
    }
    if (std::shared_ptr<Job> job = queue_.Take(/*poll=*/idle_work)) {
      RunJob(job);
    } else if (queue_.closed()) {
      return;
    } else if (idle_work) {
      RunIdleTurn();
    }
  }
}

void EngineImpl::RunJob(const std::shared_ptr<Job>& job) {
  if (job->cancelled()) {
    FinishJob(*job, CancelledSummary(*job, clock_.Now()));
    return;
  }
  auto sequence = std::make_shared<KvSequence>(pool_->NewSequence());
  Result<GenerateSummary> outcome = Answer(*job, sequence);
  if (outcome.ok() && job->request().keep_turn && job->request().score_tokens.empty())
    Keep(*job, *outcome, sequence);
  // Pushes that wait hold the sequence, but read only pages that it computed.
  sequence->DropLoans();
  sequence.reset();  // Before the caller hears of the end: its next request may need the pages.
  FinishJob(*job, std::move(outcome));
}

void EngineImpl::FinishJob(Job& job, Result<GenerateSummary> outcome) {
  {
    MutexLock lock(mu_);
    if (outcome.ok()) {
      ++totals_.requests;
      totals_.requests_cancelled += outcome->finish_reason == "cancelled" ? 1 : 0;
      totals_.prompt_tokens += outcome->prompt_tokens;
      totals_.fetched_tokens += outcome->fetched_tokens;
      totals_.computed_tokens += outcome->computed_tokens;
      totals_.chosen_tokens += outcome->chosen_tokens;
      totals_.generated_tokens += outcome->tokens.size();
    } else {
      ++totals_.requests_failed;
    }
    --open_requests_;
    changed_.NotifyAll();
  }
  job.Finish(std::move(outcome));
}

Result<GenerateSummary> EngineImpl::Answer(Job& job, const std::shared_ptr<KvSequence>& sequence) {
  const GenerateRequest& request = job.request();
  const PreparedPrompt& prompt = job.prompt();
  const TimePoint start = clock_.Now();
  GenerateSummary summary;
  summary.queue_seconds = Seconds(start - job.queued_at());
  summary.prompt_tokens = static_cast<uint32_t>(prompt.tokens.size());
  const bool score = !request.score_tokens.empty();
  const size_t more = score ? request.score_tokens.size() : prompt.max_tokens;
  PromptKv::Request wanted;
  wanted.tokens = prompt.tokens;
  wanted.sequence = sequence;
  wanted.logits = score ? nullptr : logits_.data();
  wanted.use_cache = !request.no_cache;
  wanted.prefix_end = request.prefix_end;
  wanted.trace = request.trace;
  wanted.stop = [&] { return job.cancelled() || cancel_all_.load(std::memory_order_relaxed); };
  const PromptKv::Report report =
      ComputePrompt(wanted, static_cast<int64_t>(prompt.tokens.size() + more), &summary);

  summary.fetched_tokens = report.fetched_blocks * BlockTokens();
  summary.computed_tokens = summary.prompt_tokens - summary.fetched_tokens;
  summary.miss_reason = report.miss_reason;
  summary.fetched = report.fetched;
  summary.match_seconds = report.match_seconds;
  summary.fetch_seconds = report.fetch_seconds;
  summary.fetch_path = report.path;
  summary.chosen_tokens = report.chosen_blocks * BlockTokens();
  if (request.want_timeline) summary.timeline = report.timeline;
  if (report.status.code() == StatusCode::kCancelled) {
    summary.finish_reason = "cancelled";
    summary.total_seconds = Seconds(clock_.Now() - start);
    return summary;
  }
  CAIRN_RETURN_IF_ERROR(report.status);

  if (score) {
    CAIRN_RETURN_IF_ERROR(Score(job, *sequence));
    summary.finish_reason = job.cancelled() ? "cancelled" : "length";
  } else {
    CAIRN_RETURN_IF_ERROR(Decode(job, *sequence, start, &summary));
  }
  summary.total_seconds = Seconds(clock_.Now() - start);
  return summary;
}

PromptKv::Report EngineImpl::ComputePrompt(const PromptKv::Request& wanted, int64_t tokens,
                                           GenerateSummary* summary) {
  if (!selected_prompt_) {
    PromptKv::Report report;
    report.status = ReserveKv(*wanted.sequence, tokens);
    return report.status.ok() ? prompt_kv_->Compute(wanted) : report;
  }
  SelectedPrompt::Request request;
  request.prompt = wanted;
  request.capacity = tokens;
  request.make_room = [this] {
    if (push_) push_->DropPending();
  };
  SelectedPrompt::Report report = selected_prompt_->Compute(request);
  summary->selected_tokens = report.selected_tokens;
  const KvLayout& kv = pool_->layout();
  const double all = static_cast<double>(report.selected_tokens) * kv.layers * kv.kv_heads;
  summary->kept_share = all > 0 ? static_cast<double>(report.kept_rows) / all : 0;
  return std::move(report.prompt);
}

Status EngineImpl::Decode(Job& job, KvSequence& sequence, TimePoint start,
                          GenerateSummary* summary) {
  const GenerateRequest& request = job.request();
  if (request.want_logits_digest) {
    summary->prompt_logits_sha256 =
        Sha256().Update(std::as_bytes(std::span<const float>(logits_))).Finish();
  }
  Sampler sampler(request.sampling);
  StreamDecoder decoder(model_->tokenizer());
  summary->finish_reason = "length";
  while (true) {
    CAIRN_ASSIGN_OR_RETURN(const TokenId token, sampler.Sample(logits_));
    if (summary->ttft_seconds == 0) summary->ttft_seconds = Seconds(clock_.Now() - start);
    if (!request.ignore_eos && model_->tokenizer().IsEndOfGeneration(token)) {
      summary->finish_reason = "stop";
      break;
    }
    summary->tokens.push_back(token);
    std::string text = decoder.Add(token);
    summary->text += text;
    job.PutToken(token, std::move(text));
    if (summary->tokens.size() >= job.prompt().max_tokens) break;
    if (job.cancelled() || cancel_all_.load(std::memory_order_relaxed)) {
      summary->finish_reason = "cancelled";
      break;
    }
    SequenceChunk chunk;
    chunk.sequence = &sequence;
    chunk.tokens = {&token, 1};
    chunk.phase = Phase::kDecode;
    chunk.logits = logits_.data();
    CAIRN_RETURN_IF_ERROR(Forward(job, chunk));
  }
  summary->text += decoder.Finish();
  return OkStatus();
}

Status EngineImpl::Score(Job& job, KvSequence& sequence) {
  const std::span<const TokenId> tokens = job.request().score_tokens;
  // Whole blocks, since a prefill chunk begins at one; small ones, since a row is 4 bytes x
  // vocabulary.
  const auto step = static_cast<size_t>(pool_->layout().block_tokens);
  for (size_t first = 0; first < tokens.size(); first += step) {
    if (job.cancelled() || cancel_all_.load(std::memory_order_relaxed)) break;
    const size_t count = std::min(step, tokens.size() - first);
    std::vector<float> logits(count * logits_.size());
    SequenceChunk chunk;
    chunk.sequence = &sequence;
    chunk.tokens = tokens.subspan(first, count);
    chunk.logits = logits.data();
    chunk.logits_of_every_token = true;
    CAIRN_RETURN_IF_ERROR(Forward(job, chunk));
    job.PutScores(first, count, std::move(logits));
  }
  return OkStatus();
}

Status EngineImpl::Forward(const Job& job, const SequenceChunk& chunk) {
  const int64_t length = chunk.sequence->length();
  while (true) {
    CAIRN_RETURN_IF_ERROR(transformer_->Forward({&chunk, 1}));
    const Status loans = prompt_kv_->CheckLoans(job.prompt().tokens, *chunk.sequence);
    if (loans.code() != StatusCode::kAborted) return loans;
    chunk.sequence->SetLength(length);
  }
}

void EngineImpl::Keep(const Job& job, const GenerateSummary& summary,
                      std::shared_ptr<KvSequence> sequence) {
  // A segment is selected once, where a request says that it ends: answers do not become one.
  if (selected_prompt_) return;
  if (!session_ || job.request().no_cache || summary.finish_reason == "cancelled") return;
  const std::vector<TokenId>& prompt = job.prompt().tokens;
  IdleTurn turn;
  turn.tokens = FinishedTurn(*model_, context(), job.request(), job.prompt(), summary);
  turn.trace = job.request().trace;
  const auto block_tokens = static_cast<size_t>(pool_->layout().block_tokens);
  turn.tokens.resize(turn.tokens.size() / block_tokens * block_tokens);
  const auto same = static_cast<size_t>(
      std::mismatch(prompt.begin(), prompt.end(), turn.tokens.begin(), turn.tokens.end()).first -
      prompt.begin());
  const size_t exact = same / block_tokens * block_tokens;
  if (turn.tokens.size() <= exact) return;  // The request itself has pushed all of it.
  // What decode steps wrote is not of exact lineage: it is computed again. A turn that departs from
  // the prompt before its last full block starts on pages of its own: the prompt's may still be
  // read by a push.
  // And so may a turn whose prompt was fetched in a lossy form: what is computed over it has keys
  // that begin with a fetch.
  if (exact == prompt.size() / block_tokens * block_tokens && !codec_->lossy()) {
    sequence->Truncate(static_cast<int64_t>(exact));
    // It may wait for long: the node gets its memory back.
    if (sequence->CopyOut()) turn.sequence = std::move(sequence);
  }

  MutexLock lock(mu_);
  if (idle_.size() >= options_.idle_turns) {
    if (!idle_.empty()) idle_.pop_front();
    ++totals_.idle_turns_dropped;
  }
  if (options_.idle_turns > 0) idle_.push_back(std::move(turn));
}

void EngineImpl::RunIdleTurn() {
  IdleTurn turn;
  {
    MutexLock lock(mu_);
    turn = std::move(idle_.front());
    idle_.pop_front();
    idle_running_ = true;
  }
  if (turn.sequence == nullptr) {
    turn.sequence = std::make_shared<KvSequence>(pool_->NewSequence());
  }
  Status status = turn.sequence->Reserve(static_cast<int64_t>(turn.tokens.size()));
  PromptKv::Report report;
  if (status.ok()) {
    PromptKv::Request wanted;
    wanted.tokens = turn.tokens;
    wanted.sequence = turn.sequence;
    wanted.use_cache = true;
    wanted.background = true;
    wanted.trace = turn.trace;
    wanted.stop = [this] { return queue_.size() > 0 || queue_.closed(); };
    report = prompt_kv_->Compute(wanted);
    status = report.status;
  }
  MutexLock lock(mu_);
  idle_running_ = false;
  totals_.idle_prefilled_tokens += report.computed_tokens;
  if (status.code() == StatusCode::kCancelled && !queue_.closed()) {
    // A request has come. What is computed is on its way to the cache and need not hold pages.
    turn.sequence = nullptr;
    idle_.push_front(std::move(turn));
  } else if (!status.ok()) {
    ++totals_.idle_turns_dropped;
  }
  changed_.NotifyAll();
}

Status EngineImpl::ReserveKv(KvSequence& sequence, int64_t tokens) {
  Status status = sequence.Reserve(tokens);
  if (status.code() != StatusCode::kResourceExhausted) return status;
  {
    MutexLock lock(mu_);
    for (IdleTurn& turn : idle_) turn.sequence = nullptr;
  }
  status = sequence.Reserve(tokens);
  if (status.code() != StatusCode::kResourceExhausted || !push_) return status;
  push_->DropPending();
  return sequence.Reserve(tokens);
}

bool EngineImpl::WaitIdle(std::chrono::milliseconds timeout) {
  const TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  {
    MutexLock lock(mu_);
    if (!changed_.WaitUntil(mu_, deadline, [&] {
          return open_requests_ == 0 && idle_.empty() && !idle_running_;
        })) {
      return false;
    }
  }
  return !push_ || push_->WaitEmpty(deadline);
}

WorkerEngine::Info EngineImpl::GetInfo() const {
  Info info;
  info.model = model_->name();
  info.weights_digest = model_->weights_digest();
  info.numerics = transformer_->numerics_id();
  info.context_tokens = context();
  info.block_tokens = static_cast<uint32_t>(pool_->layout().block_tokens);
  info.threads = transformer_->threads();
  info.cache_address = options_.cache_address;
  if (session_) {
    info.cache_connected = session_->GetStats().connected;
    info.fingerprint = session_->fingerprint();
  }
  return info;
}

WorkerEngine::Stats EngineImpl::GetStats() const {
  Stats stats;
  {
    MutexLock lock(mu_);
    stats = totals_;
  }
  stats.queued_requests = queue_.size();
  stats.kv_pages_total = static_cast<uint64_t>(pool_->total_pages());
  stats.kv_pages_free = static_cast<uint64_t>(pool_->free_pages());
  if (session_) stats.prefix = session_->GetStats();
  if (push_) stats.push = push_->GetStats();
  if (codec_) stats.codecs = codec_->GetStats();
  for (const PublishedNamespace& target : published_) {
    for (const KvCodec::Stats& codec : target.codec->GetStats()) AddCodec(codec, &stats.codecs);
  }
  return stats;
}

void EngineImpl::Shutdown(std::chrono::milliseconds drain) {
  MutexLock shutdown(shutdown_mu_);
  if (!thread_.joinable()) return;
  const TimePoint deadline = std::chrono::steady_clock::now() + drain;
  queue_.Close();
  {
    MutexLock lock(mu_);
    changed_.WaitUntil(mu_, deadline, [&] { return open_requests_ == 0; });
  }
  cancel_all_.store(true);
  queue_.CancelAll();
  thread_.join();
  {
    MutexLock lock(mu_);
    idle_.clear();
    changed_.NotifyAll();
  }
  if (push_) push_->Stop(deadline);
}

}  // namespace

Result<std::unique_ptr<WorkerEngine>> WorkerEngine::Create(
    const Options& given, std::unique_ptr<client::CacheClient> cache) {
  Options options = given;
  if (options.queue_capacity < 1) {
    return InvalidArgument("option 'queue_capacity': got {}, expected at least 1",
                           options.queue_capacity);
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::Load(options.model_path));
  if (options.max_context < 0 || options.max_context > model->hp().context) {
    return InvalidArgument("option 'max_context': got {}, expected 0 to {}", options.max_context,
                           model->hp().context);
  }
  if (options.max_context == 0) options.max_context = model->hp().context;

  Transformer::Options compute;
  compute.arithmetic = options.arithmetic;
  compute.threads = options.threads;
  compute.max_context = options.max_context;
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Transformer> transformer,
                         Transformer::Create(*model, compute));
  const KvLayout& kv = transformer->kv_layout();
  if (options.kv_pool_bytes == 0) {
    const uint64_t pages_per_sequence =
        (static_cast<uint64_t>(options.max_context) + static_cast<uint64_t>(kv.block_tokens) - 1) /
        static_cast<uint64_t>(kv.block_tokens);
    options.kv_pool_bytes = std::max(kMinKvPoolBytes, 2 * pages_per_sequence * kv.page_bytes());
  }
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<KvPool> pool, KvPool::Create(kv, options.kv_pool_bytes));

  NamespaceInputs inputs;
  inputs.tenant = options.tenant;
  inputs.salt = options.salt;
  inputs.model = model->name();
  inputs.weights = model->weights_digest();
  inputs.kv = kv;
  inputs.numerics = transformer->numerics_id();
  inputs.recipe = options.recipe;
  inputs.calibration = options.calibration;
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<const selections::Selection> selection,
                         SelectionOf(inputs));
  std::optional<NamespaceSpec> spec;
  std::unique_ptr<KvCodec> codec;
  std::vector<PublishedNamespace> published;
  if (cache) {
    CAIRN_ASSIGN_OR_RETURN(spec, WorkerNamespace(inputs));
    CAIRN_ASSIGN_OR_RETURN(codec, KvCodec::Create(*spec, kv));
    CAIRN_ASSIGN_OR_RETURN(published, PublishedNamespaces(std::move(inputs), options.publish));
  }
  return std::make_unique<EngineImpl>(std::move(options), std::move(cache), std::move(model),
                                      std::move(transformer), std::move(pool), std::move(spec),
                                      std::move(codec), std::move(published), std::move(selection));
}

}  // namespace cairn::worker
