#include "services/cache/serve/local/local_server.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/log/log.h"

namespace cairn::cache {
namespace {

constexpr int kDescriptorsPerTurn = 8;
constexpr int kMaxEvents = 64;
constexpr int kMessagesPerTurn = 16;
constexpr uint32_t kMaxConnectionsPerToken = 4;
constexpr size_t kMaxRefusals = 64;  // Waiting to be told.
constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kLookAtSockets = std::chrono::milliseconds(1);  // While rings are busy.
constexpr size_t kLooksPerTurn = 8;  // For blocks that descriptors wait for.
constexpr int kAcceptsPerTurn = 16;
constexpr Duration kWarnEvery = std::chrono::seconds(10);
constexpr Duration kHelloPatience = std::chrono::seconds(5);

uint64_t QuotaOf(const LocalServerOptions& options, const HostTier& host) {
  return options.quota_bytes != 0 ? options.quota_bytes : host.GetStats().capacity_bytes / 4;
}

}  // namespace

class LocalServer::Connection final : public ArenaSegmentSender {
 public:
  Connection(shm::Descriptor socket_in, TimePoint since_in)
      : socket(std::move(socket_in)), since(since_in) {}

  Status SendSegments(const shm::Segments& message, std::span<const int> descriptors) override {
    return shm::Send(socket.get(), shm::AsBytes(message), descriptors);
  }
  Status SendChunks(const shm::Chunks& message, std::span<const int> descriptors) override {
    return shm::Send(socket.get(), shm::AsBytes(message), descriptors);
  }

  const shm::Descriptor socket;
  const TimePoint since;
  Status refusal;  // Told instead of a welcome.
  LocalToken token{};
  bool attached = false;    // Counts in its token's `connections`.
  OwnerId owner = kCommon;  // Counts as a user of it.
  MemoryCharge charge;      // The charge of the ring.
  std::unique_ptr<LocalServerSession> session;
  bool hot = false;
  bool waiting = false;
  bool condemned = false;
  bool named_devices = false;
};

LocalServer::LocalServer(const LocalServerOptions& options, const Dependencies& dependencies)
    : options_(options),
      dependencies_(dependencies),
      spin_(shm::SpinTime(options.spin)),
      left_chunks_(dependencies.devices) {}

Result<std::unique_ptr<LocalServer>> LocalServer::Start(const LocalServerOptions& options,
                                                        const Dependencies& dependencies) {
  CAIRN_CHECK(dependencies.engine->in_place() != nullptr);
  if (!options.ring.valid()) {
    return InvalidArgument(
        "option 'ring': got {} entries and {} bytes of scratch, expected a power of "
        "two up to {} and whole pages up to {}",
        options.ring.entries, options.ring.scratch_bytes, shm::kMaxEntries, shm::kMaxScratchBytes);
  }
  std::unique_ptr<LocalServer> server(new LocalServer(options, dependencies));
  CAIRN_RETURN_IF_ERROR(server->Open());
  server->thread_ = std::thread([raw = server.get()] { raw->Run(); });
  return server;
}

Status LocalServer::Open() {
  CAIRN_ASSIGN_OR_RETURN(listening_, shm::Listen(options_.path, options_.mode));
  epoll_ = shm::Descriptor(epoll_create1(EPOLL_CLOEXEC));
  wake_ = shm::Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event on_listen{.events = EPOLLIN, .data = {.ptr = &listening_}};
  epoll_event on_wake{.events = EPOLLIN, .data = {.ptr = &wake_}};
  if (!epoll_.valid() || !wake_.valid() ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listening_.get(), &on_listen) != 0 ||
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &on_wake) != 0) {
    return Errorf(StatusCode::kResourceExhausted, "local socket: epoll: {}", std::strerror(errno));
  }
  return OkStatus();
}

LocalServer::~LocalServer() {
  stop_.store(true);
  if (wake_.valid()) Wake();
  if (thread_.joinable()) thread_.join();
  if (listening_.valid()) unlink(options_.path.c_str());
}

void LocalServer::Wake() {
  const uint64_t one = 1;
  // A full counter wakes as well.
  (void)!write(wake_.get(), &one, sizeof(one));
}

LocalToken LocalServer::Admit(SessionId session, std::string tenant, bool may_write) {
  LocalToken token;
  // Up to 256 bytes come whole once the pool is seeded.
  CAIRN_CHECK(getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()));
  MutexLock lock(mu_);
  admitted_[token] = {.session = session, .tenant = std::move(tenant), .may_write = may_write};
  return token;
}

