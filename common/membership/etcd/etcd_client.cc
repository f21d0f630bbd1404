#include "common/membership/etcd/etcd_client.h"

#include <grpcpp/grpcpp.h>

#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "common/concurrency/mutex.h"
#include "common/config/text_file.h"
#include "common/membership/static_discovery.h"
#include "common/rpc/channel.h"
#include "etcd/v3/rpc.grpc.pb.h"

namespace cairn::membership {
namespace {

namespace pb = etcdserverpb;

// The limit for the answer that lists all members.
constexpr int kMaxMessageBytes = 16 << 20;

Result<std::string> ReadFile(const std::string& path, const char* field) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) {
    return Errorf(StatusCode::kFailedPrecondition, "{}: cannot read '{}'", field, path);
  }
  return text.str();
}

// etcd's clients do the same: the first key after all that begin with `prefix`.
std::string PrefixEnd(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xff) prefix.pop_back();
  if (!prefix.empty()) prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

bool NotReached(StatusCode code) {
  return code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded ||
         code == StatusCode::kCancelled || code == StatusCode::kInternal ||
         code == StatusCode::kUnknown;
}

// A connection to one member of etcd, with the token of the user that logged in.
struct Connection {
  Connection(std::string to, std::shared_ptr<grpc::Channel> channel)
      : endpoint(std::move(to)), kv(channel), lease(channel), watch(channel), auth(channel) {}
  const std::string endpoint;
  pb::KV::Stub kv;
  pb::Lease::Stub lease;
  pb::Watch::Stub watch;
  pb::Auth::Stub auth;
  std::string token;  // Constant once others see the connection.
};

}  // namespace

class EtcdClient::Impl {
 public:
  explicit Impl(EtcdOptions options) : options_(std::move(options)) {}

  // Runs `call` with a connection; again if the token was no longer good.
  template <typename Function>
  Status Call(const char* what, Duration timeout, Function call) {
    for (int attempt = 0;; ++attempt) {
      auto connection = Connect();
      if (!connection.ok()) return connection.status();
      const Status status = CallOn(**connection, what, timeout, call);
      if (status.ok() || status.code() == StatusCode::kNotFound) return status;
      if (NotReached(status.code())) {
        Forget(*connection, /*next_endpoint=*/true);
      } else if (status.code() == StatusCode::kUnauthenticated) {
        Forget(*connection, /*next_endpoint=*/false);
        if (attempt == 0) continue;
      }
      return status;
    }
  }

  template <typename Function>
  Status CallOn(Connection& connection, const char* what, Duration timeout, Function call) {
    grpc::ClientContext context;
    Prepare(connection, &context);
    if (timeout != Duration::max()) {
      context.set_deadline(rpc::CallDeadline(SteadyClock::Get().Now() + timeout));
    }
    const Active active(this, &context);
    const grpc::Status status = call(connection, context);
    if (status.ok()) return OkStatus();
    return Errorf(static_cast<StatusCode>(status.error_code()), "etcd '{}': {}: {}",
                  connection.endpoint, what, status.error_message());
  }

  void Cancel() {
    MutexLock lock(mu_);
    cancelled_ = true;
    for (grpc::ClientContext* context : active_) context->TryCancel();
  }

  // For the calls that follow Cancel.
  void AllowAgain() {
    MutexLock lock(mu_);
    cancelled_ = false;
  }

  void SetWatch(grpc::ClientContext* watch) {
    MutexLock lock(mu_);
    watch_ = watch;
  }

  Duration timeout() const { return options_.timeout; }
  Duration last_timeout() const { return options_.last_timeout; }

 private:
  // A call that Cancel can end.
  class Active {
   public:
    Active(Impl* impl, grpc::ClientContext* context) : impl_(*impl), context_(context) {
      MutexLock lock(impl_.mu_);
      impl_.active_.insert(context_);
      if (impl_.cancelled_) context_->TryCancel();
    }
    ~Active() {
      MutexLock lock(impl_.mu_);
      impl_.active_.erase(context_);
    }
    Active(const Active&) = delete;
    Active& operator=(const Active&) = delete;

   private:
    Impl& impl_;
    grpc::ClientContext* const context_;
  };

  void Prepare(const Connection& connection, grpc::ClientContext* context) {
    context->AddMetadata("hasleader", "true");
    if (!connection.token.empty()) context->AddMetadata("token", connection.token);
  }

