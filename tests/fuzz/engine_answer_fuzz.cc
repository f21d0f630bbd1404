// Any bytes as what an engine answers: the same events however the bytes were cut on their way, all
// of them and nothing else; lists of models, tokens and usage within their bounds.
//
// First byte: the bytes come in pieces of that size. The rest is what comes.

#include "common/http/response_parser.h"
#include "services/router/relay/answer_usage.h"
#include "services/router/relay/event_decoder.h"
#include "services/router/relay/model_list.h"
#include "services/router/relay/prompt_reader.h"
#include "tests/fuzz/input.h"

namespace {

using cairn::fuzz::Expect;
using cairn::http::ResponseParser;
using namespace cairn::router;
using State = ResponseParser::State;

constexpr uint32_t kMaxHead = 512;
constexpr uint64_t kMaxBody = 4096;
constexpr size_t kMaxEvent = 256;

struct Answer {
  State state = State::kHead;
  int status = 0;
  size_t headers = 0;
  std::string body;
};

Answer Parse(std::string_view bytes, size_t piece) {
  ResponseParser parser(kMaxHead, kMaxBody);
  Answer answer;
  std::string waiting;
  for (size_t at = 0; at < bytes.size() && parser.state() < State::kDone; at += piece) {
    waiting += bytes.substr(at, piece);
    const size_t used = parser.Feed(waiting);
    Expect(used <= waiting.size());
    waiting.erase(0, used);
    Expect(waiting.size() <= 2 * kMaxHead + piece || parser.state() >= State::kDone);
    answer.body += parser.TakeBody();
  }
  parser.FeedEnd();
  answer.body += parser.TakeBody();
  Expect(answer.body.size() <= kMaxBody);
  answer.state = parser.state();
  Expect(answer.state == State::kDone ||
         (answer.state == State::kFailed && !parser.error().empty()));
  const cairn::http::ResponseHead head = parser.TakeHead();
  answer.status = head.status;
  answer.headers = head.headers.size();
  for (const auto& header : head.headers) {
    Expect(header.value.find_first_of("\r\n") == std::string::npos && !header.name.empty());
  }
  return answer;
}

struct Stream {
  std::string bytes;
  uint32_t tokens = 0;
  bool failed = false, done = false;
  std::string usage;
};

Stream Decode(std::string_view bytes, size_t piece) {
  EventDecoder decoder(kMaxEvent);
  Stream stream;
  const auto add = [&](const EventDecoder::Events& events) {
    stream.bytes += events.bytes;
    stream.tokens += events.tokens;
  };
  for (size_t at = 0; at < bytes.size(); at += piece) add(decoder.Feed(bytes.substr(at, piece)));
  add(decoder.Rest());
  stream.failed = decoder.failed();
  stream.done = decoder.done();
  stream.usage = decoder.usage();
  return stream;
}

}  // namespace

CAIRN_FUZZ_ENTRY(engine_answer)(const uint8_t* data, size_t size) {
  cairn::fuzz::Input input(data, size);
  const size_t piece = 1u + input.U8();
  const std::string bytes(input.Rest());
  const Answer whole = Parse(bytes, bytes.size() + 1), cut = Parse(bytes, piece);
  // Lines between chunks are bounded only while they are not complete.
  if (whole.state == State::kDone && cut.state == State::kDone) {
    Expect(whole.status == cut.status && whole.headers == cut.headers && whole.body == cut.body);
  }
  for (const std::string& text : {bytes, whole.body}) {
    const Stream one = Decode(text, text.size() + 1), other = Decode(text, piece);
    Expect(text.starts_with(one.bytes));
    if (!one.failed) Expect(one.bytes == text);
    // A piece at a time, an event that is too long is seen before its end.
    if (!other.failed) {
      Expect(other.bytes == text && one.tokens == other.tokens && one.done == other.done);
      Expect(one.usage == other.usage);
    }
    if (const auto usage = ReadUsage(text)) Expect(usage->cached_tokens <= usage->prompt_tokens);
    if (const auto models = ParseModelList(text); models.ok()) {
      for (const EngineModel& model : *models) Expect(!model.id.empty() && !model.object.empty());
    }
    if (const auto tokens = ParseTokens(text); tokens.ok()) {
      for (const auto token : *tokens) Expect(token >= 0);
    }
  }
  return 0;
}
