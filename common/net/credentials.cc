#include "common/net/credentials.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <map>

#include "common/concurrency/mutex.h"

namespace cairn::net {
namespace {

using Provider = grpc::experimental::FileWatcherCertificateProvider;

// A process has many channels with the same files: they share one provider, because each has a
// thread.
std::shared_ptr<Provider> Watcher(const ChannelFiles& files) {
  const int64_t seconds =
      std::max<int64_t>(1, std::chrono::ceil<std::chrono::seconds>(files.reload_interval).count());
  static Mutex mu;
  static auto* const watchers = new std::map<std::string, std::weak_ptr<Provider>>();
  const std::string key = fmt::format("{}\n{}\n{}\n{}", files.private_key, files.certificate,
                                      files.authorities, seconds);
  MutexLock lock(mu);
  std::erase_if(*watchers, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Provider>& known = (*watchers)[key];
  std::shared_ptr<Provider> provider = known.lock();
  if (provider == nullptr) {
    provider = std::make_shared<Provider>(files.private_key, files.certificate, files.authorities,
                                          static_cast<unsigned>(seconds));
    known = provider;
  }
  return provider;
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureServerCredentials();
  namespace tls = grpc::experimental;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(options.reload_interval).count();
  auto provider = std::make_shared<tls::FileWatcherCertificateProvider>(
      options.private_key, options.certificate, options.client_ca, static_cast<unsigned>(seconds));
  tls::TlsServerCredentialsOptions credentials(provider);
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
    options.set_certificate_provider(Watcher(files));
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
  caller.names = std::move(named.names);
  caller.common_names = std::move(named.common_names);
  return caller;
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
  add("x509_common_name", &caller.common_names);
  return caller;
}

}  // namespace cairn::net