  Result<std::shared_ptr<Connection>> Connect() {
    std::string endpoint;
    {
      MutexLock lock(mu_);
      if (connection_ != nullptr) return connection_;
      endpoint = options_.endpoints[next_ % options_.endpoints.size()];
    }
    auto credentials = Credentials();
    if (!credentials.ok()) return credentials.status();
    grpc::ChannelArguments arguments;
    // A connection of its own: one that broke must not come back from gRPC's pool.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    auto made = std::make_shared<Connection>(
        endpoint, grpc::CreateCustomChannel(endpoint, *credentials, arguments));
    if (!options_.user.empty()) {
      if (Status status = LogIn(*made); !status.ok()) {
        MutexLock lock(mu_);
        if (NotReached(status.code())) ++next_;
        return status;
      }
    }
    MutexLock lock(mu_);
    // Another thread may have been faster; then both use its connection.
    if (connection_ == nullptr) connection_ = std::move(made);
    return connection_;
  }

  Result<std::shared_ptr<grpc::ChannelCredentials>> Credentials() {
    if (options_.ca.empty()) return grpc::InsecureChannelCredentials();
    grpc::SslCredentialsOptions files;
    auto ca = ReadFile(options_.ca, "cluster.etcd.ca");
    if (!ca.ok()) return ca.status();
    files.pem_root_certs = *std::move(ca);
    if (!options_.certificate.empty()) {
      auto certificate = ReadFile(options_.certificate, "cluster.etcd.cert");
      if (!certificate.ok()) return certificate.status();
      auto key = ReadFile(options_.key, "cluster.etcd.key");
      if (!key.ok()) return key.status();
      files.pem_cert_chain = *std::move(certificate);
      files.pem_private_key = *std::move(key);
    }
    return grpc::SslCredentials(files);
  }

  Status LogIn(Connection& connection) {
    const auto password =
        config::ReadSecretFile(options_.password_file, "cluster.etcd.password_file");
    if (!password.ok()) return password.status();
    pb::AuthenticateResponse answer;
    const Status status = CallOn(connection, "log-in", options_.timeout,
                                 [&](Connection& on, grpc::ClientContext& context) {
                                   pb::AuthenticateRequest request;
                                   request.set_name(options_.user);
                                   request.set_password(*password);
                                   return on.auth.Authenticate(&context, request, &answer);
                                 });
    // A cluster without users serves everybody, as it does etcd's own clients.
    if (status.code() == StatusCode::kFailedPrecondition) return OkStatus();
    if (!status.ok()) return status;
    connection.token = answer.token();
    return OkStatus();
  }

  void Forget(const std::shared_ptr<Connection>& connection, bool next_endpoint) {
    MutexLock lock(mu_);
    if (connection_ != connection) return;
    connection_ = nullptr;
    if (next_endpoint) ++next_;
    // Its watch would wait for this member forever.
    if (watch_ != nullptr) watch_->TryCancel();
  }

  const EtcdOptions options_;
  Mutex mu_;
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::set<grpc::ClientContext*> active_ ABSL_GUARDED_BY(mu_);
  grpc::ClientContext* watch_ ABSL_GUARDED_BY(mu_) = nullptr;
};

Result<std::unique_ptr<EtcdClient>> EtcdClient::Create(EtcdOptions options) {
  if (options.endpoints.empty()) {
    return InvalidArgument(
        "cluster.etcd.endpoints: got none, expected host:port of etcd's members");
  }
  for (const std::string& endpoint : options.endpoints) {
    if (Status status = CheckMemberAddress(endpoint, "cluster.etcd.endpoints"); !status.ok()) {
      return status;
    }
  }
  if (options.certificate.empty() != options.key.empty()) {
    return InvalidArgument("cluster.etcd.cert, cluster.etcd.key: got one, expected both or none");
  }
  if (!options.certificate.empty() && options.ca.empty()) {
    return InvalidArgument(
        "cluster.etcd.ca: got nothing, expected a file, as a certificate is set");
  }
  if (options.user.empty() != options.password_file.empty()) {
    return InvalidArgument(
        "cluster.etcd.user, cluster.etcd.password_file: got one, expected both or none");
  }
  return std::unique_ptr<EtcdClient>(new EtcdClient(std::make_unique<Impl>(std::move(options))));
}

EtcdClient::EtcdClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EtcdClient::~EtcdClient() = default;

Result<int64_t> EtcdClient::Grant(Duration ttl) {
  pb::LeaseGrantResponse answer;
  const Status status = impl_->Call(
      "grant a lease", impl_->timeout(), [&](Connection& on, grpc::ClientContext& context) {
        pb::LeaseGrantRequest request;
        request.set_ttl(std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(ttl).count()));
        return on.lease.LeaseGrant(&context, request, &answer);
      });
  if (!status.ok()) return status;
  return answer.id();
}

