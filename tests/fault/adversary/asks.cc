// Requests to routers and workers: too large, too long, too many, or wrong.

#include <fmt/ranges.h>
#include <grpcpp/create_channel.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "cairn/v1/router.grpc.pb.h"
#include "cairn/v1/worker.grpc.pb.h"
#include "tests/fault/adversary/honest_asks.h"
#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/wire_client.h"
#include "tests/fault/adversary/wire_http.h"

namespace cairn::fault {
namespace {

constexpr size_t kBodyBytes = 7'900'000;  // A little less than http.max_body.

// Calls `job` in so many threads. Each gets its number and a seed.
void Together(Scene& scene, int threads, const std::function<void(int, uint64_t)>& job) {
  std::vector<std::jthread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&job, i, seed = scene.random()] { job(i, seed); });
  }
}

std::string KeyHeader(const Scene& scene) { return "Authorization: Bearer " + scene.places.key; }

const std::string& HttpOf(const Scene& scene, uint64_t number) {
  return number % 2 == 0 ? scene.places.router_http : scene.places.relay_http;
}

std::string Letters(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::string text(count, ' ');
  for (char& letter : text) letter = static_cast<char>('a' + random() % 26);
  return text;
}

std::vector<int32_t> Tokens(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(20 + random() % 200);
  return ids;
}

// A body whose prompt is short, and which is long by a field that nobody reads.
std::string LongBody() {
  return R"({"prompt":"hi","max_tokens":1,"user":")" + std::string(kBodyBytes, 'A') + "\"}";
}

v1::GenerateRequest RequestFor(const std::vector<int32_t>& prompt, uint32_t max_tokens,
                               const std::string& tenant) {
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Assign(prompt.begin(), prompt.end());
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  request.set_tenant(tenant);
  return request;
}

template <typename Service>
std::unique_ptr<typename Service::Stub> StubOf(const TestedServer& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return Service::NewStub(
      grpc::CreateCustomChannel(server.address(), grpc::InsecureChannelCredentials(), arguments));
}

// Reads the answer to its end.
template <typename Stub>
grpc::Status Drain(const Scene& scene, Stub& stub, const v1::GenerateRequest& request,
                   Duration deadline = std::chrono::seconds(20)) {
  CallContext context(scene.stop, deadline);
  const auto reader = stub.Generate(context.get(), request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  return reader->Finish();
}

}  // namespace

void LargeBodies(Scene& scene) {
  const std::string request = HttpRequest("POST /v1/completions", LongBody(), {KeyHeader(scene)});
  Together(scene, 12, [&](int i, uint64_t) {
    for (int pass = 0; pass < 3 && scene.going(); ++pass) {
      const int status =
          AskHttp(HttpOf(scene, static_cast<uint64_t>(i)), request, scene.stop).status;
      // 0: the server hung up before it had read all that it refuses.
      const bool known = status == 0 || status == 200 || status == 413 || status == 429 ||
                         status == 503 || status == 408;
      scene.Expect(known, fmt::format("a body of 8 MB was answered with {}", status));
    }
  });
}

void StalledBodies(Scene& scene) {
  const std::string whole = HttpRequest("POST /v1/completions", LongBody(), {KeyHeader(scene)});
  std::vector<shm::Descriptor> sockets;
  for (uint64_t i = 0; i < 40 && scene.going(); ++i) {
    sockets.push_back(DialTcp(HttpOf(scene, i)));
    (void)SendAll(sockets.back(), std::string_view(whole).substr(0, whole.size() - 1), scene.stop,
                  milliseconds(300));
  }
  scene.Spend(std::chrono::seconds(3));
}

void LongTexts(Scene& scene) {
  Together(scene, 6, [&](int i, uint64_t seed) {
    const size_t bytes = std::vector<size_t>{7'900'000, 655'000, 20'000}[seed % 3];
    const std::string text = Letters(seed, bytes);
    if (i < 4) {
      const std::string body = fmt::format(R"({{"prompt":"{}","max_tokens":1}})", text);
      (void)AskHttp(HttpOf(scene, static_cast<uint64_t>(i)),
                    HttpRequest("POST /v1/completions", body, {KeyHeader(scene)}), scene.stop);
      return;
    }
    v1::GenerateRequest request;
    request.set_raw_text(text);
    request.set_tenant("x-long");
    if (i == 4) {
      (void)Drain(scene, *StubOf<v1::Router>(*scene.places.router), request);
      return;
    }
    CallContext context(scene.stop);
    v1::TokenizeRequest tokenize;
    v1::TokenizeResponse tokens;
    tokenize.set_text(text);
    (void)StubOf<v1::Worker>(*scene.places.workers[1])->Tokenize(context.get(), tokenize, &tokens);
  });
}

