#pragma once
// One answer of an engine on its way to a client of the API, as the engine gave it.

#include <memory>
#include <optional>
#include <string>

#include "common/http/server.h"
#include "services/router/engine/router.h"
#include "services/router/http/api_counters.h"

namespace cairn::router {

// The router calls it, one thread at a time.
class RelayWriter final : public GenerateObserver {
 public:
  // `names.id`: of answers of the router's own, and of an engine's that have none.
  RelayWriter(Route route, RequestNames names, std::shared_ptr<http::Responder> responder,
              std::shared_ptr<ApiCounters> counters);
  ~RelayWriter() override;

  void OnToken(model::TokenId, std::string_view) override {}  // Engines send none.
  void OnRawHead(const RawHead& head) override;
  void OnRawBytes(std::string_view bytes) override;
  void OnDone(const GenerateSummary& summary) override;
  void OnError(const GenerateError& error) override;
  int HttpStatus(const GenerateError* error) const override;

 private:
  void EndStream(bool failed);

  const Route route_;
  const RequestNames names_;
  const std::shared_ptr<http::Responder> responder_;
  const std::shared_ptr<ApiCounters> counters_;
  int status_ = 0;          // The engine's. 0: it has not answered.
  http::Response whole_;    // An answer that is no stream.
  bool streaming_ = false;  // A stream has begun and has not ended.
};

}  // namespace cairn::router
