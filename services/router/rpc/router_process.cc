#include "services/router/rpc/router_process.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "cairn/client/cluster_events.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "common/log/log.h"
#include "common/metrics/certificates.h"
#include "common/metrics/memory_metrics.h"
#include "common/rpc/call_metrics.h"
#include "common/rpc/health_service.h"
#include "common/rpc/server.h"
#include "common/service/policy.h"
#include "model/model.h"
#include "protocol/wire/method_roles.h"
#include "protocol/wire/request_bounds.h"
#include "services/router/events/engine_view.h"
#include "services/router/http/body_reads.h"
#include "services/router/http/http_edge.h"
#include "services/router/picker/picker_edge.h"
#include "services/router/relay/engine_link.h"
#include "services/router/relay/key_file.h"
#include "services/router/relay/prompt_reader.h"
#include "services/router/rpc/cluster_follower.h"
#include "services/router/rpc/completion_poller.h"
#include "services/router/rpc/engine_events.h"
#include "services/router/rpc/grpc_worker_link.h"
#include "services/router/rpc/router_memory.h"
#include "services/router/rpc/router_metrics.h"
#include "services/router/rpc/router_service.h"
#include "services/router/rpc/worker_names.h"

namespace cairn::router {
namespace {

constexpr size_t kPollers = 2;
// Limit for requests that wait for the threads that tokenise and decide. Prompts wait in a queue of
// their own.
constexpr size_t kWaitingRequests = 1024;
// The threads of long bodies and long texts get a tenth of the CPU next to those of all other
// requests. On idle CPUs they are as fast.
constexpr int kLongNiceness = 10;
constexpr int kMaxMessageBytes = 16 << 20;
// Requests have ended or were cancelled by then: what is left is sending their last messages.
constexpr Duration kLastMessages = std::chrono::milliseconds(500);

// `model`: nullptr, the workers are engines and there is none.
RouterEngine::Options EngineOptions(const RouterConfig& config, const model::Model* model) {
  RouterEngine::Options options;
  if (model != nullptr) {
    options.model_id = ModelId(config, model->name());
    options.aliases = config.aliases;
    options.context_tokens = static_cast<uint32_t>(model->hp().context);
  }
  options.tenant = config.tenant;
  options.max_requests = config.max_requests;
  options.max_tries = config.max_tries;
  options.exact_index = !config.cache.empty();
  options.pairing = config.pairing;
  options.threads = config.threads;
  options.tenant_bytes = config.tenant_text;
  options.tenants = *TermsOfTenants(config);  // The settings were checked.
  return options;
}

Dispatcher::Options DispatcherOptions(const RouterConfig& config) {
  Dispatcher::Options options;
  options.max_wait_seconds = Seconds(config.max_wait);
  options.tenants = *TermsOfTenants(config);
  // An engine finds blocks where it computes: nothing is fetched.
  if (config.relays()) options.memory_tokens_per_second = 1e8;
  return options;
}

WorkerRegistry::Options RegistryOptions(const RouterConfig& config, const model::Model* model) {
  WorkerRegistry::Options options;
  // Those that DNS names come later.
  for (const std::string& worker : config.workers) {
    if (!IsWorkerName(worker)) options.addresses.push_back(worker);
  }
  if (!config.relays()) options.weights_digest = model->weights_digest().Hex();
  return options;
}

PrefixIndex::Options IndexOptions(const RouterConfig& config) {
  PrefixIndex::Options options;
  options.max_bytes = config.index_bytes;
  if (config.relays()) {
    options.sent_blocks =
        SentBlocks(config.engines, !config.model.empty(), config.follows_engines());
  }
  return options;
}

// Bodies that wait have a bound of their own.
FairQueue::Options ReadOptions(const RouterConfig& config) {
  return {.threads = config.http.threads,
          .tenant_bytes = UINT64_MAX,
          .tenants = *TermsOfTenants(config)};
}

// Everything below the ports. Members end in the opposite order: what calls others goes first.
struct Core {
  Core(const RouterConfig& config, std::unique_ptr<model::Model> loaded,
       std::unique_ptr<Policy> policy, metrics::Registry* registry)
      : model(std::move(loaded)),
        index(IndexOptions(config)),
        dispatcher(DispatcherOptions(config), std::move(policy), &SteadyClock::Get(),
                   std::random_device()()),
        poller(kPollers),
        executor({.name = "route", .threads = config.threads, .queue_capacity = kWaitingRequests}),
        long_texts({.name = "route-long",
                    .threads = config.threads,
                    .queue_capacity = kWaitingRequests,
                    .niceness = kLongNiceness}),
        readers({.name = "read",
                 .threads = config.http.threads,
                 .queue_capacity = kWaitingRequests,
                 .niceness = kLongNiceness}),
        reads(ReadOptions(config), &readers, &SteadyClock::Get()),
        times(RouterTimes(registry)) {
    if (model != nullptr) encoder.emplace(*model, config.token_cache);
  }

