#include "common/http/server.h"

#include <pthread.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/strand.hpp>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "common/http/connection.h"
#include "common/log/log.h"
#include "common/net/address.h"
#include "common/net/loaded_files.h"

namespace cairn::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// When no descriptor is left, or after an error that would come again at once.
constexpr Duration kAcceptPause = std::chrono::milliseconds(50);

constexpr char kLoader[] = "http";

// Files that change between the two readings are read again: their times are other ones.
void TellUsed(const net::TlsOptions& tls) {
  const net::PemTexts texts = net::ReadPem(
      {.authorities = tls.client_ca, .certificate = tls.certificate, .private_key = ""});
  net::LoadedFiles::OfProcess().Use(kLoader, {{tls.certificate, texts.certificate.value_or("")},
                                              {tls.client_ca, texts.authorities.value_or("")}});
}

// When the files of the settings changed last, to tell whether they have to be read again.
std::vector<std::filesystem::file_time_type> TimesOf(const net::TlsOptions& tls) {
  std::vector<std::filesystem::file_time_type> times;
  for (const std::string* path : {&tls.certificate, &tls.private_key, &tls.client_ca}) {
    std::error_code ignored;
    times.push_back(std::filesystem::last_write_time(*path, ignored));
  }
  return times;
}

}  // namespace

struct Server::Impl {
  using Context = std::shared_ptr<asio::ssl::context>;

  Impl(Options options, Handler* handler)
      : shared(std::make_shared<Shared>(std::move(options), handler)),
        work(shared->io.get_executor()),
        acceptor(asio::make_strand(shared->io)),
        pause(acceptor.get_executor()),
        reload(acceptor.get_executor()) {}

  Status Bind();
  void Run();
  void Accept();
  void OnAccept(const error_code& ec, tcp::socket socket);
  // False: each connection has a request.
  bool MakeRoom();
  void ReloadLater();
  void StopAccepting();
  size_t Connections() {
    MutexLock lock(shared->mu);
    return shared->connections.size();
  }

  const std::shared_ptr<Shared> shared;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::string address;
  std::vector<std::thread> threads;
  std::atomic<uint64_t> accepted{0}, refused{0};

  // On one strand.
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  asio::steady_timer reload;
  Context tls;  // nullptr: plain.
  std::vector<std::filesystem::file_time_type> tls_times;
};

Status Server::Impl::Bind() {
  const Options& options = shared->options;
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress listen,
                         net::ParseListenAddress(options.listen, options.field));
  if (listen.is_unix) {
    return InvalidArgument("{}: got '{}', expected HOST:PORT", options.field, options.listen);
  }
  CAIRN_RETURN_IF_ERROR(net::CheckBind(listen, options.tls, options.field));
  if (options.tls.enabled()) {
    tls_times = TimesOf(options.tls);
    CAIRN_ASSIGN_OR_RETURN(tls, MakeTlsContext(options.tls));
    TellUsed(options.tls);
  }
  const auto failed = [&](const error_code& ec) {
    return Errorf(StatusCode::kUnavailable, "{}: cannot bind '{}': {}", options.field,
                  options.listen, ec.message());
  };
  error_code ec;
  tcp::resolver resolver(shared->io);
  const auto found = resolver.resolve(listen.host, std::to_string(listen.port),
                                      tcp::resolver::passive | tcp::resolver::numeric_service, ec);
  if (ec) return failed(ec);
  const tcp::endpoint endpoint = found.begin()->endpoint();
  if (acceptor.open(endpoint.protocol(), ec)) return failed(ec);
  acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (acceptor.bind(endpoint, ec)) return failed(ec);
  if (acceptor.listen(asio::socket_base::max_listen_connections, ec)) return failed(ec);
  address = listen.WithPort(acceptor.local_endpoint(ec).port());
  return OkStatus();
}

void Server::Impl::Run() {
  for (uint32_t i = 0; i < shared->options.threads; ++i) {
    threads.emplace_back([this] {
      pthread_setname_np(pthread_self(), "http");
      shared->io.run();
    });
  }
  asio::post(acceptor.get_executor(), [this] {
    Accept();
    if (tls != nullptr) ReloadLater();
  });
}

void Server::Impl::Accept() {
  if (!acceptor.is_open()) return;
  acceptor.async_accept(
      asio::make_strand(shared->io),
      [this](const error_code& ec, tcp::socket socket) { OnAccept(ec, std::move(socket)); });
}

