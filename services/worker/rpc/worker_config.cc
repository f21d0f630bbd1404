#include "services/worker/rpc/worker_config.h"

#include <unistd.h>

#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "common/config/text_file.h"
#include "common/memory/machine_memory.h"
#include "common/recipe/recipe.h"
#include "common/service/policy.h"
#include "common/service/tls_settings.h"
#include "model/gguf.h"
#include "services/worker/engine/option_check.h"

namespace cairn::worker {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

// The least that rpc.requests may become if nobody has set it.
constexpr uint64_t kLeastRequests = 16 << 20;

void RegisterWorker(config::Schema& schema, WorkerConfig& c) {
  schema.Text("listen", &c.listen, "Address of the gRPC port, HOST:PORT. Port 0 picks a free one.");
  schema.Text("admin.listen", &c.process.admin_listen,
              "Address of the admin HTTP port: /livez, /readyz, /metrics.");
  schema.Text("model", &c.model, "GGUF file to run.", {.env = "CAIRN_MODEL"});
  schema.Text("arithmetic", &c.arithmetic,
              "fast: bfloat16 products with float32 sums if the machine can do it. float32: exact.",
              {.choices = {"fast", "float32"}});
  schema.Text("device", &c.device,
              "Where the forward pass runs (docs/operate/gpu.md). cpu, or cuda:N for GPU number N.",
              {.max_length = 16});
  schema.Text("device_library", &c.device_library,
              "The library that drives the GPU: a path, or empty for libcairn_cuda.so next to the "
              "program, in ../lib, or where the linker looks.",
              {.max_length = 4096});
  schema.Bytes("device_kv", &c.device_kv,
               "Memory of the GPU for copies of the KV of requests that are computed together.",
               {.min = 1 << 20, .max = 1ull << 40});
  schema.Text("role", &c.role,
              "The requests that the worker takes (docs/operate/disaggregation.md). prefill: it "
              "computes prompts that others continue, and takes no other requests. decode: it "
              "takes none of these.",
              {.choices = {"both", "prefill", "decode"}});
  schema.Integer("threads", &c.threads, "Threads that compute. 0: one per processor.",
                 {.max = 1024, .unit = "threads"});
  schema.Integer("context", &c.context,
                 "Most tokens of prompt and answer together. 0: the model's limit.",
                 {.max = 1u << 30, .unit = "tokens"});
  schema.Bytes(
      "kv_pool", &c.kv_pool,
      "Memory for the KV of requests. 0: two sequences of the whole context, at least 256MiB. A "
      "prompt that never fits is spilt to the cache node, if the recipe is raw.");
  schema.Text("read_policy", &c.read_policy,
              "How contexts are read by rows while tokens are decoded, for example "
              "precision:near=turbo3,rows=0.02 (docs/methods/long-context.md). Empty: all KV stays "
              "in the pool.",
              {.max_length = 1024});
  schema.Bytes("kv_budget", &c.kv_budget,
               "With read_policy: near memory for contexts, shared evenly among batch.max_running "
               "requests. 0: what the longest contexts need, or what there is room for.");
  schema.Integer("batch.max_running", &c.max_running,
                 "Most requests that are computed at the same time. The others wait.",
                 {.min = 1, .max = 128});
  schema.Integer("queue.capacity", &c.queue_capacity,
                 "Most requests that may wait. The worker refuses more.", {.min = 1, .max = 4096});
  schema.Integer("queue.tenant_capacity", &c.queue_tenant_capacity,
                 "Most requests of one tenant that may wait. 0: as many as in all.", {.max = 4096});
  schema.Time("queue.max_wait", &c.queue_max_wait,
              "The worker refuses a request that would wait longer, by its measured speed. 0: it "
              "refuses none for that.");
  schema.TextList("queue.tenants", &c.queue_tenants,
                  "Shares of tenants when prompts are ordered, as NAME=WEIGHT or "
                  "NAME=WEIGHT:PRIORITY. PRIORITY is the greatest that counts before other "
                  "tenants' requests. All others have weight 1 and priority 0.",
                  {.max_length = 256});
  schema.Real("batch.decode_share", &c.decode_share,
              "Share of the time that requests which decode get while prompts wait.",
              {.min = 0.01, .max = 0.99});
  schema.Bytes("parking", &c.parking,
               "Memory for the KV of requests that gave their pages to more urgent ones. KV that "
               "does not fit is computed again.");
  schema.Integer("idle_turns", &c.idle_turns,
                 "Most finished turns that may wait for their prefill in idle time. 0: none.",
                 {.max = 1024});
  schema.Bytes(
      "rpc.requests", &c.rpc_requests,
      "Memory for the requests of all gRPC calls that are under way, as they were decoded, "
      "and as much for messages that arrive. The worker refuses what does not fit with "
      "RESOURCE_EXHAUSTED.",
      {.min = 1 << 20});
  schema.Bytes(
      "memory.limit", &c.memory_limit,
      "Most memory that the worker may take (docs/operate/operations.md). Settings that have their "
      "defaults give way where the sum is larger, and the worker refuses to start if that is not "
      "enough. 0: no limit but what the machine or the control group has left.");
  schema.Time("drain", &c.drain, "After SIGTERM: time for accepted requests and their pushes.");
}

void RegisterCache(config::Schema& schema, WorkerConfig& c) {
  schema.Text("tenant", &c.tenant, "Tenant of the KV at the cache node.", {.max_length = 128});
  schema.Text("tenant_salt_file", &c.tenant_salt_file,
              "File with the tenant's salt, so that other tenants cannot guess keys.",
              {.env = "CAIRN_TENANT_SALT_FILE"});
  schema.Text("cache.address", &c.cache_address,
              "Cache node, HOST:PORT or unix:/path. Several with commas between them, or "
              "dns:NAME:PORT for all addresses of a name: the worker uses one of them at a time. "
              "Empty: the worker computes everything.",
              {.env = "CAIRN_CACHE"});
  schema.Text("cache.host", &c.cache_host,
              "This machine, as the nodes' cluster.host call theirs. If there are several nodes, "
              "the worker prefers one on the same host. Empty: unknown.",
              {.env = "CAIRN_CACHE_HOST", .max_length = 128});
  schema.Text("cache.zone", &c.cache_zone,
              "This machine's network zone, as the nodes' cluster.zone call theirs. The worker "
              "prefers a node in the same zone after one on the same host. Empty: unknown.",
              {.env = "CAIRN_CACHE_ZONE", .max_length = 128});
  schema.Text("cache.home_key", &c.cache_home_key,
              "Workers with the same text prefer the same one of several nodes. Empty: the name of "
              "the machine and the listening address.",
              {.max_length = 128});
  schema.Text("cache.recipe", &c.recipe,
              "How the cache stores KV: raw, a codec such as int8 or turbo:bits=4, a ladder of "
              "codecs, or a selection of tokens and a codec, such as streaming:keep=0.4+int8 "
              "(docs/operate/recipes.md). Workers share blocks only with workers of the same "
              "recipe. A selection also applies without a cache.",
              {.max_length = 1024});
  schema.Text(
      "cache.publish", &c.publish,
      "Further recipes, separated by semicolons. The worker also pushes blocks that were computed "
      "over exact KV to the namespaces of these recipes, for workers that read them.",
      {.max_length = 4096});
  schema.Text("cache.calibration", &c.calibration,
              "Folder of the calibration files that recipes and read policies name by their "
              "digest, such as the head scores that duo and razor read "
              "(docs/methods/calibration.md).",
              {.env = "CAIRN_CALIBRATION"});
  schema.Time("cache.match_deadline", &c.match_deadline,
              "The longest time that a request waits for the node's answer about its prefix.",
              {.min = milliseconds(1), .max = std::chrono::seconds(10)});
  schema.Time("cache.stall_deadline", &c.stall_deadline,
              "The worker gives up a fetch that brings nothing for this long. It waits longer (up "
              "to 2s) when computing again would take more than four times as long.",
              {.min = milliseconds(1), .max = std::chrono::seconds(60)});
  schema.Bool("cache.overlap", &c.overlap, "Compute while later layers of a fetch still arrive.");
  schema.Bool("cache.choose", &c.choose,
              "Compute the front of a prefix instead of fetching it when measurements say that "
              "this is faster.");
  schema.Text("cache.path", &c.path,
              "auto: shared memory when the node is on this machine and offers it, otherwise gRPC. "
              "grpc: never shared memory. local: only shared memory.",
              {.choices = {"auto", "grpc", "local"}});
  schema.Bool(
      "cache.lend", &c.lend,
      "With shared memory: read blocks in place, without a copy, while a request runs. Blocks "
      "that another process can still write to are copied.");
  schema.Bytes(
      "cache.push_queue", &c.push_queue,
      "Memory for KV pages that wait for their push. Pages that do not fit are not pushed.");
  schema.Integer(
      "cache.push_niceness", &c.push_niceness,
      "Niceness of the pushing thread. Higher values give more time to the threads that compute.",
      {.max = 19});
  schema.Text(
      "cache.ca", &c.cache_ca,
      "PEM file with the authorities that sign the node's certificate. Empty: tls.client_ca.");
  schema.Text("cache.cert", &c.cache_certificate,
              "PEM file with the certificate that the worker shows to the node. Empty: tls.cert.");
  schema.Text("cache.key", &c.cache_private_key,
              "PEM file with the key of cache.cert. Empty: tls.key.");
  schema.Text("cache.server_name", &c.cache_server_name,
              "Name expected in the node's certificate. Empty: the name in the address.");
}

void RegisterEdge(config::Schema& schema, WorkerConfig& c) {
  service::RegisterTls(&c.tls, &c.accept_plaintext,
                       "PEM file with the server's certificate chain. Empty: no TLS.", &schema);
  service::RegisterPolicy(&c.auth_policy, &schema);
  service::Settings::RegisterLog(&c.process, &schema);
  service::Settings::RegisterTracing(&c.process, &schema);
  service::Settings::RegisterJson(&c.process, &schema);
}

// Recipes have commas and spaces in them.
std::vector<std::string> SplitRecipes(const std::string& text) {
  std::vector<std::string> recipes;
  std::istringstream in(text);
  for (std::string recipe; std::getline(in, recipe, ';');) {
    if (!recipe.empty()) recipes.push_back(recipe);
  }
  return recipes;
}

Status CheckAddresses(WorkerConfig& c) {
  if (c.accept_plaintext) c.tls.allow_plaintext_beyond_loopback = true;
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress listen,
                         net::ParseListenAddress(c.listen, "listen",
                                                 "host:port such as 127.0.0.1:7500 or unix:/path"));
  CAIRN_RETURN_IF_ERROR(net::Check(c.tls));
  CAIRN_RETURN_IF_ERROR(net::CheckBind(listen, c.tls, "listen"));
  // Probes and metrics only, nothing that changes anything: never behind TLS.
  CAIRN_ASSIGN_OR_RETURN(const net::ListenAddress admin, service::ParseAdminListen(c.process));
  CAIRN_RETURN_IF_ERROR(net::CheckDistinct({{"listen", listen}, {"admin.listen", admin}}));
  return service::CheckPolicy(c.auth_policy, c.tls, c.listen);
}

