#include "services/router/events/zmq/zmq_follower.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <zmq.hpp>

#include "common/log/log.h"
#include "services/router/events/batch_decoder.h"

namespace cairn::router {
namespace {

constexpr auto kRound = std::chrono::milliseconds(100);
// Batches of one engine before the next engine has its turn.
constexpr int kBatchesATurn = 64;
constexpr int kWaitingBatches = 4096;
constexpr int kFirstReconnectMs = 100, kMostReconnectMs = 5000;
// A peer whose machine has gone says nothing at all.
constexpr int kHeartbeatMs = 2000, kHeartbeatTimeoutMs = 6000;
// The number that ends a replay.
constexpr uint64_t kEnd = UINT64_MAX;

// The frames of a message, of which nobody sends more than four.
struct Frames {
  std::array<zmq::message_t, 4> frames;
  size_t count = 0;  // Those that were dropped included.

  std::string_view operator[](size_t i) const { return frames[i].to_string_view(); }
};

// False: no message waits.
bool Receive(zmq::socket_t& socket, Frames* message) {
  message->count = 0;
  for (;;) {
    zmq::message_t frame;
    if (!socket.recv(frame, zmq::recv_flags::dontwait)) return false;
    const bool more = frame.more();
    if (message->count < message->frames.size()) {
      message->frames[message->count] = std::move(frame);
    }
    ++message->count;
    if (!more) return true;
  }
}

std::optional<uint64_t> NumberOf(std::string_view bytes) {
  if (bytes.size() != 8) return std::nullopt;
  uint64_t number = 0;
  for (const char c : bytes) number = number << 8 | static_cast<uint8_t>(c);
  return number;
}

std::string BytesOf(uint64_t number) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (56 - 8 * i));
  return bytes;
}

void SetUp(zmq::socket_t& socket) {
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::ipv6, true);
  socket.set(zmq::sockopt::rcvhwm, kWaitingBatches);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(kMostBatchBytes));
  socket.set(zmq::sockopt::reconnect_ivl, kFirstReconnectMs);
  socket.set(zmq::sockopt::reconnect_ivl_max, kMostReconnectMs);
  socket.set(zmq::sockopt::heartbeat_ivl, kHeartbeatMs);
  socket.set(zmq::sockopt::heartbeat_timeout, kHeartbeatTimeoutMs);
}

}  // namespace