bool LocalServer::Retire(const LocalToken& token) {
  {
    MutexLock lock(mu_);
    const auto it = admitted_.find(token);
    if (it == admitted_.end()) return false;
    if (it->second.connections == 0) {
      admitted_.erase(it);
      return false;
    }
    it->second.retired = true;
    retired_any_ = true;
  }
  Wake();
  return true;
}

void LocalServer::Run() {
  pthread_setname_np(pthread_self(), "cairn-local");
  TimePoint now = dependencies_.clock->Now();
  TimePoint last_work = now, last_look = now, last_tick = now;
  uint32_t idle_turns = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const bool worked = ServeHot();
    // A look at the clock costs as much as looking into ten rings.
    if (worked || ++idle_turns % 16 == 0 || spin_ == Duration(0)) {
      now = dependencies_.clock->Now();
    }
    if (worked) last_work = now;
    const bool due = now - last_look >= kLookAtSockets;
    if (worked || (!hot_.empty() && now - last_work < spin_)) {
      if (due) {
        WaitForEvents(0);
        last_look = now;
      } else if (!worked) {
        shm::CpuRelax();
        // A client may be waiting for this very CPU.
        if (idle_turns % 32 == 0) std::this_thread::yield();
      }
    } else {
      PutHotToSleep();
      if (hot_.empty()) {
        const Duration until_tick = std::max(Duration(0), last_tick + kTick - now);
        const auto ms = std::chrono::ceil<std::chrono::milliseconds>(until_tick).count();
        const bool idle = connections_.empty() && listening_now_;
        int timeout_ms = idle ? -1 : static_cast<int>(ms);
        if (next_look_ != TimePoint::max()) {
          const auto look =
              std::chrono::ceil<std::chrono::milliseconds>(std::max(Duration(0), next_look_ - now));
          timeout_ms = std::min(timeout_ms, static_cast<int>(look.count()));
        }
        WaitForEvents(timeout_ms);
        now = dependencies_.clock->Now();
        last_look = last_work = now;
      }
    }
    if (next_look_ <= now) RetryWaiting(now);
    if (now - last_tick >= kTick) {
      Tick();
      last_tick = now;
    }
  }
  while (!connections_.empty()) {
    Connection* connection = connections_.begin()->first;
    Condemn(connection, Errorf(StatusCode::kUnavailable, "the node is shutting down"));
    Remove(connection);
  }
}

bool LocalServer::ServeHot() {
  bool worked = false;
  for (size_t i = 0; i < hot_.size();) {
    Connection* connection = hot_[i];
    if (!connection->session->ring().HasWork()) {
      ++i;
      continue;
    }
    Status why;
    if (!connection->session->Serve(kDescriptorsPerTurn, &why)) {
      LocalStats::Add(stats_.broken_sessions);
      Condemn(connection, why);  // Takes it out of hot_.
      continue;
    }
    worked |= connection->session->busy();
    if (connection->session->has_waiting()) {
      if (!std::exchange(connection->waiting, true)) waiting_.push_back(connection);
      next_look_ = std::min(next_look_, connection->session->next_look());
    }
    ++i;
  }
  return worked;
}

void LocalServer::RetryWaiting(TimePoint now) {
  size_t looks = kLooksPerTurn;
  next_look_ = TimePoint::max();
  for (size_t left = waiting_.size(); left > 0; --left) {
    if (looks == 0) {
      // Those that were not reached are the first ones next time.
      next_look_ = now;
      return;
    }
    Connection* const connection = waiting_.front();
    waiting_.pop_front();
    LocalServerSession& session = *connection->session;
    if (session.next_look() <= now) looks -= session.RetryWaiting(looks);
    connection->waiting = session.has_waiting();
    if (!connection->waiting) continue;
    waiting_.push_back(connection);
    next_look_ = std::min(next_look_, session.next_look());
  }
}

void LocalServer::PutHotToSleep() {
  std::erase_if(hot_, [](Connection* connection) {
    if (connection->session->ring().GoToSleep()) return false;
    connection->hot = false;
    return true;
  });
}

void LocalServer::MakeHot(Connection* connection) {
  if (connection->hot || connection->condemned || connection->session == nullptr) return;
  connection->session->ring().WakeUp();
  connection->hot = true;
  hot_.push_back(connection);
}

