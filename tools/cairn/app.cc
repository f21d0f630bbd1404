#include "tools/cairn/app.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>

#include "common/config/version.h"
#include "tools/cairn/commands/commands.h"
#include "tools/cairn/commands/completion.h"
#include "tools/cairn/commands/report_error.h"
#include "tools/cairn/fidelity/texts.h"
#include "tools/cairn/size/model_shape.h"

namespace cairn::cli {
namespace {

constexpr char kEpilog[] =
    "Exit code: 0 done, 1 failed, 2 wrong command line.\n"
    "Each command explains itself: cairn COMMAND --help";

void AddTlsFlags(CLI::App& command, TlsFlags& tls) {
  command.add_option("--tls-ca", tls.ca, "PEM file: connect with TLS and trust these authorities");
  CLI::Option* cert = command.add_option("--tls-cert", tls.cert,
                                         "PEM file: the client's certificate, for mutual TLS");
  CLI::Option* key = command.add_option("--tls-key", tls.key, "PEM file: the key of --tls-cert");
  command.add_option("--tls-server-name", tls.server_name,
                     "Name expected in the server's certificate, if it is not the address's");
  cert->needs(key);
  key->needs(cert);
}

// Of generate and chat.
void AddWorkerFlags(CLI::App& command, WorkerOptions& options) {
  command.add_option("--model", options.model, "GGUF file of a worker in this process")
      ->envname("CAIRN_MODEL")
      ->capture_default_str();
  CLI::Option* worker = command.add_option(
      "--worker", options.worker, "Ask the worker at HOST:PORT instead of running one here");
  command
      .add_option("--prefill-worker", options.prefill_worker,
                  "With --worker: let the worker at HOST:PORT compute the prompt for it")
      ->needs(worker);
  CLI::Option* cache = command.add_option("--cache", options.cache,
                                          "Fetch from and push to the cache node at HOST:PORT");
  CLI::Option* no_cache =
      command.add_flag("--no-cache", options.no_cache, "Neither fetch nor push");
  cache->excludes(no_cache)->excludes(worker);
  command
      .add_option("--arithmetic", options.arithmetic,
                  "fast: bfloat16 if the CPU has it; float32: exact")
      ->check(CLI::IsMember({"fast", "float32"}))
      ->capture_default_str();
  command
      .add_option("--recipe", options.recipe,
                  "How a worker in this process stores KV, as in its setting cache.recipe")
      ->capture_default_str()
      ->excludes(worker);
  command
      .add_option("--calibration", options.calibration,
                  "Folder of the files that recipes name, as in its setting cache.calibration")
      ->envname("CAIRN_CALIBRATION")
      ->capture_default_str();
  CLI::Option* policy = command
                            .add_option("--read-policy", options.read_policy,
                                        "How a worker in this process reads contexts by rows, for "
                                        "example precision:near=turbo3,rows=0.02")
                            ->excludes(worker);
  command
      .add_option("--kv-budget", options.kv_budget,
                  "With --read-policy: near memory for contexts, such as 256MiB")
      ->needs(policy);
  command.add_option("--threads", options.threads, "Threads that compute; 0: one per CPU")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_option("--device", options.device,
                  "Where a worker in this process computes: cpu, or cuda:N for GPU number N")
      ->capture_default_str()
      ->excludes(worker);
  AddTlsFlags(command, options.tls);
}

void AddSamplingFlags(CLI::App& command, SamplingFlags& flags) {
  command.add_option("--max-tokens", flags.max_tokens, "The most tokens to generate")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  command.add_option("--temperature", flags.temperature, "0: always the most likely token")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command.add_option("--top-k", flags.top_k, "Choose among the K most likely tokens; 0: all")
      ->capture_default_str();
  command
      .add_option("--top-p", flags.top_p,
                  "Choose among the most likely tokens whose probabilities add up to P")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_option("--seed", flags.seed, "The same seed and prompt give the same answer")
      ->capture_default_str();
}

void AddJson(CLI::App& command, bool& json, const char* what) {
  command.add_flag("--json", json, what);
}

void AddGenerate(CLI::App& app, GenerateOptions& o) {
  CLI::App& c = *app.add_subcommand("generate", "Answers one prompt");
  AddWorkerFlags(c, o.worker);
  AddSamplingFlags(c, o.sampling);
  CLI::Option* prompt = c.add_option("--prompt", o.prompt, "The prompt");
  CLI::Option* file =
      c.add_option("--prompt-file", o.prompt_file, "File with the prompt; -: standard input");
  prompt->excludes(file);
  CLI::Option* system = c.add_option("--system", o.system, "System message before the prompt");
  c.add_flag("--raw", o.raw,
             "Use the text as it is, without a chat template; special tokens are recognised")
      ->excludes(system);
  c.add_option(
       "--prefix-end", o.prefix_end,
       "How many first tokens other prompts share, for recipes with a selection; 0: unknown")
      ->capture_default_str();
  c.add_option("--stop", o.stop, "End the answer before this text; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  c.add_option("--priority", o.priority, "-10 to 10; a greater one goes first at a busy worker")
      ->capture_default_str();
  c.add_option("--tenant", o.tenant, "Whom a busy worker charges; empty: the worker's tenant");
  c.add_option("--deadline", o.deadline_seconds,
               "Seconds after which the answer ends with what there is; 0: none")
      ->check(CLI::Range(0.0, 604800.0))
      ->capture_default_str();
  c.add_option("--next", o.next, "What the conversation does next: a hint for the cache node")
      ->check(CLI::IsMember({"unknown", "soon", "later", "never"}))
      ->capture_default_str();
  c.add_flag("--ignore-eos", o.ignore_eos, "Continue until --max-tokens");
  AddJson(c, o.json, "Print one JSON object instead of the text");
  c.footer(
      "Example:\n"
      "  cairn generate --model m.gguf --prompt 'Why is the sky blue?' --max-tokens 100\n"
      "  cairn generate --model m.gguf --prompt-file doc.txt --raw --cache 127.0.0.1:7400 --json");
}

void AddChat(CLI::App& app, ChatOptions& o) {
  CLI::App& c =
      *app.add_subcommand("chat", "Holds a chat; each turn reuses the KV of the turns before");
  AddWorkerFlags(c, o.worker);
  AddSamplingFlags(c, o.sampling);
  CLI::Option* system = c.add_option("--system", o.system, "System message");
  c.add_option("--system-file", o.system_file, "File with the system message")->excludes(system);
  AddJson(c, o.json, "Print one JSON object per turn");
  c.footer(
      "Without --cache, --worker or --no-cache it starts a cache node of its own, in RAM.\n"
      "/reset starts over, /quit ends. Reads one message per line, also from a pipe.\n"
      "Example:\n"
      "  cairn chat --model m.gguf --system 'You are a patient teacher.'\n"
      "  printf 'Hello!\\nAnd then?\\n' | cairn chat --model m.gguf --cache 127.0.0.1:7400");
}

void AddStat(CLI::App& app, StatOptions& o) {
  CLI::App& c = *app.add_subcommand("stat", "Shows what a cache node stores and what it has done");
  c.add_option(
       "--cache", o.cache,
       "Address of the node, HOST:PORT. Of several with commas, or of dns:NAME:PORT, the one "
       "that a client would use answers")
      ->capture_default_str();
  c.add_option("--timeout", o.timeout_s, "Seconds to wait for its answer")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  c.add_flag("--cluster", o.cluster,
             "Ask the nodes at --cache (several with commas), and every member that they name");
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "With --cluster the exit code is 0 if all members answer and see each other, 1 if not, and "
      "2\n"
      "if no node at --cache could be asked.\n"
      "Examples:\n"
      "  cairn stat --cache 127.0.0.1:7400\n"
      "  cairn stat --cluster --cache 10.0.0.1:7400,10.0.0.2:7400");
}

// One command of `cairn cluster`.
CLI::App& AddClusterCommand(CLI::App& group, ClusterOptions& o, const char* name, const char* help,
                            const char* cache_help) {
  CLI::App& c = *group.add_subcommand(name, help);
  c.add_option("--cache", o.cache, cache_help)->capture_default_str();
  c.add_option("--timeout", o.timeout_s, "Seconds to wait for each answer")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object");
  return c;
}

void AddWait(CLI::App& c, ClusterOptions& o, double seconds, const char* help) {
  o.wait_s = seconds;
  c.add_option("--wait", o.wait_s, help)->check(CLI::Range(0.0, 86400.0))->capture_default_str();
}

constexpr char kOneNode[] = "Address of the node, HOST:PORT";
constexpr char kSomeNodes[] = "Addresses of one or more members, HOST:PORT with commas";
constexpr char kNamespace[] = "Fingerprint of the namespace, 64 hexadecimal digits";

struct ClusterCommands {
  ClusterOptions members, locate, drain, bump, drop_tenant;
};

void AddCluster(CLI::App& app, ClusterCommands& o) {
  CLI::App& group = *app.add_subcommand("cluster", "Looks at a cluster of nodes and changes it");
  group.require_subcommand(1);
  AddClusterCommand(group, o.members, "members", "Shows which members one node sees", kOneNode)
      .footer("Example:\n  cairn cluster members --cache 127.0.0.1:7400");
  CLI::App& locate = AddClusterCommand(group, o.locate, "locate",
                                       "Shows which nodes hold how much of a prompt", kOneNode);
  locate.add_option("--namespace", o.locate.fingerprint, kNamespace)->required();
  locate
      .add_option("--keys", o.locate.keys,
                  "File with the prompt's block keys in hexadecimal, one per line; -: standard "
                  "input")
      ->capture_default_str();
  locate.footer("Example:\n  cairn cluster locate --namespace FINGERPRINT --keys keys.txt");
  CLI::App& drain =
      AddClusterCommand(group, o.drain, "drain",
                        "Makes a node leave its cluster, finish its calls and stop", kOneNode);
  AddWait(drain, o.drain, 120, "Seconds to wait until the node is gone; 0: do not wait");
  drain.footer("Needs the admin role.\nExample:\n  cairn cluster drain --cache 10.0.0.2:7400");
  CLI::App& bump = AddClusterCommand(
      group, o.bump, "bump", "Hides all blocks of a namespace at all members, for changed weights",
      kSomeNodes);
  bump.add_option("--namespace", o.bump.fingerprint, kNamespace)->required();
  AddWait(bump, o.bump, 60, "Seconds to wait until all members know the bump");
  bump.footer(
      "Needs the admin role at one member that knows the namespace. Fails if a member does not\n"
      "know the bump in time: it then learns it before it serves other members again.\n"
      "Example:\n  cairn cluster bump --namespace FINGERPRINT");
  CLI::App& drop = AddClusterCommand(group, o.drop_tenant, "drop-tenant",
                                     "Drops all namespaces of a tenant at all members", kSomeNodes);
  drop.add_option("--tenant", o.drop_tenant.tenant, "The tenant")->required();
  drop.footer(
      "Needs the admin role at all members.\nExample:\n  cairn cluster drop-tenant --tenant "
      "team-a");
}

int RunCluster(const CLI::App& group, const ClusterCommands& o) {
  if (group.got_subcommand("members")) return RunClusterMembers(o.members);
  if (group.got_subcommand("locate")) return RunClusterLocate(o.locate);
  if (group.got_subcommand("drain")) return RunClusterDrain(o.drain);
  if (group.got_subcommand("bump")) return RunClusterBump(o.bump);
  return RunClusterDropTenant(o.drop_tenant);
}

void AddSettings(CLI::App& command, const char* flag, std::vector<std::string>& settings,
                 const char* help) {
  command.add_option(flag, settings, help)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check([](const std::string& text) {
        const size_t equals = text.find('=');
        return equals == text.npos || equals == 0 ? "expected KEY=VALUE" : std::string();
      });
}

constexpr char kLaunchDirectory[] =
    "Directory of state, logs and data; default: cairn-up in $XDG_RUNTIME_DIR, or in this user's "
    "folder below the folder for temporary files";

void AddUp(CLI::App& app, UpOptions& o) {
  CLI::App& c = *app.add_subcommand("up", "Starts nodes, workers and a router on this machine");
  CLI::Option* directory = c.add_option("--dir", o.directory, kLaunchDirectory);
  c.add_option("--nodes", o.nodes, "Cache nodes; more than one form a cluster")
      ->check(CLI::Range(0u, 64u))
      ->capture_default_str();
  c.add_option("--workers", o.workers, "Workers, dealt out to the nodes")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  c.add_option("--prefill-workers", o.prefill_workers,
               "More workers, which compute prompts for those, dealt out to the nodes in the same "
               "way")
      ->check(CLI::Range(0u, 64u))
      ->capture_default_str();
  c.add_option("--model", o.model, "GGUF file of the workers")
      ->envname("CAIRN_MODEL")
      ->capture_default_str();
  c.add_option("--threads", o.threads,
               "Threads of each worker; 0: the machine's CPUs, divided among the workers")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  c.add_option("--ram", o.ram, "Memory of each node's host tier")->capture_default_str();
  c.add_option("--disk", o.disk, "Disk tier of each node, such as 4GiB, in the directory")
      ->needs(directory);
  AddSettings(c, "--node-set", o.node_settings,
              "KEY=VALUE: a setting of each node; may be given several times");
  AddSettings(c, "--worker-set", o.worker_settings,
              "KEY=VALUE: a setting of each worker; may be given several times");
  AddSettings(c, "--router-set", o.router_settings,
              "KEY=VALUE: a setting of the router; may be given several times");
  c.add_option("--http", o.http, "Where the router serves HTTP, HOST:PORT; port 0: a free one")
      ->capture_default_str();
  c.add_option("--timeout", o.timeout_s,
               "Seconds until nodes, then workers, and then the router must serve")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
  CLI::Option* foreground =
      c.add_flag("--foreground", o.foreground, "Stay, and end everything on Ctrl-C");
  c.add_flag("--keep", o.keep, "Keep then what the nodes have on disk, for the next `cairn up`")
      ->needs(foreground);
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "Everything listens on loopback, on free ports, and goes on in the background until\n"
      "`cairn down`. If something does not serve, `up` shows the end of its log and ends the "
      "rest.\n"
      "Examples:\n"
      "  cairn up --nodes 2 --workers 2\n"
      "  cairn up --dir /var/tmp/cairn --disk 4GiB --model m.gguf");
}

void AddDown(CLI::App& app, DownOptions& o) {
  CLI::App& c = *app.add_subcommand("down", "Ends what `cairn up` has started");
  c.add_option("--dir", o.directory, kLaunchDirectory);
  c.add_option("--timeout", o.timeout_s,
               "Seconds for the router, then the workers, and then the nodes, to end their "
               "requests; what is left is killed")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  c.add_flag("--keep", o.keep, "Keep what the nodes have on disk, for the next `cairn up`");
  AddJson(c, o.json, "Print one JSON object");
  c.footer("Example:\n  cairn down");
}

void AddTop(CLI::App& app, TopOptions& o) {
  CLI::App& c =
      *app.add_subcommand("top", "Shows nodes, workers and router at work, again and again");
  CLI::Option* directory = c.add_option("--dir", o.directory, kLaunchDirectory);
  c.add_option("--cache", o.cache,
               "Instead of what `cairn up` started: addresses of nodes, HOST:PORT with commas; "
               "some members of a cluster are enough")
      ->excludes(directory);
  c.add_option("--worker", o.workers, "Address of a worker; may be given several times")
      ->delimiter(',')
      ->excludes(directory);
  c.add_option("--router", o.router, "Address of a router's gRPC port")->excludes(directory);
  c.add_option("--interval", o.interval_s, "Seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  c.add_option("--count", o.count, "End after so many looks; 0: on Ctrl-C")->capture_default_str();
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object for each look");
  c.footer(
      "On a terminal it redraws its tables; elsewhere it prints one line for each process and\n"
      "look. Rates are those since the look before.\n"
      "Examples:\n"
      "  cairn top\n"
      "  cairn top --cache 10.0.0.1:7400 --worker 10.0.0.1:7500,10.0.0.2:7500 --count 2 --json");
}

void AddDoctor(CLI::App& app, DoctorOptions& o) {
  CLI::App& c =
      *app.add_subcommand("doctor", "Says what is missing on this machine and how to get it");
  c.add_option("--model", o.model, "GGUF file to look for")
      ->envname("CAIRN_MODEL")
      ->capture_default_str();
  c.add_option("--dir", o.directory, "Directory for a disk tier")->capture_default_str();
  c.add_option("--cache", o.cache, "Also ask the cache node at HOST:PORT");
  CLI::Option* vllm = c.add_option(
      "--vllm", o.vllm,
      "Check this value of vLLM's --kv-transfer-config instead, a file or the JSON itself");
  c.add_option("--vllm-model", o.vllm_model,
               "The model that vLLM serves: a folder, or its name on a hub")
      ->needs(vllm);
  c.add_option("--python", o.python, "The Python in which vLLM and Cairn's package are installed")
      ->needs(vllm)
      ->capture_default_str();
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "Examples:\n  cairn doctor --dir /var/lib/cairn\n"
      "  cairn doctor --vllm kv-transfer.json --python venv/bin/python");
}

void AddFidelity(CLI::App& app, FidelityOptions& o) {
  CLI::App& c = *app.add_subcommand("fidelity", "Measures how much a recipe changes the answers");
  c.add_option(
       "--recipe", o.recipes,
       "How KV is stored, as in the worker's setting cache.recipe; may be given several times")
      ->capture_default_str();
  c.add_option("--read-policy", o.read_policies,
               "How the context is read by rows, as in the worker's setting read_policy; may be "
               "given several times");
  c.add_option("--suite", o.suites, fmt::format("{}", fmt::join(FidelitySuites(), ", ")))
      ->delimiter(',')
      ->check(CLI::IsMember(FidelitySuites()))
      ->capture_default_str();
  c.add_flag("--exact", o.exact, "Compute in float32");
  c.add_flag("--kept", o.kept, "Write which rows selections kept to OUT/kept-SUITE.json");
  c.add_option("--split", o.split, "published, or tuning: texts for choosing parameters")
      ->check(CLI::IsMember({"published", "tuning"}))
      ->capture_default_str();
  c.add_option("--limit", o.limit, "Only the first N texts of a suite; 0: all")
      ->capture_default_str();
  c.add_option("--context-tokens", o.context_tokens,
               "Context of a document, of which 256 tokens more are read; whole blocks of 64")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  c.add_option("--question-tokens", o.question_tokens,
               "Longest context that questions are asked about; whole blocks of 64")
      ->check(CLI::Range(128, 1 << 20))
      ->capture_default_str();
  c.add_option("--model", o.model, "GGUF file")->envname("CAIRN_MODEL")->capture_default_str();
  c.add_option("--texts", o.texts, "Directory of the texts")->capture_default_str();
  c.add_option("--out", o.out, "Directory for logs, and for the tokens that were used")
      ->capture_default_str();
  c.add_option("--threads", o.threads, "Threads of each worker; 0: one per CPU")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  AddJson(c, o.json, "Print the rows as JSON");
  c.footer(
      "One worker computes each context and pushes it to a node in all recipes. Another worker\n"
      "fetches it and computes what follows, and its results are compared with those of the "
      "first.\n"
      "Fails if a context was not fetched completely. A ladder is measured in its last form, from\n"
      "disk.\n"
      "Example:\n"
      "  cairn fidelity --recipe raw --recipe int8 --suite prose,needles --exact");
}

void AddDemo(CLI::App& app, DemoOptions& o) {
  CLI::App& c =
      *app.add_subcommand("demo", "Shows the whole service at work: cold, from RAM, from disk");
  c.add_option("--model", o.model, "GGUF file with a chat template and 8k tokens of context")
      ->envname("CAIRN_MODEL")
      ->capture_default_str();
  c.add_option("--out", o.out, "Directory for report.json, logs and the node's disk")
      ->capture_default_str();
  c.add_option("--questions", o.questions, "Ask only the first N questions")
      ->check(CLI::Range(1u, 8u))
      ->capture_default_str();
  c.add_option("--turns", o.turns, "Only the first N turns of the chat")
      ->check(CLI::Range(1u, 4u))
      ->capture_default_str();
  c.add_option("--document", o.document,
               "Text file with a system message that replaces the built-in ones");
  c.add_option("--cache", o.cache,
               "Use the node at HOST:PORT; it is not killed, so there are no disk phases");
  c.add_option("--threads", o.threads, "Threads of each worker; 0: one per CPU")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  c.add_flag("--keep", o.keep, "Keep the node's disk directory");
  AddJson(c, o.json, "Print the report instead of the tables");
  c.footer(
      "Starts one cache node and two workers, asks 8 questions about one long text and holds a\n"
      "chat. Compares every answer with that of a process without a cache. Fails if an answer\n"
      "differs, or if a warm phase fetched nothing.\n"
      "Example:\n"
      "  cairn demo --questions 2");
}

void AddBench(CLI::App& app, bench::BenchFlags& o) {
  CLI::App& c = *app.add_subcommand(
      "bench", "Measures a cache node and compares it with what memory and network can do");
  std::string known;
  for (const std::string& name : bench::WorkloadNames())
    known += (known.empty() ? "" : ", ") + name;
  c.add_option("workload", o.workload, known)->required();
  c.add_option("--cache", o.cache, "Measure the node at HOST:PORT instead of starting one");
  c.add_option("--size", o.size,
               "Bytes of a block, such as 64KiB; default 1MiB, for exists and match 4KiB");
  c.add_option("--data", o.data, "Bytes of all blocks; default 256MiB, larger than any cache");
  c.add_option("--layers", o.layers, "Number of slices of a block, each with its own checksum")
      ->check(CLI::Range(1u, 1024u))
      ->capture_default_str();
  c.add_option("--batch", o.batch, "Blocks or keys of a call; default 1, for exists and match 1024")
      ->check(CLI::Range(1u, 65536u));
  c.add_option("--depth", o.depth, "Calls in flight of each client; default 4")
      ->check(CLI::Range(1u, 1024u));
  c.add_option("--clients", o.clients,
               "Clients, each with its own connection; default 1, for sessions 1000")
      ->check(CLI::Range(1u, 4096u));
  c.add_option("--path", o.path,
               "auto: shared memory if the node offers it; grpc: never; local: only shared memory")
      ->check(CLI::IsMember({"auto", "grpc", "local"}))
      ->capture_default_str();
  c.add_option("--spin", o.spin,
               "Shared memory: how long client and node look for messages before they sleep, such "
               "as 50us; auto: 150us with more than one CPU");
  c.add_option("--seconds", o.seconds, "Measured time of a trial")
      ->check(CLI::Range(0.001, 600.0))
      ->capture_default_str();
  c.add_option("--repeat", o.repeat, "Number of trials, with the yardsticks between them")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  c.add_flag(
      "--verify,!--no-verify", o.verify,
      "Compare checksums during the fetch, as clients do; the result is compared in any case");
  c.add_flag("--lookup", o.lookup, "get: each call matches and leases its blocks first");
  c.add_flag("--lease,!--no-lease", o.lease, "match: take a lease and give it back at once");
  c.add_flag("--lent", o.lent, "get: use the bytes in place, without a copy");
  c.add_option("--dir", o.directory,
               "Directory for logs and the node's disk; default: a temporary one");
  c.add_option("--model", o.model, "ttft: GGUF file")
      ->envname("CAIRN_MODEL")
      ->capture_default_str();
  c.add_option("--prompt-file", o.prompt_file,
               "ttft: file with the prompt; default a built-in text");
  c.add_option("--tcp", o.tcp, "Also measure raw TCP with this congestion control, such as cubic");
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "A trial is dropped and repeated if other processes used more than a fifth of a core.\n"
      "GB is 1e9 bytes of blocks. Each ratio is the median of the ratios of the trials.\n"
      "Example:\n"
      "  cairn bench get --size 64KiB --batch 16 --depth 1 --path grpc\n"
      "  cairn bench put --json");
}

