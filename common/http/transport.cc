#include "common/http/transport.h"

#include <openssl/ssl.h>

#include <boost/asio/ssl.hpp>
#include <string_view>
#include <utility>

namespace cairn::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Over a stream of Asio with a socket at its bottom.
template <typename Stream>
class StreamTransport : public Transport {
 public:
  template <typename... Arguments>
  explicit StreamTransport(Arguments&&... arguments)
      : stream_(std::forward<Arguments>(arguments)...) {}
  void Read(asio::mutable_buffer into, Done done) override {
    stream_.async_read_some(into, std::move(done));
  }
  void Write(asio::const_buffer from, Done done) override {
    stream_.async_write_some(from, std::move(done));
  }
  // With TLS the peer sees the end of the connection after a whole record, so a cut answer is told
  // by its length or by its last chunk, never by TLS. A close_notify would need a write that nobody
  // waits for.
  void EndWriting() override {
    error_code ignored;
    stream_.lowest_layer().shutdown(tcp::socket::shutdown_send, ignored);
  }
  void Close() override {
    error_code ignored;
    stream_.lowest_layer().close(ignored);
  }
  asio::any_io_executor executor() override { return stream_.get_executor(); }

 protected:
  Stream stream_;
};

class PlainTransport final : public StreamTransport<tcp::socket> {
 public:
  using StreamTransport::StreamTransport;
  void Handshake(std::function<void(const error_code&)> done) override {
    asio::post(executor(), [done = std::move(done)] { done({}); });
  }
};

class TlsTransport final : public StreamTransport<asio::ssl::stream<tcp::socket>> {
 public:
  TlsTransport(tcp::socket socket, std::shared_ptr<asio::ssl::context> context,
               asio::ssl::stream_base::handshake_type side)
      : StreamTransport(std::move(socket), *context), context_(std::move(context)), side_(side) {
    // A stream that waits holds 32 KiB less.
    SSL_set_mode(stream_.native_handle(), SSL_MODE_RELEASE_BUFFERS);
  }
  void Handshake(std::function<void(const error_code&)> done) override {
    stream_.async_handshake(side_, std::move(done));
  }
  asio::ssl::stream<tcp::socket>& stream() { return stream_; }

 private:
  // The context of the files as they were when the connection was accepted.
  const std::shared_ptr<asio::ssl::context> context_;
  const asio::ssl::stream_base::handshake_type side_;
};

// Clients that could speak HTTP/2 are told that we do not.
int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_length,
                   const unsigned char* in, unsigned int in_length, void*) {
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_length, kHttp11, sizeof kHttp11 - 1, in, in_length) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

std::unique_ptr<Transport> MakePlainTransport(tcp::socket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

std::unique_ptr<Transport> MakeTlsTransport(tcp::socket socket,
                                            std::shared_ptr<asio::ssl::context> context) {
  return std::make_unique<TlsTransport>(std::move(socket), std::move(context),
                                        asio::ssl::stream_base::server);
}

std::unique_ptr<Transport> MakeTlsClientTransport(tcp::socket socket,
                                                  std::shared_ptr<asio::ssl::context> context,
                                                  const std::string& host) {
  auto transport = std::make_unique<TlsTransport>(std::move(socket), std::move(context),
                                                  asio::ssl::stream_base::client);
  error_code is_name;
  asio::ip::make_address(host, is_name);
  // An address is no name that a server could choose a certificate by.
  if (is_name) SSL_set_tlsext_host_name(transport->stream().native_handle(), host.c_str());
  transport->stream().set_verify_callback(asio::ssl::host_name_verification(host));
  return transport;
}

Result<std::shared_ptr<asio::ssl::context>> MakeTlsContext(const net::TlsOptions& options) {
  CAIRN_RETURN_IF_ERROR(net::Check(options));
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_alpn_select_cb(native, &SelectProtocol, nullptr);
  const auto failed = [](const char* field, const std::string& path, const error_code& ec) {
    return Errorf(StatusCode::kFailedPrecondition, "{}: cannot use '{}': {}", field, path,
                  ec.message());
  };
  error_code ec;
  context->use_certificate_chain_file(options.certificate, ec);
  if (ec) return failed("tls.cert", options.certificate, ec);
  context->use_private_key_file(options.private_key, asio::ssl::context::pem, ec);
  if (ec) return failed("tls.key", options.private_key, ec);
  if (options.mutual()) {
    context->load_verify_file(options.client_ca, ec);
    if (ec) return failed("tls.client_ca", options.client_ca, ec);
    context->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert, ec);
    if (ec) return failed("tls.client_ca", options.client_ca, ec);
    // Without it a session that is resumed fails.
    static constexpr unsigned char kContext[] = "cairn";
    SSL_CTX_set_session_id_context(native, kContext, sizeof kContext - 1);
  }
  return context;
}

Result<std::shared_ptr<asio::ssl::context>> MakeTlsClientContext(const std::string& authorities) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_client);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  error_code ec;
  context->set_verify_mode(asio::ssl::verify_peer, ec);
  if (authorities.empty()) {
    context->set_default_verify_paths(ec);
  } else {
    context->load_verify_file(authorities, ec);
  }
  if (ec) {
    return Errorf(StatusCode::kFailedPrecondition, "cannot use the authorities in '{}': {}",
                  authorities, ec.message());
  }
  return context;
}

}  // namespace cairn::http
