#include "tests/simulation/cluster/process.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/simulation/cluster/cluster_world.h"

namespace cairn::testing {
namespace {

constexpr Duration kReadyAfter = std::chrono::seconds(2);
constexpr Duration kEngineTick = std::chrono::milliseconds(100);
constexpr Duration kDisk = std::chrono::milliseconds(3);
constexpr Duration kThread = std::chrono::microseconds(50);  // Until it has a task.
constexpr Duration kNamesAnswer = std::chrono::milliseconds(2);
constexpr Duration kNamesTimeout = std::chrono::seconds(5);
// After names went wrong: answers from before may still come, and an absence may count.
constexpr Duration kNamesSettle = std::chrono::seconds(20);
// After which busy holders are asked again.
constexpr Duration kLongestPause = std::chrono::milliseconds(100);
constexpr Duration kSlack = std::chrono::microseconds(10);
// A timer of a second that began at another rate of the clock.
constexpr Duration kOtherRate = std::chrono::milliseconds(200);

}  // namespace

// Tasks that a thread runs after a moment.
class Process::TaskQueue final : public Executor {
 public:
  TaskQueue(Process* process, Duration delay) : process_(*process), delay_(delay) {}
  Status Post(std::function<void()> task) override {
    if (stopped_) return Errorf(StatusCode::kUnavailable, "the executor was stopped");
    tasks_.push_back(std::move(task));
    process_.Later(process_.clock_.Now() + delay_, [this] {
      if (tasks_.empty()) return;
      const auto next = std::move(tasks_.front());
      tasks_.pop_front();
      next();
    });
    return OkStatus();
  }
  void Stop() {
    stopped_ = true;
    tasks_.clear();
  }

 private:
  Process& process_;
  const Duration delay_;
  bool stopped_ = false;
  std::deque<std::function<void()>> tasks_;
};

// The names of the cluster, for this process.
class Process::NameServer final : public membership::Resolver {
 public:
  explicit NameServer(Process* process) : process_(*process) {}
  void Resolve(const std::string&, membership::RecordType type, Done done) override {
    const uint64_t question = ++asked_;
    questions_[question] = std::move(done);
    const size_t machine = process_.options_.machine;
    const bool asleep = process_.world_.names_are(machine) == NamesAre::kAsleep;
    process_.Later(process_.clock_.Now() + (asleep ? kNamesTimeout : kNamesAnswer),
                   [this, question, type, asleep] { Answer(question, type, asleep); });
  }
  void Stop() { questions_.clear(); }

 private:
  void Answer(uint64_t question, membership::RecordType type, bool asleep) {
    const auto it = questions_.find(question);
    if (it == questions_.end()) return;
    const Done done = std::move(it->second);
    questions_.erase(it);
    if (asleep) return done(Errorf(StatusCode::kDeadlineExceeded, "no name server answered"));
    std::vector<membership::Record> records;
    // Only IPv4 here, so the other question has a good answer without records.
    if (type != membership::RecordType::kA) return done(records);
    Status error = OkStatus();
    const auto names = process_.world_.NamesFor(process_.options_.machine, &error);
    if (!names) return done(error);
    for (const size_t machine : *names) {
      const std::string address = ClusterWorld::AddressOf(machine);
      records.push_back({.host = address.substr(0, address.find(':'))});
    }
    done(std::move(records));
  }
  Process& process_;
  uint64_t asked_ = 0;
  std::map<uint64_t, Done> questions_;
};

// Looks that each look-up and each read ends in time.
class Process::CheckedSource final : public cache::BlockSource {
 public:
  CheckedSource(Process* process, cache::BlockSource* source)
      : process_(*process), source_(*source) {}
  void Locate(const Digest& fingerprint, std::span<const BlockKey> keys, TimePoint deadline,
              LocateDone done) override {
    LocateAt(fingerprint, keys, {}, deadline, {}, std::move(done));
  }
  void LocateAt(const Digest& fingerprint, std::span<const BlockKey> keys,
                std::span<const std::string> holders, TimePoint deadline, const std::string& trace,
                LocateDone done) override {
    const TimePoint begun = process_.clock_.Now();
    const TimePoint begun_in_world = process_.world_.Now();
    const TimePoint latest =
        std::min(deadline, begun + process_.options_.source.lookup_deadline) + kSlack;
    source_.LocateAt(
        fingerprint, keys, holders, deadline, trace,
        [this, begun_in_world, latest, done = std::move(done)](Result<cache::Located> located) {
          if (IsLate(begun_in_world, latest)) {
            process_.world_.Wrong("a look-up ended after its deadline");
          }
          done(std::move(located));
        });
  }
  void Read(const Digest& fingerprint, const BlockKey& key, TimePoint deadline,
            cache::BlockSink* sink, ReadDone done) override {
    const TimePoint begun_in_world = process_.world_.Now();
    source_.Read(fingerprint, key, deadline, sink,
                 [this, begun_in_world, latest = deadline + kLongestPause,
                  done = std::move(done)](const Status& status) {
                   if (IsLate(begun_in_world, latest)) {
                     process_.world_.Wrong("a read ended long after its deadline");
                   }
                   done(status);
                 });
  }

 private:
  bool IsLate(TimePoint begun_in_world, TimePoint latest) const {
    const bool stopped = process_.dies_ || process_.paused_ || process_.resumed_ > begun_in_world;
    const bool other_rate = process_.clock_.rate_since() > begun_in_world;
    return !stopped && process_.clock_.Now() > latest + (other_rate ? kOtherRate : Duration(0));
  }