bool LocalServer::WaitForEvents(int timeout_ms) {
  epoll_event events[kMaxEvents];
  const int count = epoll_wait(epoll_.get(), events, kMaxEvents, timeout_ms);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr == &listening_) {
      Accept();
    } else if (events[i].data.ptr == &wake_) {
      uint64_t value;
      (void)!read(wake_.get(), &value, sizeof(value));
    } else {
      auto* connection = static_cast<Connection*>(events[i].data.ptr);
      // An earlier event of this round may have removed it; events are one per descriptor.
      if (connections_.contains(connection)) OnSocket(connection, events[i].events);
    }
  }
  bool retired;
  {
    MutexLock lock(mu_);
    retired = std::exchange(retired_any_, false);
  }
  if (retired) {
    std::vector<Connection*> over;
    {
      MutexLock lock(mu_);
      for (const auto& [raw, connection] : connections_) {
        if (!connection->attached || connection->condemned) continue;
        if (admitted_.at(connection->token).retired) over.push_back(raw);
      }
    }
    for (Connection* connection : over) {
      Condemn(connection, Errorf(StatusCode::kUnavailable, "the gRPC session has ended"));
    }
  }
  return count > 0;
}

void LocalServer::SetListening(bool listening) {
  epoll_event event{.events = listening ? EPOLLIN : 0u, .data = {.ptr = &listening_}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listening_.get(), &event) == 0) {
    listening_now_ = listening;
  }
}

void LocalServer::Accept() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    shm::Descriptor socket(
        accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      const int error = errno;
      if (error == EAGAIN || error == EINTR || error == ECONNABORTED) return;
      // They wait in the socket's queue until Tick listens again.
      LocalStats::Add(stats_.failed_accepts);
      SetListening(false);
      const TimePoint now = dependencies_.clock->Now();
      if (!warned_ || now - *warned_ >= kWarnEvery) {
        warned_ = now;
        log::Warn("local_accept_failed", {{"reason", std::strerror(error)}});
      }
      return;
    }
    const auto uid = shm::PeerUid(socket.get());
    Status allowed = uid.status();
    if (uid.ok() && *uid != getuid() &&
        std::find(options_.allow_uids.begin(), options_.allow_uids.end(), *uid) ==
            options_.allow_uids.end()) {
      allowed = Errorf(
          StatusCode::kPermissionDenied,
          "user id {} may not connect: neither the node's own, nor in local.allow_uids", *uid);
    }
    if (allowed.ok() && connections_.size() >= options_.max_sessions) {
      allowed =
          Errorf(StatusCode::kResourceExhausted, "local sessions: {} are open, the limit is {}",
                 connections_.size(), options_.max_sessions);
    }
    // A refusal is told after the Hello: closing a socket with unread bytes would cut it off.
    if (connections_.size() >= options_.max_sessions + kMaxRefusals) continue;
    auto connection = std::make_unique<Connection>(std::move(socket), dependencies_.clock->Now());
    connection->refusal = allowed;
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.ptr = connection.get()}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->socket.get(), &event) != 0) continue;
    Connection* const raw = connection.get();
    connections_.emplace(raw, std::move(connection));
  }
}

void LocalServer::OnSocket(Connection* connection, uint32_t events) {
  for (int i = 0; i < kMessagesPerTurn && (events & EPOLLIN) != 0 && !connection->condemned; ++i) {
    const auto received = shm::Receive(connection->socket.get());
    if (!received.ok()) {
      if (received.status().code() == StatusCode::kInvalidArgument) {
        Condemn(connection, received.status());
      }
      break;
    }
    if (received->message.empty()) break;  // Hung up.
    OnMessage(connection, received->message);
    if (!connections_.contains(connection)) return;
  }
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
    Remove(connection);
  } else if ((events & EPOLLRDHUP) != 0) {
    // It only stopped talking: it may still read and write what it holds.
    Condemn(connection, Errorf(StatusCode::kCancelled, "the client closed its side"));
  }
}

void LocalServer::OnMessage(Connection* connection, std::span<const std::byte> message) {
  if (connection->session == nullptr) return Greet(connection, message);
  const auto type = shm::TypeOf(message);
  if (type.ok() && *type == shm::MessageType::kDoorbell) return MakeHot(connection);
  if (type.ok() && *type == shm::MessageType::kDevices) return OnDevices(connection, message);
  LocalStats::Add(stats_.broken_sessions);
  Condemn(connection, type.ok() ? InvalidArgument("message: got type {}, expected a Doorbell",
                                                  static_cast<int>(*type))
                                : type.status());
}

