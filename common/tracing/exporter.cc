#include "common/tracing/exporter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "common/config/text_file.h"
#include "common/log/log.h"

namespace cairn::tracing {
namespace {

constexpr size_t kLongestText = 256;
constexpr size_t kMostHeaders = 16 << 10;
constexpr uint64_t kMostAnswer = 64 << 10;

void Cut(std::string* text) {
  if (text->size() > kLongestText) text->resize(kLongestText);
}

int64_t UnixMinusSteady() {
  const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<Duration>(unix_now).count() -
         SteadyClock::Get().Now().time_since_epoch().count();
}

}  // namespace

Result<Collector> ParseCollector(const std::string& url, const std::string& field) {
  const size_t host = url.find("://");
  const size_t path = url.find('/', host == std::string::npos ? 0 : host + 3);
  Collector collector;
  CAIRN_ASSIGN_OR_RETURN(collector.origin, http::ParseOrigin(url.substr(0, path), field));
  collector.target = path == std::string::npos ? "" : url.substr(path);
  if (collector.target.empty() || collector.target == "/") collector.target = "/v1/traces";
  const bool legal =
      std::ranges::all_of(collector.target, [](char c) { return c > ' ' && c < 0x7f && c != '#'; });
  if (!legal) {
    return InvalidArgument("field '{}': got '{}', expected a path without spaces and fragments",
                           field, url);
  }
  return collector;
}

Result<std::vector<http::Header>> ReadHeaders(const std::string& path, const std::string& field) {
  std::vector<http::Header> headers;
  if (path.empty()) return headers;
  CAIRN_ASSIGN_OR_RETURN(const std::string text, config::ReadTextFile(path, field, kMostHeaders));
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const auto [name, value] = std::pair<absl::string_view, absl::string_view>(
        absl::StrSplit(line, absl::MaxSplits(':', 1)));
    const absl::string_view trimmed = absl::StripAsciiWhitespace(value);
    const bool is_token = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
      return absl::ascii_isalnum(c) || c == '-' || c == '_';
    });
    const bool is_text = !trimmed.empty() && std::ranges::all_of(trimmed, [](unsigned char c) {
      return c == '\t' || (c >= ' ' && c < 0x7f);
    });
    if (!is_token || !is_text) {
      return InvalidArgument("{}: '{}' line {}: expected a header as NAME: VALUE", field, path,
                             number);
    }
    headers.push_back({std::string(name), std::string(trimmed)});
  }
  return headers;
}

// The collector's answer to one call.
class Exporter::Answer final : public http::ResponseObserver {
 public:
  Answer(Exporter* exporter, size_t spans) : exporter_(exporter), spans_(spans) {}
  void OnHead(const http::ResponseHead& head) override {
    if (head.status < 200 || head.status > 299) {
      status_ = Errorf(StatusCode::kUnavailable, "it answered with HTTP status {}", head.status);
    }
  }
  bool OnBody(std::string_view) override { return true; }
  void OnEnd() override { exporter_->Ended(spans_, status_); }
  void OnError(const Status& status) override { exporter_->Ended(spans_, status); }

 private:
  Exporter* const exporter_;
  const size_t spans_;
  Status status_;
};

Exporter::Exporter(Options options, std::unique_ptr<http::Client> client)
    : options_(std::move(options)), client_(std::move(client)) {
  Later();
}

Exporter::~Exporter() {
  {
    MutexLock lock(mu_);
    ending_ = true;
  }
  Turn();
  const TimePoint until = SteadyClock::Get().Now() + options_.last_words;
  MutexLock lock(mu_);
  (void)idle_.WaitUntil(mu_, until, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return waiting_.empty() && !sending_;
  });
  over_ = true;
  idle_.Wait(mu_, SteadyClock::Get(),
             [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !starting_; });
}

void Exporter::Add(Span span) {
  Cut(&span.name);
  Cut(&span.error);
  for (auto& [key, value] : span.attributes) {
    if (auto* const text = std::get_if<std::string>(&value)) Cut(text);
  }
  MutexLock lock(mu_);
  if (waiting_.size() >= options_.most_waiting) {
    ++dropped_;
  } else {
    waiting_.push_back(std::move(span));
  }
}

Exporter::Stats Exporter::GetStats() const {
  return {.sent = sent_, .dropped = dropped_, .failed = failed_};
}

void Exporter::Later() {
  MutexLock lock(mu_);
  if (over_) return;
  client_->After(options_.interval, [this] { Turn(); });
}

void Exporter::Turn() {
  std::vector<Span> batch;
  {
    MutexLock lock(mu_);
    if (sending_ || over_) return;
    const size_t count = std::min(waiting_.size(), options_.most_at_once);
    batch.assign(std::make_move_iterator(waiting_.begin()),
                 std::make_move_iterator(waiting_.begin() + static_cast<ptrdiff_t>(count)));
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(count));
    starting_ = sending_ = !batch.empty();
  }
  if (batch.empty()) return Later();
  http::ClientRequest request;
  request.method = "POST";
  request.target = options_.collector.target;
  request.headers = {{"Content-Type", "application/json"}};
  request.headers.insert(request.headers.end(), options_.headers.begin(), options_.headers.end());
  request.body =
      std::make_shared<const std::string>(ToOtlp(options_.resource, batch, UnixMinusSteady()));
  request.max_body_bytes = kMostAnswer;
  request.silence = options_.patience;
  client_->Send(options_.collector.origin, std::move(request),
                std::make_shared<Answer>(this, batch.size()));
  MutexLock lock(mu_);
  starting_ = false;
  idle_.NotifyAll();
}

void Exporter::Ended(size_t spans, const Status& status) {
  (status.ok() ? sent_ : failed_) += spans;
  bool now = false;
  {
    MutexLock lock(mu_);
    if (const bool failing = !status.ok(); failing != std::exchange(failing_, failing)) {
      log::Info(failing ? "trace_collector_failed" : "trace_collector_answers",
                {{"collector", options_.collector.origin.Authority()},
                 {"error", failing ? ToString(status) : ""}});
    }
    sending_ = false;
    now = !waiting_.empty() && (ending_ || waiting_.size() >= options_.most_at_once);
    idle_.NotifyAll();
  }
  now ? Turn() : Later();
}

}  // namespace cairn::tracing