  Process& process_;
  cache::BlockSource& source_;
};

Process::Process(ClusterWorld* world, Options options, const SimulatedDisk& disk)
    : world_(*world),
      options_(std::move(options)),
      clock_(&world->agenda(), options_.clock_offset, options_.clock_rate),
      started_(clock_.Now()),
      executor_(std::make_unique<TaskQueue>(this, kDisk)),
      mover_(std::make_unique<TaskQueue>(this, kThread)),
      names_(std::make_unique<NameServer>(this)),
      links_(world, this) {
  cache::PeerHello self;
  self.caller = {.cluster = "test", .id = options_.id, .incarnation = options_.incarnation};
  self.epoch = options_.epoch;
  self.newest_version = options_.newest_version;
  self.address = options_.address;
  cluster_ = std::make_unique<cache::Cluster>(
      cache::Cluster::Options{.self = self,
                              .directory = options_.directory,
                              .source = options_.source,
                              .members = options_.members,
                              .announcer = {}},
      cache::Cluster::Dependencies{
          .links = &links_, .timers = &timers_, .executor = executor_.get(), .clock = &clock_});
  source_ = std::make_unique<CheckedSource>(this, cluster_->source());
  engine_ = MakeEngine(disk);
  cluster_->Attach(&engine_->cache());
}

std::unique_ptr<SimulatedEngine> Process::MakeEngine(const SimulatedDisk& disk) {
  const auto wrong = [this](const std::string& what) {
    world_.Wrong(fmt::format("{} (machine {})", what, options_.machine));
  };
  if (options_.whole) {
    return std::make_unique<WholeEngine>(
        options_.whole_engine,
        WholeEngine::Surroundings{.node_id = options_.id,
                                  .epoch = options_.epoch,
                                  .seed = options_.incarnation,
                                  .clock = &clock_,
                                  .timers = &timers_,
                                  .executor = mover_.get(),
                                  .source = source_.get(),
                                  .later =
                                      [this](Duration time, std::function<void()> task) {
                                        Later(clock_.Now() + time, std::move(task));
                                      },
                                  .wrong = wrong},
        disk);
  }
  auto engine = std::make_unique<LightEngine>(options_.engine, &clock_, source_.get(),
                                              options_.incarnation, wrong);
  engine->Load(disk.light);
  return engine;
}

Process::~Process() {
  dies_ = true;
  engine_->Close();
  if (discovery_ != nullptr) discovery_->Stop();
  names_->Stop();
  executor_->Stop();
  mover_->Stop();
  links_.Stop();
  serving_.clear();
  cluster_->Detach();
  engine_->FinishDisk();  // May begin reads that wait for a time.
  RunAllTimers();
  engine_.reset();
}

void Process::RunAllTimers() {
  // The engine waits for the reads that it began, and some of them wait for a time.
  while (timers_.pending() > 0) {
    clock_.JumpTo(timers_.next());
    timers_.RunDue();
  }
}

void Process::Start() {
  Later(clock_.Now() + Duration(world_.Random() % options_.tick.count()), [this] { Tick(); });
  if (!options_.dns) return;
  discovery_ = std::make_unique<membership::DnsDiscovery>(
      membership::DnsDiscovery::Options{.names = {"cairn"}, .port = 7000}, names_.get(), &timers_,
      &clock_);
  const Status started = discovery_->Start({}, [this, had = size_t{0}](
                                                   const membership::View& view) mutable {
    const NamesAre names = world_.names_are(options_.machine);
    const bool wrong =
        names == NamesAre::kEmpty || names == NamesAre::kFailing || names == NamesAre::kAsleep;
    if (wrong && view.size() < had &&
        world_.Now() > std::max(resumed_, world_.names_since(options_.machine)) + kNamesSettle) {
      world_.Wrong("a view became smaller while discovery had no answer");
    }
    had = view.size();
    cluster_->OnView(view);
  });
  CAIRN_CHECK(started.ok());
  ArmTimers();
}

void Process::Enter(std::function<void()> task) {
  if (paused_) {
    inbox_.push_back(std::move(task));
    return;
  }
  task();
  ArmTimers();
}

void Process::Resume() {
  paused_ = false;
  resumed_ = world_.Now();
  while (!inbox_.empty() && !paused_) {
    const auto task = std::move(inbox_.front());
    inbox_.pop_front();
    Enter(task);
  }
}

void Process::Later(TimePoint local, std::function<void()> task) {
  world_.agenda().At(clock_.ToWorld(local),
                     [&world = world_, machine = options_.machine, life = options_.life, local,
                      task = std::move(task)]() mutable {
                       Process* const process = world.process(machine, life);
                       if (process == nullptr) return;
                       // The clock has become slower.
                       if (process->clock_.Now() < local)
                         return process->Later(local, std::move(task));
                       process->Enter(std::move(task));
                     });
}

void Process::SetClockRate(double rate) {
  clock_.SetRate(rate);
  // An armed timer comes late if the clock was slower when it was armed.
  armed_ = TimePoint::max();
  ArmTimers();
}

void Process::ArmTimers() {
  const TimePoint next = timers_.next();
  if (next >= armed_) return;
  armed_ = next;
  Later(next, [this] {
    armed_ = TimePoint::max();
    timers_.RunDue();
  });
}

void Process::Tick() {
  cluster_->Tick();
  const uint64_t engine_every = std::max<int64_t>(1, kEngineTick / options_.tick);
  if (++ticks_ % engine_every == 0) engine_->Tick();
  Later(clock_.Now() + options_.tick, [this] { Tick(); });
}

bool Process::ready() const {
  return cluster_->settled() || clock_.Now() >= started_ + kReadyAfter;
}

}  // namespace cairn::testing