void LocalServer::OnDevices(Connection* connection, std::span<const std::byte> message) {
  auto devices = shm::DecodeDevices(message);
  if (devices.ok() && std::exchange(connection->named_devices, true)) {
    devices = InvalidArgument("message: got Devices twice, expected it once");
  }
  if (devices.ok()) {
    return connection->session->CanImport(*devices, shm::PeerProcess(connection->socket.get()));
  }
  LocalStats::Add(stats_.broken_sessions);
  Condemn(connection, devices.status());
}

Result<LocalServer::Admitted*> LocalServer::FindAdmitted(const LocalToken& token,
                                                         std::string_view tenant) {
  const auto it = admitted_.find(token);
  if (it == admitted_.end() || it->second.retired) {
    return Errorf(StatusCode::kUnauthenticated,
                  "field 'token': no open session has it; expected SessionEvent.local_token");
  }
  const std::string& named = it->second.tenant;
  if (named.empty() && options_.require_tenant) {
    return Errorf(StatusCode::kPermissionDenied,
                  "field 'tenant': the session named none in OpenSession, and the node's setting "
                  "local.require_tenant wants one");
  }
  if (!named.empty() && named != tenant) {
    return Errorf(StatusCode::kPermissionDenied,
                  "field 'tenant': got '{}', expected '{}', which the session named in OpenSession",
                  tenant, named);
  }
  return &it->second;
}

Result<LocalServerSessionOptions> LocalServer::CheckHello(const shm::DecodedHello& hello,
                                                          Connection* connection) {
  std::memcpy(connection->token.data(), hello.token.data(), connection->token.size());
  LocalServerSessionOptions options;
  options.tenant = hello.tenant;
  options.quota_bytes = QuotaOf(options_, *dependencies_.host);
  {
    MutexLock lock(mu_);
    CAIRN_ASSIGN_OR_RETURN(Admitted* const admitted, FindAdmitted(connection->token, hello.tenant));
    if (admitted->connections >= kMaxConnectionsPerToken) {
      return Errorf(StatusCode::kResourceExhausted, "this session has {} connections already",
                    admitted->connections);
    }
    ++admitted->connections;
    options.session = admitted->session;
    options.may_write = admitted->may_write;
  }
  connection->attached = true;
  CAIRN_ASSIGN_OR_RETURN(options.owner, dependencies_.host->AddOwner(hello.tenant));
  connection->owner = options.owner;
  return options;
}

void LocalServer::Greet(Connection* connection, std::span<const std::byte> message) {
  const auto greet = [&]() -> Status {
    CAIRN_RETURN_IF_ERROR(connection->refusal);
    CAIRN_ASSIGN_OR_RETURN(const shm::DecodedHello hello, shm::DecodeHello(message));
    CAIRN_ASSIGN_OR_RETURN(LocalServerSessionOptions options, CheckHello(hello, connection));
    if (dependencies_.memory != nullptr) {
      CAIRN_ASSIGN_OR_RETURN(connection->charge, dependencies_.memory->Charge(
                                                     MemoryItem::kSessions, options_.ring.bytes()));
    }
    int fd = -1;
    CAIRN_ASSIGN_OR_RETURN(shm::RingMemory memory, shm::RingMemory::Create(options_.ring, &fd));
    const shm::Descriptor ring_fd(fd);
    shm::NodeRing ring(std::move(memory));
    // The client's first call is about to come. Where there are GPUs it says before that which of
    // them it imports: a node that sleeps reads the socket first, so the call cannot overtake this.
    const bool asleep = dependencies_.devices != nullptr && !ring.GoToSleep();
    shm::Welcome welcome;
    welcome.header.type = static_cast<uint16_t>(shm::MessageType::kWelcome);
    welcome.entries = options_.ring.entries;
    welcome.scratch_bytes = options_.ring.scratch_bytes;
    welcome.max_part_bytes = dependencies_.host->max_extent_bytes();
    welcome.node_epoch = options_.node_epoch;
    welcome.quota_bytes = options.quota_bytes;
    if (dependencies_.devices != nullptr) {
      welcome.chunk_bytes = dependencies_.devices->max_extent_bytes();
    }
    CAIRN_RETURN_IF_ERROR(shm::Send(connection->socket.get(), shm::AsBytes(welcome), {&fd, 1}));
    log::Debug("local_session_opened", {{"client", hello.client}, {"tenant", hello.tenant}});
    connection->session = std::make_unique<LocalServerSession>(
        LocalServerSession::Services{dependencies_.engine, dependencies_.host, dependencies_.clock,
                                     &stats_, &buffers_, dependencies_.observer,
                                     dependencies_.devices, &left_chunks_, dependencies_.executor,
                                     dependencies_.memory},
        std::move(options), std::move(ring), connection);
    LocalStats::Add(stats_.sessions);
    LocalStats::Add(stats_.opened_sessions);
    connection->session->SendAllSegments();
    if (!asleep) MakeHot(connection);
    return OkStatus();
  };
  const Status greeted = greet();
  if (greeted.ok()) return;
  LocalStats::Add(stats_.refused_sessions);
  shm::Welcome refusal;
  refusal.header.type = static_cast<uint16_t>(shm::MessageType::kWelcome);
  refusal.code = static_cast<uint32_t>(greeted.code());
  shm::SetText(refusal.text, Message(greeted));
  (void)shm::Send(connection->socket.get(), shm::AsBytes(refusal));
  Remove(connection);
}