  void OnLoad(const std::string& address, const WorkerLoad* load) {
    if (load != nullptr) return dispatcher.Report(address, *load);
    // It may come back with nothing of what it was sent.
    index.Forget(address);
  }

  const std::unique_ptr<model::Model> model;  // nullptr: before engines it may be missing.
  std::optional<PromptEncoder> encoder;       // The encoder of the model.
  PrefixIndex index;
  Dispatcher dispatcher;
  CompletionPoller poller;
  std::unique_ptr<KeyFile> engine_key;           // nullptr: engines get no key.
  std::unique_ptr<http::Client> http_client;     // nullptr: the workers are Cairn's.
  std::vector<EventSource> event_sources;        // As the settings have them.
  std::unique_ptr<ZmqFollower> engine_follower;  // nullptr: no engine's events are followed.
  std::optional<WorkerRegistry> workers;
  std::unique_ptr<WorkerFollower> worker_follower;  // nullptr: DNS names no worker.
  std::optional<PromptReader> prompts;              // Before engines.
  ThreadPool executor;
  ThreadPool long_texts;
  ThreadPool readers;  // The readers of long bodies.
  BodyReads reads;
  RouterEngine::Observers times;
  std::optional<RouterEngine> engine;
  std::optional<ClusterFollower> follower;
};

class RouterProcess final : public service::Service {
 public:
  RouterProcess(const RouterConfig& config, metrics::Registry* registry, tracing::Tracer* tracer)
      : config_(config),
        registry_(*registry),
        tracer_(tracer),
        call_metrics_(registry),
        request_bytes_(config.rpc_requests, "rpc.requests"),
        answers_(std::make_shared<FairBudget>(
            config.all_answers, BudgetName{.item = "answers", .setting = "all_answers"})),
        memory_(MemoryBounds(config)) {
    registry_.AddProcessMetrics({{"component", "router"}});
    metrics::ExportCertificates(
        config_.tls,
        {{"cache", config_.cache_certificate}, {"workers", config_.workers_tls.certificate}},
        &registry_);
  }
  ~RouterProcess() override { Stop(); }

