// Every row of tests/data/error_table.tsv: a wrong input, and which code, field and value the
// answer must have. The table was taken from the programs of commit e3c9ab9, so that error texts
// may get clearer but never lose what they name. Its first lines say how a row is written.

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <cctype>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "cairn/v1/worker.pb.h"
#include "common/status/matchers.h"
#include "tests/integration/cli_support.h"
#include "tests/integration/node_client.h"
#include "tests/integration/worker_support.h"

namespace cairn::testing {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;

constexpr char kTable[] = "tests/data/error_table.tsv";
// So that a table that could not be read, or lost its rows, does not pass.
constexpr size_t kLeastRows = 150;

struct Row {
  int line = 0;
  std::string surface, input, code, field, value;
};

struct Answer {
  std::string code, message;
};

std::vector<std::string> Split(const std::string& text, const std::string& separator) {
  std::vector<std::string> out;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos;
       begin = end + separator.size()) {
    out.push_back(text.substr(begin, end - begin));
  }
  out.push_back(text.substr(begin));
  return out;
}

// The rows, and the table's own words: lines "= name<tab>text".
struct Table {
  std::vector<Row> rows;
  std::map<std::string, std::string> words;
};

Table ReadTable() {
  Table table;
  std::ifstream in(kTable);
  EXPECT_TRUE(in.good()) << kTable;
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> cells = Split(line, "\t");
    if (line.rfind("= ", 0) == 0) {
      EXPECT_EQ(cells.size(), 2u) << kTable << ":" << number;
      if (cells.size() == 2) table.words[cells[0].substr(2)] = cells[1];
      continue;
    }
    EXPECT_EQ(cells.size(), 5u) << kTable << ":" << number;
    if (cells.size() != 5) continue;
    EXPECT_FALSE(cells[3].empty()) << kTable << ":" << number << ": a row names a field";
    table.rows.push_back({number, cells[0], cells[1], cells[2], cells[3], cells[4]});
  }
  EXPECT_GE(table.rows.size(), kLeastRows);
  return table;
}

// For the text format of messages, inside quotes.
std::string Escape(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("\\{:03o}", static_cast<unsigned char>(c));
  return out;
}

std::string Repeat(const std::string& text) {
  const size_t space = text.find(' ');
  std::string out;
  for (int i = std::stoi(text.substr(0, space)); i > 0; --i) out += text.substr(space + 1);
  return out;
}

