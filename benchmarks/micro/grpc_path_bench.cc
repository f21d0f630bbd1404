// The gRPC path against its yardsticks: one node, this process as its client, both on this machine.
//
//   build/release/benchmarks/grpc_path_bench [rounds] [seconds per row]
//                                            [only rows that contain this text]
//
// Each round takes memref (one thread of libc memcpy from DRAM) before and after every row, and raw
// TCP (1 MiB asked for and answered, 4 in flight, the kernel's congestion control). Printed are
// medians over the rounds. Every byte is verified, as always.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "cairn/client/connect.h"
#include "common/log/log.h"
#include "common/service/process_start.h"
#include "tests/support/process.h"
#include "tests/unit/clients/cpp/parts.h"

namespace {

using namespace cairn;
using client::CacheClient;

constexpr size_t kMiB = 1 << 20;
constexpr size_t kPool = 256 * kMiB;
double g_seconds = 0.4;
std::span<std::byte> g_from, g_to;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
void Must(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, ToString(status).c_str());
  std::_Exit(1);
}
template <typename T>
T Must(Result<T> result, const char* what) {
  Must(result.status(), what);
  return std::move(*result);
}
double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::span<std::byte> FilledPool(int fill) {
  void* const p = mmap(nullptr, kPool, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) std::abort();
  madvise(p, kPool, MADV_HUGEPAGE);
  std::memset(p, fill, kPool);
  return {static_cast<std::byte*>(p), kPool};
}

double Memref() {
  const double begin = Now();
  for (size_t at = 0; at < kPool; at += kMiB)
    std::memcpy(g_to.data() + at, g_from.data() + at, kMiB);
  return kPool / (Now() - begin);
}

bool SendAll(int s, const std::byte* data, size_t size) {
  for (ssize_t sent = 0; size > 0; data += sent, size -= static_cast<size_t>(sent)) {
    sent = send(s, data, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
  }
  return true;
}

double RawTcp(std::string* congestion_control) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, any, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, any, &length) != 0)
    std::abort();
  const int one = 1;
  std::thread server([&] {
    const int s = accept(listener, nullptr, nullptr);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char ask[8];
    for (size_t at = 0; recv(s, ask, 8, MSG_WAITALL) == 8; at = (at + kMiB) % kPool) {
      if (!SendAll(s, g_from.data() + at, kMiB)) break;
    }
    close(s);
  });
  const int s = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(s, any, length) != 0) std::abort();
  setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  char name[16] = "?";
  socklen_t size = sizeof name;
  getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, name, &size);
  *congestion_control = name;
  const auto* const ask = reinterpret_cast<const std::byte*>("request!");
  for (int i = 0; i < 4; ++i) SendAll(s, ask, 8);
  size_t at = 0, total = 0;
  const double begin = Now();
  while (Now() - begin < 0.4) {
    for (size_t done = 0; done < kMiB;) {
      const ssize_t got = recv(s, g_to.data() + at + done, kMiB - done, 0);
      if (got <= 0) std::abort();
      done += static_cast<size_t>(got);
    }
    SendAll(s, ask, 8);
    at = (at + kMiB) % kPool;
    total += kMiB;
  }
  const double rate = static_cast<double>(total) / (Now() - begin);
  close(s);
  server.join();
  close(listener);
  return rate;
}

// Blocks of `layers` slices of heads x 16 KiB.
NamespaceSpec Spec(const std::string& model, uint16_t layers, uint32_t heads) {
  const std::vector<Plane> kv = {{.name = "k", .heads = heads, .dim = 64, .dtype = DType::kF16},
                                 {.name = "v", .heads = heads, .dim = 64, .dtype = DType::kF16}};
  NamespaceSpec spec;
  spec.tenant = "bench";
  spec.model = model;
  spec.revision = "1";
  spec.layout.block_tokens = 64;
  spec.layout.form = NativeLayout{.groups = {{layers, kv}}, .kv_heads = heads};
  spec.numerics = "test";
  return spec;
}

