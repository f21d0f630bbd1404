#pragma once
// A call of OpenAI's API as its client made it, and its answer as the engine gave it: for workers
// that speak that API themselves.

#include <memory>
#include <string>
#include <vector>

namespace cairn::router {

struct RawHeader {
  std::string name;
  std::string value;
};

struct RawCall {
  std::string path = {};  // "/v1/chat/completions".
  // JSON. It counts among the bodies of requests until the last of its holders lets go.
  std::shared_ptr<const std::string> body = {};
  bool stream = false;                  // The answer is to be a stream of events.
  std::vector<RawHeader> headers = {};  // Headers that the engine gets, too.
  // The request's prompt is all that the engine makes tokens of. False: there are tools, images or
  // the like, of which the prompt has only text that stands for them.
  bool plain = true;
};

struct RawHead {
  int status = 200;
  std::string content_type = {};
  std::vector<RawHeader> headers = {};  // Headers that the client gets, too.
  bool stream = false;  // A stream of events. Otherwise the body comes in one piece.
};

struct RawAnswer {
  RawHead head = {};
  // It counts among the answers of engines until the last of its holders lets go.
  std::shared_ptr<const std::string> body = {};
};

}  // namespace cairn::router
