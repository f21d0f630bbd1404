#include "services/cache/serve/events/zmq/zmq_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <set>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "common/log/log.h"
#include "common/net/unix_path.h"

namespace cairn::cache {
namespace {

constexpr int kStepsARound = 16;
constexpr int kReplaysARound = 4;
// The longest message of a reader: who it is, and what it asks for or subscribes to.
constexpr int64_t kMostRequestBytes = 1024;
// Requests that wait until others are answered, for each reader.
constexpr int kWaitingRequests = 16;
// A reader whose machine has gone says nothing at all. ZeroMQ's own heartbeats are no help, since
// not every library of others knows them.
constexpr int kKeepaliveSeconds = 30, kKeepaliveProbeSeconds = 10, kKeepaliveProbes = 3;
constexpr int kFirstReconnectMs = 100, kMostReconnectMs = 5000;
constexpr std::string_view kIpc = "ipc://";
constexpr char kStateEndpoint[] = "inproc://state";
constexpr uint64_t kEnd = UINT64_MAX;

std::string BytesOf(uint64_t number) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (56 - 8 * i));
  return bytes;
}

std::optional<uint64_t> NumberOf(std::string_view bytes) {
  if (bytes.size() != 8) return std::nullopt;
  uint64_t number = 0;
  for (const char c : bytes) number = number << 8 | static_cast<uint8_t>(c);
  return number;
}

// A message over the text itself, which it keeps as long as somebody has yet to get it.
zmq::message_t Share(const std::shared_ptr<const std::string>& text) {
  auto* const keep = new std::shared_ptr<const std::string>(text);
  return zmq::message_t(
      const_cast<char*>(text->data()), text->size(),
      [](void*, void* hint) { delete static_cast<std::shared_ptr<const std::string>*>(hint); },
      keep);
}

double UnixTime() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

constexpr auto kMore = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
constexpr auto kLast = zmq::send_flags::dontwait;

}  // namespace

// The sockets, and what is known of their readers.
class ZmqPublisher::Sockets {
 public:
  explicit Sockets(const Options& options)
      : options_(options), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Sockets() {
    if (wake_ >= 0) close(wake_);
  }
  Sockets(const Sockets&) = delete;
  Sockets& operator=(const Sockets&) = delete;

  Status Bind() {
    if (wake_ < 0) return Errorf(StatusCode::kUnavailable, "eventfd: error {}", errno);
    SetUp(publish_);
    publish_.set(zmq::sockopt::sndhwm, options_.most_waiting);
    // Says which readers connect and leave.
    if (zmq_socket_monitor(publish_.handle(), kStateEndpoint,
                           ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED) !=
        0) {
      return Errorf(StatusCode::kUnavailable, "events.zmq: {}", zmq::error_t().what());
    }
    state_.set(zmq::sockopt::linger, 0);
    state_.connect(kStateEndpoint);
    if (options_.connect) {
      publish_.set(zmq::sockopt::ipv6, true);
      // A router that comes back subscribes again, and gets nothing that is older.
      publish_.set(zmq::sockopt::immediate, true);
      publish_.set(zmq::sockopt::xpub_verbose, true);
      publish_.set(zmq::sockopt::reconnect_ivl, kFirstReconnectMs);
      publish_.set(zmq::sockopt::reconnect_ivl_max, kMostReconnectMs);
      publish_.connect(options_.endpoint);
    } else {
      CAIRN_RETURN_IF_ERROR(Bind(publish_, options_.endpoint, "events.zmq"));
    }
    if (options_.replay_endpoint.empty()) return OkStatus();
    replay_.emplace(context_, zmq::socket_type::router);
    SetUp(*replay_);
    // A whole replay and its end.
    const uint64_t most = options_.stream.kept_bytes / EventStream::kBatchOverhead + 2;
    replay_->set(zmq::sockopt::sndhwm, static_cast<int>(std::min<uint64_t>(most, INT_MAX)));
    replay_->set(zmq::sockopt::rcvhwm, kWaitingRequests);
    return Bind(*replay_, options_.replay_endpoint, "events.zmq_replay");
  }

  void Wake() const { (void)eventfd_write(wake_, 1); }

