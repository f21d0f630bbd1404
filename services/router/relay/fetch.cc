#include "services/router/relay/fetch.h"

#include <utility>

namespace cairn::router {
namespace {

class Collector final : public http::ResponseObserver {
 public:
  Collector(ByteShare share, std::function<void(Result<Fetched>)> done) : done_(std::move(done)) {
    fetched_.body = ChargedString(std::move(share));
  }
  void OnHead(const http::ResponseHead& head) override { fetched_.status = head.status; }
  bool OnBody(std::string_view bytes) override {
    const Status room = fetched_.body.Append(bytes);
    if (!room.ok()) std::exchange(done_, nullptr)(Annotate(room, "its answer"));
    return room.ok();
  }
  void OnEnd() override { std::exchange(done_, nullptr)(std::move(fetched_)); }
  void OnError(const Status& status) override { std::exchange(done_, nullptr)(status); }

 private:
  std::function<void(Result<Fetched>)> done_;
  Fetched fetched_;
};

}  // namespace

std::shared_ptr<http::ClientCall> Fetch(http::Client& client, const http::Origin& origin,
                                        http::ClientRequest request, ByteShare share,
                                        std::function<void(Result<Fetched>)> done) {
  return client.Send(origin, std::move(request),
                     std::make_shared<Collector>(std::move(share), std::move(done)));
}

}  // namespace cairn::router