Result<Duration> EtcdClient::KeepAlive(int64_t lease) {
  int64_t left = 0;
  const Status status = impl_->Call(
      "renew the lease", impl_->timeout(), [&](Connection& on, grpc::ClientContext& context) {
        const auto stream = on.lease.LeaseKeepAlive(&context);
        pb::LeaseKeepAliveRequest request;
        request.set_id(lease);
        pb::LeaseKeepAliveResponse answer;
        if (stream->Write(request) && stream->Read(&answer)) {
          left = answer.ttl();
          context.TryCancel();
          stream->Finish();
          return grpc::Status::OK;
        }
        const grpc::Status end = stream->Finish();
        return end.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream ended") : end;
      });
  if (!status.ok()) return status;
  if (left <= 0) return Errorf(StatusCode::kNotFound, "etcd: lease {:x} is gone", lease);
  return std::chrono::seconds(left);
}

Status EtcdClient::Withdraw(const std::string& key, const std::string& value, int64_t lease) {
  impl_->AllowAgain();
  const Status told = PutWithin(impl_->last_timeout(), key, value, lease);
  const Status revoked = impl_->Call("revoke the lease", impl_->last_timeout(),
                                     [&](Connection& on, grpc::ClientContext& context) {
                                       pb::LeaseRevokeRequest request;
                                       request.set_id(lease);
                                       pb::LeaseRevokeResponse answer;
                                       return on.lease.LeaseRevoke(&context, request, &answer);
                                     });
  return revoked.ok() ? told : revoked;
}

Status EtcdClient::Put(const std::string& key, const std::string& value, int64_t lease) {
  return PutWithin(impl_->timeout(), key, value, lease);
}

Status EtcdClient::PutWithin(Duration timeout, const std::string& key, const std::string& value,
                             int64_t lease) {
  return impl_->Call("put a record", timeout, [&](Connection& on, grpc::ClientContext& context) {
    pb::PutRequest request;
    request.set_key(key);
    request.set_value(value);
    request.set_lease(lease);
    pb::PutResponse answer;
    return on.kv.Put(&context, request, &answer);
  });
}

Result<EtcdRange> EtcdClient::Range(const std::string& prefix, bool any_member) {
  pb::RangeResponse answer;
  const Status status = impl_->Call("read the records", impl_->timeout(),
                                    [&](Connection& on, grpc::ClientContext& context) {
                                      pb::RangeRequest request;
                                      request.set_key(prefix);
                                      request.set_range_end(PrefixEnd(prefix));
                                      request.set_serializable(any_member);
                                      return on.kv.Range(&context, request, &answer);
                                    });
  if (!status.ok()) return status;
  EtcdRange range{.revision = answer.header().revision()};
  for (const pb::KeyValue& record : answer.kvs()) range.records[record.key()] = record.value();
  return range;
}

Status EtcdClient::Watch(const std::string& prefix, int64_t revision,
                         const std::function<void(const std::vector<EtcdEvent>&)>& on_events) {
  Status ended = OkStatus();
  const Status status =
      impl_->Call("watch", Duration::max(), [&](Connection& on, grpc::ClientContext& context) {
        impl_->SetWatch(&context);
        const auto stream = on.watch.Watch(&context);
        pb::WatchRequest request;
        pb::WatchCreateRequest& create = *request.mutable_create_request();
        create.set_key(prefix);
        create.set_range_end(PrefixEnd(prefix));
        create.set_start_revision(revision + 1);
        create.set_progress_notify(true);
        stream->Write(request);
        pb::WatchResponse answer;
        while (ended.ok() && stream->Read(&answer)) {
          if (answer.canceled()) {
            ended = answer.compact_revision() != 0
                        ? Errorf(StatusCode::kOutOfRange,
                                 "etcd '{}': the changes after revision {} are no longer kept",
                                 on.endpoint, revision)
                        : Errorf(StatusCode::kAborted, "etcd '{}': ended the watch: {}",
                                 on.endpoint, answer.cancel_reason());
            context.TryCancel();
            break;
          }
          std::vector<EtcdEvent> events;
          for (const pb::Event& event : answer.events()) {
            events.push_back({.key = event.kv().key(),
                              .value = event.kv().value(),
                              .deleted = event.type() == pb::Event::DELETE});
          }
          if (!events.empty()) on_events(events);
        }
        const grpc::Status end = stream->Finish();
        impl_->SetWatch(nullptr);
        if (!ended.ok()) return grpc::Status::OK;
        return end.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the watch ended") : end;
      });
  return status.ok() ? ended : status;
}

void EtcdClient::Cancel() { impl_->Cancel(); }

}  // namespace cairn::membership
