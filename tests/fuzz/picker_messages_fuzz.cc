// Any bytes as what a gateway sends of one HTTP request: one step for each message, an error of the
// API or one set of endpoints, the body back as it came, and nothing of it kept.
//
// First byte: before engines or before workers of Cairn. Then messages, each after two bytes with
// its length.

#include <memory>

#include "services/router/picker/exchange.h"
#include "tests/fuzz/input.h"
#include "tests/support/fake_router.h"

namespace {

using namespace cairn;
using namespace cairn::router;
using fuzz::Expect;

class CountedLease final : public PickLease {
 public:
  explicit CountedLease(int* open) : open_(open) { ++*open_; }
  ~CountedLease() override { --*open_; }
  void Generated(uint32_t) override {}
  void Completed() override {}

 private:
  int* const open_;
};

// The messages that are sent to the gateway in place of the request's body.
struct Seen {
  std::string given, returned;
  int immediate = 0;
  int endpoints = 0;

  void Add(const ext_proc::ProcessingResponse& reply) {
    Expect(reply.response_case() != ext_proc::ProcessingResponse::RESPONSE_NOT_SET);
    if (reply.has_immediate_response()) {
      ++immediate;
      Expect(reply.immediate_response().status().code() >= 400);
      Expect(!reply.immediate_response().body().empty());
    }
    if (reply.has_dynamic_metadata()) ++endpoints;
    if (!reply.has_request_body()) return;
    const auto& mutation = reply.request_body().response().body_mutation();
    if (mutation.has_streamed_response()) returned += mutation.streamed_response().body();
  }
};

}  // namespace

CAIRN_FUZZ_ENTRY(picker_messages)(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  FakeRouter router;
  int open = 0;
  router.on_pick = [&open](PickAsk ask) -> std::variant<FollowedPick, GenerateError> {
    if (ask.may && !ask.may("http://10.0.0.1:80")) {
      return GenerateError{.status = Errorf(StatusCode::kUnavailable, "none")};
    }
    return FollowedPick{
        .pick = {.worker = "http://10.0.0.1:80", .candidates = {{.worker = "http://10.0.0.1:80"}}},
        .lease = std::make_unique<CountedLease>(&open)};
  };
  const auto bodies = std::make_shared<FairBudget>(1 << 16);
  PickerCounters counters;
  FakeClock clock;
  {
    const auto exchange = std::make_shared<Exchange>(Exchange::Parts{.router = &router,
                                                                     .bodies = bodies,
                                                                     .counters = &counters,
                                                                     .clock = &clock,
                                                                     .relay = input.U8() % 2 == 1,
                                                                     .max_body_bytes = 2048,
                                                                     .max_endpoints = 3});
    Seen seen;
    bool over = false;
    while (!over && !input.empty()) {
      const std::string_view bytes = input.Bytes(input.U16());
      ext_proc::ProcessingRequest message;
      if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) continue;
      if (message.has_request_body()) seen.given += message.request_body().body();
      int steps = 0;
      exchange->Take(std::move(message), [&](Exchange::Step step) {
        ++steps;
        over = step.over;
        Expect(step.over || step.status.ok());
        for (auto& reply : step.replies) seen.Add(reply.Take());
      });
      Expect(steps == 1);
      Expect(seen.immediate <= (over ? 1 : 0) && seen.endpoints <= 1);
      Expect(seen.given.starts_with(seen.returned));
    }
    exchange->End();
    Expect(open == 0);
  }
  Expect(bodies->used() == 0);
  return 0;
}