void Server::Impl::OnAccept(const error_code& ec, tcp::socket socket) {
  if (!acceptor.is_open()) return;
  if (ec == asio::error::connection_aborted) return Accept();
  if (ec) {
    // No descriptor is left: one of ours may go, and the next attempt waits.
    MakeRoom();
    pause.expires_after(kAcceptPause);
    pause.async_wait([this](const error_code& cancelled) {
      if (!cancelled) Accept();
    });
    return;
  }
  ++accepted;
  if (Connections() >= shared->options.max_connections && !MakeRoom()) {
    ++refused;
    return Accept();
  }
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  auto transport = tls == nullptr ? MakePlainTransport(std::move(socket))
                                  : MakeTlsTransport(std::move(socket), tls);
  const auto connection = std::make_shared<Connection>(shared, std::move(transport));
  {
    MutexLock lock(shared->mu);
    shared->connections.insert(connection);
  }
  connection->Start();
  Accept();
}

bool Server::Impl::MakeRoom() {
  std::shared_ptr<Connection> oldest;
  {
    MutexLock lock(shared->mu);
    TimePoint since = TimePoint::max();
    for (const auto& connection : shared->connections) {
      if (connection->waiting_since() >= since) continue;
      since = connection->waiting_since();
      oldest = connection;
    }
  }
  if (oldest == nullptr) return false;
  oldest->GiveWay();
  oldest->PostClose(false);
  return true;
}

void Server::Impl::ReloadLater() {
  reload.expires_after(shared->options.tls.reload_interval);
  reload.async_wait([this](const error_code& ec) {
    if (ec || !acceptor.is_open()) return;
    const auto times = TimesOf(shared->options.tls);
    if (times != tls_times) {
      auto made = MakeTlsContext(shared->options.tls);
      if (made.ok()) {
        tls = *std::move(made);
        tls_times = times;
        TellUsed(shared->options.tls);
      } else {
        log::Warn("http_tls_reload_failed", {{"error", ToString(made.status())}});
        net::LoadedFiles::OfProcess().Refuse(
            kLoader, {shared->options.tls.certificate, shared->options.tls.client_ca});
      }
    }
    ReloadLater();
  });
}

void Server::Impl::StopAccepting() {
  asio::post(acceptor.get_executor(), [this] {
    error_code ignored;
    acceptor.close(ignored);
    pause.cancel();
    reload.cancel();
  });
}

Server::Server() = default;

Result<std::unique_ptr<Server>> Server::Start(Options options, Handler* handler) {
  std::unique_ptr<Server> server(new Server());
  server->impl_ = std::make_unique<Impl>(std::move(options), handler);
  CAIRN_RETURN_IF_ERROR(server->impl_->Bind());
  server->impl_->Run();
  return server;
}

Server::~Server() {
  Impl& impl = *impl_;
  impl.shared->draining = true;
  // Closing has to come after the last accept, so it happens on the same strand.
  asio::post(impl.acceptor.get_executor(), [&impl] {
    error_code ignored;
    impl.acceptor.close(ignored);
    impl.pause.cancel();
    impl.reload.cancel();
    std::vector<std::shared_ptr<Connection>> open;
    {
      MutexLock lock(impl.shared->mu);
      open.assign(impl.shared->connections.begin(), impl.shared->connections.end());
    }
    for (const auto& connection : open) connection->PostClose(false);
  });
  impl.work.reset();
  for (std::thread& thread : impl.threads) thread.join();
}

const std::string& Server::address() const { return impl_->address; }

bool Server::Drain(Duration timeout) {
  Shared& shared = *impl_->shared;
  shared.draining = true;
  impl_->StopAccepting();
  const TimePoint until = SteadyClock::Get().Now() + timeout;
  std::vector<std::shared_ptr<Connection>> open;
  {
    MutexLock lock(shared.mu);
    open.assign(shared.connections.begin(), shared.connections.end());
  }
  for (const auto& connection : open) connection->PostDrain();
  open.clear();
  MutexLock lock(shared.mu);
  return shared.changed.WaitUntil(shared.mu, until, [&shared]() {
    shared.mu.AssertHeld();
    return shared.connections.empty();
  });
}

Server::Stats Server::GetStats() const {
  Shared& shared = *impl_->shared;
  return {.connections = impl_->Connections(),
          .unread_bytes = shared.unread->used(),
          .body_bytes = shared.bodies->used(),
          .body_refusals = shared.bodies->refusals(),
          .unread_refusals = shared.unread->refusals(),
          .accepted = impl_->accepted,
          .refused_connections = impl_->refused,
          .refused_requests = shared.refused_requests,
          .slow_senders = shared.slow_senders,
          .slow_readers = shared.slow_readers,
          .aborted = shared.aborted};
}

}  // namespace cairn::http
