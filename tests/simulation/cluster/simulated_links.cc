#include "tests/simulation/cluster/simulated_links.h"

#include <algorithm>
#include <utility>

#include "tests/simulation/cluster/cluster_world.h"
#include "tests/simulation/cluster/process.h"

namespace cairn::testing {
namespace {

// Kinds of packets, in the trace.
enum Kind : int { kHello = 1, kAnnounce, kBumps, kFind, kMatch, kRead, kPiece, kAnswer };

// How often a sender tries again over a link that is cut.
constexpr Duration kResend = std::chrono::milliseconds(200);
// How often a holder looks whether a block has come from its disk.
constexpr Duration kLook = std::chrono::milliseconds(1);

Status Late() { return Errorf(StatusCode::kDeadlineExceeded, "no answer came in time"); }
Status Refused() { return Errorf(StatusCode::kUnavailable, "nobody listens there"); }

}  // namespace

void SimulatedLinks::Stop() {
  ended_ = true;
  // Callbacks may call again, which does nothing now.
  while (!calls_.empty()) (void)calls_.extract(calls_.begin());
}

void SimulatedLinks::Broken(size_t machine, uint64_t life) {
  std::vector<uint64_t> broken;
  for (const auto& [id, call] : calls_) {
    if (call.machine == machine && call.life == life) broken.push_back(id);
  }
  for (const uint64_t id : broken) {
    Fail(id, Errorf(StatusCode::kUnavailable, "the connection broke"));
  }
}

const std::string* SimulatedLinks::AddressOf(const std::string& member) const {
  const auto it = addresses_.find(member);
  return it == addresses_.end() ? nullptr : &it->second;
}

void SimulatedLinks::Fail(uint64_t id, const Status& status) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;
  const Call call = std::move(it->second);
  calls_.erase(it);
  call.fail(status);
}

uint64_t SimulatedLinks::Begin(const std::string& address, int kind, TimePoint deadline,
                               Call call) {
  if (world_.in_host()) world_.Wrong("a call of a member caused a call to another member");
  const uint64_t id = next_++;
  call.machine = ClusterWorld::MachineAt(address);
  call.life = world_.life(call.machine);
  world_.Note(static_cast<uint64_t>(kind), self_.options().machine, call.machine);
  calls_.emplace(id, std::move(call));
  // A read is watched more closely.
  if (kind != kRead) self_.Later(deadline, [this, id] { Fail(id, Late()); });
  return id;
}

template <typename Answer>
void SimulatedLinks::Answered(uint64_t id, Answer answer) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;
  const Call call = std::move(it->second);
  calls_.erase(it);
  (*static_cast<std::function<void(Answer)>*>(call.answer.get()))(std::move(answer));
}

template <typename Answer>
void SimulatedLinks::Ask(const std::string& address, int kind, TimePoint deadline,
                         std::function<Answer(Process&)> serve, std::function<void(Answer)> done) {
  if (ended_) return;
  const auto answer = std::make_shared<std::function<void(Answer)>>(std::move(done));
  const uint64_t id = Begin(
      address, kind, deadline,
      {.fail = [answer](const Status& status) { (*answer)(Answer(status)); }, .answer = answer});
  const size_t from = self_.options().machine, to = ClusterWorld::MachineAt(address);
  const uint64_t life = self_.options().life;
  ClusterWorld& world = world_;
  const auto reply = [&world, from, to, life, id](Answer value) {
    const auto back = world.network().Travel(to, from);
    if (!back) return;
    world.agenda().At(
        world.Now() + *back, [&world, from, to, life, id, value = std::move(value)]() mutable {
          Process* const caller = world.process(from, life);
          if (caller == nullptr) return;
          caller->Enter([&world, caller, from, to, id, value = std::move(value)]() mutable {
            world.Note(kAnswer, to, from, id);
            caller->links().Answered<Answer>(id, std::move(value));
          });
        });
  };
  const int copies = world.network().Duplicates() ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    const auto there = world.network().Travel(from, to);
    if (!there) continue;
    world.agenda().At(world.Now() + *there, [&world, to, serve, reply] {
      Process* const callee = world.process(to);
      if (callee == nullptr) return reply(Answer(Refused()));
      callee->Enter([&world, callee, serve, reply] {
        world.EnterHost();
        Answer value = serve(*callee);
        world.LeaveHost();
        reply(std::move(value));
      });
    });
  }
}

