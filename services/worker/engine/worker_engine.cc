#include "services/worker/engine/worker_engine.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "cairn/client/cache_client.h"
#include "common/log/log.h"
#include "services/worker/engine/prompt.h"
#include "services/worker/engine/prompt_kv.h"
#include "services/worker/engine/request_queue.h"
#include "services/worker/engine/run_loop.h"
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
             std::unique_ptr<KvPool> pool, std::optional<CheckedNamespace> ns,
             std::unique_ptr<KvCodec> codec, std::vector<PublishedNamespace> published,
             std::unique_ptr<const selections::Selection> selection,
             std::unique_ptr<Scheduler> scheduler)
      : options_(std::move(options)),
        clock_(SteadyClock::Get()),
        model_(std::move(model)),
        transformer_(std::move(transformer)),
        pool_(std::move(pool)),
        cache_(std::move(cache)),
        codec_(std::move(codec)),
        published_(std::move(published)),
        queue_(options_.queue_capacity),
        scheduler_(std::move(scheduler)) {
    if (cache_) {
      push_.emplace(*cache_, ns->spec.layout, options_.push);
      session_.emplace(*cache_, *std::move(ns), pool_->layout(), *codec_, options_.prefix);
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
    parts_.emplace(RequestParts{
        .model = *model_,
        .transformer = *transformer_,
        .pool = *pool_,
        .clock = clock_,
        .prompt_kv = *prompt_kv_,
        .selected_prompt = selected_prompt_ ? &*selected_prompt_ : nullptr,
        .cancel_all = cancel_all_,
        .reserve = [this](KvSequence& sequence,
                          int64_t tokens) { return ReserveKv(sequence, tokens); },
        .make_room =
            [this] {
              if (push_) push_->DropPending();
            },
    });
    loop_.emplace(*parts_, *scheduler_);
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
  // Lets requests that wait run, as far as the scheduler allows. Blocks for one if there is no
  // other work.
  void StartJobs(bool idle_work);
  void FinishRun(std::unique_ptr<RequestRun> run);
  void Keep(const Job& job, const GenerateSummary& summary, std::shared_ptr<KvSequence> sequence);
  void RunIdleTurn();
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
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<RequestParts> parts_;
  std::optional<RunLoop> loop_;

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
        cache_->OpenNamespace(target.ns.spec, {.deadline = deadline, .trace = {}}).status();
    if (!opened.ok()) {
      log::Warn("cache_namespace_not_open",
                {{"recipe", target.ns.spec.recipe}, {"error", ToString(opened)}});
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
    StartJobs(idle_work);
    if (!loop_->empty()) {
      RunLoop::Round round = loop_->Step();
      for (auto& run : round.finished) FinishRun(std::move(run));
      if (!round.progressed) loop_->WaitBriefly();
    } else if (queue_.closed()) {
      if (queue_.size() == 0) return;
    } else if (idle_work) {
      RunIdleTurn();
    }
  }
}

void EngineImpl::StartJobs(bool idle_work) {
  while (loop_->HasRoom()) {
    const std::shared_ptr<Job> job = queue_.Take(/*poll=*/idle_work || !loop_->empty());
    if (job == nullptr) return;
    if (job->cancelled()) {
      FinishJob(*job, CancelledSummary(*job, clock_.Now()));
    } else {
      loop_->Add(job);
    }
  }
}

void EngineImpl::FinishRun(std::unique_ptr<RequestRun> run) {
  const std::shared_ptr<Job> job = run->job();
  Result<GenerateSummary> outcome = run->TakeOutcome();
  std::shared_ptr<KvSequence> sequence = run->TakeSequence();
  run.reset();
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
    const Options& given, std::unique_ptr<client::CacheClient> cache,
    std::unique_ptr<Scheduler> scheduler) {
  Options options = given;
  if (scheduler == nullptr) scheduler = std::make_unique<FifoScheduler>();
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
  // Without a cache only the recipe's selection counts, and nothing needs a name.
  std::optional<CheckedNamespace> ns;
  if (cache) {
    CAIRN_ASSIGN_OR_RETURN(ns, WorkerNamespace(inputs));
  }
  CAIRN_ASSIGN_OR_RETURN(const Recipe recipe,
                         ns ? Result<Recipe>(ns->recipe) : ParseRecipe(inputs.recipe));
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<const selections::Selection> selection,
                         SelectionOf(recipe, inputs));
  std::unique_ptr<KvCodec> codec;
  std::vector<PublishedNamespace> published;
  if (cache) {
    CAIRN_ASSIGN_OR_RETURN(codec, KvCodec::Create(*ns, kv));
    CAIRN_ASSIGN_OR_RETURN(published, PublishedNamespaces(std::move(inputs), options.publish));
  }
  return std::make_unique<EngineImpl>(std::move(options), std::move(cache), std::move(model),
                                      std::move(transformer), std::move(pool), std::move(ns),
                                      std::move(codec), std::move(published), std::move(selection),
                                      std::move(scheduler));
}

}  // namespace cairn::worker