void AddReplay(CLI::App& app, ReplayFlags& o) {
  CLI::App& c =
      *app.add_subcommand("replay", "Replays a trace of requests against the placement of a node");
  c.add_option("trace", o.trace, "File with one request per line; -: standard input")->required();
  CLI::Option* const capacity =
      c.add_option("--capacity-tokens", o.capacity_tokens, "Room of the host tier, in tokens");
  c.add_option("--disk-tokens", o.disk_tokens, "Room of a disk tier, in tokens; 0: none")
      ->capture_default_str();
  c.add_option("--block-tokens", o.block_tokens, "Tokens of a block of the trace")
      ->check(CLI::Range(1u, 1u << 20))
      ->capture_default_str();
  c.add_option("--policy", o.policy,
               "Which block leaves first; optimum: the bound that knows the future")
      ->check(CLI::IsMember({"lru", "s3fifo", "gdsf", "cairn", kOptimum}))
      ->capture_default_str();
  c.add_option("--hints", o.hints,
               "Percent of the requests that say whether their conversation goes on")
      ->check(CLI::Range(0u, 100u))
      ->capture_default_str();
  CLI::Option* const nodes =
      c.add_option("--nodes", o.nodes,
                   "Replay on the nodes at these addresses, which have their own room and policy")
          ->delimiter(',')
          ->excludes(capacity);
  c.add_option("--block-bytes", o.block_bytes, "Bytes that a node gets for a block of the trace")
      ->needs(nodes)
      ->check(CLI::Range(uint64_t{128}, uint64_t{1} << 20))
      ->capture_default_str();
  AddTlsFlags(c, o.tls);
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "Examples:\n"
      "  cairn replay tests/data/traces/conversation_trace.jsonl --nodes 127.0.0.1:7400\n"
      "  cairn replay tests/data/traces/conversation_trace.jsonl --capacity-tokens 3000000 "
      "--policy cairn --json");
}