// Bytes go where they belong in the pool, one block after the other.
class PoolSink final : public client::FetchSink {
 public:
  explicit PoolSink(uint64_t block_bytes) : block_bytes_(block_bytes) {}
  std::span<std::byte> Destination(const client::SliceInfo& s) override {
    return g_to.subspan((s.block * block_bytes_ + s.layer * s.slice_bytes) % kPool, s.slice_bytes);
  }
  Status OnSlice(const client::SliceInfo&, std::span<const std::byte> data) override {
    bytes += data.size();
    return OkStatus();
  }
  void OnBlockFailed(uint32_t block, client::MissReason reason) override {
    std::fprintf(stderr, "block %u: %s\n", block, std::string(Name(reason)).c_str());
    std::_Exit(1);
  }
  uint64_t bytes = 0;

 private:
  const uint64_t block_bytes_;
};

struct Stored {
  NamespaceSpec spec;
  uint64_t block_bytes = 0;
  std::vector<BlockKey> keys;
  client::Lease lease;
};

std::unique_ptr<CacheClient> Client(const std::string& address) {
  return Must(client::Connect(
                  {.address = address, .client_name = "bench", .path = client::PathChoice::kGrpc}),
              "connect");
}

// All of it is written once; `held`: and leased by `c`.
Stored Store(CacheClient& c, const std::string& model, uint16_t layers, uint32_t heads,
             size_t blocks) {
  Stored out{Spec(model, layers, heads), uint64_t{layers} * heads * (16 << 10), {}, {}};
  out.keys = client::testing::KeysFor(out.spec, blocks);
  Must(c.OpenNamespace(out.spec, {.deadline = std::chrono::seconds(10)}).status(), "open");
  const auto bytes = std::make_shared<std::vector<std::byte>>(
      client::testing::SealedPart(out.spec, out.keys[0], out.spec.layout.WholeRect()));
  std::vector<client::PartToPush> parts;
  for (size_t b = 0; b < blocks; ++b) {
    parts.push_back({.key = out.keys[b],
                     .parent = b == 0 ? std::nullopt : std::optional(out.keys[b - 1]),
                     .first_position = b * 64,
                     .rect = out.spec.layout.WholeRect(),
                     .bytes = *bytes,
                     .hold = bytes});
  }
  for (const Status& s :
       Must(c.Push(Fingerprint(out.spec), parts, {.deadline = std::chrono::seconds(60)}), "push"))
    Must(s, "part");
  auto match =
      Must(c.Match(Fingerprint(out.spec), out.keys,
                   {.deadline = std::chrono::seconds(5), .lease_ttl = std::chrono::seconds(600)}),
           "match");
  if (match.matched_blocks != blocks)
    Must(InvalidArgument("{} of {} blocks", match.matched_blocks, blocks), "match");
  out.lease = std::move(match.lease);
  return out;
}

// Runs `step(thread, i)`, which returns what it moved, on each thread until the time is over.
double Rate(size_t threads, const std::function<uint64_t(size_t, size_t)>& step) {
  std::atomic<uint64_t> total{0};
  const double begin = Now();
  std::vector<std::thread> running;
  for (size_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      for (size_t i = 0; Now() - begin < g_seconds; ++i) total += step(t, i);
    });
  }
  for (std::thread& t : running) t.join();
  return static_cast<double>(total) / (Now() - begin);
}

uint64_t Fetch(CacheClient& c, const Stored& s, uint32_t begin, uint32_t count) {
  PoolSink sink(s.block_bytes);
  Must(c.Fetch(s.lease, {.block_begin = begin, .block_end = begin + count}, sink, {}), "fetch");
  return sink.bytes;
}

}  // namespace