  Status Start() override {
    std::unique_ptr<model::Model> model;
    if (!config_.model.empty()) {
      auto loaded = model::Model::Load(config_.model);
      if (!loaded.ok()) return Annotate(loaded.status(), "model");
      model = *std::move(loaded);
    }
    CAIRN_ASSIGN_OR_RETURN(
        access_, service::OpenPolicy(config_.auth_policy, &SteadyClock::Get(), &registry_));
    CAIRN_ASSIGN_OR_RETURN(auto policy, MakePolicy(config_.policy));
    core_.emplace(config_, std::move(model), std::move(policy), &registry_);
    if (config_.follows_engines()) CAIRN_RETURN_IF_ERROR(FollowEngines());
    CAIRN_ASSIGN_OR_RETURN(const MakeWorkerLink links, MakeLinks());
    core_->workers.emplace(RegistryOptions(config_, core_->model.get()), links, &SteadyClock::Get(),
                           [core = &*core_](const std::string& address, const WorkerLoad* load) {
                             core->OnLoad(address, load);
                           });
    if (std::ranges::any_of(config_.workers, IsWorkerName)) CAIRN_RETURN_IF_ERROR(FollowNames());
    if (config_.relays()) ReadPrompts();
    core_->engine.emplace(EngineOptions(config_, core_->model.get()),
                          RouterEngine::Parts{.encoder = Pointer(core_->encoder),
                                              .prompts = Pointer(core_->prompts),
                                              .registry = &*core_->workers,
                                              .index = &core_->index,
                                              .dispatcher = &core_->dispatcher,
                                              .executor = &core_->executor,
                                              .long_texts = &core_->long_texts,
                                              .clock = &SteadyClock::Get(),
                                              .tracer = tracer_},
                          core_->times);
    if (!config_.cache.empty()) {
      auto events = client::WatchCluster(CacheConnection(config_));
      if (!events.ok()) return Annotate(events.status(), "settings cache and cache_tls.*");
      core_->follower.emplace(*std::move(events), &core_->index);
    }
    ExportRouter({.engine = &*core_->engine,
                  .registry = &*core_->workers,
                  .dispatcher = &core_->dispatcher,
                  .index = &core_->index,
                  .encoder = Pointer(core_->encoder),
                  .prompts = Pointer(core_->prompts),
                  .follows_nodes = !config_.cache.empty()},
                 &registry_);
    registry_.AddCollector([key = core_->engine_key.get()](metrics::Sink& sink) {
      if (key != nullptr) ExportKeyFile("engines.api_key_file", key->stale(), sink);
    });
    registry_.AddCollector([this](metrics::Sink& sink) {
      MutexLock lock(edges_mu_);
      if (http_ != nullptr) ExportHttp(http_->GetStats(), sink);
      if (picker_ != nullptr) ExportPicker(picker_->GetStats(), sink);
      MeasureMemory();
      metrics::ExportMemory(memory_, "cairn_router_memory", sink);
    });
    core_->workers->Tick();
    CAIRN_RETURN_IF_ERROR(StartServer());
    CAIRN_RETURN_IF_ERROR(StartPicker());
    if (config_.http.listen.empty()) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(
        auto http, HttpEdge::Start(config_.http, config_.tls, &*core_->engine, config_.relays(),
                                   &core_->reads, tracer_, AddedTime(&registry_)));
    http_address_ = http->address();
    MutexLock lock(edges_mu_);
    http_ = std::move(http);
    return OkStatus();
  }

  std::string address() const override { return server_.address(); }
  std::string http_address() const override { return http_address_; }

  void Tick() override {
    if (access_ != nullptr) access_->Look();
    core_->workers->Tick();
    health_.Tick();
    MutexLock lock(edges_mu_);
    if (picker_ != nullptr) picker_->Tick();
  }

  std::string Waiting() const override { return core_->engine->Waiting(); }

  Duration BusyFor() const override {
    MutexLock lock(edges_mu_);
    const Duration busy = picker_ == nullptr ? Duration(0) : picker_->BusyFor();
    return std::max(busy, server_.calls().BusyFor());
  }

  Status Drain() override {
    context_.draining = true;
    health_.Tick();
    {
      MutexLock lock(edges_mu_);
      if (picker_ != nullptr) picker_->StartDrain();
    }
    const TimePoint deadline = SteadyClock::Get().Now() + config_.drain;
    const bool sent = DrainHttp();
    const bool ended = core_->engine->Drain(deadline);
    if (!sent || !ended) log::Warn("router_drain_cancels", {});
    Stop();
    return OkStatus();
  }

