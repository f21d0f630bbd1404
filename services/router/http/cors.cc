#include "services/router/http/cors.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

namespace cairn::router {
namespace {

constexpr char kAllow[] = "Access-Control-Allow-Origin";
constexpr size_t kMaxAskedBytes = 2048;

// The headers that the page wants to send, as they can stand in an answer. Empty: they cannot.
std::string AskedHeaders(const http::Request& request) {
  const std::string* const asked = request.Find("access-control-request-headers");
  if (asked == nullptr || asked->size() > kMaxAskedBytes) return {};
  const bool legal = std::ranges::all_of(*asked, [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("-_,. \t").find(static_cast<char>(c)) != std::string_view::npos;
  });
  return legal ? *asked : std::string();
}

// Adds headers to whatever the answer is.
class Responder final : public http::Responder {
 public:
  Responder(std::vector<http::Header> headers, std::shared_ptr<http::Responder> next)
      : headers_(std::move(headers)), next_(std::move(next)) {}

  void Send(http::Response response) override { next_->Send(With(std::move(response))); }
  void BeginStream(http::Response head) override { next_->BeginStream(With(std::move(head))); }
  bool Write(std::string_view data) override { return next_->Write(data); }
  void End() override { next_->End(); }
  void OnAbort(std::function<void()> aborted) override { next_->OnAbort(std::move(aborted)); }
  void Abort() override { next_->Abort(); }

 private:
  http::Response With(http::Response response) const {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    return response;
  }

  const std::vector<http::Header> headers_;
  const std::shared_ptr<http::Responder> next_;
};

}  // namespace

Result<std::vector<std::string>> ParseOrigins(const std::vector<std::string>& origins,
                                              const std::string& field) {
  std::vector<std::string> parsed;
  for (const std::string& given : origins) {
    std::string origin = given;
    std::ranges::transform(origin, origin.begin(), [](unsigned char c) { return std::tolower(c); });
    const size_t host = origin.find("://");
    const bool legal =
        origin == "*" || ((origin.starts_with("http://") || origin.starts_with("https://")) &&
                          host + 3 < origin.size() &&
                          origin.find_first_of("/?#@* \t\r\n,", host + 3) == std::string::npos);
    if (!legal) {
      return InvalidArgument(
          "{}: got '{}', expected an origin such as https://app.example, without a path, or *",
          field, given);
    }
    const std::string_view own_port = origin.starts_with("http://") ? ":80" : ":443";
    if (origin.ends_with(own_port)) origin.erase(origin.rfind(':'));
    parsed.push_back(std::move(origin));
  }
  return parsed;
}

CorsHandler::CorsHandler(std::vector<std::string> origins, http::Handler* next)
    : origins_(std::move(origins)),
      any_(std::ranges::find(origins_, "*") != origins_.end()),
      next_(next) {}

std::vector<http::Header> CorsHandler::HeadersFor(const http::Request& request) const {
  // Keys are in a header that pages set themselves, so no cookies are asked for, and "*" will do.
  if (any_) return {{kAllow, "*"}};
  // A cache on the way must not give the answer for one origin to a page of another.
  std::vector<http::Header> headers = {{"Vary", "Origin"}};
  const std::string* const origin = request.Find("origin");
  if (origin != nullptr && std::ranges::find(origins_, *origin) != origins_.end()) {
    headers.push_back({kAllow, *origin});
  }
  return headers;
}

void CorsHandler::Handle(http::Request request, std::shared_ptr<http::Responder> responder) {
  std::vector<http::Header> headers = HeadersFor(request);
  const bool allowed = headers.back().name == kAllow;
  if (allowed) headers.push_back({"Access-Control-Expose-Headers", "Retry-After"});
  const bool preflight =
      request.method == "OPTIONS" && request.Find("access-control-request-method") != nullptr;
  if (allowed && preflight) {
    http::Response answer{.status = 200, .content_type = "text/plain", .headers = headers};
    answer.headers.push_back({"Access-Control-Allow-Methods", "GET, HEAD, POST"});
    if (std::string asked = AskedHeaders(request); !asked.empty()) {
      answer.headers.push_back({"Access-Control-Allow-Headers", std::move(asked)});
    }
    answer.headers.push_back({"Access-Control-Max-Age", "600"});
    return responder->Send(std::move(answer));
  }
  next_->Handle(std::move(request),
                std::make_shared<Responder>(std::move(headers), std::move(responder)));
}

http::Response CorsHandler::Refuse(int status, const std::string& message) {
  return next_->Refuse(status, message);
}

}  // namespace cairn::router
