#include "common/net/tls.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>

namespace cairn::net {
namespace {

using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;
using KeyPtr = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using BioPtr = std::unique_ptr<BIO, decltype(&BIO_free)>;
using FilePtr = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Result<FilePtr> Open(const std::string& path, const std::string& field) {
  FilePtr file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "{}: cannot read '{}', expected a PEM file",
                  field, path);
  }
  return file;
}

Result<X509Ptr> ReadCertificate(const std::string& path, const std::string& field) {
  CAIRN_ASSIGN_OR_RETURN(const FilePtr file, Open(path, field));
  X509Ptr certificate(PEM_read_X509(file.get(), nullptr, nullptr, nullptr), &X509_free);
  if (certificate == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "{}: '{}' holds no PEM certificate", field,
                  path);
  }
  return certificate;
}

Status CheckPeriod(const X509* certificate, const std::string& path) {
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    return Errorf(StatusCode::kFailedPrecondition, "'{}' has expired", path);
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    return Errorf(StatusCode::kFailedPrecondition, "'{}' is not valid yet", path);
  }
  return OkStatus();
}

Status CheckPeriod(const X509* certificate, const std::string& path, const std::string& field) {
  return Annotate(CheckPeriod(certificate, path), field);
}

BioPtr Bytes(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), &BIO_free);
}

// An encrypted key would ask for its password on the terminal: this answers with none.
int NoPassword(char*, int, int, void*) { return 0; }

// Whether all certificates of a text can be read, and there is one.
bool AreCertificates(const std::string& text) {
  const BioPtr bytes = Bytes(text);
  int count = 0;
  while (X509Ptr(PEM_read_bio_X509(bytes.get(), nullptr, nullptr, nullptr), &X509_free)) ++count;
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  return count > 0 && at_end;
}

std::optional<std::string> ReadFile(const std::string& path) {
  if (path.empty()) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  return std::string{std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

Status Check(const TlsOptions& options) {
  if (!options.enabled()) {
    if (!options.private_key.empty() || !options.client_ca.empty()) {
      return InvalidArgument("tls.cert: got nothing, expected a file because tls.{} is set",
                             options.private_key.empty() ? "client_ca" : "private_key");
    }
    return OkStatus();
  }
  if (options.private_key.empty()) {
    return InvalidArgument("tls.key: got nothing, expected a file because tls.cert is set");
  }
  CAIRN_ASSIGN_OR_RETURN(const X509Ptr certificate,
                         ReadCertificate(options.certificate, "tls.cert"));
  CAIRN_RETURN_IF_ERROR(CheckPeriod(certificate.get(), options.certificate, "tls.cert"));
  CAIRN_ASSIGN_OR_RETURN(const FilePtr key_file, Open(options.private_key, "tls.key"));
  const KeyPtr key(PEM_read_PrivateKey(key_file.get(), nullptr, NoPassword, nullptr),
                   &EVP_PKEY_free);
  if (key == nullptr) {
    return Errorf(StatusCode::kFailedPrecondition, "tls.key: '{}' holds no unencrypted PEM key",
                  options.private_key);
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return Errorf(StatusCode::kFailedPrecondition, "tls.key: '{}' does not belong to '{}'",
                  options.private_key, options.certificate);
  }
  if (options.mutual()) {
    CAIRN_ASSIGN_OR_RETURN(const X509Ptr ca, ReadCertificate(options.client_ca, "tls.client_ca"));
    CAIRN_RETURN_IF_ERROR(CheckPeriod(ca.get(), options.client_ca, "tls.client_ca"));
  }
  return OkStatus();
}

PemTexts ReadPem(const PemFiles& files) {
  return {.authorities = ReadFile(files.authorities),
          .certificate = ReadFile(files.certificate),
          .private_key = ReadFile(files.private_key)};
}

Status CheckPem(const PemFiles& files, const PemTexts& texts) {
  const auto wrong = [](const std::string& path, std::string_view what) {
    return Errorf(StatusCode::kFailedPrecondition, "'{}' {}", path, what);
  };
  if (texts.authorities && !AreCertificates(*texts.authorities)) {
    return wrong(files.authorities, "holds no PEM certificates");
  }
  if (!texts.certificate || !texts.private_key) return OkStatus();
  if (!AreCertificates(*texts.certificate)) {
    return wrong(files.certificate, "holds no PEM certificates");
  }
  const X509Ptr certificate(
      PEM_read_bio_X509(Bytes(*texts.certificate).get(), nullptr, nullptr, nullptr), &X509_free);
  CAIRN_RETURN_IF_ERROR(CheckPeriod(certificate.get(), files.certificate));
  const KeyPtr key(
      PEM_read_bio_PrivateKey(Bytes(*texts.private_key).get(), nullptr, NoPassword, nullptr),
      &EVP_PKEY_free);
  const bool fits = key != nullptr && X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) return wrong(files.private_key, "holds no unencrypted PEM key");
  if (!fits) {
    return wrong(files.private_key, fmt::format("does not belong to '{}'", files.certificate));
  }
  return OkStatus();
}

Status CheckBind(const ListenAddress& address, const TlsOptions& options,
                 const std::string& field) {
  if (IsLocal(address) || options.enabled() || options.allow_plaintext_beyond_loopback) {
    return OkStatus();
  }
  return Errorf(StatusCode::kPermissionDenied,
                "{}: '{}' can be reached from other machines, and TLS is off. Set tls.cert and "
                "tls.key, or listen on 127.0.0.1, or pass --i-accept-plaintext-on-the-network",
                field, address.WithPort(address.port));
}

Result<double> CertificateExpiry(const std::string& pem, const std::string& path) {
  const X509Ptr certificate(PEM_read_bio_X509(Bytes(pem).get(), nullptr, nullptr, nullptr),
                            &X509_free);
  std::tm end{};
  if (certificate == nullptr) {
    ERR_clear_error();
    return Errorf(StatusCode::kFailedPrecondition, "'{}' holds no PEM certificate", path);
  }
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) {
    return Errorf(StatusCode::kFailedPrecondition, "'{}': unreadable end date", path);
  }
  return static_cast<double>(timegm(&end));
}

std::string Caller::Describe() const {
  if (!names.empty()) return names.front();
  if (!common_names.empty()) {
    return fmt::format("{}{}", AdminRule::kCommonName, common_names.front());
  }
  return "(no certificate)";
}

bool HasIdentity(const Caller& caller, std::string_view identity) {
  const std::vector<std::string>* names = &caller.names;
  if (identity.starts_with(AdminRule::kCommonName)) {
    identity.remove_prefix(AdminRule::kCommonName.size());
    names = &caller.common_names;
  }
  return std::find(names->begin(), names->end(), identity) != names->end();
}

Status CheckAdmin(const Caller& caller, const AdminRule& rule) {
  if (caller.is_operator) return OkStatus();
  if (!rule.certificates) {
    if (caller.local && rule.allow_loopback) return OkStatus();
    return Errorf(StatusCode::kPermissionDenied,
                  "admin: without client certificates, only callers over the node's admin.socket "
                  "may do this{}",
                  caller.local ? ", or callers on its machine if admin.allow_loopback is set" : "");
  }
  for (const std::string& identity : rule.identities) {
    if (HasIdentity(caller, identity)) return OkStatus();
  }
  return Errorf(StatusCode::kPermissionDenied, "admin: caller '{}' is not in tls.admin_identities",
                caller.Describe());
}

}  // namespace cairn::net