void AddSizeShape(CLI::App& c, SizeFlags& o) {
  const auto number = [&](const char* flag, uint32_t& value, uint32_t most, const char* help) {
    return c.add_option(flag, value, help)->check(CLI::Range(1u, most));
  };
  CLI::Option* const layers =
      number("--layers", o.layers, size::kMaxLayers, "Without MODEL: number of layers");
  number("--heads", o.heads, size::kMaxHeads, "Query heads of a layer")->needs(layers);
  number("--kv-heads", o.kv_heads, size::kMaxHeads, "KV heads of a layer; default: --heads")
      ->needs(layers);
  CLI::Option* const dim =
      number("--head-dim", o.head_dim, size::kMaxDim, "Numbers of a key")->needs(layers);
  number("--v-head-dim", o.v_head_dim, size::kMaxDim, "Numbers of a value; default: --head-dim")
      ->needs(layers);
  CLI::Option* const latent = number("--latent-dim", o.latent_dim, size::kMaxDim,
                                     "Instead of heads: numbers of the latent vector of MLA")
                                  ->needs(layers)
                                  ->excludes(dim);
  number("--rope-dim", o.rope_dim, size::kMaxDim, "With --latent-dim: numbers of its rotary key")
      ->needs(latent);
  number("--shared-layers", o.shared_layers, size::kMaxLayers,
         "So many last layers read the KV of others")
      ->needs(layers);
  CLI::Option* const window =
      number("--window", o.window, 1u << 30, "Tokens that sliding layers attend to")->needs(layers);
  c.add_option("--window-layers", o.window_layers, "How many layers slide; default: all")
      ->check(CLI::Range(0u, size::kMaxLayers))
      ->needs(window);
}

