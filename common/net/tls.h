#pragma once
// TLS from files, without gRPC: the configuration, the check whether it can work, and who may call.

#include <optional>
#include <string>
#include <string_view>
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

// PEM files of one side; each may be empty, certificate and key together. `authorities`: to trust.
struct PemFiles {
  std::string authorities, certificate, private_key;
};
// Their texts. nullopt: there is no such file.
struct PemTexts {
  std::optional<std::string> authorities, certificate, private_key;
  friend bool operator==(const PemTexts&, const PemTexts&) = default;
};

// Unreadable files are empty texts, which CheckPem does not take.
PemTexts ReadPem(const PemFiles& files);

// Whether connections can use the texts of the files. FAILED_PRECONDITION, with the file: it is not
// PEM, certificate and key do not belong together, or the certificate is over or has not begun.
Status CheckPem(const PemFiles& files, const PemTexts& texts);

// PERMISSION_DENIED: the address is not a loopback address and there is no TLS, unless the options
// allow this.
Status CheckBind(const ListenAddress& address, const TlsOptions& options, const std::string& field);

// When the first certificate of a PEM text ends, in seconds since 1970. Errors name the path.
Result<double> CertificateExpiry(const std::string& pem, const std::string& path);

// The caller, as far as the transport proved who it is.
struct Caller {
  // The alternative names in the client's certificate, as they are: SPIFFE URIs, DNS names, ...
  std::vector<std::string> names;
  // Those of them that are URIs, and those that are DNS names.
  std::vector<std::string> uris = {}, dns_names = {};
  // Its common names. Many authorities let whoever asks for a certificate choose them.
  std::vector<std::string> common_names;
  // Over a socket that only the process's own user and root can use.
  bool is_operator = false;
  bool local = false;  // Over loopback or another Unix socket: whoever that is.

  // For errors and logs.
  std::string Describe() const;
};

// A rule that says which callers may use the admin service, apart from operators.
struct AdminRule {
  bool certificates = false;    // Clients show certificates (mutual TLS).
  bool allow_loopback = false;  // Without certificates: all callers that look local.
  // With certificates. A name, or a common name after kCommonName. Empty: nobody.
  std::vector<std::string> identities;

  static constexpr std::string_view kCommonName = "cn:";
};

// Whether the caller's certificate has this name, which AdminRule::identities describes.
bool HasIdentity(const Caller& caller, std::string_view identity);

// PERMISSION_DENIED, with what would allow it.
Status CheckAdmin(const Caller& caller, const AdminRule& rule);

}  // namespace cairn::net