  // Until somebody wants something, or the time is over.
  void Wait(Duration most) {
    std::vector<zmq::pollitem_t> items;
    items.push_back({.socket = nullptr, .fd = wake_, .events = ZMQ_POLLIN, .revents = 0});
    for (zmq::socket_t* socket : {&publish_, &state_, replay_ ? &*replay_ : nullptr}) {
      if (socket == nullptr) continue;
      items.push_back({.socket = socket->handle(), .fd = 0, .events = ZMQ_POLLIN, .revents = 0});
    }
    zmq::poll(items, std::chrono::duration_cast<std::chrono::milliseconds>(most));
    eventfd_t woken = 0;
    (void)eventfd_read(wake_, &woken);
  }

  // Never throws: the stream has more to tell. Readers notice by the numbers what they did not get.
  void Publish(const EventBatch& batch) {
    bool all = false;
    try {
      // Refused for the sake of one reader whose queue is full: then the others get it alone.
      publish_.set(zmq::sockopt::xpub_nodrop, true);
      zmq::message_t topic = Share(batch.topic);
      all = Send(publish_, topic, kMore);
      publish_.set(zmq::sockopt::xpub_nodrop, false);
      if (!all) Send(publish_, topic, kMore);
      Send(publish_, zmq::message_t(BytesOf(batch.number)), kMore);
      Send(publish_, Share(batch.bytes), kLast);
    } catch (const zmq::error_t& error) {
      all = false;
      log::Warn("events_zmq", {{"error", error.what()}});
    }
    if (!all) ++dropped_batches_;
  }

  void ReadState() {
    std::vector<zmq::message_t> message;
    while (Receive(state_, &message)) {
      // A number of 16 bits and one of 32, here a descriptor, in the machine's order.
      uint16_t event = 0;
      int32_t descriptor = 0;
      if (message.empty() || message[0].size() < sizeof event + sizeof descriptor) continue;
      std::memcpy(&event, message[0].data(), sizeof event);
      std::memcpy(&descriptor, message[0].data<char>() + sizeof event, sizeof descriptor);
      if (event == ZMQ_EVENT_DISCONNECTED) {
        readers_.erase(descriptor);
      } else {
        readers_.insert(descriptor);
      }
    }
  }

  // Subscriptions of readers: a 1 and the topic's beginning, or a 0 when the last reader leaves.
  void ReadSubscriptions(EventStream* stream) {
    std::vector<zmq::message_t> message;
    while (Receive(publish_, &message)) {
      const bool begins = message[0].size() > 0 && message[0].data<char>()[0] == 1;
      if (begins && options_.connect) stream->BeginAgain();
    }
  }

  void AnswerReplays(EventStream* stream) {
    std::vector<zmq::message_t> message;
    for (int i = 0; replay_ && i < kReplaysARound && Receive(*replay_, &message); ++i) {
      const auto from = message.size() == 3 && message[1].size() == 0
                            ? NumberOf(message[2].to_string_view())
                            : std::nullopt;
      if (!from) {
        ++bad_requests_;
        continue;
      }
      const auto who = std::make_shared<const std::string>(message[0].to_string());
      stream->Replay(*from, [&](const EventBatch& batch) {
        Answer(who, batch.topic, batch.number, batch.bytes);
      });
      static const auto kNothing = std::make_shared<const std::string>();
      Answer(who, kNothing, kEnd, kNothing);
    }
  }

  void Describe(Stats* stats) const {
    stats->readers = readers_.size();
    stats->dropped_batches = dropped_batches_;
    stats->bad_requests = bad_requests_;
  }

