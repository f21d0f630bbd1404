#include "tools/cairn/demo/runner.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "tools/cairn/demo/rows.h"
#include "tools/cairn/output/units.h"
#include "tools/cairn/process/interrupt.h"

namespace cairn::cli {
namespace {

constexpr uint64_t kHostBytes = 512ULL << 20;     // Everything fits.
constexpr uint64_t kLeastHostBytes = 1ULL << 20;  // The smallest arena of a node.
constexpr size_t kLongQuestion = 5000;            // Characters.
// About a second on two cores without matrix units.
constexpr size_t kMeasuredBytes = 1200;
constexpr uint32_t kMeasuredAnswer = 16;
// Lossy recipes that are shown, and the names of their rows.
constexpr struct {
  const char* name;
  const char* recipe;
} kRecipes[] = {
    {"int8", "int8"},
    {"turbo4", "turbo:bits=4"},
#ifndef CAIRN_WITHOUT_METHODS
    {"ada-snapkv", "ada-snapkv:keep=0.4,window=32+turbo:bits=4"},
    {"chunkkv", "chunkkv:keep=0.4+turbo:bits=4"},
#endif
};
constexpr size_t kRecipeQuestions = 2;
constexpr size_t kTogether = 16;  // Chats at once.
// The KV pool of their worker: SmolLM2's chats fit into it all at once. Others wait for pages.
constexpr const char* kTogetherPool = "2GiB";
constexpr double kPatience = 240;  // Seconds that all phases may take with all questions.
constexpr uint32_t kLeastQuestions = 3;
constexpr std::chrono::seconds kIdle(120);
constexpr std::chrono::seconds kReconnect(20);
constexpr std::chrono::seconds kWhole(30);

std::string Item(const char* kind, size_t i) { return fmt::format("{}{}", kind, i + 1); }

}  // namespace

DemoRunner::DemoRunner(Options options, DemoTexts texts, Progress& progress)
    : options_(std::move(options)), texts_(std::move(texts)), progress_(progress) {}

Status DemoRunner::Run() {
  CAIRN_RETURN_IF_ERROR(Measure());
  Begin("cold");
  CAIRN_RETURN_IF_ERROR(RunCold());
  Begin("cold chat");
  CAIRN_RETURN_IF_ERROR(RunColdChat());
  Begin("first push");
  CAIRN_RETURN_IF_ERROR(StartWarm());
  Begin("ram");
  CAIRN_RETURN_IF_ERROR(RunWarmPhase("ram", *first_));
  Begin("other");
  CAIRN_RETURN_IF_ERROR(RunWarmPhase("other", *second_));
  Begin("chat");
  CAIRN_RETURN_IF_ERROR(RunWarmChat());
  Begin("together");
  CAIRN_RETURN_IF_ERROR(RunTogether());
  Begin("long");
  CAIRN_RETURN_IF_ERROR(RunLong());
#ifndef CAIRN_WITHOUT_METHODS
  Begin("beyond");
  CAIRN_RETURN_IF_ERROR(RunBeyond());
#endif
  // Before the recipes: the phases below fetch no lossy block.
  CAIRN_ASSIGN_OR_RETURN(const uint64_t working_set, WorkingSet());
  Begin("recipes");
  CAIRN_RETURN_IF_ERROR(RunRecipes());
  if (node_->external()) {
    progress_.Done(
        "A node that was there before is not killed: no phases with a cluster, disk and small "
        "arena.");
    return OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(node_->Flush());
  Begin("cluster");
  CAIRN_RETURN_IF_ERROR(RunCluster());
  Begin("disk");
  CAIRN_RETURN_IF_ERROR(RunDisk());
  Begin("small arena");
  return RunSmallArena(working_set);
}

Status DemoRunner::Measure() {
  progress_.Doing("measuring how long this will take here ...");
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  CAIRN_ASSIGN_OR_RETURN(auto worker, StartWorker("measure", ""));
  CAIRN_RETURN_IF_ERROR(WarmUp(worker->generator()));
  DemoSpeed speed{.start_s = passed()};
  // A part of the text, so that it fits into every context that the demo fits into.
  const std::string text =
      texts_.shared_system.substr(0, std::min(kMeasuredBytes, texts_.shared_system.size() / 4));
  worker::GenerateRequest request;
  request.prompt = worker::RawPrompt{text};
  request.max_tokens = kMeasuredAnswer;
  request.ignore_eos = true;
  CAIRN_ASSIGN_OR_RETURN(
      const auto summary,
      worker->generator().Generate(request, {.on_token = nullptr, .cancelled = Interrupted}));
  if (Interrupted()) return Errorf(StatusCode::kCancelled, "interrupted");
  CAIRN_ASSIGN_OR_RETURN(const Generator::Info info, worker->generator().GetInfo());
  speed.measured_tokens = summary.prompt_tokens;
  speed.prompt_token_s = summary.ttft_seconds / summary.prompt_tokens;
  speed.answer_token_s = (summary.total_seconds - summary.ttft_seconds) / (kMeasuredAnswer - 1);
  const double tokens_per_byte =
      static_cast<double>(summary.prompt_tokens) / static_cast<double>(text.size());
  DemoSize size = SizeFor(tokens_per_byte, info.context_tokens);
  const uint32_t all = size.questions;
  if (options_.as_time_allows) {
    size.questions = QuestionsWithin(kPatience, speed, size, std::min(kLeastQuestions, all));
    texts_.questions.resize(size.questions);
  }
  estimate_ = DemoEstimate(speed, size);
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  progress_.Done(fmt::format("The demo takes {} on this machine ({} core{}){}.",
                             About(estimate_.total_s()), cores, cores == 1 ? "" : "s",
                             size.questions < all
                                 ? fmt::format(", with {} of its {} questions", size.questions, all)
                                 : ""));
  began_ = std::chrono::steady_clock::now();
  return OkStatus();
}

DemoSize DemoRunner::SizeFor(double tokens_per_byte, uint32_t context_tokens) const {
  const auto tokens = [&](size_t bytes) {
    return static_cast<uint32_t>(tokens_per_byte * static_cast<double>(bytes));
  };
  return {.questions = static_cast<uint32_t>(texts_.questions.size()),
          .turns = static_cast<uint32_t>(texts_.chat_turns.size()),
          .shared_tokens = tokens(texts_.shared_system.size()),
          .chat_tokens = tokens(texts_.chat_system.size()),
          .long_tokens = tokens(std::min(kLongQuestion, texts_.chat_system.size())),
          .beyond_tokens = std::min(kBeyondTokens, context_tokens),
          .own_node = options_.cache.empty()};
}

void DemoRunner::Begin(const std::string& phase) {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began_;
  if (phase == "cold") return;  // It was just said.
  progress_.Done(
      fmt::format("[{}: {} left]", phase, About(estimate_.LeftFrom(phase, passed.count()))));
}

// Every question in a process of its own: nothing that an earlier one computed can help it.
Status DemoRunner::RunCold() {
  for (size_t i = 0; i < texts_.questions.size(); ++i) {
    const std::string item = Item("q", i);
    CAIRN_ASSIGN_OR_RETURN(auto worker, StartWorker("cold", ""));
    if (model_.empty()) {
      CAIRN_ASSIGN_OR_RETURN(const Generator::Info info, worker->generator().GetInfo());
      model_ = info.model;
    }
    CAIRN_RETURN_IF_ERROR(WarmUp(worker->generator()));
    progress_.Doing(fmt::format("cold/{}: computing the whole prompt ...", item));
    CAIRN_ASSIGN_OR_RETURN(const auto summary, Ask(worker->generator(), Question(i), false));
    Reference& reference = references_[item];
    reference = {.answer = AnswerOf(summary), .ttft_s = summary.ttft_seconds};
    DemoRow row = RowOf("cold/" + item, summary);
    // This is the reference: what can be wrong with it is that there is nothing to compare.
    row.identical = Identical(reference.answer, reference.answer);
    row.same_ids_as_full = SameIds(reference.answer, reference.answer);
    rows_.push_back(row);
    Show(row, {});
  }
  return OkStatus();
}

Status DemoRunner::RunColdChat() {
  CAIRN_ASSIGN_OR_RETURN(auto worker, StartWorker("cold-chat", ""));
  CAIRN_RETURN_IF_ERROR(WarmUp(worker->generator()));
  std::vector<model::ChatMessage> messages = {{"system", texts_.chat_system}};
  for (size_t i = 0; i < texts_.chat_turns.size(); ++i) {
    progress_.Doing(fmt::format("the chat without a cache, turn {} ...", i + 1));
    messages.push_back({"user", texts_.chat_turns[i]});
    CAIRN_ASSIGN_OR_RETURN(const auto summary, Ask(worker->generator(), messages, false));
    references_[Item("turn", i)] = {.answer = AnswerOf(summary), .ttft_s = summary.ttft_seconds};
    messages.push_back({"assistant", summary.text});
  }
  return OkStatus();
}

Status DemoRunner::StartWarm() {
  progress_.Doing("starting a cache node and two workers ...");
  DemoNode::Options node;
  if (options_.cache.empty()) {
    CAIRN_ASSIGN_OR_RETURN(members_, DemoMembers::Create(options_.out_directory));
    // The first node of a cluster, whose others start later.
    node = members_->Holder();
    node.disk_directory = options_.out_directory + "/disk";
  }
  node.log_path = options_.out_directory + "/node.log";
  node.external = options_.cache;
  node_ = std::make_unique<DemoNode>(std::move(node));
  CAIRN_RETURN_IF_ERROR(node_->Start(kHostBytes));
  CAIRN_ASSIGN_OR_RETURN(first_, StartWarmWorker("worker1"));
  CAIRN_ASSIGN_OR_RETURN(second_, StartWarmWorker("worker2"));
  progress_.Doing("worker 1 computes the shared prefix and pushes it ...");
  return PushPrefix(first_->generator());
}

Status DemoRunner::RunWarmPhase(const std::string& phase, WorkerProcess& worker) {
  for (size_t i = 0; i < texts_.questions.size(); ++i) {
    const std::string item = Item("q", i);
    CAIRN_RETURN_IF_ERROR(AskRow(fmt::format("{}/{}", phase, item), worker.generator(), Question(i),
                                 false, references_[item])
                              .status());
  }
  return OkStatus();
}

Status DemoRunner::RunWarmChat() {
  std::vector<model::ChatMessage> messages = {{"system", texts_.chat_system}};
  for (size_t i = 0; i < texts_.chat_turns.size(); ++i) {
    const std::string item = Item("turn", i);
    messages.push_back({"user", texts_.chat_turns[i]});
    CAIRN_ASSIGN_OR_RETURN(const auto summary, AskRow("chat/" + item, first_->generator(), messages,
                                                      true, references_[item]));
    // The last turn is the longest, so it has a waymark most often.
    if (i + 1 == texts_.chat_turns.size()) {
      holder_prompts_.push_back({.item = item,
                                 .messages = messages,
                                 .reference = references_[item],
                                 .tokens = summary.fetched_tokens});
    }
    messages.push_back({"assistant", summary.text});
  }
  return OkStatus();
}

Status DemoRunner::RunTogether() {
  CAIRN_ASSIGN_OR_RETURN(auto worker,
                         StartWarmWorker("worker-together", {"--kv_pool", kTogetherPool}));
  progress_.Doing(fmt::format("{} chats at once ...", kTogether));
  std::vector<std::unique_ptr<Generator>> users(kTogether);
  for (auto& user : users) {
    CAIRN_ASSIGN_OR_RETURN(user, ConnectWorker(worker->address()));
  }
  CAIRN_ASSIGN_OR_RETURN(const client::NodeStats before, node_->Stat());
  std::vector<std::optional<Result<worker::GenerateSummary>>> answers(kTogether);
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> chats;
    for (size_t i = 0; i < kTogether; ++i) {
      chats.emplace_back([&, i] {
        answers[i] = Ask(*users[i], Question(i % texts_.questions.size()), /*keep_turn=*/false);
      });
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  CAIRN_RETURN_IF_ERROR(worker->generator().WaitIdle(kIdle));
  CAIRN_ASSIGN_OR_RETURN(const client::NodeStats after, node_->Stat());
  CAIRN_ASSIGN_OR_RETURN(const Generator::Info info, worker->generator().GetInfo());
  CAIRN_ASSIGN_OR_RETURN(const client::NamespaceInfo stored, node_->Namespace(info.fingerprint));
  const NodeTraffic traffic = Difference(before, after);
  CAIRN_RETURN_IF_ERROR(AddTogether(answers));
  DemoRow& row = rows_.back();
  row.bytes = traffic.bytes;
  row.host_bytes = traffic.host;
  row.disk_bytes = traffic.disk;
  row.recipe = stored.spec.recipe;
  row.bits_per_number = BitsPerNumber(stored);
  Show(row, traffic);
  progress_.Done(fmt::format("The {} answers came with {:.0f} tokens per second.", kTogether,
                             static_cast<double>(kTogether * kComparedTokens) / took.count()));
  return OkStatus();
}

Status DemoRunner::AddTogether(
    std::span<const std::optional<Result<worker::GenerateSummary>>> answers) {
  DemoRow row;
  std::vector<double> ttft, alone;
  for (size_t i = 0; i < answers.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(answers[i]->status());
    const worker::GenerateSummary& summary = **answers[i];
    const Reference& reference = references_[Item("q", i % texts_.questions.size())];
    const DemoRow one = RowOf("together/16-chats", summary);
    const Answer answer = AnswerOf(summary);
    const bool identical = Identical(answer, reference.answer);
    const uint32_t same = SameIds(answer, reference.answer);
    if (i == 0) {
      row = one;
      row.identical = identical;
      row.same_ids_as_full = same;
    } else {
      row.prompt_tokens += one.prompt_tokens;
      row.fetched_tokens += one.fetched_tokens;
      row.shared_tokens += one.shared_tokens;
      row.computed_tokens += one.computed_tokens;
      row.lent_bytes += one.lent_bytes;
      row.copied_bytes += one.copied_bytes;
      row.identical = row.identical && identical;
      row.same_ids_as_full = std::min(row.same_ids_as_full, same);
    }
    ttft.push_back(summary.ttft_seconds);
    alone.push_back(reference.ttft_s);
  }
  std::ranges::sort(ttft);
  std::ranges::sort(alone);
  row.ttft_s = ttft[ttft.size() / 2];
  row.cold_ttft_s = alone[alone.size() / 2];
  rows_.push_back(std::move(row));
  return OkStatus();
}

Status DemoRunner::RunLong() {
  for (const std::string path : {"grpc", "auto"}) {
    // A text before the question that no other prompt has at this place.
    const std::string text = texts_.chat_system.substr(
        path == "grpc" ? 0 : texts_.chat_system.size() / 8, kLongQuestion);
    const std::vector<model::ChatMessage> messages = {{"system", texts_.shared_system},
                                                      {"user", text + "\n" + texts_.questions[0]}};
    CAIRN_ASSIGN_OR_RETURN(auto worker, StartWarmWorker("worker-" + path, {"--cache.path", path}));
    progress_.Doing("a long question without the cache, to compare with ...");
    CAIRN_ASSIGN_OR_RETURN(const auto alone,
                           Ask(worker->generator(), messages, false, /*no_cache=*/true));
    const Reference reference{.answer = AnswerOf(alone), .ttft_s = alone.ttft_seconds};
    // The way to the node is new: one fetch is enough to know it.
    CAIRN_RETURN_IF_ERROR(AskOnce(worker->generator(), Question(0)));
    CAIRN_ASSIGN_OR_RETURN(const auto summary,
                           AskRow(path == "grpc" ? "long/grpc" : "long/same-node",
                                  worker->generator(), messages, false, reference));
    holder_prompts_.push_back({.item = fmt::format("long{}", holder_prompts_.size() + 1),
                               .messages = messages,
                               .reference = reference,
                               .tokens = summary.computed_tokens});
    timelines_.push_back(
        {.title = fmt::format("{}: {} of {} prompt tokens fetched, {} copied",
                              summary.fetch_path == client::Path::kLocal ? "shared memory" : "gRPC",
                              summary.fetched_tokens, summary.prompt_tokens,
                              HumanBytes(summary.fetched.total() - summary.fetched.lent)),
         .spans = summary.timeline,
         .ttft_s = summary.ttft_seconds});
  }
  return OkStatus();
}

Status DemoRunner::RunRecipes() {
  const size_t questions = std::min(kRecipeQuestions, texts_.questions.size());
  // The part that all questions share, in whole blocks: selections are made of that.
  for (const DemoRow& row : rows_) {
    if (!row.name.starts_with("ram/")) continue;
    prefix_end_ = prefix_end_ == 0 ? row.fetched_tokens : std::min(prefix_end_, row.fetched_tokens);
  }
  {
    progress_.Doing("a worker computes the shared prefix and pushes it in every recipe ...");
    std::string others;
    for (const auto& [name, recipe] : std::span(kRecipes).subspan(1)) {
      others += others.empty() ? "" : ";";
      others += recipe;
    }
    CAIRN_ASSIGN_OR_RETURN(const auto writer,
                           StartWarmWorker("recipes-push", {"--cache.recipe", kRecipes[0].recipe,
                                                            "--cache.publish", others}));
    CAIRN_RETURN_IF_ERROR(PushPrefix(writer->generator()));
  }
  for (const auto& [name, recipe] : kRecipes) {
    CAIRN_ASSIGN_OR_RETURN(const auto reader, StartWarmWorker(fmt::format("{}-fetch", name),
                                                              {"--cache.recipe", recipe}));
    for (size_t i = 0; i < questions; ++i) {
      const std::string item = Item("q", i);
      CAIRN_RETURN_IF_ERROR(AskRow(fmt::format("{}/{}", name, item), reader->generator(),
                                   Question(i), false, references_[item])
                                .status());
    }
  }
  prefix_end_ = 0;
  return OkStatus();
}

Status DemoRunner::RunCluster() {
  progress_.Doing("starting two more nodes ...");
  CAIRN_RETURN_IF_ERROR(members_->StartOthers(kHostBytes));
  DemoNode* home = &members_->second();
  DemoNode* other = &members_->third();
  CAIRN_ASSIGN_OR_RETURN(const auto worker,
                         StartWarmWorker("worker-cluster", {},
                                         fmt::format("{},{}", home->address(), other->address())));
  CAIRN_ASSIGN_OR_RETURN(const Generator::Info info, worker->generator().GetInfo());
  // The worker chose one of the two as its home, and the other one knows nothing of it yet.
  if (!home->Namespace(info.fingerprint).ok()) std::swap(home, other);
  CAIRN_ASSIGN_OR_RETURN(const auto neighbour,
                         StartWarmWorker("worker-neighbour", {}, other->address()));
  CAIRN_RETURN_IF_ERROR(members_->WaitUntilWhole(*node_, kWhole));

  const size_t last = texts_.questions.size() - 1;
  CAIRN_RETURN_IF_ERROR(
      AskRow("cluster/q1", worker->generator(), Question(0), false, references_["q1"], home)
          .status());
  CAIRN_RETURN_IF_ERROR(AskRow("cluster/neighbour", neighbour->generator(), Question(0), false,
                               references_["q1"], other)
                            .status());
  CAIRN_RETURN_IF_ERROR(KillTheHolder(*worker, *home));

  // The worker is asked at once: it learns of the loss from its own calls.
  progress_.Doing("kill -9 of the worker's home ...");
  home->Kill();
  const std::string item = Item("q", last);
  CAIRN_RETURN_IF_ERROR(AskRow("home-killed/" + item, worker->generator(), Question(last), false,
                               references_[item], other)
                            .status());
  rows_.back().killed = KilledNode{.node = "home"};
  return OkStatus();
}

Status DemoRunner::KillTheHolder(WorkerProcess& worker, DemoNode& home) {
  CAIRN_ASSIGN_OR_RETURN(const Generator::Info info, worker.generator().GetInfo());
  CAIRN_ASSIGN_OR_RETURN(const client::NamespaceInfo stored, node_->Namespace(info.fingerprint));
  if (holder_prompts_.empty() || stored.blocks == 0) {
    return Errorf(StatusCode::kInternal, "the chat's KV is not at the node any more");
  }
  bool killed_before_first_token = false;
  for (const HolderPrompt& prompt : holder_prompts_) {
    // Earlier rows do not count.
    if (&prompt != &holder_prompts_.front()) rows_.pop_back();
    const uint64_t bytes =
        stored.bytes / stored.blocks * prompt.tokens / stored.spec.layout.block_tokens;
    members_->KillAfter(bytes / 2, *node_);
    CAIRN_RETURN_IF_ERROR(AskRow("holder-killed/" + prompt.item, worker.generator(),
                                 prompt.messages, false, prompt.reference, &home,
                                 [&] { killed_before_first_token = members_->killed(); })
                              .status());
    members_->StopWatching();
    rows_.back().killed = KilledNode{.node = "holder",
                                     .during_answer = killed_before_first_token,
                                     .sent_bytes = members_->sent_bytes()};
    // Dead, if too late, or alive: without a waymark nobody asked it.
    if (members_->killed()) break;
    progress_.Done("The prompt above has no waymark, so nobody found it at the holder.");
  }
  if (!killed_before_first_token) {
    progress_.Done("The holder was NOT killed while it answered: the row above does not count.");
  }
  return OkStatus();
}

// The node is killed again before each question: the first one would bring the shared prefix back
// to RAM for all that follow.
Status DemoRunner::RunDisk() {
  for (size_t i = 0; i < texts_.questions.size(); ++i) {
    const std::string item = Item("q", i);
    CAIRN_RETURN_IF_ERROR(RestartNode(kHostBytes));
    CAIRN_RETURN_IF_ERROR(
        AskRow("disk/" + item, first_->generator(), Question(i), false, references_[item])
            .status());
  }
  return OkStatus();
}

// Between the questions somebody else asks about another text, so that each row finds blocks of
// that text in its place: it evicts them and promotes its own.
Status DemoRunner::RunSmallArena(uint64_t working_set) {
  const uint64_t quarter = std::max(working_set / 4, kLeastHostBytes);
  CAIRN_RETURN_IF_ERROR(RestartNode(quarter));
  progress_.Done(fmt::format("The node has {} of RAM now for {} of blocks.", HumanBytes(quarter),
                             HumanBytes(working_set)));
  CAIRN_ASSIGN_OR_RETURN(const client::NodeStats before, node_->Stat());
  for (size_t i = 0; i < texts_.questions.size(); ++i) {
    const std::string item = Item("q", i);
    WorkerProcess& worker = i % 2 == 0 ? *first_ : *second_;
    WorkerProcess& somebody = i % 2 == 0 ? *second_ : *first_;
    CAIRN_RETURN_IF_ERROR(AskOnce(
        somebody.generator(), {{"system", texts_.chat_system}, {"user", texts_.chat_turns[0]}}));
    CAIRN_RETURN_IF_ERROR(
        AskRow("small-arena/" + item, worker.generator(), Question(i), false, references_[item])
            .status());
  }
  CAIRN_ASSIGN_OR_RETURN(const client::NodeStats after, node_->Stat());
  const NodeTraffic traffic = Difference(before, after);
  progress_.Done(fmt::format("Meanwhile {} blocks were promoted to RAM and {} evicted from it.",
                             traffic.promoted_blocks, traffic.evicted_blocks));
  return OkStatus();
}

Result<std::unique_ptr<WorkerProcess>> DemoRunner::StartWorker(const std::string& name,
                                                               const std::string& cache,
                                                               std::vector<std::string> settings) {
  if (Interrupted()) return Errorf(StatusCode::kCancelled, "interrupted");
  return WorkerProcess::Start({.name = name,
                               .model_path = options_.model_path,
                               .cache = cache,
                               .threads = options_.threads,
                               .log_directory = options_.out_directory,
                               .settings = std::move(settings)});
}

Result<std::unique_ptr<WorkerProcess>> DemoRunner::StartWarmWorker(
    const std::string& name, std::vector<std::string> settings, const std::string& cache) {
  CAIRN_ASSIGN_OR_RETURN(auto worker, StartWorker(name, cache.empty() ? node_->address() : cache,
                                                  std::move(settings)));
  CAIRN_RETURN_IF_ERROR(WaitForCache(worker->generator(), true, kReconnect));
  CAIRN_RETURN_IF_ERROR(WarmUp(worker->generator()));
  return worker;
}

Result<uint64_t> DemoRunner::WorkingSet() {
  CAIRN_ASSIGN_OR_RETURN(const client::NodeStats stats, node_->Stat());
  for (const client::TierStat& tier : stats.tiers) {
    if (tier.tier == client::TierKind::kHost) return tier.used_bytes;
  }
  return 0;
}

Status DemoRunner::PushPrefix(Generator& worker) {
  return AskOnce(worker, {{"system", texts_.shared_system}, {"user", "Which book is this?"}});
}

Status DemoRunner::WarmUp(Generator& worker) {
  worker::GenerateRequest request;
  std::string text;
  for (int i = 0; i < 12; ++i) text += "The weather is fine today. ";
  request.prompt = worker::RawPrompt{text};
  request.max_tokens = 4;
  request.ignore_eos = true;
  request.no_cache = true;
  return worker.Generate(request, {.on_token = nullptr, .cancelled = Interrupted}).status();
}

Status DemoRunner::AskOnce(Generator& worker, std::vector<model::ChatMessage> messages) {
  worker::GenerateRequest request;
  request.prompt = worker::ChatPrompt{std::move(messages)};
  request.prefix_end = prefix_end_;
  request.max_tokens = 1;
  CAIRN_RETURN_IF_ERROR(
      worker.Generate(request, {.on_token = nullptr, .cancelled = Interrupted}).status());
  if (Interrupted()) return Errorf(StatusCode::kCancelled, "interrupted");
  return worker.WaitIdle(kIdle);
}

Result<worker::GenerateSummary> DemoRunner::Ask(Generator& worker,
                                                std::vector<model::ChatMessage> messages,
                                                bool keep_turn, bool no_cache,
                                                const std::function<void()>& at_first_token) {
  worker::GenerateRequest request;
  request.prompt = worker::ChatPrompt{std::move(messages)};
  request.prefix_end = prefix_end_;
  request.max_tokens = kComparedTokens;
  request.ignore_eos = true;  // An answer that ends early would leave less to compare.
  request.want_logits_digest = true;
  request.keep_turn = keep_turn;
  request.no_cache = no_cache;
  request.want_timeline = true;
  bool first = true;
  const auto on_token = [&](model::TokenId, std::string_view) {
    if (std::exchange(first, false) && at_first_token) at_first_token();
    return true;
  };
  auto summary = worker.Generate(request, {.on_token = on_token, .cancelled = Interrupted});
  if (Interrupted()) return Errorf(StatusCode::kCancelled, "interrupted");
  return summary;
}

Result<worker::GenerateSummary> DemoRunner::AskRow(const std::string& name, Generator& worker,
                                                   std::vector<model::ChatMessage> messages,
                                                   bool keep_turn, const Reference& reference,
                                                   DemoNode* node,
                                                   const std::function<void()>& at_first_token,
                                                   const HeldOfSummary& held) {
  progress_.Doing(name + " ...");
  if (node == nullptr) node = node_.get();
  CAIRN_ASSIGN_OR_RETURN(const client::NodeStats before, node->Stat());
  CAIRN_ASSIGN_OR_RETURN(const client::ClusterMembers peers_before, node->Members());
  CAIRN_ASSIGN_OR_RETURN(const auto summary, Ask(worker, std::move(messages), keep_turn,
                                                 /*no_cache=*/false, at_first_token));
  CAIRN_RETURN_IF_ERROR(worker.WaitIdle(kIdle));
  CAIRN_ASSIGN_OR_RETURN(const client::NodeStats after, node->Stat());
  CAIRN_ASSIGN_OR_RETURN(const client::ClusterMembers peers_after, node->Members());
  CAIRN_ASSIGN_OR_RETURN(const Generator::Info info, worker.GetInfo());
  CAIRN_ASSIGN_OR_RETURN(const client::NamespaceInfo stored, node->Namespace(info.fingerprint));
  const NodeTraffic traffic = Difference(before, after);
  const Answer answer = AnswerOf(summary);
  DemoRow row = RowOf(name, summary);
  row.bytes = traffic.bytes;
  row.host_bytes = traffic.host;
  row.disk_bytes = traffic.disk;
  row.peer_bytes = peers_after.numbers.read_bytes - peers_before.numbers.read_bytes;
  row.identical = Identical(answer, reference.answer);
  row.same_ids_as_full = SameIds(answer, reference.answer);
  row.recipe = stored.spec.recipe;
  row.bits_per_number = BitsPerNumber(stored);
  row.cold_ttft_s = reference.ttft_s;
  if (held) row.held = held(summary);
  rows_.push_back(row);
  Show(row, traffic);
  return summary;
}

Status DemoRunner::RestartNode(uint64_t host_bytes) {
  if (Interrupted()) return Errorf(StatusCode::kCancelled, "interrupted");
  progress_.Doing("kill -9 of the cache node, start on the same directory ...");
  node_->Kill();
  // A worker that has not noticed yet would take the dead connection for the new one.
  for (WorkerProcess* worker : {first_.get(), second_.get()}) {
    CAIRN_RETURN_IF_ERROR(WaitForCache(worker->generator(), false, kReconnect));
  }
  CAIRN_RETURN_IF_ERROR(node_->Start(host_bytes));
  for (WorkerProcess* worker : {first_.get(), second_.get()}) {
    CAIRN_RETURN_IF_ERROR(WaitForCache(worker->generator(), true, kReconnect));
  }
  return OkStatus();
}

std::vector<model::ChatMessage> DemoRunner::Question(size_t i) const {
  return {{"system", texts_.shared_system}, {"user", texts_.questions[i]}};
}

void DemoRunner::Show(const DemoRow& row, const NodeTraffic& traffic) {
  std::string line = RowLine(row);
  if (traffic.evicted_blocks > 0) {
    line += fmt::format(", {} blocks evicted", traffic.evicted_blocks);
  }
  progress_.Done(line);
}

}  // namespace cairn::cli
