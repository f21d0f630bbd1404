#pragma once
// TLS from files, without gRPC: what is configured, whether it can work, and what of it may be
// refused.

#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/net/address.h"

namespace cairn::net {

struct TlsOptions {
  std::string certificate;  // PEM file: the server's chain. Empty: no TLS.
  std::string private_key;  // PEM file.
  // PEM file. Set: clients must show a certificate that it signed (mutual TLS).
  std::string client_ca;
  Duration reload_interval = std::chrono::seconds(60);  // Files are read again after this.
  bool allow_plaintext_beyond_loopback = false;

  bool enabled() const { return !certificate.empty(); }
  bool mutual() const { return !client_ca.empty(); }
};

// Names of the settings in errors are those of the services: tls.cert, ...
// INVALID_ARGUMENT when half of the files are named; FAILED_PRECONDITION when one cannot be read,
// is no PEM, has expired, or certificate and key do not belong together.
Status Check(const TlsOptions& options);

// PERMISSION_DENIED for an address beyond loopback without TLS, unless the options allow it.
Status CheckBind(const ListenAddress& address, const TlsOptions& options, const std::string& field);

// When the first certificate of a PEM file ends, in seconds since 1970.
Result<double> CertificateExpiry(const std::string& path);

// Who calls, as the transport proved it.
struct Caller {
  // SPIFFE URIs, DNS names and common name of the client's certificate; empty without one.
  std::vector<std::string> identities;
  bool local = false;  // Over loopback or a Unix socket.
};

// Who may call the admin service. With mutual TLS: who has one of the identities, so nobody when
// the list is empty. Without client certificates: callers on this machine.
Status CheckAdmin(const Caller& caller, const TlsOptions& options,
                  const std::vector<std::string>& admins);

}  // namespace cairn::net