// The pool's pages cost memory when they are first used, and not at the start.
Status CheckPool(const WorkerConfig& c) {
  return CheckFits(ReadMachineMemory(), c.kv_pool, "kv_pool: got " + config::FormatBytes(c.kv_pool),
                   "lower kv_pool");
}

// The errors that a start would find, as far as finding them costs no time: the weights are not
// read.
Status CheckWithoutLoading(const WorkerConfig& c) {
  CAIRN_ASSIGN_OR_RETURN(const WorkerEngine::Options options, EngineOptions(c));
  CAIRN_RETURN_IF_ERROR(CheckOptions(options));
  return Annotate(model::GgufFile::OpenMetadata(c.model).status(), "model");
}

}  // namespace

void Register(config::Schema& schema, WorkerConfig& c) {
  RegisterWorker(schema, c);
  RegisterCache(schema, c);
  RegisterEdge(schema, c);
  schema.Check([&c] {
    return c.model.empty() ? InvalidArgument("model: got nothing, expected a GGUF file (--model)")
                           : OkStatus();
  });
  schema.Check([&c] { return CheckAddresses(c); });
  schema.Check([&c] { return ParseTenants(c.queue_tenants).status(); });
  schema.Check([&c] { return CheckPool(c); });
  schema.Check([&c] { return Annotate(ParseRecipe(c.recipe).status(), "cache.recipe"); });
  schema.CheckOnRequest([&c] { return CheckWithoutLoading(c); });
}

