#include "services/router/relay/fetch.h"

#include <utility>

namespace cairn::router {
namespace {

class Collector final : public http::ResponseObserver {
 public:
  explicit Collector(std::function<void(Result<Fetched>)> done) : done_(std::move(done)) {}
  void OnHead(const http::ResponseHead& head) override { fetched_.status = head.status; }
  bool OnBody(std::string_view bytes) override {
    fetched_.body += bytes;
    return true;
  }
  void OnEnd() override { std::exchange(done_, nullptr)(std::move(fetched_)); }
  void OnError(const Status& status) override { std::exchange(done_, nullptr)(status); }

 private:
  std::function<void(Result<Fetched>)> done_;
  Fetched fetched_;
};

}  // namespace

std::shared_ptr<http::ClientCall> Fetch(http::Client& client, const http::Origin& origin,
                                        http::ClientRequest request,
                                        std::function<void(Result<Fetched>)> done) {
  return client.Send(origin, std::move(request), std::make_shared<Collector>(std::move(done)));
}

}  // namespace cairn::router
