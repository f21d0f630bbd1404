#pragma once
// The bytes of one connection, plain or through TLS. Internal to this folder: it knows Boost.Asio.

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/net/tls.h"

namespace boost::asio::ssl {
class context;
}

namespace cairn::http {

// Asio's timers run on this clock.
inline TimePoint Now() { return SteadyClock::Get().Now(); }

// Not thread-safe: used on the strand of its socket only. A callback keeps alive what it needs, and
// comes on that strand, also after Close. At most one read and one write at a time.
class Transport {
 public:
  using Done = std::function<void(const boost::system::error_code&, size_t)>;
  virtual ~Transport() = default;
  virtual void Handshake(std::function<void(const boost::system::error_code&)> done) = 0;
  virtual void Read(boost::asio::mutable_buffer into, Done done) = 0;
  virtual void Write(boost::asio::const_buffer from, Done done) = 0;  // Some of it.
  // Says that nothing follows. The peer may still send.
  virtual void EndWriting() = 0;
  virtual void Close() = 0;
  virtual boost::asio::any_io_executor executor() = 0;
};

std::unique_ptr<Transport> MakePlainTransport(boost::asio::ip::tcp::socket socket);
std::unique_ptr<Transport> MakeTlsTransport(boost::asio::ip::tcp::socket socket,
                                            std::shared_ptr<boost::asio::ssl::context> context);
// The transport of a client. The server's certificate must be one of `host`.
std::unique_ptr<Transport> MakeTlsClientTransport(
    boost::asio::ip::tcp::socket socket, std::shared_ptr<boost::asio::ssl::context> context,
    const std::string& host);
// From the files. Errors name the setting.
Result<std::shared_ptr<boost::asio::ssl::context>> MakeTlsContext(const net::TlsOptions& options);
// `authorities`: PEM file with those that sign servers' certificates. Empty: the system's.
// FAILED_PRECONDITION names the file.
Result<std::shared_ptr<boost::asio::ssl::context>> MakeTlsClientContext(
    const std::string& authorities);

}  // namespace cairn::http
