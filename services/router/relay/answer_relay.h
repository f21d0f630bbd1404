#pragma once
// One answer of an engine on its way to the caller: whole events as they come, or the body in one
// piece.
//
//   status            what becomes of it
//   200, events       OnRawHead, OnRawBytes ..., OnDone; broken: OnError
//   2xx, 4xx          OnRawHead, OnRawBytes, OnDone
//   429, 5xx          OnRefused: another engine may answer
//   401               OnError: the router's key is wrong, not the caller's

#include <functional>
#include <memory>
#include <string>

#include "common/http/client.h"
#include "common/memory/charged_string.h"
#include "services/router/registry/worker_link.h"
#include "services/router/relay/engine_load.h"
#include "services/router/relay/event_decoder.h"

namespace cairn::router {

// Its client calls it, one thread at a time.
class AnswerRelay final : public http::ResponseObserver {
 public:
  struct Bounds {
    uint64_t max_event_bytes = 1 << 20;    // Limit for one event of a stream.
    uint64_t max_answer_bytes = 16 << 20;  // Limit for a body that is no stream.
    // The memory of all answers that are no streams, while they arrive. nullptr: no bound.
    std::shared_ptr<FairBudget> answers = {};
  };
  // REQUIRES: request.raw is set. The request counts in `load` until its end.
  AnswerRelay(const Bounds& bounds, const WorkerRequest& request, std::shared_ptr<EngineLoad> load,
              std::shared_ptr<WorkerAnswerObserver> observer);
  ~AnswerRelay() override;

  void OnHead(const http::ResponseHead& head) override;
  bool OnBody(std::string_view bytes) override;
  void OnEnd() override;
  void OnError(const Status& status) override;
  void OnUnreached(const Status& status) override;

 private:
  void PassEvents(EventDecoder::Events events);
  // Adds to body_. False: it has failed, there is no room.
  bool Keep(std::string_view bytes);
  void EndStream();
  void EndWhole();
  void Done(std::string_view json);
  void Fail(const Status& status);

  const Bounds bounds_;
  const uint32_t prompt_tokens_;
  const std::shared_ptr<EngineLoad> load_;
  const uint64_t load_id_;
  std::shared_ptr<WorkerAnswerObserver> observer_;  // nullptr: it has got its end.
  RawHead head_;
  bool framed_ = false;  // The answer says where its body ends.
  EventDecoder decoder_;
  ChargedString body_;   // The text of a whole answer; or comments before the first event.
  bool begun_ = false;   // The caller has got something.
  uint32_t events_ = 0;  // With tokens.
};

}  // namespace cairn::router
