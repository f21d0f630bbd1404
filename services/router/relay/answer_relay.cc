#include "services/router/relay/answer_relay.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "services/router/relay/answer_usage.h"

namespace cairn::router {
namespace {

// Headers of an answer that are for the caller. All others are between engine and router.
constexpr std::array<std::string_view, 4> kPassed = {"x-request-id", "retry-after", "cache-control",
                                                     "openai-processing-ms"};

bool IsStream(const std::string* content_type) {
  return content_type != nullptr && content_type->size() >= 17 &&
         http::EqualNames(std::string_view(*content_type).substr(0, 17), "text/event-stream");
}

// For errors: the beginning of what an engine said.
std::string Shown(std::string_view body) {
  constexpr size_t kMost = 200;
  std::string shown;
  for (const char c : body.substr(0, kMost)) {
    shown += static_cast<unsigned char>(c) < ' ' || c == 0x7f ? ' ' : c;
  }
  return shown;
}

}  // namespace

AnswerRelay::AnswerRelay(const Bounds& bounds, const WorkerRequest& request,
                         std::shared_ptr<EngineLoad> load,
                         std::shared_ptr<WorkerAnswerObserver> observer)
    : bounds_(bounds),
      prompt_tokens_(request.prompt_tokens),
      load_(std::move(load)),
      load_id_(load_->Begin({.tokens = request.prompt_tokens,
                             .held_tokens = request.held_tokens,
                             .stream = request.raw->stream})),
      observer_(std::move(observer)),
      decoder_(bounds.max_event_bytes),
      body_(ByteShare(bounds.answers)) {}

AnswerRelay::~AnswerRelay() { load_->End(load_id_); }

void AnswerRelay::OnHead(const http::ResponseHead& head) {
  head_.status = head.status;
  const std::string* const type = head.Find("content-type");
  head_.content_type = type == nullptr ? "application/json" : *type;
  head_.stream = head.status == 200 && IsStream(type);
  const std::string* const length = head.Find("content-length");
  framed_ = length != nullptr || head.Find("transfer-encoding") != nullptr;
  if (length != nullptr && !head_.stream) {
    const uint64_t bytes = std::strtoull(length->c_str(), nullptr, 10);
    body_.Expect(std::min(bytes, bounds_.max_answer_bytes));
  }
  for (const std::string_view name : kPassed) {
    if (const std::string* const value = head.Find(name); value != nullptr) {
      head_.headers.push_back({std::string(name), *value});
    }
  }
}

bool AnswerRelay::OnBody(std::string_view bytes) {
  if (!head_.stream) {
    if (body_.size() + bytes.size() > bounds_.max_answer_bytes) {
      Fail(Errorf(StatusCode::kUnavailable,
                  "its answer has more than {} bytes; see engines.max_answer",
                  bounds_.max_answer_bytes));
      return false;
    }
    return Keep(bytes);
  }
  PassEvents(decoder_.Feed(bytes));
  if (observer_ != nullptr && decoder_.failed()) {
    Fail(Errorf(StatusCode::kUnavailable, "it sent an event of more than {} bytes",
                bounds_.max_event_bytes));
  }
  return observer_ != nullptr;
}

void AnswerRelay::PassEvents(EventDecoder::Events events) {
  if (events.bytes.empty()) return;
  events_ += events.tokens;
  load_->Tokens(load_id_, events.tokens);
  if (!begun_) {
    // Until there is an answer, another engine may give it: comments that keep the connection alive
    // wait.
    if (events.tokens == 0 && !decoder_.done()) {
      if (body_.size() + events.bytes.size() > bounds_.max_event_bytes) {
        return Fail(Errorf(StatusCode::kUnavailable, "its stream has no events"));
      }
      Keep(events.bytes);
      return;
    }
    begun_ = true;
    observer_->OnRawHead(head_);
    events.bytes.insert(0, body_.text());
    body_ = ChargedString();
  }
  observer_->OnRawBytes(events.bytes, events.tokens);
}

bool AnswerRelay::Keep(std::string_view bytes) {
  const Status room = body_.Append(bytes);
  if (!room.ok()) Fail(Status(StatusCode::kUnavailable, "its answer: " + Message(room)));
  return room.ok();
}

void AnswerRelay::OnEnd() { head_.stream ? EndStream() : EndWhole(); }

void AnswerRelay::EndStream() {
  PassEvents(decoder_.Rest());
  if (observer_ == nullptr) return;
  if (!begun_) return Fail(Errorf(StatusCode::kUnavailable, "its stream has no events"));
  // Without a length, the end of the connection may be the end of the engine.
  if (!framed_ && !decoder_.done()) {
    return Fail(Errorf(StatusCode::kUnavailable, "its stream ended without [DONE]"));
  }
  Done(decoder_.usage());
}

void AnswerRelay::EndWhole() {
  const int status = head_.status;
  if (status == 401) {
    return Fail(
        Errorf(StatusCode::kUnavailable, "it refuses the router's API key (engines.api_key_file)"));
  }
  if (status == 429 || status >= 500) {
    load_->End(load_id_);
    const auto code = status == 429 ? StatusCode::kResourceExhausted : StatusCode::kUnavailable;
    const Status refused = Errorf(code, "it answered {}: {}", status, Shown(body_.text()));
    return std::exchange(observer_, nullptr)
        ->OnRefused(refused,
                    {.head = std::move(head_), .body = ChargedString::Shared(std::move(body_))});
  }
  if (status < 200 || (status >= 300 && status < 400)) {
    return Fail(
        Errorf(StatusCode::kUnavailable, "it answered {}, expected 2xx, 4xx or 5xx", status));
  }
  const std::string& body = body_.text();
  if (status < 300 && !nlohmann::json::accept(body)) {
    return Fail(Errorf(StatusCode::kUnavailable, "its answer is not JSON: '{}'", Shown(body)));
  }
  observer_->OnRawHead(head_);
  observer_->OnRawBytes(body, 0);
  Done(status < 300 ? std::string_view(body) : std::string_view());
}

void AnswerRelay::Done(std::string_view json) {
  load_->End(load_id_);
  const std::optional<AnswerUsage> told = ReadUsage(json);
  if (told) load_->Length(events_, told->completion_tokens);
  const AnswerUsage usage = told.value_or(
      AnswerUsage{.prompt_tokens = prompt_tokens_, .completion_tokens = load_->TokensOf(events_)});
  WorkerAnswer answer;
  answer.prompt_tokens = usage.prompt_tokens;
  answer.fetched_tokens = usage.cached_tokens;
  answer.completion_tokens = usage.completion_tokens;
  answer.finish_reason = head_.status < 300 ? "stop" : "error";
  std::exchange(observer_, nullptr)->OnDone(answer);
}

void AnswerRelay::OnError(const Status& status) {
  // All of it is there. How the connection ended does not matter.
  if (head_.stream && decoder_.done()) return Done(decoder_.usage());
  // A worker that says nothing for too long has failed; the caller set no deadline.
  Fail(status.code() == StatusCode::kDeadlineExceeded || status.code() == StatusCode::kInternal
           ? Status(StatusCode::kUnavailable, Message(status))
           : status);
}

void AnswerRelay::OnUnreached(const Status& status) {
  load_->End(load_id_);
  std::exchange(observer_, nullptr)->OnUnreached(status);
}

void AnswerRelay::Fail(const Status& status) {
  load_->End(load_id_);
  std::exchange(observer_, nullptr)->OnError(status);
}

}  // namespace cairn::router
