#pragma once
// Browsers let a page read answers of another origin only if the answers say so (CORS; the Fetch
// standard, 3.3). Nobody else cares, so this protects users of browsers and not this server.
//
//   OPTIONS with Access-Control-Request-Method (preflight) -> 200 and what is allowed
//   any other request -> its handler, and the page's origin in the answer

#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "common/http/server.h"

namespace cairn::router {

// Origins as browsers name them: "https://app.example" or "https://app.example:8443", or "*" for
// all. Returns them as browsers write them: in lower case, without the scheme's own port.
// INVALID_ARGUMENT names `field` and the entry that is none.
Result<std::vector<std::string>> ParseOrigins(const std::vector<std::string>& origins,
                                              const std::string& field);

// Allows pages of these origins to read what `next` answers. Requests of other origins are served,
// too, and their answers say nothing. Thread-safe.
class CorsHandler final : public http::Handler {
 public:
  // `origins`: of ParseOrigins, not empty. `next` must outlive it.
  CorsHandler(std::vector<std::string> origins, http::Handler* next);

  void Handle(http::Request request, std::shared_ptr<http::Responder> responder) override;
  http::Response Refuse(int status, const std::string& message) override;

 private:
  // The headers of an answer to this request.
  std::vector<http::Header> HeadersFor(const http::Request& request) const;

  const std::vector<std::string> origins_;
  const bool any_;
  http::Handler* const next_;
};

}  // namespace cairn::router