void SimulatedLinks::Hello(const std::string& address, const cache::PeerHello& hello,
                           TimePoint deadline, HelloDone done) {
  ++counts_.hellos;
  Ask<Result<cache::PeerHelloAnswer>>(
      address, kHello, deadline,
      [hello](Process& callee) -> Result<cache::PeerHelloAnswer> {
        return callee.cluster().host().Hello(hello);
      },
      std::move(done));
}

void SimulatedLinks::Announce(const std::string& member, const cache::Announcement& message,
                              TimePoint deadline, AnnounceDone done) {
  const std::string* const address = AddressOf(member);
  if (address == nullptr) return done(Refused());
  ++counts_.announces;
  counts_.announced_waymarks += message.size();
  const auto shared = std::make_shared<const cache::Announcement>(message);
  Ask<Status>(
      *address, kAnnounce, deadline,
      [shared, caller = self_.cluster().self().caller](Process& callee) {
        return callee.cluster().host().Announce(caller, *shared);
      },
      std::move(done));
}

void SimulatedLinks::ExchangeBumps(const std::string& member, const cache::BumpPage& page,
                                   TimePoint deadline, BumpsDone done) {
  const std::string* const address = AddressOf(member);
  if (address == nullptr) return done(Refused());
  ++counts_.bumps;
  Ask<Result<cache::BumpPage>>(
      *address, kBumps, deadline,
      [page, caller = self_.cluster().self().caller](Process& callee) {
        return callee.cluster().host().ExchangeBumps(caller, page);
      },
      std::move(done));
}

void SimulatedLinks::Find(const std::string& member,
                          const std::vector<cache::WaymarkHash>& waymarks,
                          const cache::Patience& patience, FindDone done) {
  const std::string* const address = AddressOf(member);
  if (address == nullptr) return done(Refused());
  ++counts_.finds;
  Ask<Result<cache::FoundHolders>>(
      *address, kFind, patience.deadline,
      [waymarks, caller = self_.cluster().self().caller](Process& callee) {
        return callee.cluster().host().Find(caller, waymarks);
      },
      std::move(done));
}

void SimulatedLinks::Match(const std::string& member, const cache::PeerNamespace& ns,
                           std::span<const BlockKey> keys, cache::PeerLease lease,
                           const cache::Patience& patience, MatchDone done) {
  const std::string* const address = AddressOf(member);
  if (address == nullptr) return done(Refused());
  ++counts_.matches;
  Ask<Result<cache::PeerMatch>>(
      *address, kMatch, patience.deadline,
      [ns, lease, keys = std::vector<BlockKey>(keys.begin(), keys.end()),
       caller = self_.cluster().self().caller](Process& callee) {
        return callee.cluster().host().Match(caller, ns, keys, lease);
      },
      std::move(done));
}

void SimulatedLinks::Read(const std::string& member, const cache::PeerNamespace& ns,
                          const BlockKey& key, cache::PeerBytes /*bytes*/,
                          const cache::Patience& patience, Duration silence, cache::BlockSink* sink,
                          ReadDone done) {
  if (ended_) return;
  const std::string* const address = AddressOf(member);
  if (address == nullptr) return done(Refused(), {});
  ++counts_.reads;
  const TimePoint deadline = patience.deadline;
  const auto answer = std::make_shared<ReadDone>(std::move(done));
  const uint64_t id = Begin(*address, kRead, deadline,
                            {.fail = [answer](const Status& status) { (*answer)(status, {}); },
                             .answer = answer,
                             .sink = sink,
                             .silence = silence,
                             .heard = self_.clock().Now()});
  WatchSilence(id, deadline);
  const size_t from = self_.options().machine, to = ClusterWorld::MachineAt(*address);
  const uint64_t life = self_.options().life;
  ClusterWorld& world = world_;
  const auto there = world.network().Travel(from, to);
  if (!there) return;
  const TimePoint ends = self_.clock().ToWorld(deadline);
  world.agenda().At(world.Now() + *there, [&world, from, life, to, id, ns, key, ends,
                                           caller = self_.cluster().self().caller] {
    Process* const holder = world.process(to);
    if (holder == nullptr) {
      return Tell(world, to, from, life,
                  [id](SimulatedLinks& links) { links.EndRead(id, Refused(), {}); });
    }
    holder->Enter([&world, holder, from, life, id, ns, key, ends, caller] {
      Serve(world, *holder, caller,
            {.reader = from, .reader_life = life, .call = id, .deadline = ends}, ns, key);
    });
  });
}