// A part that ends after all sockets.
class ZmqFollower::Sockets {
 public:
  Sockets() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Sockets() {
    if (wake_ >= 0) close(wake_);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  zmq::context_t& context() { return context_; }
  int wake_fd() const { return wake_; }
  void Wake() const { (void)eventfd_write(wake_, 1); }

 private:
  zmq::context_t context_{1};
  const int wake_;
};

// One engine: its sockets and what is known of it. Used by the follower's thread.
class ZmqFollower::Source {
 public:
  // Throws zmq::error_t.
  Source(zmq::context_t& context, EventSource source, const Options& options, size_t index,
         EngineView::Ask ask, PrefixIndex* prefixes)
      : context_(context),
        source_(std::move(source)),
        block_tokens_(options.space.block_tokens),
        view_({.member = source_.worker,
               .space = options.space,
               .max_blocks = options.max_blocks,
               .ask = std::move(ask)},
              [prefixes](const client::MemberEvent& event, uint32_t tail_blocks) {
                prefixes->Apply(event, tail_blocks);
              }),
        feed_(FeedOptions(options, source_), &view_, &SteadyClock::Get()),
        live_(context, zmq::socket_type::sub),
        state_(context, zmq::socket_type::pair) {
    const std::string state = fmt::format("inproc://state-{}", index);
    SetUp(live_);
    live_.set(zmq::sockopt::subscribe, "");
    if (zmq_socket_monitor(live_.handle(), state.c_str(),
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0) {
      throw zmq::error_t();
    }
    state_.set(zmq::sockopt::linger, 0);
    state_.connect(state);
    live_.connect(source_.endpoint);
  }

  void AddTo(std::vector<zmq::pollitem_t>* items) {
    const auto add = [&](zmq::socket_t& socket) {
      items->push_back({.socket = socket.handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0});
    };
    add(state_);
    if (!feed_.replaying()) add(live_);
    if (replay_) add(*replay_);
  }

  // Takes what has come, without waiting.
  void Turn() {
    ReadState();
    ReadReplay();
    ReadLive();
    if (feed_.Tick()) {
      log::Warn("router_engine_replay_failed", {{"engine", source_.worker}});
    }
    if (!feed_.replaying()) replay_.reset();
    if (const auto first = feed_.TakeReplayRequest()) AskForReplay(*first);
    WarnOfBlockSize();
    const std::string error = feed_.TakeError();
    if (!error.empty()) {
      log::Warn("router_engine_event_unreadable", {{"engine", source_.worker}, {"error", error}});
    }
  }

  const EventSource& source() const { return source_; }
  const EngineView& view() const { return view_; }
  // The engine holds nothing any more, and is no member. Returns what it was until then.
  Engine Leave() {
    view_.Leave();
    log::Info("router_engine_events_left", {{"engine", source_.worker}});
    return Describe();
  }
  Engine Describe() const {
    Engine engine{.worker = source_.worker, .connected = feed_.connected()};
    if (const auto last = feed_.last_batch_at()) engine.silent = SteadyClock::Get().Now() - *last;
    engine.feed = feed_.numbers();
    engine.view = view_.numbers();
    return engine;
  }

 private:
  static EngineFeed::Options FeedOptions(const Options& options, const EventSource& source) {
    EngineFeed::Options feed = options.feed;
    feed.replays = !source.replay.empty();
    return feed;
  }

  // A setting that is wrong, about which nothing else speaks.
  void WarnOfBlockSize() {
    const uint32_t other = view_.numbers().other_block_tokens;
    if (std::exchange(warned_of_, other) == other) return;
    log::Warn("router_engine_block_size", {{"engine", source_.worker},
                                           {"engine_block_tokens", log::Num(other)},
                                           {"engines.block_tokens", log::Num(block_tokens_)}});
  }

  void ReadState() {
    Frames message;
    while (Receive(state_, &message)) {
      // A number of 16 bits and one of 32 in the machine's order, then the address.
      if (message.count < 1 || message[0].size() < sizeof(uint16_t)) continue;
      uint16_t event = 0;
      std::memcpy(&event, message[0].data(), sizeof(event));
      if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        log::Info("router_engine_events_connected", {{"engine", source_.worker}});
        feed_.Connected();
      } else {
        if (feed_.connected()) {
          log::Warn("router_engine_events_disconnected", {{"engine", source_.worker}});
        }
        feed_.Disconnected();
      }
    }
  }

  void ReadLive() {
    Frames message;
    for (int i = 0; i < kBatchesATurn && !feed_.replaying(); ++i) {
      if (!Receive(live_, &message)) return;
      const auto number = message.count == 3 ? NumberOf(message[1]) : std::nullopt;
      if (number && *number != kEnd) {
        feed_.Live(*number, message[2]);
      } else {
        feed_.CountJunk();
      }
    }
  }

  // After the delimiter: the topic, which some versions leave out, the number, the batch.
  void ReadReplay() {
    Frames message;
    for (int i = 0; replay_ && feed_.replaying() && i < kBatchesATurn; ++i) {
      if (!Receive(*replay_, &message)) return;
      const bool whole = message.count == 3 || message.count == 4;
      const auto number = whole ? NumberOf(message[message.count - 2]) : std::nullopt;
      if (!number) {
        feed_.CountJunk();
      } else if (*number == kEnd) {
        feed_.ReplayEnded();
      } else {
        feed_.Replayed(*number, message[message.count - 1]);
      }
    }
  }