void AddSize(CLI::App& app, SizeFlags& o) {
  CLI::App& c = *app.add_subcommand("size", "Says what the KV of a model takes in a node");
  c.add_option("model", o.model, "GGUF file, config.json of transformers, or the folder with one");
  AddSizeShape(c, o);
  c.add_option("--dtype", o.dtype,
               "Type of the KV: f16, bf16, f32, f8e4m3, i8; default: the file's")
      ->check(CLI::IsMember({"f16", "bf16", "f32", "f8e4m3", "i8"}));
  c.add_option("--block-tokens", o.block_tokens, "Tokens of a block")
      ->check(CLI::IsMember({16u, 32u, 64u, 128u, 256u}))
      ->capture_default_str();
  c.add_option("--recipe", o.recipes,
               "How KV is stored, as in the worker's setting cache.recipe; may be given several "
               "times")
      ->capture_default_str();
  c.add_option("--context", o.context_tokens, "Tokens of a context; default: the model's own")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  c.add_option("--ram", o.ram, "Also say how many blocks fit into a host tier, such as 16GiB");
  c.add_option("--disk", o.disk, "Also say how many blocks fit into a disk tier, such as 1TiB");
  AddJson(c, o.json, "Print one JSON object");
  c.footer(
      "Examples:\n"
      "  cairn size m.gguf --recipe raw --recipe int8 --ram 16GiB\n"
      "  cairn size Llama-3.1-8B/config.json --context 131072\n"
      "  cairn size --layers 61 --latent-dim 512 --rope-dim 64 --dtype bf16 --recipe raw --json");
}

