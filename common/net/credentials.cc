#include "common/net/credentials.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/server_context.h>

namespace cairn::net {

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

Caller CallerOf(const grpc::ServerContextBase& context) {
  Caller caller;
  const std::string peer = context.peer();
  // rpc::OperatorSocket hands such connections to gRPC, nobody else does.
  caller.is_operator = peer.rfind("fd:", 0) == 0;
  caller.local = peer.rfind("unix:", 0) == 0 || peer.rfind("ipv4:127.", 0) == 0 ||
                 peer.rfind("ipv6:[::1]", 0) == 0 || peer.rfind("ipv6:%5B::1%5D", 0) == 0;
  const auto auth = context.auth_context();
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