void BeyondContext(Scene& scene) {
  Together(scene, 6, [&](int i, uint64_t seed) {
    for (int pass = 0; pass < 20 && scene.going(); ++pass) {
      // The context has 1,024 tokens.
      const std::vector<int32_t> prompt = Tokens(seed, pass % 2 == 0 ? 5'000 : 1'000'000 / 4);
      if (i < 4) {
        const std::string request =
            HttpRequest("POST /v1/completions", CompletionOf(prompt, 8, false), {KeyHeader(scene)});
        const int status =
            AskHttp(HttpOf(scene, static_cast<uint64_t>(i)), request, scene.stop).status;
        scene.Expect(status != 200, "a prompt beyond the context was answered with 200");
        continue;
      }
      const v1::GenerateRequest request = RequestFor(prompt, 8, "x-beyond");
      const grpc::Status status =
          i == 4 ? Drain(scene, *StubOf<v1::Router>(*scene.places.router), request)
                 : Drain(scene, *StubOf<v1::Worker>(*scene.places.workers[1]), request);
      scene.Expect(!status.ok(), "a prompt beyond the context was answered");
    }
  });
}

void WrongFields(Scene& scene) {
  const std::vector<std::string> bodies = {
      std::string(100'000, '['),
      R"({"prompt":[)" + std::string(1'200'000, '0').replace(1, 1, ",") + "]}",
      fmt::format(R"({{"prompt":[{}]}})", fmt::join(std::vector<int>(600'000, 1), ",")),
      "{\"prompt\":\"\xff\xfe\"}",
      R"({"prompt":"\ud800","max_tokens":1e400})",
      R"({"prompt":"x","max_tokens":-1})",
      R"({"prompt":"x","temperature":1e999})",
      R"({"prompt":[-1,2147483647]})",
      R"({"prompt":"x","stop":[)" + std::string(5000, 'x') + "]}",
      R"({"messages":[{"role":"nobody","content":"x"}]})",
      "",
      "{",
  };
  for (int i = 0; i < 60 && scene.going(); ++i) {
    const std::string& body = bodies[scene.random() % bodies.size()];
    const bool chat = scene.random() % 3 == 0;
    const HttpReply reply =
        AskHttp(scene.places.router_http,
                HttpRequest(chat ? "POST /v1/chat/completions" : "POST /v1/completions", body,
                            {KeyHeader(scene)}),
                scene.stop);
    scene.Expect(reply.status == 0 || (reply.status >= 400 && reply.status != 500),
                 fmt::format("'{}' was answered with {}: {}", body.substr(0, 60), reply.status,
                             reply.body.substr(0, 100)));
  }
}

void BrokenKeys(Scene& scene) {
  const std::string body = CompletionOf({20, 21}, 1, false);
  for (int i = 0; i < 400 && scene.going(); ++i) {
    const std::string key = Letters(scene.random(), scene.Between(0, 200));
    const std::vector<std::string> headers =
        i % 5 == 0   ? std::vector<std::string>{}
        : i % 5 == 1 ? std::vector<std::string>{"Authorization: Basic " + key}
        : i % 5 == 2 ? std::vector<std::string>{"x-tenant: honest-http"}
                     : std::vector<std::string>{"Authorization: Bearer " + key};
    const HttpReply reply = AskHttp(HttpOf(scene, scene.random()),
                                    HttpRequest("POST /v1/completions", body, headers), scene.stop);
    scene.Expect(reply.status == 401 || reply.status == 0,
                 fmt::format("a request without a key was answered with {}", reply.status));
  }
}

void LoudPriorities(Scene& scene) {
  Together(scene, 12, [&](int i, uint64_t seed) {
    for (uint64_t pass = 0; pass < 6 && scene.going(); ++pass) {
      const std::vector<int32_t> prompt = Tokens(seed + pass, 500);
      if (i % 3 == 0) {
        v1::GenerateRequest request = RequestFor(prompt, 32, "x-loud");
        request.set_priority(10);
        (void)Drain(scene, *StubOf<v1::Router>(*scene.places.router), request);
        continue;
      }
      (void)AskHttp(HttpOf(scene, static_cast<uint64_t>(i)),
                    HttpRequest("POST /v1/completions", CompletionOf(prompt, 32, true),
                                {KeyHeader(scene), "x-cairn-priority: 10"}),
                    scene.stop);
    }
  });
}

void HastyAsks(Scene& scene) {
  const auto router = StubOf<v1::Router>(*scene.places.router);
  const auto worker = StubOf<v1::Worker>(*scene.places.workers[1]);
  Together(scene, 4, [&](int i, uint64_t seed) {
    for (uint64_t pass = 0; pass < 200 && scene.going(); ++pass) {
      v1::GenerateRequest request = RequestFor(Tokens(seed + pass, 200), 64, "x-hasty");
      const auto time = milliseconds(1 + pass % 5);
      if (i == 0) {
        request.set_deadline_unix_ms(std::chrono::duration_cast<milliseconds>(
                                         std::chrono::system_clock::now().time_since_epoch())
                                         .count() +
                                     time.count());
      }
      if (i % 2 == 0) {
        (void)Drain(scene, *router, request, i == 0 ? Duration(seconds(5)) : Duration(time));
      } else {
        (void)Drain(scene, *worker, request, time);
      }
    }
  });
}

void MadeUpTenants(Scene& scene) {
  const auto router = StubOf<v1::Router>(*scene.places.router);
  const auto worker = StubOf<v1::Worker>(*scene.places.workers[1]);
  for (uint64_t i = 0; i < 300 && scene.going(); ++i) {
    const v1::GenerateRequest request =
        RequestFor(Tokens(i % 4, 20), 1, "x-" + Letters(scene.random(), 120));
    (void)(i % 2 == 0 ? Drain(scene, *router, request) : Drain(scene, *worker, request));
  }
}

void QueryFloods(Scene& scene) {
  const std::string tokens = fmt::format(R"({{"token_ids":[{}],"block_size":64}})",
                                         fmt::join(Tokens(scene.random(), 200'000), ","));
  std::string hashes = R"({"seq_hashes":[)";
  for (int i = 0; i < 4096; ++i) {
    hashes += fmt::format("{}\"{:064x}\"", i == 0 ? "" : ",", scene.random());
  }
  hashes += R"(],"block_size":64})";
  Together(scene, 4, [&](int i, uint64_t) {
    for (int pass = 0; pass < 20 && scene.going(); ++pass) {
      const std::string request = HttpRequest(i % 2 == 0 ? "POST /query" : "POST /query_by_hash",
                                              i % 2 == 0 ? tokens : hashes, {KeyHeader(scene)});
      const int status =
          AskHttp(HttpOf(scene, static_cast<uint64_t>(pass)), request, scene.stop).status;
      scene.Expect(status != 500, "a long query was answered with 500");
    }
  });
}

void WorkerCrowd(Scene& scene) {
  const TestedServer& at = *scene.places.workers[1];
  const auto worker = StubOf<v1::Worker>(at);
  Together(scene, 24, [&](int i, uint64_t seed) {
    if (i < 20) {
      (void)Drain(scene, *worker, RequestFor(Tokens(seed, 300), 100, "x-crowd"));
      return;
    }
    CallContext context(scene.stop);
    if (i < 22) {  // Reports that nobody reads.
      v1::WatchLoadRequest request;
      request.set_interval_ms(50);
      const auto reader = StubOf<v1::Worker>(at)->WatchLoad(context.get(), request);
      scene.Spend(std::chrono::seconds(3));
      context.get()->TryCancel();
      reader->Finish();
      return;
    }
    v1::ScoreRequest request;
    const std::vector<int32_t> ids = Tokens(seed, i == 22 ? 500'000 : 512);
    request.mutable_context()->mutable_ids()->Assign(ids.begin(), ids.end());
    request.mutable_continuation()->mutable_ids()->Assign(ids.begin(), ids.begin() + 64);
    const auto reader = worker->Score(context.get(), request);
    v1::ScoreResponse response;
    while (reader->Read(&response)) {
    }
    const grpc::Status status = reader->Finish();
    scene.Expect(i == 23 || !status.ok(), "500,000 tokens were scored");
  });
}

void SlowAnswers(Scene& scene) {
  const std::string request = HttpRequest(
      "POST /v1/completions", CompletionOf(Tokens(7, 20), 900, true), {KeyHeader(scene)});
  std::vector<shm::Descriptor> sockets;
  for (uint64_t i = 0; i < 12 && scene.going(); ++i) {
    sockets.push_back(DialTcp(HttpOf(scene, i)));
    (void)SendAll(sockets.back(), request, scene.stop, std::chrono::seconds(2));
    (void)ReadSome(sockets.back(), 64, scene.stop, std::chrono::seconds(2));  // And no further.
  }
  CallContext context(scene.stop);
  const auto reader = StubOf<v1::Router>(*scene.places.router)
                          ->Generate(context.get(), RequestFor(Tokens(7, 20), 900, "x-slow"));
  scene.Spend(std::chrono::seconds(4));
  context.get()->TryCancel();
  reader->Finish();
}

void CancelledStreams(Scene& scene) {
  const auto router = StubOf<v1::Router>(*scene.places.router);
  const auto worker = StubOf<v1::Worker>(*scene.places.workers[1]);
  for (uint64_t i = 0; i < 100 && scene.going(); ++i) {
    const std::vector<int32_t> prompt = Tokens(scene.random(), scene.Between(10, 300));
    if (i % 4 < 2) {
      const shm::Descriptor socket = DialTcp(HttpOf(scene, i));
      (void)SendAll(
          socket,
          HttpRequest("POST /v1/completions", CompletionOf(prompt, 500, true), {KeyHeader(scene)}),
          scene.stop, std::chrono::seconds(2));
      if (scene.random() % 2 == 0) {
        (void)ReadSome(socket, 1000, scene.stop, std::chrono::seconds(2));
      }
      continue;
    }
    CallContext context(scene.stop);
    const v1::GenerateRequest request = RequestFor(prompt, 500, "x-cancel");
    const auto reader = i % 4 == 2 ? router->Generate(context.get(), request)
                                   : worker->Generate(context.get(), request);
    v1::GenerateResponse response;
    if (scene.random() % 2 == 0) reader->Read(&response);
    context.get()->TryCancel();
    reader->Finish();
  }
}

}  // namespace cairn::fault