  // A socket for each replay, so that no answer to an earlier question is taken for one to this.
  void AskForReplay(uint64_t first) {
    replay_.emplace(context_, zmq::socket_type::dealer);
    SetUp(*replay_);
    replay_->connect(source_.replay);
    replay_->send(zmq::message_t(), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    replay_->send(zmq::message_t(BytesOf(first)), zmq::send_flags::dontwait);
  }

  zmq::context_t& context_;
  const EventSource source_;
  const uint32_t block_tokens_;
  uint32_t warned_of_ = 0;
  EngineView view_;
  EngineFeed feed_;
  zmq::socket_t live_, state_;
  std::optional<zmq::socket_t> replay_;
};

ZmqFollower::ZmqFollower(const Options& options, PrefixIndex* index)
    : options_(options), index_(index), sockets_(std::make_unique<Sockets>()) {}

Result<std::unique_ptr<ZmqFollower>> ZmqFollower::Start(const Options& options,
                                                        PrefixIndex* index) {
  std::unique_ptr<ZmqFollower> follower(new ZmqFollower(options, index));
  CAIRN_RETURN_IF_ERROR(follower->Open());
  follower->Publish();
  follower->thread_ = std::thread([self = follower.get()] { self->Run(); });
  return follower;
}

Status ZmqFollower::Open() {
  if (sockets_->wake_fd() < 0) {
    return Errorf(StatusCode::kUnavailable, "eventfd: error {}", errno);
  }
  {
    MutexLock lock(mu_);
    wanted_ = options_.sources;
  }
  for (const EventSource& source : options_.sources) {
    try {
      Add(source);
    } catch (const zmq::error_t& error) {
      return Errorf(StatusCode::kUnavailable, "engines.events: '{}' cannot be followed: {}",
                    source.endpoint, error.what());
    }
  }
  return OkStatus();
}

void ZmqFollower::Add(const EventSource& source) {
  // Only the thread asks, once all are there.
  EngineView::Ask ask = [this](const EngineHash& hash) -> std::optional<EngineBlockName> {
    for (const auto& other : sources_) {
      if (const auto name = other->view().NameOf(hash)) return name;
    }
    return std::nullopt;
  };
  sources_.push_back(std::make_unique<Source>(sockets_->context(), source, options_, added_++,
                                              std::move(ask), index_));
}

void ZmqFollower::SetSources(std::vector<EventSource> sources) {
  {
    MutexLock lock(mu_);
    if (wanted_ == sources) return;
    wanted_ = std::move(sources);
    wants_others_ = true;
  }
  sockets_->Wake();
}

bool ZmqFollower::Follows(const std::string& worker) const {
  MutexLock lock(mu_);
  return std::ranges::any_of(wanted_, [&](const EventSource& one) { return one.worker == worker; });
}

void ZmqFollower::Follow(const std::vector<EventSource>& wanted) {
  std::erase_if(sources_, [&](const std::unique_ptr<Source>& source) {
    if (std::ranges::find(wanted, source->source()) != wanted.end()) return false;
    const Engine last = source->Leave();
    left_.feed += last.feed;
    left_.view += last.view;
    left_.view.blocks = 0;
    return true;
  });
  for (const EventSource& one : wanted) {
    if (std::ranges::any_of(sources_, [&](const auto& known) { return known->source() == one; })) {
      continue;
    }
    try {
      Add(one);
    } catch (const zmq::error_t& error) {
      log::Warn("router_engine_events", {{"engine", one.worker}, {"error", error.what()}});
    }
  }
}

ZmqFollower::~ZmqFollower() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  sockets_->Wake();
  if (thread_.joinable()) thread_.join();
  sources_.clear();
}

std::vector<ZmqFollower::Engine> ZmqFollower::engines() const {
  MutexLock lock(mu_);
  return engines_;
}

ZmqFollower::Past ZmqFollower::past() const {
  MutexLock lock(mu_);
  return past_;
}

void ZmqFollower::Run() {
  for (;;) {
    std::optional<std::vector<EventSource>> wanted;
    {
      MutexLock lock(mu_);
      if (stopping_) return;
      if (std::exchange(wants_others_, false)) wanted = wanted_;
    }
    if (wanted) Follow(*wanted);
    try {
      Round();
    } catch (const zmq::error_t& error) {
      // A signal, or the system is short of something: it is tried again.
      if (error.num() != EINTR) log::Warn("router_engine_events", {{"error", error.what()}});
    }
    Publish();
  }
}

void ZmqFollower::Round() {
  std::vector<zmq::pollitem_t> items;
  items.push_back(
      {.socket = nullptr, .fd = sockets_->wake_fd(), .events = ZMQ_POLLIN, .revents = 0});
  for (const auto& source : sources_) source->AddTo(&items);
  zmq::poll(items, kRound);
  eventfd_t woken = 0;
  (void)eventfd_read(sockets_->wake_fd(), &woken);
  for (const auto& source : sources_) source->Turn();
}

void ZmqFollower::Publish() {
  std::vector<Engine> engines;
  for (const auto& source : sources_) engines.push_back(source->Describe());
  MutexLock lock(mu_);
  engines_ = std::move(engines);
  past_ = left_;
}

}  // namespace cairn::router