// Words ("$name") first, then repetitions ("$(4 text)"), which do not nest.
std::string Expand(std::string text, const std::map<std::string, std::string>& words) {
  for (size_t at = 0; (at = text.find('$', at)) != std::string::npos;) {
    size_t end = at + 1;
    while (end < text.size() &&
           (std::islower(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) {
      ++end;
    }
    const auto word = words.find(text.substr(at + 1, end - at - 1));
    if (word == words.end()) {
      EXPECT_TRUE(end == at + 1) << "unknown word in: " << text;
      at = end;
      continue;
    }
    text.replace(at, end - at, word->second);
  }
  for (size_t at; (at = text.find("$(")) != std::string::npos;) {
    const size_t end = text.find(")$", at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "no end of $( in: " << text;
      break;
    }
    text.replace(at, end + 2 - at, Repeat(text.substr(at + 2, end - at - 2)));
  }
  return text;
}

// Not as a piece of a longer word or number: 17 is not in 170.
bool Names(const std::string& message, const std::string& what) {
  const auto joins = [](char a, char b) {
    return std::isalnum(static_cast<unsigned char>(a)) != 0 &&
           std::isalnum(static_cast<unsigned char>(b)) != 0;
  };
  for (size_t at = 0; (at = message.find(what, at)) != std::string::npos; ++at) {
    const size_t end = at + what.size();
    const bool left = at == 0 || what.empty() || !joins(message[at - 1], what.front());
    const bool right = end == message.size() || what.empty() || !joins(what.back(), message[end]);
    if (left && right) return true;
  }
  return false;
}

void ExpectAnswer(const Row& row, const Answer& answer) {
  const std::string where = fmt::format("{}:{}: {} {}\nanswer: {} {}", kTable, row.line,
                                        row.surface, row.input, answer.code, answer.message);
  EXPECT_EQ(answer.code, row.code) << where;
  EXPECT_TRUE(Names(answer.message, row.field)) << "does not name " << row.field << "\n" << where;
  EXPECT_TRUE(Names(answer.message, row.value)) << "does not name " << row.value << "\n" << where;
}

std::string CodeName(int code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

// The first part that was refused: Reserve, Commit and Push answer for each part.
std::optional<Answer> RefusedPart(const Message& response) {
  const auto* const reflection = response.GetReflection();
  for (const char* name : {"results", "committed"}) {
    const auto* const field = response.GetDescriptor()->FindFieldByName(name);
    if (field == nullptr) continue;
    for (int i = 0; i < reflection->FieldSize(response, field); ++i) {
      const auto& part =
          dynamic_cast<const v1::PartResult&>(reflection->GetRepeatedMessage(response, field, i));
      if (part.code() != 0) return Answer{CodeName(static_cast<int>(part.code())), part.message()};
    }
  }
  return std::nullopt;
}

// A call of any kind with these messages, in the text format, and what it says at its end.
Answer Call(const std::shared_ptr<grpc::Channel>& channel, const MethodDescriptor& method,
            const std::vector<std::string>& inputs) {
  MessageFactory* const factory = MessageFactory::generated_factory();
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  grpc::CompletionQueue queue;
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  void* const tag = nullptr;
  const auto call =
      stub.PrepareCall(&context, "/" + method.service()->full_name() + "/" + method.name(), &queue);
  call->StartCall(tag);
  bool open = done();
  for (const std::string& input : inputs) {
    const std::unique_ptr<Message> request(factory->GetPrototype(method.input_type())->New());
    EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(input, request.get())) << input;
    const grpc::Slice slice(request->SerializeAsString());
    if (!open) continue;  // The service has already answered.
    call->Write(grpc::ByteBuffer(&slice, 1), tag);
    open = done();
  }
  if (open) {
    call->WritesDone(tag);
    done();
  }
  std::optional<Answer> refused;
  for (;;) {
    grpc::ByteBuffer bytes;
    call->Read(&bytes, tag);
    if (!done()) break;
    grpc::Slice slice;
    EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
    const std::unique_ptr<Message> response(factory->GetPrototype(method.output_type())->New());
    EXPECT_TRUE(response->ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
    if (!refused) refused = RefusedPart(*response);
  }
  grpc::Status status;
  call->Finish(&status, tag);
  done();
  if (status.ok() && refused) return *refused;
  return {CodeName(status.error_code()), status.error_message()};
}

// Runs the rows whose surface begins with `prefix`, which a method's name follows.
void RunCalls(const Table& table, const std::string& prefix, const std::string& address,
              std::map<std::string, std::string> words) {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  words.insert(table.words.begin(), table.words.end());
  size_t rows = 0;
  for (const Row& row : table.rows) {
    if (row.surface.rfind(prefix, 0) != 0) continue;
    ++rows;
    const std::string service = prefix.substr(prefix.find(' ') + 1);
    const MethodDescriptor* const method = DescriptorPool::generated_pool()->FindMethodByName(
        "cairn.v1." + service + row.surface.substr(prefix.size()));
    ASSERT_NE(method, nullptr) << kTable << ":" << row.line << ": " << row.surface;
    ExpectAnswer(row, Call(channel, *method, Split(Expand(row.input, words), " ;; ")));
  }
  EXPECT_GT(rows, 0u) << prefix;
}

NamespaceSpec NativeSpec() {
  NamespaceSpec spec = NodeClient::Spec("t", "native");
  const std::vector<Plane> planes = {{"k", 2, 8, DType::kF16}, {"v", 2, 8, DType::kF16}};
  spec.layout.form = NativeLayout{.groups = {{.count = 4, .planes = planes}}, .kv_heads = 2};
  return spec;
}

// The names that rows may use, of a node that holds one block, under a lease, and two reservations.
// `has_native`: it has room for a second namespace of the tenant.
std::map<std::string, std::string> Fill(NodeClient* client, bool has_native = true) {
  const std::string opaque = client->Open(NodeClient::Spec());
  EXPECT_TRUE(client->Store(opaque, 0).ok());
  const std::string native = has_native ? client->Open(NativeSpec()) : "";
  const uint64_t lease = client->Match(opaque, 1, 600'000).lease_id();
  const uint64_t reserved = client->Reserve(opaque, 5, 600'000);
  const uint64_t garbage = client->Reserve(opaque, 6, 600'000);
  EXPECT_TRUE(lease != 0 && reserved != 0 && garbage != 0);
  v1::PushFrame frame;
  frame.set_session_id(client->session());
  v1::PushFrame::Piece* const piece = frame.add_pieces();
  piece->set_reservation_id(garbage);
  piece->set_data(std::string(1000, 'g'));
  grpc::ClientContext context;
  v1::PushResponse response;
  const auto writer = client->cache().Push(&context, &response);
  EXPECT_TRUE(writer->Write(frame) && writer->WritesDone() && writer->Finish().ok());
  return {{"session", Escape(client->session())},
          {"opaque", Escape(opaque)},
          {"native", Escape(native)},
          {"stored_key", Escape(NodeClient::Key(0))},
          {"lease", std::to_string(lease)},
          {"reserved", std::to_string(reserved)},
          {"garbage", std::to_string(garbage)}};
}

TEST(ErrorTableTest, CallsOfANode) {
  const Table table = ReadTable();
  const auto node = CacheNode::Start({});
  ASSERT_OK(node);
  NodeClient client((*node)->address());
  const auto words = Fill(&client);
  RunCalls(table, "Cache.", (*node)->address(), words);
  RunCalls(table, "Admin.", (*node)->address(), words);
}

TEST(ErrorTableTest, CallsOfANodeWithLowLimits) {
  const Table table = ReadTable();
  const auto node = CacheNode::Start({"--limits.sessions", "1", "--limits.leases_per_session", "1",
                                      "--limits.namespaces", "2", "--limits.reserved", "64KiB"});
  ASSERT_OK(node);
  NodeClient client((*node)->address());
  RunCalls(table, "low Cache.", (*node)->address(), Fill(&client, /*has_native=*/false));
}

TEST(ErrorTableTest, CallsOfAWorker) {
  const auto worker = WorkerProcess::Start("", {"--model", kTinyModel});
  ASSERT_OK(worker);
  RunCalls(ReadTable(), "Worker.", (*worker)->address(), {});
}

// Arguments are divided by spaces. @text@ becomes the path of a file with this text, where '_' is a
// space and '/' ends a line.
std::vector<std::string> Arguments(const std::string& input, const std::string& directory) {
  std::vector<std::string> out;
  for (std::string word : Split(input, " ")) {
    if (word.empty()) continue;
    if (word.size() > 1 && word.front() == '@' && word.back() == '@') {
      const std::string path = directory + "/file.yaml";
      std::ofstream file(path);
      for (const char c : word.substr(1, word.size() - 2)) {
        file << (c == '_' ? ' ' : c == '/' ? '\n' : c);
      }
      word = path;
    }
    out.push_back(word == "''" ? "" : word);
  }
  return out;
}

TEST(ErrorTableTest, CommandLines) {
  const Table table = ReadTable();
  const TemporaryDirectory directory;
  std::map<std::string, size_t> rows{{"cairn", 0}, {"cairn-cache", 0}, {"cairn-worker", 0}};
  for (const Row& row : table.rows) {
    const auto program = rows.find(row.surface);
    if (program == rows.end()) continue;
    ++program->second;
    std::vector<std::string> argv = Arguments(Expand(row.input, table.words), directory.path());
    argv.insert(argv.begin(), Binary(row.surface));
    const CommandResult result = RunProcess(std::move(argv), std::chrono::seconds(120));
    ExpectAnswer(row, {fmt::format("exit {}", result.code), result.err});
  }
  for (const auto& [program, count] : rows) EXPECT_GT(count, 0u) << program;
}

// A call that takes anything can be given something wrong, and the table has an example of it.
TEST(ErrorTableTest, EveryCallWithFieldsHasARow) {
  std::set<std::string> seen;
  for (const Row& row : ReadTable().rows) seen.insert(row.surface);
  const MethodDescriptor* method = nullptr;
  for (const char* name : {"cairn.v1.Cache", "cairn.v1.Admin", "cairn.v1.Worker"}) {
    const auto* const service = DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      method = service->method(i);
      // Tokenize takes any text.
      if (method->input_type()->field_count() == 0 || method->name() == "Tokenize") continue;
      EXPECT_EQ(seen.count(service->name() + "." + method->name()), 1u) << method->full_name();
    }
  }
}

}  // namespace
}  // namespace cairn::testing
