#include "common/http/client.h"

#include <pthread.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <cctype>
#include <charconv>
#include <thread>
#include <unordered_set>
#include <utility>

#include "common/http/client_connection.h"

namespace cairn::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

class ThreadedClient final : public Client {
 public:
  ThreadedClient(const Options& options, std::shared_ptr<asio::ssl::context> tls)
      : shared_(std::make_shared<ClientShared>(options)),
        work_(shared_->io.get_executor()),
        strand_(asio::make_strand(shared_->io)) {
    shared_->tls = std::move(tls);
    for (uint32_t i = 0; i < options.threads; ++i) {
      threads_.emplace_back([shared = shared_] {
        pthread_setname_np(pthread_self(), "http-client");
        shared->io.run();
      });
    }
  }

  // NOLINTNEXTLINE(bugprone-exception-escape): only memory that is missing throws here.
  ~ThreadedClient() override {
    std::vector<std::shared_ptr<ClientConnection>> open;
    {
      MutexLock lock(shared_->mu);
      shared_->stopping = true;
      open.assign(shared_->connections.begin(), shared_->connections.end());
      shared_->idle.clear();
    }
    for (const auto& connection : open) connection->PostClose();
    {
      MutexLock lock(shared_->mu);
      shared_->changed.Wait(shared_->mu, [this]() {
        shared_->mu.AssertHeld();
        return shared_->connections.empty();
      });
    }
    asio::post(strand_, [this] {
      stopping_ = true;
      for (const auto& timer : timers_) timer->cancel();
    });
    // Not io.stop(): handlers that never run would hold what holds them.
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  std::shared_ptr<ClientCall> Send(const Origin& origin, ClientRequest request,
                                   std::shared_ptr<ResponseObserver> observer) override {
    auto call = std::make_shared<PendingCall>(origin, std::move(request), std::move(observer));
    ClientShared::Assign(shared_, call, /*fresh=*/false);
    return call;
  }

  void After(Duration delay, std::function<void()> run) override {
    asio::post(strand_, [this, delay, run = std::move(run)]() mutable {
      if (stopping_) return;
      const auto timer = std::make_shared<asio::steady_timer>(strand_);
      timers_.insert(timer);
      timer->expires_after(delay);
      timer->async_wait([this, timer, run = std::move(run)](const error_code& ec) {
        timers_.erase(timer);
        if (!ec && !stopping_) run();
      });
    });
  }

 private:
  const std::shared_ptr<ClientShared> shared_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::thread> threads_;
  // On this strand.
  asio::strand<asio::io_context::executor_type> strand_;
  std::unordered_set<std::shared_ptr<asio::steady_timer>> timers_;
  bool stopping_ = false;
};

}  // namespace

std::string Origin::Authority() const {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

Result<Origin> ParseOrigin(const std::string& text, const std::string& field) {
  const auto wrong = [&] {
    // Logs must not have the password of a user.
    if (text.find('@') != std::string::npos) {
      return InvalidArgument(
          "{}: got a user, expected http://HOST:PORT or https://HOST:PORT without one", field);
    }
    return InvalidArgument("{}: got '{}', expected http://HOST:PORT or https://HOST:PORT", field,
                           text);
  };
  Origin origin;
  std::string_view rest = text;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
    origin.tls = true;
  } else {
    return wrong();
  }
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.starts_with('[')) {
    const size_t end = rest.find(']');
    if (end == std::string_view::npos) return wrong();
    origin.host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (origin.host.find_first_not_of("0123456789abcdefABCDEF:.") != std::string::npos) {
      return wrong();
    }
  } else {
    const size_t end = std::min(rest.find(':'), rest.size());
    origin.host = rest.substr(0, end);
    rest.remove_prefix(end);
    const auto legal = [](unsigned char c) {
      return std::isalnum(c) || c == '-' || c == '.' || c == '_';
    };
    if (!std::all_of(origin.host.begin(), origin.host.end(), legal)) return wrong();
  }
  origin.port = origin.tls ? 443 : 80;
  if (!rest.empty()) {
    if (rest.front() != ':') return wrong();
    rest.remove_prefix(1);
    const auto [at, ec] = std::from_chars(rest.data(), rest.data() + rest.size(), origin.port);
    if (ec != std::errc() || at != rest.data() + rest.size() || origin.port == 0) return wrong();
  }
  if (origin.host.empty()) return wrong();
  return origin;
}

const std::string* ResponseHead::Find(std::string_view name) const {
  for (const Header& header : headers) {
    if (EqualNames(header.name, name)) return &header.value;
  }
  return nullptr;
}

Result<std::unique_ptr<Client>> MakeClient(const Client::Options& options) {
  std::shared_ptr<asio::ssl::context> tls;
  if (options.tls) {
    CAIRN_ASSIGN_OR_RETURN(tls, MakeTlsClientContext(options.authorities));
  }
  return std::make_unique<ThreadedClient>(options, std::move(tls));
}

}  // namespace cairn::http