 private:
  static void SetUp(zmq::socket_t& socket) {
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::maxmsgsize, kMostRequestBytes);
    socket.set(zmq::sockopt::tcp_keepalive, 1);
    socket.set(zmq::sockopt::tcp_keepalive_idle, kKeepaliveSeconds);
    socket.set(zmq::sockopt::tcp_keepalive_intvl, kKeepaliveProbeSeconds);
    socket.set(zmq::sockopt::tcp_keepalive_cnt, kKeepaliveProbes);
  }
  static Status Bind(zmq::socket_t& socket, const std::string& endpoint, const char* setting) {
    if (endpoint.starts_with(kIpc)) {
      const Status free = net::FreeUnixPath(endpoint.substr(kIpc.size()));
      if (!free.ok()) return Annotate(free, setting);
    }
    socket.set(zmq::sockopt::ipv6, endpoint.find('[') != std::string::npos);
    try {
      socket.bind(endpoint);
    } catch (const zmq::error_t& error) {
      return Errorf(StatusCode::kUnavailable, "{}: cannot listen at '{}': {}", setting, endpoint,
                    error.what());
    }
    return OkStatus();
  }
  // False: no message waits.
  static bool Receive(zmq::socket_t& socket, std::vector<zmq::message_t>* message) {
    constexpr size_t kMostFrames = 4;
    message->clear();
    for (;;) {
      zmq::message_t frame;
      if (!socket.recv(frame, zmq::recv_flags::dontwait)) return false;
      const bool more = frame.more();
      if (message->size() < kMostFrames) message->push_back(std::move(frame));
      if (!more) return true;
    }
  }
  // False: the frame would have to wait. It is sent again after a signal, which would otherwise cut
  // a message of several frames.
  static bool Send(zmq::socket_t& socket, zmq::message_t&& frame, zmq::send_flags flags) {
    return Send(socket, frame, flags);
  }
  static bool Send(zmq::socket_t& socket, zmq::message_t& frame, zmq::send_flags flags) {
    for (;;) {
      try {
        return socket.send(frame, flags).has_value();
      } catch (const zmq::error_t& error) {
        if (error.num() != EINTR) throw;
      }
    }
  }
  // ZeroMQ drops what a reader that has gone, or takes nothing, does not get.
  void Answer(const std::shared_ptr<const std::string>& who,
              const std::shared_ptr<const std::string>& topic, uint64_t number,
              const std::shared_ptr<const std::string>& bytes) {
    Send(*replay_, zmq::message_t(*who), kMore);
    Send(*replay_, zmq::message_t(), kMore);
    Send(*replay_, Share(topic), kMore);
    Send(*replay_, zmq::message_t(BytesOf(number)), kMore);
    Send(*replay_, Share(bytes), kLast);
  }

  const Options options_;
  const int wake_;
  zmq::context_t context_{1};
  zmq::socket_t publish_{context_, zmq::socket_type::xpub};
  zmq::socket_t state_{context_, zmq::socket_type::pair};
  std::optional<zmq::socket_t> replay_;
  std::set<int32_t> readers_;  // The descriptors of their connections.
  uint64_t dropped_batches_ = 0, bad_requests_ = 0;
};

ZmqPublisher::ZmqPublisher(const Options& options, CacheEngine* engine, const Clock* clock)
    : sockets_(std::make_unique<Sockets>(options)),
      stream_(options.stream, {.engine = engine, .clock = clock, .unix_time = UnixTime},
              [this](const EventBatch& batch) { sockets_->Publish(batch); }) {}

Result<std::unique_ptr<ZmqPublisher>> ZmqPublisher::Start(const Options& options,
                                                          CacheEngine* engine, const Clock* clock) {
  std::unique_ptr<ZmqPublisher> publisher;
  try {
    publisher.reset(new ZmqPublisher(options, engine, clock));
    CAIRN_RETURN_IF_ERROR(publisher->sockets_->Bind());
  } catch (const zmq::error_t& error) {
    return Errorf(StatusCode::kUnavailable, "events.zmq: {}", error.what());
  }
  publisher->thread_ = std::thread([self = publisher.get()] { self->Run(); });
  return publisher;
}

ZmqPublisher::~ZmqPublisher() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  sockets_->Wake();
  if (thread_.joinable()) thread_.join();
}

ZmqPublisher::Stats ZmqPublisher::stats() const {
  MutexLock lock(mu_);
  return stats_;
}

void ZmqPublisher::Run() {
  for (;;) {
    {
      MutexLock lock(mu_);
      if (stopping_) return;
    }
    try {
      Round();
    } catch (const zmq::error_t& error) {
      // A signal, or the system is short of something: it is tried again.
      if (error.num() != EINTR) log::Warn("events_zmq", {{"error", error.what()}});
    }
    Stats stats{.stream = stream_.numbers()};
    sockets_->Describe(&stats);
    MutexLock lock(mu_);
    stats_ = stats;
  }
}

void ZmqPublisher::Round() {
  sockets_->Wait(busy_ ? Duration(0) : kRound);
  sockets_->ReadState();
  sockets_->ReadSubscriptions(&stream_);
  sockets_->AnswerReplays(&stream_);
  busy_ = false;
  for (int i = 0; i < kStepsARound; ++i) {
    busy_ = stream_.Step();
    if (!busy_) return;
  }
}

}  // namespace cairn::cache
