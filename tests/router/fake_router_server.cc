// The HTTP edge of the router before workers that do not exist, for tests of real HTTP clients. It
// prints its URL, and ends when its standard input does.
//
//   fake_router_server [API_KEY_FILE]
//
// An answer has the words of the prompt's last message. The word "break" ends it with an error,
// "busy" is shed, and an answer of "slow" does not end by itself.

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#include "services/router/http/http_edge.h"
#include "tests/support/fake_router.h"

namespace {

using namespace cairn::router;

std::string LastText(const GenerateRequest& request) {
  if (const auto* text = std::get_if<std::string>(&request.prompt)) return *text;
  const auto* chat = std::get_if<std::vector<cairn::model::ChatMessage>>(&request.prompt);
  return chat == nullptr ? "ids" : chat->back().content;
}

void Answer(FakeRouter* router, FakeRouter::Running running) {
  std::istringstream words(LastText(running.request));
  GenerateSummary summary{.prompt_tokens = 100, .cached_tokens = 64, .finish_reason = "stop"};
  if (!running.request.model.empty() && running.request.model != "fake") {
    return running.observer->OnError(
        {.status = cairn::Errorf(cairn::StatusCode::kNotFound, "model: got '{}', expected 'fake'",
                                 running.request.model),
         .field = "model"});
  }
  for (std::string word; words >> word;) {
    if (word == "busy") {
      return running.observer->OnError(
          {.status = cairn::Errorf(cairn::StatusCode::kResourceExhausted, "all workers are busy"),
           .retry_after = std::chrono::seconds(3)});
    }
    if (word == "break") {
      return running.observer->OnError(
          {.status = cairn::Errorf(cairn::StatusCode::kUnavailable, "the worker has gone")});
    }
    if (running.request.max_tokens == summary.completion_tokens) {
      summary.finish_reason = "length";
      break;
    }
    running.observer->OnToken(1, word + " ");
    ++summary.completion_tokens;
    if (word == "slow") return router->Keep(std::move(running));
  }
  running.observer->OnDone(summary);
}

}  // namespace

int main(int argc, char** argv) {
  FakeRouter router;
  // On a thread of its own, as the real router calls its observers.
  router.on_generate = [&router](FakeRouter::Running running) {
    std::thread([&router, running = std::move(running)]() mutable {
      Answer(&router, std::move(running));
    }).detach();
  };
  HttpConfig config;
  config.listen = "127.0.0.1:0";
  if (argc > 1) config.api_keys = argv[1];
  auto edge = HttpEdge::Start(config, {}, &router, /*relay=*/false, /*reads=*/nullptr,
                              /*tracer=*/nullptr, nullptr);
  if (!edge.ok()) {
    std::fprintf(stderr, "fake_router_server: %s\n", cairn::ToString(edge.status()).c_str());
    return 1;
  }
  std::printf("http://%s\n", (*edge)->address().c_str());
  std::fflush(stdout);
  std::string ignored;
  while (std::getline(std::cin, ignored)) {
  }
  (*edge)->Drain(std::chrono::seconds(5));
  return 0;
}