 private:
  template <typename T>
  static T* Pointer(std::optional<T>& part) {
    return part ? &*part : nullptr;
  }
  Result<MakeWorkerLink> MakeLinks() {
    if (!config_.relays()) return GrpcWorkerLinks(config_.workers_tls, &core_->poller);
    const EngineConfig& engines = config_.engines;
    if (!engines.api_key_file.empty()) {
      CAIRN_ASSIGN_OR_RETURN(
          core_->engine_key,
          KeyFile::Open(engines.api_key_file, "engines.api_key_file", &SteadyClock::Get()));
    }
    auto client =
        http::MakeClient({.threads = engines.threads, .authorities = engines.authorities});
    if (!client.ok()) return Annotate(client.status(), "engines.ca");
    core_->http_client = *std::move(client);
    EngineLinkOptions options = LinkOptions(engines);
    options.answers = answers_;
    if (core_->engine_follower != nullptr) {
      options.has_events = [follower = core_->engine_follower.get()](const std::string& address) {
        return follower->Follows(address);
      };
    }
    return EngineLinks(options, core_->http_client.get(), core_->engine_key.get(),
                       &SteadyClock::Get());
  }
  void MeasureMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(edges_mu_) {
    if (http_ != nullptr) {
      const HttpEdge::Stats stats = http_->GetStats();
      memory_.Measure(MemoryItem::kBodies, stats.server.body_bytes, stats.server.body_refusals);
      memory_.Measure(MemoryItem::kUnread, stats.server.unread_bytes, stats.server.unread_refusals);
      // The most memory that each may take: nobody counts the bytes of heads.
      memory_.Measure(MemoryItem::kConnections,
                      memory_.bound(MemoryItem::kConnections) / config_.http.max_connections *
                          stats.server.connections,
                      stats.server.refused_connections);
    }
    if (picker_ != nullptr) {
      const PickerStats stats = picker_->GetStats();
      memory_.Measure(MemoryItem::kPicker, stats.body_bytes, stats.body_refusals);
    }
    memory_.Measure(MemoryItem::kRequests, request_bytes_.used(), request_bytes_.refusals());
    memory_.Measure(MemoryItem::kReading, core_->reads.used_bytes(),
                    core_->reads.numbers().refused);
    memory_.Measure(MemoryItem::kAnswers, answers_->used(), answers_->refusals());
    memory_.Measure(MemoryItem::kIndex, core_->index.numbers().bytes);
    if (core_->engine_follower != nullptr) {
      uint64_t blocks = 0;
      for (const ZmqFollower::Engine& one : core_->engine_follower->engines()) {
        blocks += one.view.blocks;
      }
      memory_.Measure(MemoryItem::kEngineEvents, blocks * EngineView::kBlockBytes);
    }
    const uint64_t own = core_->encoder ? core_->encoder->cache().bytes : 0;
    const uint64_t told = core_->prompts ? core_->prompts->numbers().cache_bytes : 0;
    memory_.Measure(MemoryItem::kTokenCache, own + told);
  }
  Status FollowEngines() {
    CAIRN_ASSIGN_OR_RETURN(core_->event_sources,
                           ParseEventSources(config_.engine_events.events, config_.workers));
    ZmqFollower::Options options;
    options.sources = SourcesOf(core_->event_sources, {}, config_.engine_events.named);
    options.space = MakeEngineNamespace(EngineKeys::kTokens, config_.engines.block_tokens);
    options.max_blocks = config_.engine_events.blocks;
    CAIRN_ASSIGN_OR_RETURN(core_->engine_follower, ZmqFollower::Start(options, &core_->index));
    registry_.AddCollector([follower = core_->engine_follower.get()](metrics::Sink& sink) {
      ExportEngineEvents(*follower, sink);
    });
    return OkStatus();
  }
  Status FollowNames() {
    const auto take = [core = &*core_, most = config_.engine_events.named](
                          const std::vector<NamedWorker>& workers) {
      // Before the workers: a link asks whether its engine's events are followed.
      if (core->engine_follower != nullptr) {
        core->engine_follower->SetSources(SourcesOf(core->event_sources, workers, most));
      }
      std::vector<std::string> addresses;
      for (const NamedWorker& worker : workers) addresses.push_back(worker.address);
      core->workers->SetAddresses(addresses);
    };
    CAIRN_ASSIGN_OR_RETURN(core_->worker_follower, WorkerFollower::Start(config_.workers, take));
    return OkStatus();
  }
  void ReadPrompts() {
    core_->prompts.emplace(
        ReaderOptions(config_.engines, config_.follows_engines(), config_.token_cache),
        PromptReader::Parts{
            .local = config_.engines.tokens == "text" ? nullptr : Pointer(core_->encoder),
            .client = core_->http_client.get(),
            .key = core_->engine_key.get(),
            .registry = &*core_->workers,
            .clock = &SteadyClock::Get()});
  }
  Status StartServer() {
    service_.emplace(RouterService::Parts{.engine = &*core_->engine,
                                          .registry = &*core_->workers,
                                          .dispatcher = &core_->dispatcher,
                                          .index = &core_->index,
                                          .clock = &SteadyClock::Get(),
                                          .answers = answers_,
                                          .tenant = config_.tenant});
    context_.clock = &SteadyClock::Get();
    context_.metrics = &call_metrics_;
    context_.gate = &gate_;
    context_.request_bytes = &request_bytes_;
    context_.bounds = &wire::RequestBounds();
    context_.tracer = tracer_;
    context_.access = access_.get();
    context_.role_of = &wire::RoleOf;
    context_.process = "router";
    service_->AddTo(server_.calls(), &context_, &core_->executor);
    health_.AddTo(server_.calls());
    return server_.Start({.listen = config_.listen,
                          .tls = config_.tls,
                          .max_message_bytes = kMaxMessageBytes,
                          .memory_bytes = config_.rpc_requests});
  }
  Status StartPicker() {
    if (config_.picker.listen.empty()) return OkStatus();
    CAIRN_ASSIGN_OR_RETURN(
        auto picker,
        PickerEdge::Start(config_.picker, config_.tls, config_.relays(), config_.max_tries,
                          &*core_->engine, &core_->reads, &call_metrics_, PickTime(&registry_)));
    log::Info("picker_listens", {{"address", picker->address()}});
    MutexLock lock(edges_mu_);
    picker_ = std::move(picker);
    return OkStatus();
  }
  bool DrainHttp() {
    HttpEdge* http = nullptr;
    {
      MutexLock lock(edges_mu_);
      http = http_.get();  // Only this thread ends it.
    }
    return http == nullptr || http->Drain(config_.drain);
  }
  // Edges first, then the requests that are left, then what they ran on.
  void Stop() {
    if (stopped_) return;
    stopped_ = true;
    std::unique_ptr<HttpEdge> http;
    std::unique_ptr<PickerEdge> picker;
    {
      MutexLock lock(edges_mu_);
      http = std::move(http_);
      picker = std::move(picker_);
    }
    http.reset();
    picker.reset();
    if (service_) service_->EndStreams();
    health_.EndStreams();
    server_.Shutdown(kLastMessages);
    if (core_ && core_->engine) {
      // Cancelled ones end when their workers' calls do.
      (void)core_->engine->Drain(SteadyClock::Get().Now() + std::chrono::hours(24));
      core_->long_texts.Stop();
      core_->executor.Stop();
    }
  }

