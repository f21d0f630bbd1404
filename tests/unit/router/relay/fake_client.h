#pragma once
// An HTTP client of a test: the test answers its calls, and lets time pass.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cairn/common/clock.h"
#include "common/http/client.h"

namespace cairn::router {

// Not thread-safe.
class FakeClient final : public http::Client {
 public:
  class Call final : public http::ClientCall {
   public:
    void Cancel() override { cancelled = true; }
    bool cancelled = false;
  };
  struct Sent {
    http::Origin origin;
    http::ClientRequest request;
    std::shared_ptr<http::ResponseObserver> observer;  // nullptr: it has got its end.
    std::shared_ptr<Call> call;

    std::string Header(const std::string& name) const {
      for (const http::Header& header : request.headers) {
        if (http::EqualNames(header.name, name)) return header.value;
      }
      return "";
    }
    void Answer(int status, const std::string& body, const std::string& type = "application/json") {
      const auto to = std::exchange(observer, nullptr);
      to->OnHead(
          {.status = status,
           .headers = {{"Content-Type", type}, {"Content-Length", std::to_string(body.size())}}});
      if (body.empty() || to->OnBody(body)) to->OnEnd();
    }
    void Fail(const Status& status) { std::exchange(observer, nullptr)->OnError(status); }
  };

  explicit FakeClient(FakeClock* clock) : clock_(clock) {}

  std::shared_ptr<http::ClientCall> Send(
      const http::Origin& origin, http::ClientRequest request,
      std::shared_ptr<http::ResponseObserver> observer) override {
    auto call = std::make_shared<Call>();
    sent.push_back(
        std::make_unique<Sent>(Sent{origin, std::move(request), std::move(observer), call}));
    return call;
  }
  void After(Duration delay, std::function<void()> run) override {
    timers_.emplace(clock_->Now() + delay, std::move(run));
  }

  // Runs what is due on the way.
  void Pass(Duration time) {
    const TimePoint end = clock_->Now() + time;
    while (!timers_.empty() && timers_.begin()->first <= end) {
      auto due = timers_.extract(timers_.begin());
      if (due.key() > clock_->Now()) clock_->Advance(due.key() - clock_->Now());
      due.mapped()();
    }
    if (end > clock_->Now()) clock_->Advance(end - clock_->Now());
  }
  // The calls of this path that nobody has answered.
  std::vector<Sent*> Open(const std::string& path) {
    std::vector<Sent*> open;
    for (const auto& each : sent) {
      if (each->observer != nullptr && each->request.target == path) open.push_back(each.get());
    }
    return open;
  }

  std::vector<std::unique_ptr<Sent>> sent;

 private:
  FakeClock* const clock_;
  std::multimap<TimePoint, std::function<void()>> timers_;
};

}  // namespace cairn::router