std::vector<CommandSpec> Describe(const CLI::App& app) {
  std::vector<CommandSpec> commands;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    CommandSpec spec{
        .name = sub->get_name(), .help = sub->get_description(), .options = {}, .arguments = {}};
    for (const CLI::Option* option : sub->get_options()) {
      // The arguments of replay and size are files.
      if (option->get_positional() && sub->get_name() != "replay" && sub->get_name() != "size") {
        spec.arguments = sub->get_name() == "bench"
                             ? bench::WorkloadNames()
                             : std::vector<std::string>{"bash", "zsh", "fish"};
      }
      if (option->get_lnames().empty()) continue;
      CommandSpec::Option o;
      o.name = "--" + option->get_lnames().front();
      o.help = option->get_description();
      o.takes_value = option->get_expected_max() > 0;
      if (o.name == "--path") o.values = {"auto", "grpc", "local"};
      if (o.name == "--arithmetic") o.values = {"fast", "float32"};
      spec.options.push_back(std::move(o));
    }
    for (const CLI::App* nested : sub->get_subcommands([](const CLI::App*) { return true; })) {
      spec.arguments.push_back(nested->get_name());
    }
    commands.push_back(std::move(spec));
  }
  return commands;
}

}  // namespace

int RunApp(int argc, char** argv) {
  CLI::App app("Cairn: a KV-cache service for LLM inference", "cairn");
  app.set_version_flag("--version",
                       std::string("cairn ") + CAIRN_VERSION + " (" + CAIRN_REVISION + ")");
  app.require_subcommand(1);
  app.footer(kEpilog);

  GenerateOptions generate;
  ChatOptions chat;
  StatOptions stat;
  ClusterCommands cluster;
  UpOptions up;
  DownOptions down;
  TopOptions top;
  DoctorOptions doctor;
  FidelityOptions fidelity;
  DemoOptions demo;
  ReplayFlags replay;
  SizeFlags size;
  bench::BenchFlags bench;
  std::string shell;
  AddGenerate(app, generate);
  AddChat(app, chat);
  AddStat(app, stat);
  AddCluster(app, cluster);
  AddUp(app, up);
  AddDown(app, down);
  AddTop(app, top);
  AddDoctor(app, doctor);
  AddFidelity(app, fidelity);
  AddDemo(app, demo);
  AddReplay(app, replay);
  AddSize(app, size);
  AddBench(app, bench);
  CLI::App* completion = app.add_subcommand("completion", "Prints a completion script for a shell");
  completion->add_option("shell", shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->footer("Example:\n  source <(cairn completion bash)");

  try {
    app.parse(argc, argv);
  } catch (const CLI::RequiredError& error) {
    // CLI11 only says that a command is missing, not which word it did not know.
    if (app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-') {
      return FailUsage(std::string("unknown command '") + argv[1] + "', see cairn --help");
    }
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  } catch (const CLI::ParseError& error) {
    // --help and --version end as CLI11's "errors" with code 0.
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }

  if (app.got_subcommand("generate")) {
    if (generate.prompt.empty() && generate.prompt_file.empty()) {
      return FailUsage("generate: give --prompt TEXT or --prompt-file FILE");
    }
    return RunGenerate(generate);
  }
  if (app.got_subcommand("chat")) return RunChat(chat);
  if (app.got_subcommand("stat")) return stat.cluster ? RunClusterStat(stat) : RunStat(stat);
  if (app.got_subcommand("cluster")) return RunCluster(*app.get_subcommand("cluster"), cluster);
  if (app.got_subcommand("up")) return RunUp(up);
  if (app.got_subcommand("down")) return RunDown(down);
  if (app.got_subcommand("top")) return RunTop(top);
  if (app.got_subcommand("doctor")) return RunDoctor(doctor);
  if (app.got_subcommand("fidelity")) return RunFidelity(fidelity);
  if (app.got_subcommand("demo")) return RunDemo(demo);
  if (app.got_subcommand("replay")) return RunReplay(replay);
  if (app.got_subcommand("size")) return RunSize(size);
  if (app.got_subcommand("bench")) return RunBench(bench);
  const auto script = CompletionScript(shell, "cairn", Describe(app));
  if (!script.ok()) return Fail(script.status());
  std::printf("%s", script->c_str());
  return kExitOk;
}

}  // namespace cairn::cli
