#include "common/net/credentials.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <map>

#include "common/concurrency/mutex.h"
#include "common/concurrency/ticker.h"
#include "common/net/checked_files.h"

namespace cairn::net {
namespace {

using Provider = grpc::experimental::FileWatcherCertificateProvider;

// How often gRPC looks at the copies, which cost no I/O.
constexpr unsigned kLookSeconds = 1;

// Copies of the files that are checked in each interval. They are never given back: gRPC's watcher
// lives as long as the last connection, and would read what has the descriptor's number next.
const PemFiles& Follow(const PemFiles& files, Duration interval) {
  struct Followed {
    Followed(const PemFiles& of, Duration each)
        : files(of), ticker(each, [this] { files.Look(); }) {}
    CheckedFiles files;
    Ticker ticker;
  };
  static Mutex mu;
  static auto* const all = new std::map<std::string, std::unique_ptr<Followed>>();
  const std::string key = fmt::format("{}\n{}\n{}\n{}", files.private_key, files.certificate,
                                      files.authorities, interval.count());
  MutexLock lock(mu);
  std::unique_ptr<Followed>& followed = (*all)[key];
  if (followed == nullptr) followed = std::make_unique<Followed>(files, interval);
  return followed->files.copies();
}

// A process has many channels with the same files: they share one provider, because each has a
// thread.
std::shared_ptr<Provider> Watcher(const PemFiles& files, Duration interval) {
  const PemFiles& copies = Follow(files, std::max<Duration>(interval, std::chrono::seconds(1)));
  static Mutex mu;
  static auto* const watchers = new std::map<std::string, std::weak_ptr<Provider>>();
  const std::string key = copies.certificate + "\n" + copies.authorities;
  MutexLock lock(mu);
  std::erase_if(*watchers, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Provider>& known = (*watchers)[key];
  std::shared_ptr<Provider> provider = known.lock();
  if (provider == nullptr) {
    provider = std::make_shared<Provider>(copies.private_key, copies.certificate,
                                          copies.authorities, kLookSeconds);
    known = provider;
  }
  return provider;
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureServerCredentials();
  namespace tls = grpc::experimental;
  const PemFiles files = {.authorities = options.client_ca,
                          .certificate = options.certificate,
                          .private_key = options.private_key};
  tls::TlsServerCredentialsOptions credentials(Watcher(files, options.reload_interval));
  credentials.watch_identity_key_cert_pairs();
  if (options.mutual()) {
    credentials.watch_root_certs();
    credentials.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(credentials);
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const ChannelFiles& files) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (!files.authorities.empty() || !files.certificate.empty()) {
    const PemFiles pem = {.authorities = files.authorities,
                          .certificate = files.certificate,
                          .private_key = files.private_key};
    options.set_certificate_provider(Watcher(pem, files.reload_interval));
    if (!files.authorities.empty()) options.watch_root_certs();
    if (!files.certificate.empty()) options.watch_identity_key_cert_pairs();
  }
  return grpc::experimental::TlsCredentials(options);
}

Caller CallerOf(const grpc::ServerContextBase& context) {
  Caller caller;
  const std::string peer = context.peer();
  // rpc::OperatorSocket hands such connections to gRPC, nobody else does.
  caller.is_operator = peer.rfind("fd:", 0) == 0;
  caller.local = peer.rfind("unix:", 0) == 0 || peer.rfind("ipv4:127.", 0) == 0 ||
                 peer.rfind("ipv6:[::1]", 0) == 0 || peer.rfind("ipv6:%5B::1%5D", 0) == 0;
  Caller named = NamesOf(context.auth_context().get());
  named.is_operator = caller.is_operator;
  named.local = caller.local;
  return named;
}

Caller NamesOf(const grpc::AuthContext* auth) {
  Caller caller;
  if (auth == nullptr || !auth->IsPeerAuthenticated()) return caller;
  const auto add = [&](const char* property, std::vector<std::string>* to) {
    for (const auto& value : auth->FindPropertyValues(property)) {
      to->emplace_back(value.data(), value.size());
    }
  };
  add("peer_spiffe_id", &caller.names);
  add("x509_subject_alternative_name", &caller.names);
  add("peer_uri", &caller.uris);
  add("peer_dns", &caller.dns_names);
  add("x509_common_name", &caller.common_names);
  return caller;
}

std::string_view CertificateOf(const grpc::AuthContext& auth) {
  if (!auth.IsPeerAuthenticated()) return {};
  const auto values = auth.FindPropertyValues("x509_pem_cert");
  return values.size() == 1 ? std::string_view(values[0].data(), values[0].size())
                            : std::string_view();
}

}  // namespace cairn::net
