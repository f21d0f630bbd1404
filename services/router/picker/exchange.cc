#include "services/router/picker/exchange.h"

#include <algorithm>
#include <utility>

#include "services/router/http/relay_request.h"
#include "services/router/http/request_headers.h"

namespace cairn::router {
namespace {

using ext_proc::ProcessingRequest;
using ext_proc::ProcessingResponse;

// How long a caller whose body finds no thread that reads it waits.
constexpr Duration kBodyRetry = std::chrono::seconds(1);

// The route of a gateway may have a prefix.
std::optional<Endpoint> ApiOf(const http::Request& request) {
  if (request.method != "POST") return std::nullopt;
  if (request.path.ends_with("/v1/chat/completions")) return Endpoint::kChat;
  if (request.path.ends_with("/v1/completions")) return Endpoint::kCompletions;
  return std::nullopt;
}

PickResult ResultOf(int status) {
  if (status == 429) return PickResult::kShed;
  if (status == 503) return PickResult::kUnavailable;
  return status >= 500 ? PickResult::kFailed : PickResult::kRejected;
}

std::string NameOf(int mode) {
  if (!ext_proc::BodySendMode_IsValid(mode)) return std::to_string(mode);
  return ext_proc::BodySendMode_Name(static_cast<ext_proc::BodySendMode>(mode));
}

Exchange::Step OutOfOrder(std::string_view got) {
  return {
      .over = true,
      .status = InvalidArgument("request: got {}, expected request_headers first, and once", got)};
}

}  // namespace

std::string_view Name(PickResult result) {
  switch (result) {
    case PickResult::kPicked:
      return "picked";
    case PickResult::kRejected:
      return "rejected";
    case PickResult::kShed:
      return "shed";
    case PickResult::kUnavailable:
      return "unavailable";
    case PickResult::kFailed:
      return "failed";
  }
  return "failed";
}

void Exchange::ReleaseBody() {
  request_.body = ChargedString();
  body_.reset();
}

std::shared_ptr<PickLease> Exchange::TakeLease() {
  MutexLock lock(mu_);
  return std::move(lease_);
}

bool Exchange::ended() const {
  MutexLock lock(mu_);
  return ended_;
}

void Exchange::End() {
  const std::shared_ptr<PickLease> lease = TakeLease();
  MutexLock lock(mu_);
  ended_ = true;
}

void Exchange::Take(ProcessingRequest message, Done done) {
  // It watches only: no answer is wanted, and none would count.
  if (message.observability_mode()) return done({.over = true});
  switch (message.request_case()) {
    case ProcessingRequest::kRequestHeaders:
      return BeginRequest(message, std::move(done));
    case ProcessingRequest::kRequestBody:
      if (!begun_) return done(OutOfOrder("request_body"));
      return AddBody(std::move(message), std::move(done));
    case ProcessingRequest::kRequestTrailers:
      if (!begun_) return done(OutOfOrder("request_trailers"));
      if (!picked_) return Decide(std::move(message), std::move(done));
      return done({.replies = {Continue(message)}});
    case ProcessingRequest::kResponseHeaders:
    case ProcessingRequest::kResponseBody:
    case ProcessingRequest::kResponseTrailers:
      return done(Respond(message));
    case ProcessingRequest::REQUEST_NOT_SET:
      break;
  }
  done({.over = true,
        .status = InvalidArgument("request: got none that is known, expected headers, a body or "
                                  "trailers")});
}

void Exchange::BeginRequest(const ProcessingRequest& message, Done done) {
  if (std::exchange(begun_, true)) return done(OutOfOrder("request_headers again"));
  const ext_proc::HttpHeaders& headers = message.request_headers();
  if (message.has_protocol_config()) {
    request_mode_ = message.protocol_config().request_body_mode();
    response_mode_ = message.protocol_config().response_body_mode();
  }
  request_ = ToRequest(headers);
  request_.body = ChargedString(ByteShare(parts_.bodies));
  api_ = ApiOf(request_);
  subset_ = SubsetOf(message.metadata_context());
  // Without a body nothing is to be waited for; nor without the prompt.
  if (headers.end_of_stream() || !api_) return Decide(message, std::move(done));
  switch (request_mode_) {
    case ext_proc::NONE:
      api_.reset();
      return Decide(message, std::move(done));
    case ext_proc::BUFFERED:
      return done({.replies = {Continue(message)}});
    case ext_proc::FULL_DUPLEX_STREAMED:
      return done({});
    default:
      return done(Refused({.status = 500,
                           .message = fmt::format("the gateway's request_body_mode: got {}, "
                                                  "expected BUFFERED or FULL_DUPLEX_STREAMED",
                                                  NameOf(request_mode_)),
                           .code = "gateway_misconfigured"}));
  }
}

void Exchange::AddBody(ProcessingRequest message, Done done) {
  ext_proc::HttpBody& body = *message.mutable_request_body();
  if (picked_) {
    if (!duplex()) return done({.replies = {Continue(message)}});
    auto piece = ChargedString::Charge(ByteShare(parts_.bodies), std::move(*body.mutable_body()));
    if (!piece.ok()) return done(Refused(NoRoomForBody(piece.status())));
    Step step;
    AppendBody(ChargedString::Shared(*std::move(piece)), body.end_of_stream(), &step.replies);
    return done(std::move(step));
  }
  const uint64_t bytes = body.body().size();
  if (request_.body.size() + bytes > parts_.max_body_bytes) {
    return done(Refused({.status = 413,
                         .message = fmt::format("body: got more than {} bytes, expected less",
                                                parts_.max_body_bytes),
                         .code = "body_too_large"}));
  }
  if (const Status room = request_.body.Append(body.body()); !room.ok()) {
    return done(Refused(NoRoomForBody(room)));
  }
  // The message stays until the decision, and would have it a second time.
  std::string().swap(*body.mutable_body());
  // A whole body is there even if trailers follow.
  if (request_mode_ == ext_proc::BUFFERED || body.end_of_stream()) {
    return Decide(std::move(message), std::move(done));
  }
  done({});
}

void Exchange::Decide(ProcessingRequest last, Done done) {
  complete_at_ = parts_.clock->Now();
  if (parts_.reads == nullptr || request_.body.size() <= BodyReads::kShort) {
    return Read(std::move(last), std::move(done));
  }
  // Functions are copied, and what they hold is not.
  const auto kept = std::make_shared<ProcessingRequest>(std::move(last));
  const Status posted = parts_.reads->Post(
      "", request_.body.size(),
      [self = shared_from_this(), kept, done] { self->Read(std::move(*kept), done); });
  if (posted.ok()) return;
  done(Refused(FromRouter(
      {.status = Annotate(posted, "too many bodies wait to be read"), .retry_after = kBodyRetry})));
}

void Exchange::Read(ProcessingRequest last, Done done) {
  if (ended()) return done({.over = true});
  PickAsk ask;
  if (const auto error = Parse(&ask)) return done(Refused(*error));
  if (subset_) {
    ask.may = [subset = *subset_](const std::string& worker) { return subset.Has(worker); };
  }
  Send(std::move(ask), std::move(last), std::move(done));
}

std::optional<ApiError> Exchange::Parse(PickAsk* ask) {
  ask->has_prompt = api_.has_value();
  if (api_) {
    if (const auto error = CheckContentType(request_)) return error;
    auto parsed = parts_.relay ? ParseRelayRequest(*api_, {}, std::move(request_.body))
                               : ParseApiRequest(*api_, request_.body.text());
    if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
    auto& api = std::get<ApiRequest>(parsed);
    if (!parts_.relay) {
      if (auto error = Charge(request_.body.AnotherShare(), &api.generate)) return error;
    }
    ask->request = std::move(api.generate);
    ask->sees_tokens = api.stream && response_mode_ != ext_proc::NONE;
    body_ = parts_.relay ? ask->request.raw->body : ChargedString::Shared(std::move(request_.body));
  }
  return ReadHeaders(request_, &ask->request);
}

void Exchange::Send(PickAsk ask, ProcessingRequest last, Done done) {
  // The request that is picked for, when it is picked: the stream waits for it, and holds this.
  const auto kept = std::make_shared<ProcessingRequest>(std::move(last));
  parts_.router->PickAndFollow(
      std::move(ask), [self = shared_from_this(), kept,
                       done = std::move(done)](std::variant<FollowedPick, GenerateError> picked) {
        self->parts_.observe_pick(Seconds(self->parts_.clock->Now() - self->complete_at_));
        if (const auto* error = std::get_if<GenerateError>(&picked)) {
          return done(self->Refused(FromRouter(*error)));
        }
        done(self->Picked(std::get<FollowedPick>(std::move(picked)), *kept));
      });
}

std::string Exchange::Endpoints(const Pick& pick) const {
  std::vector<const Candidate*> others;
  for (const Candidate& candidate : pick.candidates) {
    if (candidate.usable && candidate.worker != pick.worker) others.push_back(&candidate);
  }
  std::ranges::stable_sort(others, {}, [](const Candidate* one) { return one->cost; });
  std::string endpoints = EndpointOf(pick.worker);
  for (size_t i = 0; i < others.size() && i + 1 < parts_.max_endpoints; ++i) {
    endpoints += ',';
    endpoints += EndpointOf(others[i]->worker);
  }
  return endpoints;
}

Exchange::Step Exchange::Picked(FollowedPick pick, const ProcessingRequest& last) {
  parts_.counters->Count(PickResult::kPicked);
  picked_ = true;
  worker_endpoint_ = EndpointOf(pick.pick.worker);
  const std::string endpoints = Endpoints(pick.pick);
  std::shared_ptr<PickLease> lease = std::move(pick.lease);
  {
    MutexLock lock(mu_);
    if (!ended_) lease_ = std::move(lease);
  }
  Step step;
  const bool at_head = last.has_request_headers();
  if (at_head || duplex()) {
    ProcessingResponse reply;
    ext_proc::CommonResponse* const response = reply.mutable_request_headers()->mutable_response();
    SetEndpoints(endpoints, response, &reply);
    // Trailers end the body in place of its last piece.
    const bool end = last.has_request_body();
    if (end) SetLength(body_->size(), response);
    step.replies.emplace_back(std::move(reply));
    if (at_head) return step;
    if (end || !body_->empty()) AppendBody(body_, end, &step.replies);
    if (!end) step.replies.emplace_back(Continue(last));
  } else {
    ProcessingResponse reply = Continue(last);
    ext_proc::CommonResponse* const response =
        last.has_request_body() ? reply.mutable_request_body()->mutable_response() : nullptr;
    SetEndpoints(endpoints, response, &reply);
    step.replies.emplace_back(std::move(reply));
  }
  ReleaseBody();
  return step;
}

Exchange::Step Exchange::Refused(const ApiError& error) {
  parts_.counters->Count(ResultOf(error.status));
  ReleaseBody();
  return {.replies = {Immediate(error)}, .over = true};
}

Exchange::Step Exchange::Respond(const ProcessingRequest& message) {
  std::shared_ptr<PickLease> lease;
  {
    MutexLock lock(mu_);
    lease = lease_;
  }
  Step step;
  bool end = message.has_response_trailers();
  if (message.has_response_headers()) {
    const ext_proc::HttpHeaders& headers = message.response_headers();
    end = headers.end_of_stream();
    counts_events_ = HeaderOf(headers, ":status").starts_with('2') &&
                     HeaderOf(headers, "content-type").starts_with("text/event-stream");
    const std::string served = ServedBy(message.metadata_context());
    if (!served.empty() && !worker_endpoint_.empty() && served != worker_endpoint_) {
      parts_.counters->Moved();
      // It does not burden the picked one.
      TakeLease();
      lease.reset();
    }
  }
  if (message.has_response_body()) {
    const ext_proc::HttpBody& body = message.response_body();
    end = body.end_of_stream();
    if (counts_events_ && lease != nullptr) lease->Generated(events_.Add(body.body()));
  }
  if (message.has_response_body() && response_mode_ == ext_proc::FULL_DUPLEX_STREAMED) {
    ProcessingResponse reply;
    ext_proc::StreamedBodyResponse& streamed = *reply.mutable_response_body()
                                                    ->mutable_response()
                                                    ->mutable_body_mutation()
                                                    ->mutable_streamed_response();
    streamed.set_body(message.response_body().body());
    streamed.set_end_of_stream(end);
    step.replies.emplace_back(std::move(reply));
  } else {
    step.replies.emplace_back(Continue(message));
  }
  if (!end) return step;
  // Other answers' lengths are not known.
  if (counts_events_ && lease != nullptr) lease->Completed();
  lease.reset();
  End();
  return step;
}

}  // namespace cairn::router
