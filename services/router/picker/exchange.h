#pragma once
// One HTTP request on its way through a gateway, from its head to the end of its answer: what the
// gateway tells of it, and what the picker says to that. Knows neither gRPC nor sockets.
//
//   request head, body ──► parsed ──► Router::PickAndFollow ──► endpoint, or an error for clients
//   answer's head, pieces, end ──► the request ends at its worker
//
// The body is needed for the decision. A gateway gives it whole (BUFFERED), or in pieces that it
// wants back after the decision (FULL_DUPLEX_STREAMED). Requests without a prompt, such as GET
// /v1/models, are decided by loads, as soon as their head is there.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "common/memory/fair_budget.h"
#include "services/router/engine/router.h"
#include "services/router/http/api_request.h"
#include "services/router/http/body_reads.h"
#include "services/router/picker/event_counter.h"
#include "services/router/picker/messages.h"
#include "services/router/picker/picker_stats.h"

namespace cairn::router {

// Take: one call at a time, the next one after `done`. End: any thread, at any time.
class Exchange final : public std::enable_shared_from_this<Exchange> {
 public:
  // All that it points to must outlive it.
  struct Parts {
    Router* router = nullptr;
    std::shared_ptr<FairBudget> bodies = {};  // Budget for the bodies of all requests.
    PickerCounters* counters = nullptr;
    const Clock* clock = nullptr;
    // Where long bodies are read. nullptr: on the thread that calls Take.
    BodyReads* reads = nullptr;
    bool relay = false;  // The workers are engines, and get the request as it is.
    uint64_t max_body_bytes = 0;
    uint32_t max_endpoints = 1;  // The picked one and those to try after it.
    // Seconds from the whole request to the decision. Any thread.
    std::function<void(double)> observe_pick = [](double) {};
  };
  // The messages for the gateway. Empty: it is to send more.
  struct Step {
    std::deque<Reply> replies = {};
    bool over = false;           // Then the stream ends, with `status`.
    Status status = OkStatus();  // INVALID_ARGUMENT: the gateway breaks the protocol.
  };
  using Done = std::function<void(Step)>;

  explicit Exchange(const Parts& parts) : parts_(parts) {}

  // Calls `done` once, possibly before it returns, or later from another thread.
  void Take(ext_proc::ProcessingRequest message, Done done);
  // The stream is over, whatever the reason: so is the request.
  void End();

 private:
  Step Respond(const ext_proc::ProcessingRequest& message);
  void BeginRequest(const ext_proc::ProcessingRequest& message, Done done);
  void AddBody(ext_proc::ProcessingRequest message, Done done);
  // The request is complete.
  void Decide(ext_proc::ProcessingRequest last, Done done);
  // The body has its turn.
  void Read(ext_proc::ProcessingRequest last, Done done);
  void Send(PickAsk ask, ext_proc::ProcessingRequest last, Done done);
  Step Picked(FollowedPick pick, const ext_proc::ProcessingRequest& last);
  Step Refused(const ApiError& error);
  std::string Endpoints(const Pick& pick) const;
  std::optional<ApiError> Parse(PickAsk* ask);
  void ReleaseBody();
  std::shared_ptr<PickLease> TakeLease();
  bool ended() const;
  bool duplex() const { return request_mode_ == ext_proc::FULL_DUPLEX_STREAMED; }

  const Parts parts_;
  // These belong to whoever calls Take.
  bool begun_ = false;
  bool picked_ = false;
  int request_mode_ = ext_proc::FULL_DUPLEX_STREAMED;
  int response_mode_ = ext_proc::NONE;
  http::Request request_;  // Its body grows until the request is complete.
  // Then it is here. It counts until the last of its pieces has gone to the gateway.
  std::shared_ptr<const std::string> body_;
  std::optional<Endpoint> api_;  // nullopt: it has no prompt that we know.
  std::optional<EndpointSubset> subset_;
  TimePoint complete_at_ = {};
  std::string worker_endpoint_;  // The picked one.
  bool counts_events_ = false;
  EventCounter events_;

  mutable Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // Shared: End may come while an answer's piece is counted.
  std::shared_ptr<PickLease> lease_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::router