// Long: a list of rows, each with what it measures.
int main(int argc, char** argv) {
  service::InitProcess("grpc_path_bench");
  log::Configure({.level = log::Level::kError});
  const size_t rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 5;
  if (argc > 2) g_seconds = std::strtod(argv[2], nullptr);
  const std::string only = argc > 3 ? argv[3] : "";
  g_from = FilledPool(1);
  g_to = FilledPool(2);
  auto node = Must(
      testing::CacheNode::Start({"--host.capacity", "2GiB", "--host.prefault", "true"}), "node");
  const uint64_t idle_rss = node->process().ResidentBytes();
  auto c = Client(node->address());
  const Stored mib = Store(*c, "mib", 1, 64, 256);
  const Stored layered = Store(*c, "layered", 16, 4, 256);
  const Stored small = Store(*c, "small", 1, 4, 4096);
  const Digest fp = Fingerprint(small.spec);

  // Writes need new names; the bytes may repeat.
  const NamespaceSpec put_spec = Spec("put", 1, 64);
  Must(c->OpenNamespace(put_spec, {}).status(), "open");
  const BlockKey any_key = client::testing::KeysFor(put_spec, 1)[0];
  std::vector<std::shared_ptr<std::vector<std::byte>>> put_bytes;
  for (int i = 0; i < 64; ++i) {
    put_bytes.push_back(std::make_shared<std::vector<std::byte>>(
        client::testing::SealedPart(put_spec, any_key, put_spec.layout.WholeRect())));
  }
  std::atomic<uint64_t> next_key{1};
  const auto put = [&](size_t parts) {
    std::vector<client::PartToPush> push(parts);
    for (auto& part : push) {
      const uint64_t n = next_key++;
      std::memcpy(part.key.bytes.data(), &n, 8);
      part.rect = put_spec.layout.WholeRect();
      part.hold = put_bytes[n % put_bytes.size()];
      part.bytes = *put_bytes[n % put_bytes.size()];
    }
    for (const Status& s : Must(c->Push(Fingerprint(put_spec), push, {}), "push")) Must(s, "part");
    return parts * kMiB;
  };

  std::vector<std::unique_ptr<CacheClient>> many;
  std::vector<Stored> many_stored;
  const auto connect = [&](size_t clients) {
    while (many.size() < clients) {
      many.push_back(Client(node->address()));
      Must(many.back()->OpenNamespace(mib.spec, {.deadline = std::chrono::seconds(10)}).status(),
           "open");
      auto match = Must(many.back()->Match(Fingerprint(mib.spec), mib.keys,
                                           {.deadline = std::chrono::seconds(5),
                                            .lease_ttl = std::chrono::seconds(600)}),
                        "match");
      many_stored.push_back({mib.spec, mib.block_bytes, {}, std::move(match.lease)});
    }
  };
  const auto by_clients = [&](size_t clients) {
    connect(clients);
    return Rate(clients, [&](size_t t, size_t i) {
      return Fetch(*many[t], many_stored[t], static_cast<uint32_t>((t * 31 + i * 4) % 64 * 4), 4);
    });
  };
  const auto keys = [&](size_t i) { return std::span(small.keys).subspan(i % 4 * 1024, 1024); };

  const std::vector<std::pair<std::string, std::function<double()>>> rows = {
      {"get 1MiB x1 d1",
       [&] { return Rate(1, [&](size_t, size_t i) { return Fetch(*c, mib, i % 256, 1); }); }},
      {"get 1MiB x1 d4",
       [&] {
         return Rate(4, [&](size_t t, size_t i) { return Fetch(*c, mib, (t * 64 + i) % 256, 1); });
       }},
      {"get 1MiB stream of 64",
       [&] { return Rate(1, [&](size_t, size_t i) { return Fetch(*c, mib, i % 4 * 64, 64); }); }},
      {"get 16x64KiB layers stream of 64",
       [&] {
         return Rate(1, [&](size_t, size_t i) { return Fetch(*c, layered, i % 4 * 64, 64); });
       }},
      {"get 64KiB x1 d1",
       [&] { return Rate(1, [&](size_t, size_t i) { return Fetch(*c, small, i % 4096, 1); }); }},
      {"get 64KiB x16 d1",
       [&] {
         return Rate(1, [&](size_t, size_t i) { return Fetch(*c, small, i % 256 * 16, 16); });
       }},
      {"get 64KiB x16 d4",
       [&] {
         return Rate(
             4, [&](size_t t, size_t i) { return Fetch(*c, small, (t * 64 + i) % 256 * 16, 16); });
       }},
      {"put 1MiB x1 d4", [&] { return Rate(4, [&](size_t, size_t) { return put(1); }); }},
      {"put 1MiB x16 d1", [&] { return Rate(1, [&](size_t, size_t) { return put(16); }); }},
      {"exists 1024 d1 keys/s",
       [&] {
         return Rate(
             1, [&](size_t, size_t i) { return Must(c->Exists(fp, keys(i)), "exists").size(); });
       }},
      {"exists 1024 d4 keys/s",
       [&] {
         return Rate(
             4, [&](size_t, size_t i) { return Must(c->Exists(fp, keys(i)), "exists").size(); });
       }},
      {"match 1024 d1 keys/s",
       [&] {
         return Rate(1, [&](size_t, size_t) {
           return Must(c->Match(fp, keys(0), {.deadline = std::chrono::seconds(5), .lease = false}),
                       "match")
               .matched_blocks;
         });
       }},
      {"match 1024 d4 keys/s",
       [&] {
         return Rate(4, [&](size_t, size_t) {
           return Must(c->Match(fp, keys(0), {.deadline = std::chrono::seconds(5), .lease = false}),
                       "match")
               .matched_blocks;
         });
       }},
      {"clients 1", [&] { return by_clients(1); }},
      {"clients 8", [&] { return by_clients(8); }},
      {"clients 64", [&] { return by_clients(64); }},
  };
  std::map<std::string, std::vector<double>> rate, to_memref, to_tcp;
  std::vector<double> memrefs, tcps;
  std::string cc;
  for (size_t round = 0; round < rounds; ++round) {
    const double tcp = RawTcp(&cc);
    tcps.push_back(tcp);
    for (const auto& [name, run] : rows) {
      if (name.find(only) == std::string::npos) continue;
      const double before = Memref();
      const double r = run();
      const double memref = (before + Memref()) / 2;
      memrefs.push_back(memref);
      rate[name].push_back(r);
      to_memref[name].push_back(r / memref);
      to_tcp[name].push_back(r / tcp);
    }
  }
  std::printf("memref %.2f GB/s, raw TCP (%s) %.2f GB/s = %.2f memref, %zu rounds\n",
              Median(memrefs) / 1e9, cc.c_str(), Median(tcps) / 1e9, Median(tcps) / Median(memrefs),
              rounds);
  for (const auto& [name, run] : rows) {
    if (!rate.contains(name)) continue;
    if (name.ends_with("keys/s")) {
      std::printf("%-34s %6.2f M\n", name.c_str(), Median(rate[name]) / 1e6);
    } else {
      std::printf("%-34s %6.2f GB/s  %.3f memref [%.3f..%.3f]  %.2f TCP\n", name.c_str(),
                  Median(rate[name]) / 1e9, Median(to_memref[name]),
                  *std::min_element(to_memref[name].begin(), to_memref[name].end()),
                  *std::max_element(to_memref[name].begin(), to_memref[name].end()),
                  Median(to_tcp[name]));
    }
  }
  if (only.empty() || only == "idle") {
    // Idle sessions, on a node of their own.
    auto fresh = Must(testing::CacheNode::Start({"--host.capacity", "64MiB"}), "node");
    std::vector<std::unique_ptr<CacheClient>> idle;
    const auto open = [&](size_t n) {
      while (idle.size() < n) {
        idle.push_back(Client(fresh->address()));
        Must(idle.back()->OpenNamespace(mib.spec, {.deadline = std::chrono::seconds(10)}).status(),
             "open");
      }
      return fresh->process().ResidentBytes();
    };
    const uint64_t some = open(100), more = open(500);
    std::printf("node at start %.1f MiB; an idle session %.1f KiB\n",
                static_cast<double>(idle_rss) / kMiB,
                static_cast<double>(more - some) / 400 / 1024);
    std::fflush(stdout);
  }
  std::fflush(stdout);
  std::_Exit(0);  // 500 clients need a while to say goodbye.
}