void LocalServer::Condemn(Connection* connection, const Status& why) {
  if (connection->condemned) return;
  connection->condemned = true;
  if (connection->hot) std::erase(hot_, connection);
  connection->hot = false;
  if (std::exchange(connection->waiting, false)) std::erase(waiting_, connection);
  if (why.code() != StatusCode::kCancelled && why.code() != StatusCode::kUnavailable) {
    log::Warn("local_session_closed", {{"reason", Message(why)}});
  }
  shm::Closing closing;
  closing.header.type = static_cast<uint16_t>(shm::MessageType::kClosing);
  closing.code = static_cast<uint32_t>(why.code());
  shm::SetText(closing.text, Message(why));
  (void)shm::Send(connection->socket.get(), shm::AsBytes(closing));
  // From now on only the hang-up matters, which epoll always reports.
  epoll_event event{.events = 0, .data = {.ptr = connection}};
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection->socket.get(), &event);
}

void LocalServer::Remove(Connection* connection) {
  if (connection->hot) std::erase(hot_, connection);
  if (connection->waiting) std::erase(waiting_, connection);
  if (connection->session != nullptr) LocalStats::Sub(stats_.sessions);
  connection->session.reset();
  if (connection->owner != kCommon) dependencies_.host->RemoveOwner(connection->owner);
  SessionId over = 0;
  if (connection->attached) {
    MutexLock lock(mu_);
    const auto it = admitted_.find(connection->token);
    if (it != admitted_.end() && --it->second.connections == 0 && it->second.retired) {
      over = it->second.session;
      admitted_.erase(it);
    }
  }
  if (over != 0) dependencies_.engine->CloseSession(over);
  connections_.erase(connection);
}

void LocalServer::Tick() {
  const TimePoint now = dependencies_.clock->Now();
  if (!listening_now_) SetListening(true);
  left_chunks_.Look();
  std::vector<Connection*> silent;
  const uint32_t memories = dependencies_.host->segment_memories();
  const bool changed = memories != seen_memories_;
  seen_memories_ = memories;
  for (const auto& [raw, connection] : connections_) {
    if (connection->session == nullptr) {
      if (now - connection->since > kHelloPatience) silent.push_back(raw);
      continue;
    }
    if (!changed) continue;
    const std::vector<uint32_t> gone = connection->session->TakeGone();
    for (size_t at = 0; at < gone.size(); at += shm::kMaxSegmentsPerMessage) {
      shm::Gone message;
      message.header.type = static_cast<uint16_t>(shm::MessageType::kGone);
      message.count =
          static_cast<uint32_t>(std::min<size_t>(gone.size() - at, shm::kMaxSegmentsPerMessage));
      std::copy_n(gone.begin() + static_cast<ptrdiff_t>(at), message.count, message.ids);
      (void)shm::Send(connection->socket.get(), shm::AsBytes(message));
    }
  }
  for (Connection* connection : silent) {
    LocalStats::Add(stats_.refused_sessions);
    Remove(connection);
  }
}

}  // namespace cairn::cache