// Something small comes back to the caller, unless it is lost.
void SimulatedLinks::Tell(ClusterWorld& world, size_t from, size_t to, uint64_t life,
                          std::function<void(SimulatedLinks&)> what) {
  const auto back = world.network().Travel(from, to);
  if (!back) return;
  world.agenda().At(world.Now() + *back, [&world, from, to, life, what = std::move(what)] {
    Process* const caller = world.process(to, life);
    if (caller == nullptr) return;
    caller->Enter([&world, caller, from, to, what] {
      world.Note(kAnswer, from, to);
      what(caller->links());
    });
  });
}

void SimulatedLinks::Serve(ClusterWorld& world, Process& holder, const cache::PeerCaller& caller,
                           Serving serving, const cache::PeerNamespace& ns, const BlockKey& key) {
  std::vector<std::string> others;
  world.EnterHost();
  auto read = holder.cluster().host().BeginRead(caller, ns, key, &others);
  world.LeaveHost();
  if (!read.ok()) return Refuse(world, holder, serving, read.status(), {});
  if (*read == nullptr) {
    return Refuse(world, holder, serving,
                  Errorf(StatusCode::kResourceExhausted, "too many take the block"), others);
  }
  serving.read = *std::move(read);
  const uint64_t number = holder.NextServing();
  holder.serving()[number] = std::move(serving);
  WaitForBlock(world, holder.options().machine, holder.options().life, number);
}

void SimulatedLinks::Refuse(ClusterWorld& world, const Process& holder, const Serving& serving,
                            const Status& status, const std::vector<std::string>& others) {
  Tell(world, holder.options().machine, serving.reader, serving.reader_life,
       [id = serving.call, status, others](SimulatedLinks& links) {
         links.EndRead(id, status, {.others = others});
       });
}

void SimulatedLinks::WaitForBlock(ClusterWorld& world, size_t machine, uint64_t life,
                                  uint64_t number) {
  Process* const holder = world.process(machine, life);
  if (holder == nullptr) return;
  const auto it = holder->serving().find(number);
  if (it == holder->serving().end()) return;
  Serving& serving = it->second;
  if (IsOver(world, *holder, serving)) {
    holder->serving().erase(it);
    return;
  }
  world.EnterHost();
  Result<cache::StoredBlock> block = serving.read->block().Next(TimePoint::min());
  world.LeaveHost();
  if (block.ok()) {
    serving.block = *std::move(block);
    for (const auto& part : serving.block.bytes) serving.bytes += part.size();
    return SendPiece(world, machine, life, number);
  }
  if (block.status().code() == StatusCode::kDeadlineExceeded) {
    return holder->Later(holder->clock().Now() + kLook, [&world, machine, life, number] {
      WaitForBlock(world, machine, life, number);
    });
  }
  Refuse(world, *holder, serving, block.status(), {});
  holder->serving().erase(it);
}

// The deadline goes with the call. A reader that gave up, or died, says so if it can.
bool SimulatedLinks::IsOver(ClusterWorld& world, const Process& holder, const Serving& serving) {
  Process* const reader = world.process(serving.reader, serving.reader_life);
  const bool heard = !world.network().IsCut(serving.reader, holder.options().machine);
  const bool gone =
      reader == nullptr || (!reader->paused() && !reader->links().calls_.contains(serving.call));
  return world.Now() >= serving.deadline || (gone && heard);
}