  const RouterConfig config_;
  metrics::Registry& registry_;
  tracing::Tracer* const tracer_;
  rpc::CallMetrics call_metrics_;
  Gate gate_;  // The engine bounds the requests under way.
  rpc::RequestBytes request_bytes_;
  const std::shared_ptr<FairBudget> answers_;
  MemoryAccount memory_;
  std::unique_ptr<auth::Access> access_;  // nullptr: no policy.
  rpc::Context context_;
  std::optional<Core> core_;
  std::optional<RouterService> service_;
  rpc::HealthService health_{&context_, {kRouterService}};
  rpc::Server server_;  // Ends before the above: its calls need it.
  std::string http_address_;
  mutable Mutex edges_mu_;  // Scrapes and probes read what it guards, too.
  std::unique_ptr<HttpEdge> http_ ABSL_GUARDED_BY(edges_mu_);
  std::unique_ptr<PickerEdge> picker_ ABSL_GUARDED_BY(edges_mu_);
  bool stopped_ = false;
};

}  // namespace

std::unique_ptr<service::Service> MakeRouter(const RouterConfig& config,
                                             metrics::Registry* registry, tracing::Tracer* tracer) {
  return std::make_unique<RouterProcess>(config, registry, tracer);
}

}  // namespace cairn::router
