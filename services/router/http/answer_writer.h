#pragma once
// One answer of a worker of Cairn on its way to a client of the API.

#include <memory>
#include <optional>
#include <string>

#include "common/http/server.h"
#include "services/router/engine/router.h"
#include "services/router/http/api_answer.h"
#include "services/router/http/api_counters.h"
#include "services/router/http/api_request.h"

namespace cairn::router {

// The router calls it, one thread at a time.
class AnswerWriter final : public GenerateObserver {
 public:
  AnswerWriter(Route route, AnswerHead head, const ApiRequest& request, RequestNames names,
               std::shared_ptr<http::Responder> responder, std::shared_ptr<ApiCounters> counters);
  ~AnswerWriter() override;

  void OnToken(model::TokenId id, std::string_view text) override;
  void OnDone(const GenerateSummary& summary) override;
  void OnError(const GenerateError& error) override;
  int HttpStatus(const GenerateError* error) const override;

 private:
  std::string Begin();
  void EndStream(bool failed);

  const Route route_;
  const AnswerHead head_;
  const RequestNames names_;
  const std::shared_ptr<http::Responder> responder_;
  const std::shared_ptr<ApiCounters> counters_;
  std::optional<EventWriter> events_;  // The writer of a stream.
  bool streaming_ = false;             // It has begun and has not ended.
  std::string text_;                   // The text of a whole answer.
};

}  // namespace cairn::router