std::vector<std::string> ExpandShortFlags(const std::vector<std::string>& args) {
  static const std::map<std::string, std::string> kLong = {
      {"--cache", "--cache.address"}, {"--admin", "--admin.listen"}, {"--kv-pool", "--kv_pool"}};
  std::vector<std::string> expanded;
  for (const std::string& arg : args) {
    const size_t equals = arg.find('=');
    const auto found = kLong.find(arg.substr(0, equals));
    expanded.push_back(found == kLong.end()          ? arg
                       : equals == std::string::npos ? found->second
                                                     : found->second + arg.substr(equals));
  }
  return expanded;
}

Result<std::map<std::string, TenantTerms>> ParseTenants(const std::vector<std::string>& entries) {
  return ParseTenantTerms(entries, "queue.tenants", model::kLeastPriority,
                          model::kGreatestPriority);
}

size_t Threads(const WorkerConfig& c) {
  // One for each request that it takes and for each fetch, eight that answer short calls and eight
  // that wait for work in the background, and some of the engine's own.
  constexpr size_t kAlways = 8 + 8 + 6;
  const size_t compute = c.threads != 0 ? c.threads : std::thread::hardware_concurrency();
  return kAlways + c.queue_capacity + 2 * size_t{c.max_running} + compute;
}

Result<WorkerEngine::Options> EngineOptions(const WorkerConfig& c) {
  WorkerEngine::Options options;
  options.model_path = c.model;
  options.arithmetic = c.arithmetic == "float32" ? Arithmetic::kFloat32 : Arithmetic::kFast;
  options.threads = static_cast<int>(c.threads);
  options.device = c.device;
  options.device_library = c.device_library;
  options.device_kv_bytes = c.device_kv;
  options.max_context = static_cast<int32_t>(c.context);
  options.kv_pool_bytes = c.kv_pool;
  options.read_policy = c.read_policy;
  options.kv_budget = c.kv_budget;
  options.max_running = c.max_running;
  options.queue_capacity = c.queue_capacity;
  options.tenant_queue_capacity = c.queue_tenant_capacity;
  options.queue_max_wait = c.queue_max_wait;
  CAIRN_ASSIGN_OR_RETURN(options.tenant_terms, ParseTenants(c.queue_tenants));
  options.decode_share = c.decode_share;
  options.parking_bytes = c.parking;
  options.memory_limit = c.memory_limit;
  options.request_bytes = c.rpc_requests;
  const bool is_default = c.rpc_requests == WorkerConfig().rpc_requests;
  options.least_request_bytes = is_default ? kLeastRequests : c.rpc_requests;
  options.idle_turns = c.idle_turns;
  options.tenant = c.tenant;
  options.recipe = c.recipe;
  options.publish = SplitRecipes(c.publish);
  options.calibration = c.calibration;
  options.cache_address = c.cache_address;
  options.role = c.role == "prefill"  ? model::WorkerRole::kPrefill
                 : c.role == "decode" ? model::WorkerRole::kDecode
                                      : model::WorkerRole::kBoth;
  options.prefix.match_deadline = duration_cast<milliseconds>(c.match_deadline);
  options.prefix.stall_deadline = duration_cast<milliseconds>(c.stall_deadline);
  options.prefix.overlap = c.overlap;
  options.prefix.choose = c.choose;
  options.prefix.lend = c.lend;
  options.push.max_bytes = c.push_queue;
  options.push.niceness = static_cast<int>(c.push_niceness);
  if (!c.tenant_salt_file.empty()) {
    CAIRN_ASSIGN_OR_RETURN(options.salt,
                           config::ReadSecretFile(c.tenant_salt_file, "tenant_salt_file"));
  }
  return options;
}

client::ConnectOptions CacheConnection(const WorkerConfig& c) {
  const auto either = [](const std::string& own, const std::string& other) {
    return own.empty() ? other : own;
  };
  client::ConnectOptions options;
  options.address = c.cache_address;
  options.host = c.cache_host;
  options.zone = c.cache_zone;
  options.tenant = c.tenant;
  options.path = c.path == "grpc"    ? client::PathChoice::kGrpc
                 : c.path == "local" ? client::PathChoice::kLocal
                                     : client::PathChoice::kAuto;
  const std::string host = service::MachineName();
  options.client_name = fmt::format("cairn-worker {} {}", host, getpid());
  // Not the process: after a restart the blocks are still where they were.
  options.home_key = either(c.cache_home_key, fmt::format("{} {}", host, c.listen).substr(0, 128));
  options.tls.ca_file = either(c.cache_ca, c.tls.client_ca);
  options.tls.cert_file = either(c.cache_certificate, c.tls.certificate);
  options.tls.key_file = either(c.cache_private_key, c.tls.private_key);
  options.tls.server_name = c.cache_server_name;
  return options;
}

}  // namespace cairn::worker
