// The functions of the library. Names and types are NCCL's (common/link/nccl/functions.h).

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tests/support/fake_nccl/actions.h"
#include "tests/support/fake_nccl/communicator.h"
#include "tests/support/fake_nccl/control.h"

namespace cairn::link::fake {
namespace {

using nccl::Answer;
using nccl::CommHandle;

constexpr char kIdBegins[] = "fake NCCL ";

// All communicators, by handle.
struct All {
  std::mutex mu;
  std::map<CommHandle*, std::shared_ptr<FakeCommunicator>> communicators;
  uint64_t next = 1;
};

All& TheAll() {
  static auto* const all = new All;
  return *all;
}

std::shared_ptr<FakeCommunicator> Find(CommHandle* handle) {
  std::lock_guard lock(TheAll().mu);
  const auto it = TheAll().communicators.find(handle);
  if (it != TheAll().communicators.end()) return it->second;
  Actions::Get().Report("a communicator is used that does not exist");
  return nullptr;
}

// The group of this thread.
struct Group {
  int depth = 0;
  CommHandle* communicator = nullptr;
  void* stream = nullptr;
  std::vector<Operation> operations;
};
thread_local Group group;

// Adds an operation to the group of this thread, or makes one of it alone.
Answer Add(const char* name, const Operation& operation, CommHandle* handle, void* stream) {
  const Answer asked = Actions::Get().Enter(name);
  if (asked != Answer::kSuccess) return asked;
  const auto communicator = Find(handle);
  if (communicator == nullptr) return Answer::kInvalidArgument;
  const Answer may = communicator->MayCall(name);
  if (may != Answer::kSuccess) return may;
  if (group.depth == 0) return communicator->Begin({operation}, stream);
  if (group.communicator != nullptr && group.communicator != handle) {
    Actions::Get().Report("a group with two communicators, which the fake does not know");
    return Answer::kInvalidUsage;
  }
  group.communicator = handle;
  group.stream = stream;
  group.operations.push_back(operation);
  return Answer::kSuccess;
}

unsigned char* Bytes(const void* at) {
  return const_cast<unsigned char*>(static_cast<const unsigned char*>(at));
}

Answer CheckPeer(int32_t type, int32_t peer) {
  if (type == nccl::kUint8 && (peer == 0 || peer == 1)) return Answer::kSuccess;
  Actions::Get().Report("a type or peer that the fake does not know");
  return Answer::kInvalidArgument;
}

}  // namespace
}  // namespace cairn::link::fake

using cairn::link::fake::Actions;
using cairn::link::fake::Add;
using cairn::link::fake::Bytes;
using cairn::link::fake::CheckPeer;
using cairn::link::fake::Control;
using cairn::link::fake::FakeCommunicator;
using cairn::link::fake::Find;
using cairn::link::fake::group;
using cairn::link::fake::Group;
using cairn::link::fake::kIdBegins;
using cairn::link::fake::Meeting;
using cairn::link::fake::Operation;
using cairn::link::fake::TheAll;
namespace nccl = cairn::link::nccl;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT nccl::Answer ncclGetVersion(int32_t* version) {
  *version = Actions::Get().version();
  return nccl::Answer::kSuccess;
}

EXPORT nccl::Answer ncclGetUniqueId(nccl::UniqueIdBytes* id) {
  const nccl::Answer asked = Actions::Get().Enter("GetUniqueId");
  if (asked != nccl::Answer::kSuccess) return asked;
  const std::string name = Meeting::Create();
  if (name.empty()) return nccl::Answer::kSystemError;
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "%s%s", kIdBegins, name.c_str());
  return nccl::Answer::kSuccess;
}

EXPORT const char* ncclGetErrorString(nccl::Answer answer) {
  switch (answer) {
    case nccl::Answer::kSystemError:
      return "unhandled system error";
    case nccl::Answer::kInvalidArgument:
      return "invalid argument";
    case nccl::Answer::kInvalidUsage:
      return "invalid usage";
    case nccl::Answer::kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "another error";
  }
}

EXPORT nccl::Answer ncclCommInitRankConfig(nccl::CommHandle** handle, int32_t ranks,
                                           nccl::UniqueIdBytes id, int32_t rank,
                                           nccl::Config* config) {
  const nccl::Answer asked = Actions::Get().Enter("CommInitRankConfig");
  if (asked != nccl::Answer::kSuccess) return asked;
  if (config->size < sizeof(nccl::Config) || config->magic != 0xcafebeef || config->blocking != 0 ||
      config->version > static_cast<uint32_t>(Actions::Get().version())) {
    Actions::Get().Report("a configuration that is wrong, or not of a non-blocking communicator");
    return nccl::Answer::kInvalidArgument;
  }
  if (ranks != 2 || (rank != 0 && rank != 1) ||
      std::strncmp(id.internal, kIdBegins, sizeof(kIdBegins) - 1) != 0) {
    return nccl::Answer::kInvalidArgument;
  }
  id.internal[sizeof(id.internal) - 1] = '\0';
  auto meeting = Meeting::Enter(id.internal + sizeof(kIdBegins) - 1, rank);
  if (meeting == nullptr) return nccl::Answer::kSystemError;
  std::lock_guard lock(TheAll().mu);
  *handle = reinterpret_cast<nccl::CommHandle*>(TheAll().next++);
  TheAll().communicators.emplace(*handle, std::make_shared<FakeCommunicator>(std::move(meeting)));
  return nccl::Answer::kInProgress;
}

