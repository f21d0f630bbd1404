#pragma once
// TLS from files, without gRPC: the configuration, the check whether it can work, and who may call.

#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/net/address.h"

namespace cairn::net {

struct TlsOptions {
  std::string certificate;  // PEM file with the server's chain. Empty: no TLS.
  std::string private_key;  // PEM file.
  // PEM file. Set: clients must show a certificate that it signed (mutual TLS).
  std::string client_ca;
  Duration reload_interval = std::chrono::seconds(60);  // Files are read again after this.
  bool allow_plaintext_beyond_loopback = false;

  bool enabled() const { return !certificate.empty(); }
  bool mutual() const { return !client_ca.empty(); }
};

// Errors use the names of the services' settings: tls.cert, ... INVALID_ARGUMENT: a setting names a
// file without the other files that it needs. FAILED_PRECONDITION: a file cannot be read, is not
// PEM or has expired, or certificate and key do not belong together.
Status Check(const TlsOptions& options);

// PERMISSION_DENIED: the address is not a loopback address and there is no TLS, unless the options
// allow this.
Status CheckBind(const ListenAddress& address, const TlsOptions& options, const std::string& field);

// When the first certificate of a PEM file ends, in seconds since 1970.
Result<double> CertificateExpiry(const std::string& path);

// The caller, as far as the transport proved who it is.
struct Caller {
  // The SPIFFE URIs, the DNS names and the common name in the client's certificate. Empty: no
  // certificate.
  std::vector<std::string> identities;
  bool local = false;  // Over loopback or a Unix socket.
};

// Says who may call the admin service. With mutual TLS: callers with one of the identities, so
// nobody when the list is empty. Without client certificates: callers on this machine.
Status CheckAdmin(const Caller& caller, const TlsOptions& options,
                  const std::vector<std::string>& admins);

}  // namespace cairn::net
