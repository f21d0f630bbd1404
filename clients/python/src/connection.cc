#include "clients/python/src/connection.h"

#include <sched.h>
#include <unistd.h>

#include "common/keys/part_codec.h"

namespace cairn::python {

Result<std::shared_ptr<Connection>> Connection::Make(const client::ConnectOptions& options) {
  // gRPC's threads and locks are the process's, not the client's, and do not survive either.
  static const pid_t first_process = getpid();
  if (getpid() != first_process) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "process {} was forked from process {}, which had clients: start it with "
                  "multiprocessing's spawn, or fork before the first client",
                  getpid(), first_process);
  }
  CAIRN_ASSIGN_OR_RETURN(auto client, client::Connect(options));
  return std::shared_ptr<Connection>(new Connection(std::move(client)), [](Connection* connection) {
    if (connection->process_ == getpid()) delete connection;
  });
}

Connection::Connection(std::unique_ptr<client::CacheClient> client)
    : process_(getpid()), client_(std::move(client)) {}

Connection::~Connection() { Close(); }

Connection::Call::~Call() {
  if (connection_ == nullptr) return;
  const MutexLock lock(connection_->mu_);
  if (--connection_->calls_ == 0) connection_->idle_.NotifyAll();
}

Result<Connection::Call> Connection::Enter() {
  if (getpid() != process_) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "the client belongs to process {}, and this is its fork {}", process_, getpid());
  }
  const MutexLock lock(mu_);
  if (closed_) return Errorf(StatusCode::kFailedPrecondition, "the client is closed");
  ++calls_;
  return Call(this);
}

void Connection::Close() {
  if (getpid() != process_) return;
  std::unique_ptr<client::CacheClient> client;
  // They end before the client.
  std::map<uint64_t, std::shared_ptr<Stream>> streams;
  std::map<uint64_t, std::unique_ptr<client::InPlacePush>> staged;
  std::unique_ptr<ThreadPool> asking;
  {
    const MutexLock lock(mu_);
    closed_ = true;
    stop_.request_stop();
    for (const auto& [id, stream] : streams_) stream->events->Cancel();
    idle_.Wait(mu_, [&] { return calls_ == 0; });
    client.swap(client_);
    streams.swap(streams_);
    staged.swap(staged_);
    asking.swap(asking_);
  }
}

Status Connection::Remember(const NamespaceSpec& spec) {
  CAIRN_ASSIGN_OR_RETURN(const CheckedNamespace checked, CheckNamespace(spec));
  auto ns = std::make_shared<OpenNamespace>();
  ns->spec = spec;
  // The node refuses a recipe that cannot store the layout. If a ladder begins with raw, what comes
  // back may be encoded.
  if (const auto codecs = PartCodecsOf(checked); codecs.ok()) {
    ns->codec = codecs->pushed == format::Codec::kRaw ? codecs->on_disk : codecs->pushed;
  }
  const MutexLock lock(mu_);
  namespaces_[checked.fingerprint] = std::move(ns);
  return OkStatus();
}

namespace {

// This thread, when it is woken, does not take the CPU of whoever woke it: he must not wait.
bool RunAfterOthers() {
  if (sched_getscheduler(0) != SCHED_OTHER) return false;  // Somebody has chosen.
  const sched_param none = {};
  return sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none) == 0;
}

}  // namespace

Result<std::shared_ptr<PendingMatch>> Connection::Ask(PendingMatch::Question question) {
  CAIRN_ASSIGN_OR_RETURN(const Call call, Enter());
  auto asked = std::make_shared<PendingMatch>(std::move(question));
  const MutexLock lock(mu_);
  if (asking_ == nullptr) {
    asking_ = std::make_unique<ThreadPool>(ThreadPool::Options{.name = "cairn-ask", .threads = 2});
  }
  CAIRN_RETURN_IF_ERROR(asking_->Post([this, asked] {
    [[maybe_unused]] thread_local const bool after_others = RunAfterOthers();
    if (const Result<Call> entered = Enter(); entered.ok()) {
      asked->Run(entered->client());
    } else {
      asked->Refuse(entered.status());
    }
  }));
  return asked;
}

Result<std::shared_ptr<const OpenNamespace>> Connection::Find(const Digest& fingerprint) {
  CAIRN_ASSIGN_OR_RETURN(const Call call, Enter());
  const MutexLock lock(mu_);
  const auto it = namespaces_.find(fingerprint);
  if (it == namespaces_.end()) {
    return InvalidArgument(
        "field 'fingerprint': got {}, expected a namespace that this client opened",
        fingerprint.Hex());
  }
  if (const format::Codec codec = it->second->codec;
      codec != format::Codec::kRaw && codec != format::Codec::kOpaque) {
    return Errorf(StatusCode::kUnimplemented,
                  "field 'recipe': got '{}', expected raw: this client carries bytes as they are",
                  it->second->spec.recipe);
  }
  return it->second;
}

Result<uint64_t> Connection::Watch(const client::WatchOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const Call call, Enter());
  CAIRN_ASSIGN_OR_RETURN(auto events, call.client().WatchEvents(options));
  auto stream = std::make_shared<Stream>();
  stream->events = std::move(events);
  const MutexLock lock(mu_);
  if (closed_) stream->events->Cancel();
  streams_.emplace(next_stream_, std::move(stream));
  return next_stream_++;
}

Result<std::optional<client::CacheEvent>> Connection::NextEvent(uint64_t id, Duration wait) {
  CAIRN_ASSIGN_OR_RETURN(const Call call, Enter());
  std::shared_ptr<Stream> stream;
  {
    const MutexLock lock(mu_);
    const auto it = streams_.find(id);
    if (it == streams_.end()) return Errorf(StatusCode::kCancelled, "watch: closed");
    stream = it->second;
    if (stream->reading) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "watch: another thread waits for its next event");
    }
    stream->reading = true;
  }
  auto event = stream->events->Next(wait);
  const MutexLock lock(mu_);
  stream->reading = false;
  return event;
}

uint64_t Connection::Keep(std::unique_ptr<client::InPlacePush> push) {
  const MutexLock lock(mu_);
  staged_.emplace(next_staged_, std::move(push));
  return next_staged_++;
}

Result<std::unique_ptr<client::InPlacePush>> Connection::TakeStaged(uint64_t id) {
  const MutexLock lock(mu_);
  const auto it = staged_.find(id);
  if (it == staged_.end()) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "staged push: it was already committed or dropped");
  }
  auto push = std::move(it->second);
  staged_.erase(it);
  return push;
}

void Connection::DropStaged(uint64_t id) {
  const Result<Call> call = Enter();  // Close waits until it is gone.
  if (call.ok()) (void)TakeStaged(id);
}

void Connection::EndWatch(uint64_t id) {
  if (getpid() != process_) return;
  std::shared_ptr<Stream> stream;
  {
    const MutexLock lock(mu_);
    const auto it = streams_.find(id);
    if (it == streams_.end()) return;
    stream = std::move(it->second);
    streams_.erase(it);
    stream->events->Cancel();
    ++calls_;  // Close waits until the stream is gone.
  }
  const Call call(this);
  stream.reset();
}

}  // namespace cairn::python
