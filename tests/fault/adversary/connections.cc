// Connections and streams that are open and do nothing, or do nonsense.

#include <sys/socket.h>

#include <cerrno>

#include "tests/fault/adversary/recipes.h"
#include "tests/fault/adversary/wire_client.h"
#include "tests/fault/adversary/wire_http.h"

namespace cairn::fault {

void IdlePushes(Scene& scene) {
  struct Idle {
    explicit Idle(const std::stop_token& stop) : context(stop, std::chrono::minutes(2)) {}
    CallContext context;
    v1::PushResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::PushFrame>> writer;
  };
  std::vector<std::unique_ptr<WireClient>> clients;
  std::vector<std::unique_ptr<Idle>> idle;
  for (int i = 0; i < 11 && scene.going(); ++i) {
    clients.push_back(std::make_unique<WireClient>(scene.node.address(), scene.stop));
    for (int n = 0; n < 100; ++n) {
      idle.push_back(std::make_unique<Idle>(scene.stop));
      idle.back()->writer =
          clients.back()->cache().Push(idle.back()->context.get(), &idle.back()->response);
    }
  }
  scene.Spend(std::chrono::seconds(5));
  for (const auto& one : idle) {
    one->context.get()->TryCancel();
    one->writer->Finish();
  }
}

void SessionFloods(Scene& scene) {
  std::vector<std::unique_ptr<WireClient>> clients;
  for (int i = 0; i < 200 && scene.going(); ++i) {
    clients.push_back(std::make_unique<WireClient>(scene.node.address(), scene.stop));
    const std::string ns = clients.back()->Open(OpaqueSpec(scene.Tenant("crowd").substr(0, 8)));
    v1::MatchResponse response;
    clients.back()->Match(ns, KeyOf("none", 1), 600'000, &response);
  }
  scene.Spend(std::chrono::milliseconds(scene.Between(0, 500)));
}

void IdleWatches(Scene& scene) {
  struct Idle {
    explicit Idle(const std::stop_token& stop) : context(stop, std::chrono::minutes(2)) {}
    CallContext context;
    std::unique_ptr<grpc::ClientReader<v1::Event>> reader;
  };
  WireClient client(scene.node.address(), scene.stop);
  std::vector<std::unique_ptr<Idle>> idle;
  v1::WatchRequest request;
  request.set_snapshot(true);
  for (int i = 0; i < 64; ++i) {
    idle.push_back(std::make_unique<Idle>(scene.stop));
    idle.back()->reader = client.cache().Watch(idle.back()->context.get(), request);
  }
  // Events for them: small blocks, many of them.
  const std::string ns = client.Open(OpaqueSpec(scene.Tenant("watch")));
  for (uint64_t i = 0; i < 40 && scene.going(); ++i) {
    std::vector<PartToStore> parts;
    for (uint64_t n = 0; n < 250; ++n) {
      parts.push_back({KeyOf("watch", i * 250 + n), OpaquePart("w"), RectOf(0, 1, 0, 1), ""});
    }
    client.Store(ns, parts);
  }
  for (const auto& one : idle) {
    one->context.get()->TryCancel();
    one->reader->Finish();
  }
}

void SlowReaders(Scene& scene) {
  struct Slow {
    explicit Slow(const std::stop_token& stop) : context(stop, std::chrono::minutes(2)) {}
    CallContext context;
    std::unique_ptr<grpc::ClientReader<v1::FetchFrame>> reader;
  };
  WireClient client(scene.node.address(), scene.stop);
  const std::string ns = client.Open(OpaqueSpec(scene.Tenant("slow")));
  std::string keys;
  std::vector<PartToStore> parts;
  for (uint64_t i = 0; i < 32; ++i) {
    parts.push_back({KeyOf("slow", i), OpaquePart(std::string(1 << 20, 's')), RectOf(0, 1, 0, 1),
                     i == 0 ? "" : KeyOf("slow", i - 1)});
    keys += KeyOf("slow", i);
  }
  client.Store(ns, parts);
  v1::MatchResponse match;
  client.Match(ns, keys, 60'000, &match);
  std::vector<std::unique_ptr<Slow>> slow;
  v1::FetchRequest request;
  request.set_session_id(client.session());
  request.set_lease_id(match.lease_id());
  for (int i = 0; i < 32 && match.lease_id() != 0; ++i) {
    slow.push_back(std::make_unique<Slow>(scene.stop));
    slow.back()->reader = client.cache().Fetch(slow.back()->context.get(), request);
    v1::FetchFrame frame;
    slow.back()->reader->Read(&frame);  // And no further.
  }
  scene.Spend(std::chrono::seconds(5));
  for (const auto& one : slow) {
    one->context.get()->TryCancel();
    one->reader->Finish();
  }
}

void SlowAdmin(Scene& scene) {
  std::vector<shm::Descriptor> sockets(300);
  const TimePoint end = SteadyClock::Get().Now() + std::chrono::seconds(6);
  while (SteadyClock::Get().Now() < end) {
    for (shm::Descriptor& socket : sockets) {
      char byte;
      const bool closed = !socket.valid() ||
                          recv(socket.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0 ||
                          (errno != EAGAIN && errno != EWOULDBLOCK);
      if (closed) {
        socket = DialTcp(scene.node.admin());
        if (socket.valid()) SendSome(socket, "GET /metrics HTTP/1.1\r\n");
      } else {
        SendSome(socket, "X");
      }
    }
    if (!scene.Spend(std::chrono::milliseconds(300))) return;
  }
}

void WireNoise(Scene& scene) {
  for (int i = 0; i < 300 && scene.going(); ++i) {
    const std::string& to = scene.random() % 2 == 0 ? scene.node.address() : scene.node.admin();
    const shm::Descriptor socket = DialTcp(to);
    scene.Spend(std::chrono::milliseconds(2));
    std::string noise;
    if (scene.random() % 2 == 0) noise = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    if (scene.random() % 3 == 0) noise = "GET /livez HTTP/1.1\r\nHost: ";
    for (uint64_t n = scene.Between(0, 3000); n > 0; --n) {
      noise.push_back(static_cast<char>(scene.random()));
    }
    SendSome(socket, noise);
    scene.Spend(std::chrono::milliseconds(scene.Between(0, 10)));
  }
}

void TracedFailures(Scene& scene) {
  scene.node.StopReadingLog(true);
  WireClient client(scene.node.address(), scene.stop);
  v1::MatchRequest request;
  request.set_session_id(std::string(16, '0'));
  request.set_fingerprint(std::string(32, '1'));
  request.set_keys(std::string(32, '2'));
  for (int i = 0; i < 5000 && scene.going(); ++i) {
    CallContext context(scene.stop, std::chrono::seconds(2));
    context.get()->AddMetadata("x-cairn-trace", fmt::format("t{}", i));
    v1::MatchResponse response;
    client.cache().Match(context.get(), request, &response);
  }
  scene.Spend(std::chrono::seconds(3));
  scene.node.StopReadingLog(false);
}

}  // namespace cairn::fault