EXPORT nccl::Answer ncclCommGetAsyncError(nccl::CommHandle* handle, nccl::Answer* state) {
  const nccl::Answer asked = Actions::Get().Enter("CommGetAsyncError");
  if (asked != nccl::Answer::kSuccess) return asked;
  const auto communicator = Find(handle);
  if (communicator == nullptr) return nccl::Answer::kInvalidArgument;
  *state = communicator->State();
  return nccl::Answer::kSuccess;
}

EXPORT nccl::Answer ncclCommRevoke(nccl::CommHandle* handle, int32_t flags) {
  const nccl::Answer asked = Actions::Get().Enter("CommRevoke");
  if (asked != nccl::Answer::kSuccess) return asked;
  const auto communicator = Find(handle);
  if (communicator == nullptr || flags != 0) return nccl::Answer::kInvalidArgument;
  communicator->Revoke();
  return nccl::Answer::kSuccess;
}

EXPORT nccl::Answer ncclCommAbort(nccl::CommHandle* handle) {
  const nccl::Answer asked = Actions::Get().Enter("CommAbort");
  if (asked != nccl::Answer::kSuccess) return asked;
  const auto communicator = Find(handle);
  if (communicator == nullptr) return nccl::Answer::kInvalidArgument;
  communicator->Revoke();
  std::lock_guard lock(TheAll().mu);
  TheAll().communicators.erase(handle);
  return nccl::Answer::kSuccess;
}

EXPORT nccl::Answer ncclCommWindowRegister(nccl::CommHandle* handle, void* address, size_t bytes,
                                           nccl::WindowHandle** window, int32_t flags) {
  const nccl::Answer asked = Actions::Get().Enter("CommWindowRegister");
  if (asked != nccl::Answer::kSuccess) return asked;
  const auto communicator = Find(handle);
  if (communicator == nullptr) return nccl::Answer::kInvalidArgument;
  const nccl::Answer may = communicator->MayCall("CommWindowRegister");
  return may != nccl::Answer::kSuccess ? may
                                       : communicator->Register(address, bytes, flags, window);
}

EXPORT nccl::Answer ncclGroupStart() {
  const nccl::Answer asked = Actions::Get().Enter("GroupStart");
  if (asked == nccl::Answer::kSuccess) ++group.depth;
  return asked;
}

EXPORT nccl::Answer ncclGroupEnd() {
  if (group.depth == 0) {
    Actions::Get().Report("a group ends that has not begun");
    return nccl::Answer::kInvalidUsage;
  }
  if (--group.depth > 0) return nccl::Answer::kSuccess;
  const Group ended = std::exchange(group, {});
  const nccl::Answer asked = Actions::Get().Enter("GroupEnd");
  if (asked != nccl::Answer::kSuccess || ended.operations.empty()) return asked;
  const auto communicator = Find(ended.communicator);
  return communicator == nullptr ? nccl::Answer::kInvalidArgument
                                 : communicator->Begin(ended.operations, ended.stream);
}

EXPORT nccl::Answer ncclSend(const void* from, size_t count, int32_t type, int32_t peer,
                             nccl::CommHandle* handle, void* stream) {
  const nccl::Answer fits = CheckPeer(type, peer);
  if (fits != nccl::Answer::kSuccess) return fits;
  return Add("Send", {.kind = Operation::kSend, .at = Bytes(from), .bytes = count}, handle, stream);
}

EXPORT nccl::Answer ncclRecv(void* to, size_t count, int32_t type, int32_t peer,
                             nccl::CommHandle* handle, void* stream) {
  const nccl::Answer fits = CheckPeer(type, peer);
  if (fits != nccl::Answer::kSuccess) return fits;
  return Add("Recv", {.kind = Operation::kReceive, .at = Bytes(to), .bytes = count}, handle,
             stream);
}

EXPORT nccl::Answer ncclPutSignal(const void* from, size_t count, int32_t type, int32_t peer,
                                  nccl::WindowHandle* window, size_t offset, int32_t signal,
                                  int32_t context, uint32_t flags, nccl::CommHandle* handle,
                                  void* stream) {
  nccl::Answer fits = CheckPeer(type, peer);
  if (signal != 0 || context != 0 || flags != 0) fits = nccl::Answer::kInvalidArgument;
  if (fits != nccl::Answer::kSuccess) return fits;
  Operation put{.kind = Operation::kPut, .at = Bytes(from), .bytes = count, .offset = offset};
  const auto communicator = Find(handle);
  if (communicator == nullptr) return nccl::Answer::kInvalidArgument;
  fits = communicator->CheckPut(put, window, &put.window);
  return fits != nccl::Answer::kSuccess ? fits : Add("PutSignal", put, handle, stream);
}

EXPORT nccl::Answer ncclWaitSignal(int32_t descriptions, nccl::WaitDescription* description,
                                   nccl::CommHandle* handle, void* stream) {
  if (descriptions != 1 || description->signal != 0 || description->context != 0) {
    return nccl::Answer::kInvalidArgument;
  }
  return Add("WaitSignal",
             {.kind = Operation::kWait, .signals = static_cast<uint64_t>(description->operations)},
             handle, stream);
}

EXPORT const Control* cairn_fake_nccl_control() {
  static const Control control{
      .reset = [](const char* options) { Actions::Get().Reset(options); },
      .take_reports =
          [](char* buffer, uint64_t bytes) {
            std::snprintf(buffer, bytes, "%s", Actions::Get().TakeReports().c_str());
          },
      .communicators =
          [] {
            std::lock_guard lock(TheAll().mu);
            return static_cast<uint64_t>(TheAll().communicators.size());
          },
      .calls = [](const char* name) { return Actions::Get().Calls(name); }};
  return &control;
}