void SimulatedLinks::SendPiece(ClusterWorld& world, size_t machine, uint64_t life,
                               uint64_t number) {
  Process* const holder = world.process(machine, life);
  if (holder == nullptr) return;
  const auto it = holder->serving().find(number);
  if (it == holder->serving().end()) return;
  Serving& serving = it->second;
  const auto again = [&](TimePoint when) {
    world.agenda().At(when, [&world, machine, life, number] {
      Process* const sender = world.process(machine, life);
      if (sender == nullptr) return;
      sender->Enter([&world, machine, life, number] { SendPiece(world, machine, life, number); });
    });
  };
  if (IsOver(world, *holder, serving)) {
    holder->serving().erase(it);
    return;
  }
  if (world.network().IsCut(machine, serving.reader)) return again(world.Now() + kResend);
  const uint64_t size = std::min(world.options().piece_bytes, serving.bytes - serving.sent);
  const auto passage = world.network().Send(machine, serving.reader, size);
  const uint64_t begin = std::exchange(serving.sent, serving.sent + size);
  const bool last = serving.sent == serving.bytes;
  const auto piece = std::make_shared<Piece>(CopyPiece(serving.block, begin, size));
  if (holder->lies && size > 0) piece->bytes.front() ^= std::byte{1};
  world.agenda().At(passage.arrived, [&world, machine, to = serving.reader,
                                      to_life = serving.reader_life, call = serving.call, piece] {
    Process* const there = world.process(to, to_life);
    if (there == nullptr) return;
    there->Enter([&world, there, machine, to, call, piece] {
      world.Note(kPiece, machine, to, piece->bytes.size());
      there->links().Arrived(call, *piece);
    });
  });
  holder->cluster().host().CountSent(size);
  if (!last) return again(passage.sent);
  serving.read->SetTaken();
  // It takes its place until the last byte is on its way.
  world.agenda().At(passage.sent, [&world, machine, life, number] {
    if (Process* const sender = world.process(machine, life)) sender->serving().erase(number);
  });
}

SimulatedLinks::Piece SimulatedLinks::CopyPiece(const cache::StoredBlock& block, uint64_t begin,
                                                uint64_t size) {
  Piece piece{.block = block, .begin = begin, .bytes = {}};
  piece.bytes.reserve(size);
  uint64_t part_begin = 0;
  for (const auto& part : block.bytes) {
    const uint64_t from = std::clamp(begin, part_begin, part_begin + part.size()) - part_begin;
    const uint64_t to = std::clamp(begin + size, part_begin, part_begin + part.size()) - part_begin;
    piece.bytes.insert(piece.bytes.end(), part.begin() + from, part.begin() + to);
    part_begin += part.size();
  }
  return piece;
}

void SimulatedLinks::Arrived(uint64_t id, const Piece& piece) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;
  Call& call = it->second;
  call.heard = self_.clock().Now();
  if (piece.begin == 0) {
    auto room = call.sink->Begin(piece.block);
    if (!room.ok()) return EndRead(id, room.status(), {});
    call.room = *std::move(room);
  }
  // The parts follow each other on the way.
  const uint64_t end = piece.begin + piece.bytes.size();
  uint64_t part_begin = 0;
  for (size_t part = 0; part < piece.block.parts.size(); ++part) {
    const uint64_t part_end = part_begin + piece.block.parts[part].bytes;
    for (uint64_t at = std::max(piece.begin, part_begin); at < std::min(end, part_end); ++at) {
      call.room[part][at - part_begin] = piece.bytes[at - piece.begin];
    }
    part_begin = part_end;
  }
  if (end < part_begin) return;
  EndRead(id, call.sink->Finish(), {});
}

void SimulatedLinks::EndRead(uint64_t id, const Status& status, cache::PeerReadAnswer answer) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;
  const Call call = std::move(it->second);
  calls_.erase(it);
  (*static_cast<ReadDone*>(call.answer.get()))(status, std::move(answer));
}

void SimulatedLinks::WatchSilence(uint64_t id, TimePoint deadline) {
  const auto it = calls_.find(id);
  if (it == calls_.end()) return;
  const TimePoint ends = std::min(deadline, it->second.heard + it->second.silence);
  const TimePoint now = self_.clock().Now();
  if (now >= ends) {
    return EndRead(id, Late(), {.silent = now >= it->second.heard + it->second.silence});
  }
  self_.Later(ends, [this, id, deadline] { WatchSilence(id, deadline); });
}

}  // namespace cairn::testing
