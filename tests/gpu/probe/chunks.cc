// One chunk of a device's memory in two processes, as a cache node lends it to a client.

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cairn/common/clock.h"
#include "cairn/common/hash.h"
#include "cairn/kernels/batch/slice_table.h"
#include "protocol/shm/socket.h"
#include "tests/gpu/probe/probes.h"
#include "tests/gpu/probe/rows.h"
#include "tests/support/process.h"

namespace cairn::gpu {
namespace {

using kernels::HashRun;
using kernels::batch::SliceTable;
using shm::Descriptor;

constexpr int kRank = 120;
constexpr std::chrono::seconds kPatience(60);

// The words of the first process: which bytes, and what it has just done.
enum class Word : uint32_t { kHere = 1, kReleased = 2, kVerified = 3 };
struct Message {
  Word word = Word::kHere;
  uint32_t unused = 0;
  uint64_t bytes = 0;
};

// A memfd in this process.
class Mapping {
 public:
  Mapping(int fd, uint64_t bytes, int protection) : bytes_(bytes) {
    void* const at = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) at_ = static_cast<std::byte*>(at);
  }
  ~Mapping() {
    if (at_ != nullptr) munmap(at_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  bool ok() const { return at_ != nullptr; }
  std::span<std::byte> bytes() const { return {at_, bytes_}; }

 private:
  std::byte* at_ = nullptr;
  const uint64_t bytes_;
};

void FillPattern(std::span<std::byte> bytes) {
  uint64_t state = 0x9e3779b97f4a7c15;
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    std::memcpy(bytes.data() + i, &state, 8);
  }
}

void PrintCheck(int rank, const std::string& what) {
  Print({.rank = rank, .what = what, .value = 1, .unit = "ok"});
}

Status SendWord(int socket, const Message& message, std::span<const int> descriptors = {}) {
  return shm::Send(socket, shm::AsBytes(message), descriptors);
}
Result<std::pair<Message, std::vector<Descriptor>>> ReceiveWord(int socket, Word expected) {
  CAIRN_ASSIGN_OR_RETURN(shm::Received received,
                         shm::ReceiveBy(socket, SteadyClock::Get().Now() + kPatience));
  if (received.message.size() != sizeof(Message)) {
    return Errorf(StatusCode::kUnavailable, "the other process ended: got {} bytes of a message",
                  received.message.size());
  }
  Message message;
  std::memcpy(&message, received.message.data(), sizeof(message));
  if (message.word != expected) {
    return Errorf(StatusCode::kInternal, "got message {}, expected {}",
                  static_cast<uint32_t>(message.word), static_cast<uint32_t>(expected));
  }
  return std::pair(message, std::move(received.descriptors));
}

// Whether the chunk holds these bytes, by a copy to pinned memory. Gives its rate back.
Result<double> Compare(Bench* bench, const std::string& when, uint64_t chunk,
                       std::span<const std::byte> expected, std::span<std::byte> pinned) {
  const device::CopyTask task{
      .to = reinterpret_cast<uint64_t>(pinned.data()), .from = chunk, .bytes = expected.size()};
  CAIRN_ASSIGN_OR_RETURN(const double seconds, bench->Time([&] {
    return bench->stream().Copy("the chunk to the host", {&task, 1});
  }));
  const auto [at, _] = std::ranges::mismatch(expected, pinned);
  if (at == expected.end()) return static_cast<double>(expected.size()) / seconds;
  return Errorf(StatusCode::kDataLoss, "{}: byte {} of the chunk is wrong", when,
                at - expected.begin());
}

// The device's own hash of the chunk is the host's, and a byte that is changed is noticed.
Status CheckHash(Bench* bench, uint64_t chunk, std::span<const std::byte> bytes) {
  CAIRN_ASSIGN_OR_RETURN(const SliceTable* const table,
                         bench->FindTable<SliceTable>(kernels::batch::kSliceTableName,
                                                      kernels::batch::kSliceTableVersion));
  if (table == nullptr) {
    PrintSkipped(kRank + 3, "hash of a chunk on the device", "the library has no table of slices");
    return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(uint32_t* const faults, bench->Upload(std::vector<uint32_t>{0, 0}));
  // The emulation hashes some MB a second.
  const uint64_t length = bench->tiny() ? 4096 : bytes.size();
  const auto hash = [&](uint32_t* fault) -> Status {
    const HashRun run{.in = reinterpret_cast<const std::byte*>(chunk),
                      .bytes = length,
                      .hash = nullptr,
                      .faults = fault,
                      .expected = Xxh3(bytes.first(length))};
    const int error = table->hash_runs(bench->stream().native(), {&run, 1});
    if (error != 0) return Errorf(StatusCode::kInternal, "hash_runs: launch error {}", error);
    return bench->Synchronize();
  };
  CAIRN_RETURN_IF_ERROR(hash(faults));
  const auto wrong = static_cast<uint8_t>(static_cast<uint8_t>(bytes[length / 2]) ^ 4);
  CAIRN_RETURN_IF_ERROR(
      bench->Move(chunk + length / 2, reinterpret_cast<uint64_t>(&wrong), sizeof(wrong)));
  CAIRN_RETURN_IF_ERROR(hash(faults + 1));
  CAIRN_RETURN_IF_ERROR(bench->Move(chunk + length / 2,
                                    reinterpret_cast<uint64_t>(&bytes[length / 2]), sizeof(wrong)));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<uint32_t> found, bench->Download(faults, 2));
  if (found[0] != 0 || found[1] != kernels::kHashFault) {
    return Errorf(StatusCode::kDataLoss,
                  "hashes of a right and of a wrong chunk: got faults {} and {}, expected 0 and {}",
                  found[0], found[1], kernels::kHashFault);
  }
  PrintCheck(kRank + 3, "a reader's device hashes a chunk, and notices a flipped bit");
  return OkStatus();
}

// The client's mapping of a segment is read-only, which not every device pins.
Status CheckReadOnlyPinning(Bench* bench, std::span<const std::byte> bytes,
                            std::span<std::byte> pinned) {
  constexpr char kWhat[] = "a reader pins its read-only mapping of a segment, and copies from it";
  auto registration = bench->device()->Register(bytes, /*read_only=*/true);
  if (!registration.ok()) {
    PrintSkipped(kRank + 4, kWhat, cairn::Message(registration.status()));
    return OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(const uint64_t at, bench->Allocate(bytes.size()));
  CAIRN_RETURN_IF_ERROR(bench->Move(at, reinterpret_cast<uint64_t>(bytes.data()), bytes.size()));
  CAIRN_RETURN_IF_ERROR(Compare(bench, "from a read-only mapping", at, bytes, pinned).status());
  PrintCheck(kRank + 4, kWhat);
  return OkStatus();
}

// The first process.
class Lender {
 public:
  Lender(const ProbeOptions& options, Bench* bench) : options_(options), bench_(*bench) {
    bytes_ = bench->tiny() ? 1 << 20 : 64 << 20;
  }

  Status Run() {
    const Status status = RunSteps();
    if (status.ok() || reader_ == nullptr) return status;
    reader_->Kill();
    return Errorf(status.code(), "{}; the reader said: {}", cairn::Message(status), reader_->err());
  }

 private:
  std::span<const std::byte> segment() const { return mapping_->bytes(); }

  Status RunSteps() {
    CAIRN_RETURN_IF_ERROR(FillChunk());
    CAIRN_RETURN_IF_ERROR(StartReader());
    CAIRN_RETURN_IF_ERROR(ReceiveWord(socket_.get(), Word::kVerified).status());
    // Memory that the reader has mapped lives on without its maker.
    chunk_.Release();
    CAIRN_RETURN_IF_ERROR(SendWord(socket_.get(), {.word = Word::kReleased, .bytes = bytes_}));
    CAIRN_RETURN_IF_ERROR(ReceiveWord(socket_.get(), Word::kVerified).status());
    PrintCheck(kRank + 5, "a chunk lives on in its reader when its maker lets go of it");
    CAIRN_ASSIGN_OR_RETURN(chunk_, bench_.device()->Import(exported_.get(), bytes_));
    reader_->Kill();
    CAIRN_RETURN_IF_ERROR(
        Compare(&bench_, "after the reader's end", chunk_.address(), segment(), pinned_).status());
    PrintCheck(kRank + 6, "a reader that is killed while it has a chunk leaves it as it is");
    std::fputs(reader_->out().c_str(), stdout);
    return OkStatus();
  }

  Status FillChunk() {
    memfd_ = Descriptor(memfd_create("cairn-gpu-probe", MFD_CLOEXEC));
    if (!memfd_.valid() || ftruncate(memfd_.get(), static_cast<off_t>(bytes_)) != 0) {
      return Errorf(StatusCode::kInternal, "no memfd of {} bytes", bytes_);
    }
    mapping_.emplace(memfd_.get(), bytes_, PROT_READ | PROT_WRITE);
    if (!mapping_->ok()) return Errorf(StatusCode::kInternal, "the memfd cannot be mapped");
    FillPattern(mapping_->bytes());
    CAIRN_ASSIGN_OR_RETURN(pinned_, bench_.AllocatePinned(bytes_));
    CAIRN_ASSIGN_OR_RETURN(chunk_, bench_.device()->Allocate(bytes_, /*exportable=*/true));
    if (chunk_.bytes() != bytes_) {
      return Errorf(StatusCode::kInternal, "the device made {} bytes of {}", chunk_.bytes(),
                    bytes_);
    }
    auto registration = bench_.device()->Register(segment(), /*read_only=*/false);
    if (!registration.ok()) {
      PrintSkipped(kRank + 1, "a pinned segment into a chunk",
                   cairn::Message(registration.status()));
    }
    const device::CopyTask task{.to = chunk_.address(),
                                .from = reinterpret_cast<uint64_t>(segment().data()),
                                .bytes = bytes_};
    CAIRN_ASSIGN_OR_RETURN(const double seconds, bench_.Time([&] {
      return bench_.stream().Copy("a segment into a chunk", {&task, 1});
    }));
    if (registration.ok()) {
      Print({.rank = kRank + 1,
             .what = "a pinned segment into a chunk",
             .value = static_cast<double>(bytes_) / seconds / 1e9,
             .unit = "GB/s"});
    }
    CAIRN_ASSIGN_OR_RETURN(const int descriptor, chunk_.Export());
    exported_ = Descriptor(descriptor);
    return OkStatus();
  }

  Status StartReader() {
    int ends[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) {
      return Errorf(StatusCode::kInternal, "no pair of sockets");
    }
    socket_ = Descriptor(ends[0]);
    const Descriptor theirs(ends[1]);
    testing::Process::Options process;
    process.argv = {"/proc/self/exe",        "read-chunk", "--socket",
                    std::to_string(ends[1]), "--device",   std::to_string(options_.ordinal)};
    if (!options_.library.empty()) {
      process.argv.insert(process.argv.end(), {"--library", options_.library});
    }
    if (options_.tiny) process.argv.push_back("--tiny");
    CAIRN_ASSIGN_OR_RETURN(reader_, testing::Process::Start(process));
    const int descriptors[] = {exported_.get(), memfd_.get()};
    return SendWord(socket_.get(), {.word = Word::kHere, .bytes = bytes_}, descriptors);
  }

  const ProbeOptions& options_;
  Bench& bench_;
  uint64_t bytes_ = 0;
  Descriptor memfd_, exported_, socket_;
  std::optional<Mapping> mapping_;
  std::span<std::byte> pinned_;
  device::DeviceMemory chunk_;
  std::unique_ptr<testing::Process> reader_;
};

}  // namespace

Status ProbeChunks(const ProbeOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  if (!bench->device()->info().exports) {
    PrintSkipped(kRank, "chunks across two processes", "the device cannot export memory");
    return OkStatus();
  }
  return Lender(options, bench.get()).Run();
}

Status ReadChunk(const ProbeOptions& options, int socket) {
  const Descriptor ours(socket);
  CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Open(options));
  CAIRN_ASSIGN_OR_RETURN(const auto said, ReceiveWord(socket, Word::kHere));
  const auto& [message, descriptors] = said;
  if (descriptors.size() != 2) {
    return Errorf(StatusCode::kInternal, "got {} descriptors, expected 2", descriptors.size());
  }
  const Mapping segment(descriptors[1].get(), message.bytes, PROT_READ);
  if (!segment.ok()) return Errorf(StatusCode::kInternal, "the segment cannot be mapped");
  CAIRN_ASSIGN_OR_RETURN(const std::span<std::byte> pinned, bench->AllocatePinned(message.bytes));
  CAIRN_ASSIGN_OR_RETURN(const device::DeviceMemory chunk,
                         bench->device()->Import(descriptors[0].get(), message.bytes));
  CAIRN_ASSIGN_OR_RETURN(const double rate, Compare(bench.get(), "at first", chunk.address(),
                                                    segment.bytes(), pinned));
  Print({.rank = kRank + 2,
         .what = "another process's chunk to the host",
         .value = rate / 1e9,
         .unit = "GB/s"});
  CAIRN_RETURN_IF_ERROR(CheckHash(bench.get(), chunk.address(), segment.bytes()));
  CAIRN_RETURN_IF_ERROR(CheckReadOnlyPinning(bench.get(), segment.bytes(), pinned));
  CAIRN_RETURN_IF_ERROR(SendWord(socket, {.word = Word::kVerified}));
  CAIRN_RETURN_IF_ERROR(ReceiveWord(socket, Word::kReleased).status());
  CAIRN_RETURN_IF_ERROR(
      Compare(bench.get(), "after its maker let go of it", chunk.address(), segment.bytes(), pinned)
          .status());
  CAIRN_RETURN_IF_ERROR(SendWord(socket, {.word = Word::kVerified}));
  // Until the other process kills this one, or ends.
  return ReceiveWord(socket, Word::kReleased).status();
}

}  // namespace cairn::gpu
